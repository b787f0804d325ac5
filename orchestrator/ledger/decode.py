"""Redis replies of the ledger turned into its values.

A damaged session is still shown and can be stopped, so it is read as far as it can be. A damaged run or item is
refused: an agent must not act on a part of one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast, get_args, get_type_hints

from orchestrator.errors import DamagedRecord
from orchestrator.ids import callback_id
from orchestrator.ledger.large_text import as_kept
from orchestrator.ledger.model import JSON, Item, ItemState, Run, RunState, Session, SessionState, Try
from orchestrator.policy.budget import Cost
from orchestrator.policy.versions import OnDeploy

E = TypeVar("E", bound=StrEnum)

#: The highest number of a policy: the end of the year 9999, in ms.
_MOST = 253_402_300_799_999
#: Characters that are shown of what cannot be read.
_SHOWN = 60
_ON_DEPLOY = get_args(OnDeploy)
_COSTS = tuple(field.name for field in fields(Cost))


def _fields(kind: type, annotation: type) -> tuple[str, ...]:
    """The names of the fields of a class of values that have this type."""
    return tuple(name for name, held in get_type_hints(kind).items() if held is annotation)


_SESSION_TEXTS, _SESSION_NUMBERS, _SESSION_FLAGS = (_fields(Session, kind) for kind in (str, int, bool))
_RUN_TEXTS = _fields(Run, str)
#: Numbers of a run whose fields have another name in Redis.
_RENAMED = {"claimable_ms": "not_before", "allowed": "attempts"}
_RUN_NUMBERS = {name: _RENAMED.get(name, name) for name in _fields(Run, int)}
_ITEM_FIELDS = {field.name for field in fields(Item)} - {"id", "callback", "extra"}


def text(value: object) -> str:
    """A reply as text; nothing is the empty text."""
    if value is None:
        return ""
    return value.decode() if isinstance(value, bytes) else str(value)


def mapping(raw: Mapping[Any, Any]) -> dict[str, str]:
    """The answer of HGETALL as text."""
    return {text(k): text(v) for k, v in raw.items()}


class _Facts:
    """Fields of one hash; unreadable ones have their defaults, and are noted."""

    def __init__(self, h: Mapping[str, str]) -> None:
        self._h = h
        self.damage: list[str] = []

    def number(self, name: str) -> int:
        value = self._h.get(name)
        if not value:
            return 0
        if value.isdecimal():
            return int(value)
        try:
            return int(float(value))
        except (ValueError, OverflowError):
            self.damage.append(f"its field {name!r} is not a number: {_short(value)}")
            return 0

    def parsed(self, name: str, default: JSON, fits: Callable[[Any], bool]) -> JSON:
        value = self._h.get(name)
        if not value:
            return default
        try:
            found = json.loads(value)
        except ValueError:
            found = None
        if not fits(found):
            self.damage.append(f"its field {name!r} cannot be read: {_short(value)}")
            return default
        return found

    def one_of(self, name: str, kind: type[E], damaged: E) -> E:
        value = self._h.get(name, "")
        try:
            found = kind(value)
        except ValueError:
            found = damaged
        if found is damaged:
            self.damage.append(f"its field {name!r} is not one of its values: {_short(value)}")
        return found


def _short(value: str) -> str:
    return repr(value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…")


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_policy(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(rule, dict) and _is_rule(rule) for rule in value.values()
    )


def _is_rule(rule: Mapping[str, Any]) -> bool:
    base = rule.get("base") or {}
    if not isinstance(base, dict):
        return False
    numbers = [*base.values(), *(rule.get(name) or 0 for name in ("k", "deadline_ms", "window_ms"))]
    return all(isinstance(n, int | float) and abs(n) <= _MOST for n in numbers)


def session(h: Mapping[str, str], session_id: str = "") -> Session:
    """Return a session from its hash. Unreadable fields have their defaults, and are named in ``damage``.

    ``session_id`` is the id that its key has.
    """
    facts = _Facts(h)
    if "id" not in h or (session_id and h["id"] != session_id):
        facts.damage.append(f"its field 'id' is {_short(h.get('id', ''))}")
    deploy = h.get("on_deploy")
    known: dict[str, Any] = {name: h.get(name, "") for name in _SESSION_TEXTS}
    known |= {name: facts.number(name) for name in _SESSION_NUMBERS}
    known |= {name: h.get(name) == "1" for name in _SESSION_FLAGS}
    known |= {
        "id": session_id or known["id"],
        "state": facts.one_of("state", SessionState, SessionState.DAMAGED),
        "progress": known["progress"] if h.get("progress") else -1,
        "priority": h.get("priority", "high"),
        "close_policy": h.get("close_policy", "stop"),
        "chain": tuple(facts.parsed("chain", [], _is_texts)),
        "waiting": facts.parsed("waiting", {}, _is_policy),
        "questions": _marked(h, "question:"),
        "budgets": tuple(h.get("budgets", "").split()),
        "on_deploy": deploy if deploy in _ON_DEPLOY else "latest",
        "used": Cost(**{name: facts.number(f"used_{name}") for name in _COSTS}),
    }
    return Session(damage=tuple(facts.damage), **known)


def _marked(names: Iterable[str], mark: str) -> tuple[str, ...]:
    """Return the names that begin with this mark, without the mark."""
    return tuple(name.removeprefix(mark) for name in names if name.startswith(mark))


def attachments(h: Mapping[str, str]) -> dict[str, Any]:
    """Return the attachments of a session's answer, as blob references by name; empty if malformed."""
    try:
        found = json.loads(h.get("attachments") or "{}")
    except ValueError:
        return {}
    fits = isinstance(found, dict) and all(isinstance(ref, dict) for ref in found.values())
    return found if fits else {}


