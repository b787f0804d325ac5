"""The bundled agents: ``lead`` reviews a source tree with the help of ``reviewer``. No model, no key needed."""

from __future__ import annotations

from orchestrator.demo import lead, reviewer

__all__ = ["lead", "reviewer"]
