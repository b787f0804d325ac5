"""Checks and opens what a run is given before its agent sees it: whether it comes from its sender, and how the agent sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

from orchestrator.envelope.bodies import ErrorReport
from orchestrator.envelope.codec import decode
from orchestrator.envelope.parse import ParseLimits
from orchestrator.envelope.payload import MAX_PAYLOAD_BYTES
from orchestrator.envelope.prompt_text import Prompt, prompt_of
from orchestrator.envelope.sealing import Opener
from orchestrator.errors import DamagedRecord, DecryptionError, InvalidEnvelope, PayloadError
from orchestrator.ids import child_of
from orchestrator.ledger import ClaimedRun, Item
from orchestrator.ledger.decode import Statement
from orchestrator.ledger.large_text import Decrypted
from orchestrator.log import get_logger
from orchestrator.messages.authenticity import Authenticity, callback_from
from orchestrator.policy.callback import Callback
from orchestrator.policy.sealed_text import is_sealed
from orchestrator.worker.context.effects import Effects

_log = get_logger()


class Verifier:
    """Verifies the items of one run. One whose proof does not hold dies, and the agent gets a refusal in its place."""

    def __init__(self, effects: Effects, authenticity: Authenticity) -> None:
        self._effects = effects
        self._authenticity = authenticity

    def held(self) -> ClaimedRun:
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


class Decrypter:
    """Opens what one run is given, with the keys of this data folder."""

    def __init__(self, effects: Effects, opener: Opener) -> None:
        self._effects = effects
        self._opener = opener

    def held(self) -> ClaimedRun:
        """Return the claimed run with its texts decrypted.

        Raises:
            DecryptionError, PayloadError, InvalidEnvelope: the task itself cannot be opened here.
        """
        held = self._effects.held
        if isinstance(held.prompt, Decrypted) and held.prompt.failed:
            raise DecryptionError(
                f"the task is sealed for {held.session.agent!r}, and no key in this data folder opens it: import the "
                f"agent's keys here (orchestra keys export {held.session.agent}, then orchestra keys import)"
            )
        if isinstance(held.state, Decrypted):
            raise DecryptionError(
                "what its last run saved is sealed for another tree, or with a key that is not in this data folder; fork the "
                "session at an earlier run"
            )
        texts = {item.id: self.text(item, held.texts.get(item.id, "")) for item in held.items}
        prompt = self._open(held.prompt) if held.session.sealed else held.prompt
        return replace(held, prompt=prompt, texts={**held.texts, **texts})

    def text(self, item: Item, text: str) -> str:
        """Return the text of an item, decrypted; if it cannot be opened, the reason, which its sender gets, too."""
        if isinstance(text, Decrypted) and text.failed and is_sealed(text.kept):
            return (
                f"[this {item.kind} from {item.agent} cannot be read: it is sealed, and no key in this data folder "
                "opens it]"
            )
        if not item.extra.get("sealed"):
            return text
        try:
            return self._open(text)
        except (DecryptionError, PayloadError, InvalidEnvelope) as error:
            self._refuse(item, str(error))
            return f"[this {item.kind} from {item.agent} cannot be read: {error}]"

    def _open(self, sealed: str) -> str:
        message = decode(sealed.encode(), limits=ParseLimits(size=2 * MAX_PAYLOAD_BYTES))
        body = self._opener.open(message).body
        if not isinstance(body, get_args(Prompt)):
            raise PayloadError(
                f"a {body.type} holds nothing that an agent can be given; it was put together by hand"
            )
        return prompt_of(body)

    def _refuse(self, item: Item, reason: str) -> None:
        effects, session = self._effects, self._effects.held.session
        message = str(item.extra.get("message", ""))
        _log.warning("item-not-opened", session=session.id, item=item.id, message=message, reason=reason)
        outgoing = effects.write(
            lambda: effects.message_factory.error(
                error=ErrorReport(
                    message=f"{item.kind} {message} from {item.agent} to {session.agent} was not accepted: {reason}",
                    error_type="validation-error",
                    severity="warning",
                ),
                **effects.parties(item.agent, item.child),
            )
        )
        effects.attempt(
            "refuse",
            lambda: effects.ledger.effect(effects.held.claim, effect=f"refuse:{item.id}", envelope=outgoing),
        )