def unreadable_session(session_id: str, why: str) -> Session:
    """A session of which nothing can be read."""
    whole = session({"id": session_id, "state": SessionState.DAMAGED, "root": session_id}, session_id)
    return replace(whole, damage=(why,))


def run(h: Mapping[str, str]) -> Run:
    """A run from its hash.

    Raises:
        DamagedRecord: something of it cannot be read.
    """
    facts = _Facts(h)
    missing = [name for name in ("id", "session", "number", "cause") if name not in h]
    facts.damage += [f"its field {name!r} is missing" for name in missing]
    state = facts.one_of("state", RunState, cast("RunState", None))
    items = facts.parsed("items", [], _is_texts)
    overdue = facts.parsed("overdue", [], _is_texts)
    known: dict[str, Any] = {name: h.get(name, "") for name in _RUN_TEXTS}
    known |= {name: facts.number(field) for name, field in _RUN_NUMBERS.items()}
    if facts.damage:
        raise DamagedRecord(f"run {h.get('id', '')}", "; ".join(facts.damage))
    return Run(
        cause=cast("Any", h["cause"]),
        state=state,
        items=tuple(items),
        # Marks of earlier tries have other claims.
        awaits=tuple(sorted(_marked((name for name in h if h[name] == known["claim"]), "awaits:"))),
        overdue=tuple(overdue),
        tries=tuple(_tries(h.get("tries", ""))),
        **known,
    )


def run_as_far_as_it_goes(h: Mapping[str, str]) -> tuple[Run, tuple[str, ...]]:
    """Return a run; of a damaged one what its holder needs in order to fail it, and why it cannot be read."""
    try:
        return run(h), ()
    except DamagedRecord as error:
        known = {name: h.get(name, "") for name in ("id", "session", "claim", "worker")}
        return run({**known, "number": "0", "cause": "start", "state": "running"}), (
            f"{error.args[0]}: {error.args[1]}",
        )


def with_proof(kept: str) -> tuple[str, str]:
    """Return the proof and the text of an agent's own record, which are on two lines."""
    proof, line, said = kept.partition("\n")
    return (proof, said) if line else ("", kept)


def reference(kept: str) -> tuple[str, str]:
    """The proof in a reference to a large text, and the reference without it; a text where it cannot be read."""
    try:
        found = json.loads(kept or "{}")
        proof = str(found.pop("proof", ""))
    except (ValueError, AttributeError):
        return "", kept
    return proof, json.dumps(found) if found else ""


def _tries(value: str) -> list[Try]:
    """The tries that can be read: people see them, and nothing is decided by them."""
    if not value:
        return []
    try:
        return [Try(**entry) for entry in json.loads(value)]
    except (ValueError, TypeError):
        return []


def item(item_id: str, record: str | bytes) -> Item:
    """An item from its JSON record.

    Raises:
        DamagedRecord: it cannot be read.
    """
    try:
        return _item(item_id, json.loads(record))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise DamagedRecord(f"item {item_id}", f"its record cannot be read: {_short(text(record))}") from None


def _item(item_id: str, raw: Mapping[str, Any]) -> Item:
    known = {k: raw[k] for k in _ITEM_FIELDS if k in raw}
    owes = raw["state"] != "none"
    # A delegation that owes nothing is neither owed nor dead in the promise's sense; its child tells how it went.
    known["state"] = ItemState(raw["state"]) if owes else ItemState.DEAD
    for name in ("seq", "size", "at_ms"):
        known[name] = int(known.get(name, 0))
    extra = {k: v for k, v in raw.items() if k not in _ITEM_FIELDS}
    return Item(
        id=item_id,
        callback=owes,
        extra=extra,
        **{"agent": "", "status": "", "run": "", "reason": "", "child": "", "priority": "normal", **known},
    )


#: Stands before every statement, so that nothing else that is signed passes for one.
_DOMAIN: Final = b"agent-orchestra statement 1\n"
#: What of an item's record is attested.
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
    facts: tuple[str, ...]  #: the fields of its record that are attested, in a fixed order

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


class Attest(Protocol):
    """Makes the proof of a statement, for the agent ``to`` and the operator; empty if it cannot.

    ``by`` says it; where it is empty, the system does.
    """

    def __call__(self, statement: Statement, *, by: str, to: str) -> str: ...
