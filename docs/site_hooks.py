"""Hooks of the site: its navigation is the list of pages in `pages.py`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from pages import navigation


def on_config(config: Any) -> Any:
    """Give the site its navigation; mkdocs warns of a page that is missing in it."""
    config.nav = navigation()
    return config
