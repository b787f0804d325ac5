"""Transitions: what each step of a script changed in the ledger, as the audit trail keeps them.

Entries that were read together are one row, compressed: a run costs the trail little beside its messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

from pydantic import Field, TypeAdapter

from orchestrator.envelope import payload
from orchestrator.errors import PayloadError
from orchestrator.streams import Entry

#: Octets of the entries of a row, decompressed: more than what a writer reads at once can have.
_MOST: Final = 1 << 30
#: The end of the year 9999.
_LATEST_MS: Final = 253_402_300_799_999
#: The second word of a line.
_SESSION: Final = re.compile(r"^\w+ (ses_[0-9a-f]{26}) ", re.MULTILINE)


class Step(NamedTuple):
    """An entry: what one step of a script changed, a line for each thing."""

    entry_id: Annotated[str, Field(pattern=r"^[0-9]{1,20}-[0-9]{1,20}$")]
    #: The script.
    by: str
    changes: str

    @classmethod
    def of(cls, entry: Entry) -> Step:
        """Return the step in an entry of a stream of transitions."""
        return cls(entry.id, *next(iter(entry.extra.items()), ("", "")))


_STEPS: Final = TypeAdapter(list[Step])


class Transition(NamedTuple):
    """A change of one thing."""

    #: When.
    at_ms: int
    #: The stream of that step.
    stream: str
    #: Its entry there; what has the same was changed at once.
    entry_id: str
    #: The step of the ledger that made it.
    by: str
    #: Session, run, callback, item, step, budget or approval.
    kind: str
    #: Its session.
    session: str
    #: Its id; '-': the session itself.
    id: str
    #: The state that it has from then on.
    state: str
    #: What else is known of it.
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsRecord:
    """The steps of one stream that are written together, oldest first."""

    stream: str
    steps: Sequence[Step]
    received_ms: int

    @property
    def document(self) -> bytes:
        """The steps as they are stored."""
        return pack(self.steps)


def pack(steps: Sequence[Step]) -> bytes:
    """Steps as a document: a JSON list of [entry id, script, changes], compressed with zstd."""
    return payload.compress(_STEPS.dump_json(list(steps)))


def unpack(document: bytes) -> list[Step]:
    """Return the steps that :func:`pack` packed; empty if somebody has changed the document, which `audit verify`
    names.
    """
    try:
        return _STEPS.validate_json(payload.inflate(document, limit=_MOST))
    except (PayloadError, ValueError):
        return []


def transitions_of(stream: str, step: Step) -> Iterator[Transition]:
    """Yield the changes that a step made, in their order."""
    at_ms = ms_of(step.entry_id)
    for line in step.changes.split("\n"):
        words = line.split(" ", 4)
        yield Transition(at_ms, stream, step.entry_id, step.by, *words, *[""] * (5 - len(words)))


def sessions_in(steps: Sequence[Step]) -> set[str]:
    """Return the sessions whose changes the steps are."""
    return {session for step in steps for session in _SESSION.findall(step.changes)}


def ms_of(entry_id: str) -> int:
    """Return the time in the id of an entry; the last of the calendar if its author chose a later one."""
    return min(int(entry_id.partition("-")[0]), _LATEST_MS)


def order_of(entry_id: str) -> tuple[int, int]:
    """Return the key by which ids of entries are ordered."""
    ms, _, number = entry_id.partition("-")
    return int(ms), int(number or 0)
