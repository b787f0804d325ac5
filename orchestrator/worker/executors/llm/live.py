"""The text of a model agent while it is written."""

from __future__ import annotations

from typing import Any


def handler() -> Any:
    """What consumes the events of a run; None: nobody watches."""
    return None
