"""Redis replies of the ledger turned into its values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from orchestrator.ledger.model import Item, ItemState, Run, RunState, Session, SessionState

_ITEM_FIELDS = {
    "kind",
    "state",
    "child",
    "agent",
    "status",
    "priority",
    "seq",
    "size",
    "run",
    "reason",
    "title",
    "at_ms",
}


def text(value: object) -> str:
    """A reply as text; nothing is the empty text."""
    if value is None:
        return ""
    return value.decode() if isinstance(value, bytes) else str(value)


def pairs(flat: Iterable[bytes]) -> dict[str, str]:
    """The answer of HGETALL inside a script, as a mapping."""
    values = [text(v) for v in flat]
    return dict(zip(values[::2], values[1::2], strict=True))


def mapping(raw: Mapping[Any, Any]) -> dict[str, str]:
    """The answer of HGETALL as text."""
    return {text(k): text(v) for k, v in raw.items()}


def session(h: Mapping[str, str]) -> Session:
    """A session from its hash."""

    def number(name: str) -> int:
        return int(float(h.get(name) or 0))

    return Session(
        id=h["id"],
        agent=h.get("agent", ""),
        parent=h.get("parent", ""),
        root=h.get("root", ""),
        depth=number("depth"),
        state=SessionState(h["state"]),
        title=h.get("title", ""),
        run=h.get("run", ""),
        launched=number("launched"),
        delivered=number("delivered"),
        dead=number("dead"),
        owed=number("owed"),
        runs=number("runs"),
        children=number("children"),
        created_ms=number("created_ms"),
        updated_ms=number("updated_ms"),
        ended_ms=number("ended_ms"),
        correlation=h.get("correlation", ""),
        message=h.get("message", ""),
        chain=tuple(json.loads(h.get("chain") or "[]")),
        callback=h.get("callback") == "1",
        reason=h.get("reason", ""),
        progress=int(h["progress"]) if h.get("progress") else -1,
        activity=h.get("activity", ""),
        priority=h.get("priority", "high"),
        task=h.get("task", ""),
        waiting=json.loads(h["waiting"]) if h.get("waiting") else {},
        questions=tuple(name.removeprefix("question:") for name in h if name.startswith("question:")),
        close_policy=h.get("close_policy", "stop"),
        parked=h.get("parked", ""),
        entry=h.get("entry", ""),
        delegator=h.get("delegator", ""),
        sealed=h.get("sealed") == "1",
    )


def run(h: Mapping[str, str]) -> Run:
    """A run from its hash."""
    return Run(
        id=h["id"],
        session=h["session"],
        number=int(h["number"]),
        cause=cast("Any", h["cause"]),
        state=RunState(h["state"]),
        claim=h.get("claim", ""),
        beat=int(h.get("beat") or 0),
        attempt=int(h.get("attempt") or 0),
        lost=int(h.get("lost") or 0),
        items=tuple(json.loads(h.get("items") or "[]")),
        worker=h.get("worker", ""),
        created_ms=int(float(h.get("created_ms") or 0)),
        started_ms=int(float(h.get("started_ms") or 0)),
        ended_ms=int(float(h.get("ended_ms") or 0)),
        stop=h.get("stop", ""),
        reason=h.get("reason", ""),
        awaits=tuple(
            sorted(
                k.removeprefix("awaits:") for k, v in h.items() if k.startswith("awaits:") and v == h["claim"]
            )
        ),
        late=tuple(json.loads(h.get("late") or "[]")),
    )


def item(item_id: str, record: str | bytes) -> Item:
    """An item from its JSON record."""
    raw = json.loads(record)
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
