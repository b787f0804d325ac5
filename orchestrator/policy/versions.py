"""Policies for sessions whose agent has got a new version of its definition since they began."""

from __future__ import annotations

from typing import Final, Literal

#: What becomes of a session whose agent has another version than it began with: any worker goes on with it; it fails.
OnDeploy = Literal["latest", "refuse"]

#: What a version may be, as its author writes it.
VERSION_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}"
