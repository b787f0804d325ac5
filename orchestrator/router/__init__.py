"""The router: messages from the streams, validated, authorised and acted upon by type."""

from __future__ import annotations

from orchestrator.router.build import build_router
from orchestrator.router.service import Handled, Router

__all__ = ["Handled", "Router", "build_router"]
