"""Tells the callbacks in a text that this system wrote from those that somebody else did."""

from __future__ import annotations

import json
from dataclasses import replace

from orchestrator.ledger import Item, ItemState, Ledger
from orchestrator.policy.callback_text import Callback, parse_callbacks, same_callback


def checked_callbacks(ledger: Ledger, session: str, text: str) -> tuple[Callback, ...]:
    """The callbacks in ``text``; `genuine` are those that a run of ``session`` carried, word for word."""
    return tuple(replace(c, genuine=_is_genuine(ledger, session, c)) for c in parse_callbacks(text))


def callback_from(item: Item, text: str) -> Callback:
    """An item of a session's queue as the callback that its agent gets."""
    return Callback(
        id=item.id,
        kind=item.kind,
        session=item.child,
        agent=item.agent,
        status=item.status,
        title=item.title,
        text=text,
        priority=item.priority if item.kind != "completion" else "",
        question=str(item.extra.get("answers", "")),
        context=json.loads(item.extra.get("context", "null")),
    )


def _is_genuine(ledger: Ledger, session: str, callback: Callback) -> bool:
    item = ledger.item(session, callback.id)
    if item is None or item.state not in (ItemState.CLAIMED, ItemState.DELIVERED):
        return False
    # What travelled encrypted the ledger has only in that form.
    sealed = bool(item.extra.get("sealed"))
    said = callback.text if sealed else ledger.texts(session, [item.id]).get(item.id, "")
    return same_callback(callback, callback_from(item, said))
