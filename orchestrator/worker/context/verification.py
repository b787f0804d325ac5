"""What a run is given is checked before its agent sees it: whether it was said by whom it is said to come from."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.ledger import Claimed, Item
from orchestrator.log import get_logger
from orchestrator.messages.authenticity import Authenticity
from orchestrator.worker.context.effects import Effects

_log = get_logger()


class Verifier:
    """Checks the items of one run. What nobody vouches for dies, and the agent gets a refusal in its place."""

    def __init__(self, effects: Effects, authenticity: Authenticity) -> None:
        self._effects = effects
        self._authenticity = authenticity

    def held(self) -> Claimed:
        """What the run holds, each item checked.

        Raises:
            ClaimLost, SessionStopped, ServerUnavailable: as for every effect.
        """
        held = self._effects.held
        checked = [self.item(item, held.texts.get(item.id, "")) for item in held.items]
        if all(item is before for (item, _), before in zip(checked, held.items, strict=True)):
            return held
        return replace(
            held,
            items=tuple(item for item, _ in checked),
            texts={**held.texts, **{item.id: text for item, text in checked}},
        )

    def item(self, item: Item, text: str) -> tuple[Item, str]:
        """An item and its text as the agent may see them; a refusal is a failed one with nothing but the reason.

        Raises:
            ClaimLost, SessionStopped, ServerUnavailable: as for every effect.
        """
        session = self._effects.held.session
        fault = self._effects.retrying(
            "verify",
            lambda: self._authenticity.item_fault(session.id, item, text, reader=session.agent),
        )
        if item.extra.get("rejected"):
            fault = fault or item.reason
        if not fault:
            return item, text
        _log.error("item-not-genuine", session=session.id, item=item.id, agent=item.agent, reason=fault)
        self._effects.attempt(
            "reject",
            lambda: self._effects.ledger.reject(
                self._effects.held.claim, item.id, f"not delivered, as nobody vouches for it: {fault}"
            ),
        )
        kept = {
            name: item.extra[name] for name in ("taken", "group", "answers", "question") if name in item.extra
        }
        whose = f" of {item.agent}" if item.agent else ""
        refusal = (
            f"[this {item.kind}{whose} was not delivered: what the ledger has of it is not what was said ({fault}); "
            "the audit trail has the signed message]"
        )
        return replace(item, status="failed", title="", extra={**kept, "rejected": True}), refusal
