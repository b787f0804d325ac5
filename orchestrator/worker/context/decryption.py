"""Decrypts what was encrypted for an agent, where the agent runs; nothing that it came through could read it."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from orchestrator.envelope.codec import decode
from orchestrator.envelope.parse import ParseLimits
from orchestrator.envelope.payload import MAX_PAYLOAD_BYTES
from orchestrator.envelope.prompt_text import Prompt, prompt_of
from orchestrator.envelope.sealing import Opener
from orchestrator.errors import DecryptionError, InvalidEnvelope, PayloadError
from orchestrator.ledger import Claimed, Item
from orchestrator.ledger.sealing import Opened
from orchestrator.log import get_logger
from orchestrator.policy.sealed_text import is_sealed
from orchestrator.worker.context.effects import Effects

_log = get_logger()


class Decrypter:
    """Opens what one run is given, with the keys of this data folder."""

    def __init__(self, effects: Effects, opener: Opener) -> None:
        self._effects = effects
        self._opener = opener

    def held(self) -> Claimed:
        """Return the claimed run with its texts decrypted.

        Raises:
            DecryptionError, PayloadError, InvalidEnvelope: the task itself cannot be opened here.
        """
        held = self._effects.held
        if isinstance(held.prompt, Opened) and held.prompt.failed:
            raise DecryptionError(
                f"the task is sealed for {held.session.agent!r}, and no key in this data folder opens it: import the "
                f"agent's keys here (orchestra keys export {held.session.agent}, then orchestra keys import)"
            )
        if isinstance(held.state, Opened):
            raise DecryptionError(
                "what its last run saved is sealed for another tree, or with a key that is not in this data folder; fork the "
                "session at an earlier run"
            )
        texts = {item.id: self.text(item, held.texts.get(item.id, "")) for item in held.items}
        prompt = self._open(held.prompt) if held.session.sealed else held.prompt
        return replace(held, prompt=prompt, texts={**held.texts, **texts})

    def text(self, item: Item, text: str) -> str:
        """Return the text of an item, decrypted; if it cannot be opened, the reason, which its sender gets, too."""
        if isinstance(text, Opened) and text.failed and is_sealed(text.kept):
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
                sender=session.agent,
                recipient=item.agent,
                message=f"{item.kind} {message} from {item.agent} to {session.agent} was not accepted: {reason}",
                thread=effects.thread,
                error_type="validation-error",
                severity="warning",
            )
        )
        effects.attempt(
            "refuse",
            lambda: effects.ledger.effect(effects.held.claim, effect=f"refuse:{item.id}", envelope=outgoing),
        )
