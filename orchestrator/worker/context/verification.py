"""Checks what a run is given before its agent sees it: whether it really comes from its sender, and how the agent sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from orchestrator.errors import DamagedRecord, PayloadError
from orchestrator.ids import child_of
from orchestrator.ledger import Claimed, Item
from orchestrator.ledger.statements import Statement
from orchestrator.log import get_logger
from orchestrator.messages.authenticity import Authenticity, callback_from
from orchestrator.policy.callback import Callback
from orchestrator.worker.context.effects import Effects

_log = get_logger()


class Verifier:
    """Verifies the items of one run. One whose proof does not hold dies, and the agent gets a refusal in its place."""

    def __init__(self, effects: Effects, authenticity: Authenticity) -> None:
        self._effects = effects
        self._authenticity = authenticity

    def held(self) -> Claimed:
        """Return the claimed run, each item checked.

        Raises:
            DamagedRecord: its task, or what its agent has kept for itself, is not what was said, or something of its
                records cannot be read.
        """
        held = self._effects.held
        if held.damage:
            raise DamagedRecord(f"session {held.session.id}", "; ".join(held.damage))
        for what, said, proof in held.own:
            self.own(what, said, proof)
        checked = self.items([(item, held.texts.get(item.id, "")) for item in held.items])
        texts = {**held.texts, **{item.id: text for item, text in checked}}
        return replace(held, items=tuple(item for item, _ in checked), texts=texts)

    def own(self, what: str, said: Statement, proof: str) -> None:
        """Check the proof of the session's task, or of its agent's own record.

        Raises:
            DamagedRecord: nobody does.
        """
        session, fault = self._effects.held.session, self._authenticity.fault
        if why := self._effects.retrying("verify", lambda: fault(said, proof, reader=session.agent)):
            raise DamagedRecord(f"session {session.id}", f"its {what} cannot be authenticated: {why}")

    def items(self, given: Sequence[tuple[Item, str]]) -> list[tuple[Item, str]]:
        """Items and their texts as the agent may see them; a refusal is a failed one with nothing but the reason."""
        session, fault = self._effects.held.session, self._authenticity.item_fault

        def judge() -> list[str]:
            """Return for each item why it is not authentic, or was rejected before; empty if it is authentic."""
            return [
                fault(session.id, item, text, reader=session.agent)
                or (item.reason if item.extra.get("rejected") else "")
                for item, text in given
            ]

        faults = self._effects.retrying("verify", judge) if given else []
        return [self._refused(one[0], why) if why else one for one, why in zip(given, faults, strict=True)]

    def _refused(self, item: Item, fault: str) -> tuple[Item, str]:
        session = self._effects.held.session
        kind = "completion" if child_of(item.id) else item.kind
        _log.error("item-not-genuine", session=session.id, item=item.id, agent=item.agent, reason=fault)
        self._effects.attempt(
            "reject",
            lambda: self._effects.ledger.reject(
                self._effects.held.claim, item.id, f"not delivered, as it cannot be authenticated: {fault}"
            ),
        )
        kept = {
            name: item.extra[name] for name in ("taken", "group", "answers", "question") if name in item.extra
        }
        whose = f" of {item.agent}" if item.agent else ""
        refusal = (
            f"[this {kind}{whose} was not delivered: its record in the ledger is not what was sent ({fault}); "
            "the audit trail has the signed message]"
        )
        return replace(item, kind=kind, status="failed", title="", extra={**kept, "rejected": True}), refusal


def callback_of(item: Item, text: str, effects: Effects) -> Callback:
    """An item of a session's queue as its agent sees it; ``text`` is what the ledger itself holds of it."""

    def read(ref: Any, what: str) -> str:
        try:
            return effects.read(what, lambda: effects.ledger.large_texts.read(ref))
        except PayloadError as error:
            raise PayloadError(f"the large text of {item.id} cannot be read: {error}") from None

    def attachment(name: str) -> str | None:
        ref = (item.extra.get("attachments") or {}).get(name)
        return None if ref is None else read(ref, "attachment")

    if sent := item.extra.get("said"):
        # Programs get the text; a prompt has it once.
        extra = {name: value for name, value in item.extra.items() if name != "said"}
        return replace(
            callback_of(replace(item, extra=extra), text, effects),
            text=f"[the same text as the message {sent}, which came before]",
            size=item.size,
            fetch=lambda: text,
        )
    ref = item.extra.get("whole")
    return replace(
        callback_from(item, text),
        size=int(ref["size"]) if ref else -1,
        fetch=(lambda: read(ref, "full")) if ref else None,
        fetch_attachment=attachment,
    )
