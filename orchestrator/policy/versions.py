"""What a new version of an agent's definition means for the sessions that an earlier one began.

The pinned runs of one version are ready runs of their own: of a lane, which bears the agent's name and the version.
"""

from __future__ import annotations

from typing import Final, Literal

#: What becomes of a session whose agent has another version than it began with: any worker goes on with it; only a
#: worker that has its version takes it; it fails.
OnDeploy = Literal["latest", "pin", "refuse"]

#: What a version may be, as its author writes it.
VERSION_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}"

#: No name of an agent has it.
_AT: Final = "@"


def lane_of(agent: str, version: str) -> str:
    """The name of an agent's ready runs that wait for one version; without a version, of those that wait for any."""
    return f"{agent}{_AT}{version}" if version else agent


def split_lane(lane: str) -> tuple[str, str]:
    """The agent and the version of a lane; the version is empty where any will do."""
    agent, _, version = lane.partition(_AT)
    return agent, version


def lane_queue(lane: str) -> str:
    """The Celery queue that rings workers for a lane; only workers with that version read it."""
    return f"orchestra.{lane}"
