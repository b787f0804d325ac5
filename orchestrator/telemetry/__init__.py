"""Telemetry: what a stack tells those who watch it. Metrics for Prometheus need the extra `metrics`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.telemetry.exporter import Exporter, exposition, registry_of
    from orchestrator.telemetry.server import MetricsServer

__all__ = ["Exporter", "MetricsServer", "exposition", "registry_of"]


def __getattr__(name: str) -> Any:
    """Import on first use: the catalogue needs no library."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "MetricsServer":
        from orchestrator.telemetry.server import MetricsServer

        return MetricsServer
    from orchestrator.telemetry import exporter

    return getattr(exporter, name)
