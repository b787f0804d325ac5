"""The text of a session while it is written: a short stream beside the ledger, which nothing depends on.

Entries are in order, and each has a position: who reads on from the last one that arrived misses nothing that is still
kept. The stream is trimmed and expires; the answer of the session does neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import redis

from orchestrator.ledger import decode
from orchestrator.redisdb import keys

#: Entries that are kept of one session, about.
KEPT: Final = 10_000
#: Seconds that the stream lives after its last entry.
TTL_S: Final = 3600
#: Entries of one read.
_PAGE: Final = 500

Kind = Literal["begin", "text", "call", "result", "replaced"]


@dataclass(frozen=True, kw_only=True)
class LiveEvent:
    """One piece of what a session is writing."""

    position: str  #: reads on after this event
    #: `begin`: an answer of the model begins; `text`: more of it; `call`, `result`: of a tool; `replaced`: what came
    #: since the position `since` is void, because its run is tried again.
    kind: Kind
    run: str
    text: str = ""
    tool: str = ""
    since: str = ""


class LiveText:
    """Live text of sessions."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def write(self, session: str, run: str, kind: Kind, **facts: str) -> str:
        """Add an event; its position.

        Raises:
            redis.RedisError: it could not be written.
        """
        key = keys.live(session)
        pipeline = self._client.pipeline(transaction=False)
        entry: dict[Any, Any] = {"kind": kind, "run": run, **facts}
        pipeline.xadd(key, entry, maxlen=KEPT, approximate=True)
        pipeline.expire(key, TTL_S)
        return decode.text(pipeline.execute()[0])

    def begin(self, session: str, run: str, number: int, *, again: bool) -> None:
        """An answer of the model begins: the run's ``number``-th. ``again``: the run was tried before.

        Raises:
            redis.RedisError: it could not be written.
        """
        if again:
            since = self._begun(session, run, number)
            if since:
                self.write(session, run, "replaced", since=since)
        self.write(session, run, "begin", number=str(number))

    def _begun(self, session: str, run: str, number: int) -> str:
        """Where an earlier try of the run began the same answer; empty if it did not, or that is not kept."""
        for entry, fields in reversed(list(self._entries(session, "-"))):
            found = {decode.text(name): decode.text(value) for name, value in fields.items()}
            if (found.get("kind"), found.get("run"), found.get("number")) == ("begin", run, str(number)):
                return entry
        return ""

    def _entries(self, session: str, first: str) -> Iterator[tuple[str, dict[bytes, bytes]]]:
        entries: Any = self._client.xrange(keys.live(session), min=first, count=KEPT)
        for entry, fields in entries:
            yield decode.text(entry), fields

    def read(self, session: str, after: str = "", *, wait_s: float = 0) -> list[LiveEvent]:
        """Events after a position (empty: from the first that is kept), waiting so long for one.

        Raises:
            redis.RedisError: the server does not answer.
        """
        block = round(wait_s * 1000) or None
        answer: Any = self._client.xread({keys.live(session): after or "0-0"}, count=_PAGE, block=block)
        return [_event(decode.text(entry), fields) for _, page in answer or () for entry, fields in page]


def _event(position: str, fields: dict[bytes, bytes]) -> LiveEvent:
    found: dict[str, Any] = {decode.text(name): decode.text(value) for name, value in fields.items()}
    return LiveEvent(
        position=position,
        kind=found.get("kind", "text"),
        run=found.get("run", ""),
        text=found.get("text", ""),
        tool=found.get("tool", ""),
        since=found.get("since", ""),
    )
