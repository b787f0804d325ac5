"""The text of a session while it is written: a short stream beside the ledger, which nothing depends on.

Entries are in order, and each has a position: who reads on from the last one that arrived misses nothing that is still
kept. The stream is trimmed and expires; the answer of the session does neither.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import redis

from orchestrator.errors import InputError
from orchestrator.ledger import decode
from orchestrator.ledger.large_text import Seal, Seals
from orchestrator.redisdb import ledger_keys

#: Entries that are kept of one session, about.
KEPT: Final = 10_000
#: Seconds that the stream lives after its last entry.
TTL_S: Final = 3600
#: Entries of one read.
_PAGE: Final = 500
_POSITION: Final = re.compile(r"\d{1,20}-\d{1,20}", re.ASCII)

Kind = Literal["begin", "text", "call", "result", "replaced"]


@dataclass(frozen=True, kw_only=True)
class LiveEvent:
    """A piece of the text that a session is writing."""

    #: Where it is; `--after` reads on behind it.
    position: str
    #: `begin`: an answer of the model begins; `text`: more of it; `call`, `result`: of a tool; `replaced`: the
    #: run is tried again, and what came since `since` is void.
    kind: Kind
    #: The run that writes it.
    run: str
    #: Of `text`: the piece; of `result`: its beginning.
    text: str = ""
    #: Of `call` and `result`: the tool.
    tool: str = ""
    #: Of `replaced`: the position of the first piece that is void.
    since: str = ""


@dataclass(frozen=True)
class Earlier:
    """Answers and tool calls that earlier tries of a run began to write."""

    begun: Mapping[str, str]  #: number of an answer → where it began last
    calls: frozenset[tuple[str, str]]  #: `call` or `result`, and the id of the tool call


class LiveText:
    """Live text of sessions."""

    def __init__(self, client: redis.Redis, seals: Seals | None = None) -> None:
        self._client = client
        self._seals = seals or Seals()

    def write(self, session: str, run: str, kind: Kind, *, seal: Seal | None = None, **facts: str) -> str:
        """Add an event; its position. With a ``seal`` its text is sealed.

        Raises:
            KeyringError: a reader of the ``seal`` has no key.
            redis.RedisError: it could not be written.
        """
        key = ledger_keys.live(session)
        if text := facts.get("text"):
            facts["text"] = self._seals.write(text, seal)
        pipeline = self._client.pipeline(transaction=False)
        # A provider may send half of a surrogate pair, which no encoding has.
        fit = {name: value.encode(errors="replace") for name, value in facts.items()}
        entry: dict[Any, Any] = {"kind": kind, "run": run, **fit}
        pipeline.xadd(key, entry, maxlen=KEPT, approximate=True)
        pipeline.expire(key, TTL_S)
        return decode.text(pipeline.execute()[0])

    def begin(self, session: str, run: str, number: int, *, earlier: Earlier | None) -> None:
        """Note that the run's ``number``-th answer of the model begins. ``earlier``: what earlier tries of the run
        wrote.

        Raises:
            redis.RedisError: it could not be written.
        """
        since = earlier.begun.get(str(number), "") if earlier is not None else ""
        if since:
            self.write(session, run, "replaced", since=since)
        self.write(session, run, "begin", number=str(number))

    def earlier(self, session: str, run: str) -> Earlier:
        """Return the answers and tool calls that earlier tries of a run wrote, as far as they are kept.

        Raises:
            redis.RedisError: it could not be read.
        """
        entries: Any = self._client.xrange(ledger_keys.live(session), count=KEPT + KEPT // 2)
        begun: dict[str, str] = {}
        calls: set[tuple[str, str]] = set()
        for entry, fields in entries:
            found = {decode.text(name): decode.text(value) for name, value in fields.items()}
            if found.get("run") != run:
                continue
            if found.get("kind") == "begin":
                begun[found.get("number", "")] = decode.text(entry)
            elif found.get("kind") in ("call", "result"):
                calls.add((found["kind"], found.get("call", "")))
        return Earlier(begun=begun, calls=frozenset(calls))

    def read(self, session: str, after: str = "", *, wait_s: float = 0) -> list[LiveEvent]:
        """Events after a position (empty: from the first that is kept), waiting so long for one.

        Raises:
            InputError: the position is none.
            redis.RedisError: the server does not answer.
        """
        if after and not _POSITION.fullmatch(after):
            raise InputError(
                f"{after!r} is no position of a live text; give the position of an event, such as 1-0"
            )
        block = round(wait_s * 1000) or None
        answer: Any = self._client.xread(
            {ledger_keys.live(session): after or "0-0"}, count=_PAGE, block=block
        )
        return [self._event(decode.text(entry), fields) for _, page in answer or () for entry, fields in page]

    def _event(self, position: str, fields: dict[bytes, bytes]) -> LiveEvent:
        found: dict[str, Any] = {decode.text(name): decode.text(value) for name, value in fields.items()}
        return LiveEvent(
            position=position,
            kind=found.get("kind", "text"),
            run=found.get("run", ""),
            text=self._seals.read(found.get("text", "")),
            tool=found.get("tool", ""),
            since=found.get("since", ""),
        )
