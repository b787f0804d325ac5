"""Statements: claims that the ledger stores, in the canonical form in which they are attested.

A statement is an item of a session's queue, or a session's end, which is the item that its parent gets; the task of a
session; or what an agent keeps for itself: saved state, memory, steps. The place of an item (its state, its position
in the queue, the run that carries it) belongs to the ledger, and is not part of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

from orchestrator.ids import callback_id
from orchestrator.ledger.model import Item, Session
from orchestrator.ledger.sealing import as_kept

#: Stands before every statement, so that nothing else that is signed passes for one.
_DOMAIN: Final = b"agent-orchestra statement 1\n"
#: What of an item's record is vouched for.
_NAMES: Final = ("kind", "child", "agent", "status", "title", "context", "answers", "message")
_FLAGS: Final = ("question", "sealed")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
#: The id of the statement that is a session's task.
TASK: Final = "task"


class Statement(NamedTuple):
    """Claims of an item, of a session's end, of a task, or of an agent's own record."""

    id: str  #: of the item
    to: str  #: the session in whose queue it is; empty: a root's end
    kind: str
    agent: str  #: the agent that is said to say it; empty: a user
    failed: bool  #: whether it says that something has failed
    text: str  #: as the ledger has it: of a large one the beginning
    facts: tuple[str, ...]  #: what its record says that is vouched for, in a fixed order

    @classmethod
    def of_record(cls, item: str, to: str, record: Mapping[str, Any], text: str) -> Statement:
        """Return the statement of an item with this record and text."""
        get = record.get
        facts = [_fact(get(name)) for name in _NAMES]
        facts += ["1" if get(name) else "" for name in _FLAGS]
        whole = get("whole")
        facts.append(_reference(whole) if whole else "")
        if attached := get("attachments"):
            named = {name: _reference(ref) for name, ref in attached.items()}
            facts.append(json.dumps(named, sort_keys=True))
        if body := _fact(get("body")):
            facts.append(body)
        return cls(
            id=item,
            to=to,
            kind=facts[0],
            agent=facts[2],
            failed=facts[3] == "failed",
            text=as_kept(text),
            facts=tuple(facts),
        )

    @classmethod
    def of_item(cls, to: str, item: Item, text: str) -> Statement:
        """Return the statement of an item as the ledger has it."""
        about = {
            **item.extra,
            "kind": item.kind,
            "child": item.child,
            "agent": item.agent,
            "status": item.status,
            "title": item.title,
        }
        return cls.of_record(item.id, to, about, text)

    @classmethod
    def of_end(
        cls,
        session: Session,
        status: str,
        text: str,
        whole: Mapping[str, Any] | None = None,
        attachments: Mapping[str, Any] | None = None,
        *,
        message: str = "",
        body: str = "",
    ) -> Statement:
        """Return the statement of a session's end: its answer with attachments, or with the status `failed` the
        reason.

        ``message`` is the id of the envelope that reports it, and ``body`` what that says beside the text, as JSON.
        """
        about = {
            "kind": "completion",
            "child": session.id,
            "agent": session.agent,
            "status": status,
            "title": session.title,
            "whole": whole,
            "attachments": attachments,
            "message": message,
            "body": body,
        }
        return cls.of_record(callback_id(session.id), session.parent, about, text)

    @classmethod
    def of_task(cls, session: str, facts: Mapping[str, Any], prompt: str, task: str) -> Statement:
        """Return the statement of the task of a session with these fields: its prompt, and its other parts as JSON."""
        about = {name: facts.get(name) for name in ("title", "message", "sealed")}
        return cls.of_record(
            TASK,
            session,
            {**about, "kind": "prompt", "context": task, "question": facts.get("planned")},
            prompt,
        )

    @classmethod
    def of_own(cls, what: str, owner: str, agent: str, text: str, *, about: str = "") -> Statement:
        """Return the statement of an agent's own record: ``what`` it is, and the session or run that has it."""
        return cls.of_record(what, owner, {"kind": "own", "agent": agent, "context": about}, text)

    def octets(self) -> bytes:
        """Return the bytes to attest: the digest of the text, then every other part after its length."""
        parts = "".join([f"{len(part)}:{part}" for part in (self.id, self.to, *self.facts)])
        # BLAKE2 is a part of Python, and begins quicker than what has to be fetched from OpenSSL.
        return _DOMAIN + hashlib.blake2b(_octets(self.text), digest_size=32).digest() + _octets(parts)


def _fact(value: object) -> str:
    return as_kept(value) if isinstance(value, str) else str(value or "")


def _reference(ref: Mapping[str, Any]) -> str:
    """A reference to a large text, digest and all."""
    return json.dumps({name: str(value) for name, value in ref.items()}, sort_keys=True)


def _octets(text: str) -> bytes:
    # What the scripts are handed has no lone surrogates.
    return (text if text.isascii() else _SURROGATE.sub("\ufffd", text)).encode()


class Vouch(Protocol):
    """Makes the proof of a statement, for the agent ``to`` and the operator; empty if it cannot.

    ``by`` says it; where it is empty, the system does.
    """

    def __call__(self, statement: Statement, *, by: str, to: str) -> str: ...
