"""The queue that the bundled agents share."""

from __future__ import annotations

from typing import Final

BUNDLED_QUEUE: Final = "orchestra.bundled"
