"""What somebody says into the ledger, in the form that is vouched for.

A statement is an item of a session's queue, or a session's end, which is the item that its parent gets. Where an item
stands (its state, its place in the queue, the run that carries it) is the ledger's own, and not part of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from orchestrator.ids import callback_id
from orchestrator.ledger.model import Item, Session, SessionState

#: Stands before every statement, so that nothing else that is signed passes for one.
_DOMAIN: Final = b"agent-orchestra statement 1\n"
#: What an item says beside its text, its kind and who says it.
_MORE: Final = ("status", "title", "context", "answers", "message")
_CANONICAL: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement."""

    id: str  #: of the item
    to: str  #: the session in whose queue it is; empty: a root's end
    kind: str
    speaker: str  #: the session that says it; empty: none does
    agent: str  #: the agent that is said to say it; empty: a user
    text: str  #: as the ledger has it: of a large one the beginning
    more: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_record(cls, item: str, to: str, record: Mapping[str, Any], text: str) -> Statement:
        """What an item with this record and text says."""
        more: dict[str, Any] = {name: str(record[name]) for name in _MORE if record.get(name)}
        more |= {name: True for name in ("question", "sealed") if record.get(name)}
        if whole := record.get("whole"):
            more["whole"] = {name: str(whole[name]) for name in sorted(whole)}
        return cls(
            id=item,
            to=to,
            kind=str(record.get("kind", "")),
            speaker=str(record.get("child", "")),
            agent=str(record.get("agent", "")),
            text=text,
            more=more,
        )

    @classmethod
    def of_item(cls, to: str, item: Item, text: str) -> Statement:
        """What an item says that the ledger has."""
        about = {
            "kind": item.kind,
            "child": item.child,
            "agent": item.agent,
            "status": item.status,
            "title": item.title,
        }
        return cls.of_record(item.id, to, {**item.extra, **about}, text)

    @classmethod
    def of_end(
        cls, session: Session, status: str, text: str, whole: Mapping[str, Any] | None = None
    ) -> Statement:
        """The end of a session: its answer, or with the status `failed` the reason."""
        about = {
            "kind": "completion",
            "child": session.id,
            "agent": session.agent,
            "status": status,
            "title": session.title,
            "whole": whole,
        }
        return cls.of_record(callback_id(session.id), session.parent, about, text)

    @property
    def failed(self) -> bool:
        """Whether it says that something has failed."""
        return self.more.get("status") == SessionState.FAILED

    def octets(self) -> bytes:
        """What is vouched for."""
        facts = [self.id, self.to, self.kind, self.speaker, self.agent, self.more]
        digest = hashlib.sha256(_fit(self.text).encode()).digest()
        return _DOMAIN + digest + _CANONICAL.encode(facts).encode()


class Vouch(Protocol):
    """Makes the proof of a statement, for the agent ``to`` and the operator; empty if it cannot.

    ``by`` says it; where it is empty, the system does.
    """

    def __call__(self, statement: Statement, *, by: str, to: str) -> str: ...


def _fit(text: str) -> str:
    # What the scripts are handed has no lone surrogates.
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)
