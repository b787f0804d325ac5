"""Work of external programs: the mark of a message that no router has taken, and a run that a program has in hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.redisdb import keys
from orchestrator.redisdb.key_table import in_its_shard

if TYPE_CHECKING:
    from tests.kit import Kit

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


def outside(kit: Kit, seed: str = "root") -> str:
    """A session at work in the hands of an external program."""
    session = kit.given(seed)
    dispatch = kit.start(session)
    assert dispatch is not None
    assert kit.ledger.take_external(dispatch)
    return session
