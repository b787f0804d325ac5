"""The web console: what needs a person, sessions, trees, and what to do about them. `app` is an ASGI application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    app: ASGIApp

__all__ = ["app"]


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from orchestrator.console.application import make_app

    globals()["app"] = made = make_app()
    return made
