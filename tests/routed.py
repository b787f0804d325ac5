"""What a script is asked for about a message that no router has taken."""

from __future__ import annotations

from orchestrator.redisdb import keys
from orchestrator.redisdb.key_table import in_its_shard

HOUR_MS = 3_600_000


def mark(message: str, kind: str = "message", *, conversation: str = "c") -> dict[str, str | int]:
    """Return the mark of a message of a program that stands first in its stream."""
    return {
        "seen": in_its_shard(keys.seen(0, "program", message)),
        "stream": f"msg:{kind}:high",
        "conversation": f"conversation:{conversation}",
        "group": "router",
        "entry": "1-1",
        "digest": "d",
        "mark_ms": HOUR_MS,
        "keep_ms": HOUR_MS,
    }
