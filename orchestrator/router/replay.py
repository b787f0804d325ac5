"""What people do with dead letters: replay them after a fix, or drop them; both leave their mark in the audit trail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orchestrator.bootstrap import Parts
from orchestrator.clock import Clock, SystemClock
from orchestrator.envelope.bodies import EncryptedBody, Escalation, ReviewRequest, TaskDelegation
from orchestrator.envelope.codec import decode
from orchestrator.envelope.model import AgentMessage
from orchestrator.envelope.model_values import Timestamp
from orchestrator.envelope.prompt_text import prompt_of, title_of
from orchestrator.envelope.signature import sign_message
from orchestrator.envelope.validate import check
from orchestrator.errors import DecryptionError, InvalidEnvelope, PayloadError, Refused
from orchestrator.ids import derived_uuid, is_session_id, new_message_id, root_session_id
from orchestrator.letters import Thread
from orchestrator.policy.priority import priority_of
from orchestrator.policy.routing import LAUNCHES
from orchestrator.redisdb import keys
from orchestrator.redisdb.scripts import Scripts
from orchestrator.registry import OPERATOR
from orchestrator.router.deadletters import DeadLetter
from orchestrator.router.letter import shard_of_message, task_id_of
from orchestrator.streams import RedisStreams, StreamId, stream_key

_MARK_MS: Final = 86_400_000
#: The field of a replayed entry that names its dead letter.
REPLAYS_FIELD: Final = "replays"


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What a replay made of a dead letter."""

    #: `message`: a new message of the sender; `task`: a new root session; `copy`: the same bytes once more.
    how: str
    #: The new message-id, session id, or entry id.
    id: str


Launch = TaskDelegation | ReviewRequest | Escalation


class Replays:
    """Takes dead letters out again."""

    def __init__(self, parts: Parts, *, clock: Clock | None = None) -> None:
        self._parts = parts
        self._clock = clock or SystemClock()
        self._scripts = Scripts(parts.redis)

    def replay(self, letter: DeadLetter) -> Replayed | None:
        """Publish a dead letter anew; None: it is gone already.

        A message becomes a new one that names the old in its chain, signed by its sender, if the sender's key is
        in this data folder; else, and if its body is encrypted and so fits into no other message, the same bytes
        are published again. A task of our own whose session has failed
        becomes a new root session: its parent was told of the failure, and is told nothing twice.
        """
        message = check(letter.data, advice=False).message
        if message is None:
            return self._publish(letter, letter.data, how="copy")
        launch = self._own_launch(message)
        if launch is not None:
            # Derived from the dead letter's id, so that two people who replay it at once make one session.
            session = self._submit(message, launch, seed=f"replay|{letter.id}")
            note = f"dead letter {letter.id} was replayed as session {session}"
            return Replayed(how="task", id=session) if self._note(letter, note) else None
        renewed = self._renewed(message)
        if renewed is None:
            return self._publish(letter, letter.data, how="copy", message_id=message.header.message_id)
        data, message_id = renewed
        return self._publish(letter, data, how="message", message_id=message_id)

    def again(self, octets: bytes) -> Replayed:
        """Say once more what was said before, as a new message that names the old one; a task begins anew as a root.

        Raises:
            InvalidEnvelope: the octets are no valid envelope.
            Refused: the key of its sender is not in this data folder, or its body is encrypted.
        """
        message = decode(octets)
        launch = self._own_launch(message)
        if launch is not None:
            return Replayed(how="task", id=self._submit(message, launch, seed=new_message_id()))
        renewed = self._renewed(message)
        if renewed is None:
            raise Refused(
                f"message {message.header.message_id} cannot be sent anew: the key of its sender "
                f"{message.header.sender.agent_name!r} is not in this data folder, or its body is encrypted; "
                "a copy would be told for a duplicate"
            )
        data, message_id = renewed
        priority = priority_of(message.body.type, message.header.priority, self._parts.routing)
        shard = shard_of_message(message, self._parts.settings.shards)
        RedisStreams(self._parts.redis).publish(StreamId(shard, message.body.type, priority), data)
        return Replayed(how="message", id=message_id)

    def _own_launch(self, message: AgentMessage) -> Launch | None:
        """What a message gives somebody to do under the id of a session of ours, or None."""
        if message.body.type not in LAUNCHES:
            return None
        try:
            body = self._parts.opener.open(message).body
        except (PayloadError, DecryptionError, InvalidEnvelope):
            return None
        if isinstance(body, (TaskDelegation, ReviewRequest, Escalation)) and is_session_id(task_id_of(body)):
            return body
        return None

    def _is_encrypted(self, message: AgentMessage) -> bool:
        try:
            return isinstance(self._parts.opener.fetch(message).body, EncryptedBody)
        except (PayloadError, InvalidEnvelope):
            return True  # nobody can tell

    def _renewed(self, message: AgentMessage) -> tuple[bytes, str] | None:
        """The message as a new one, signed by its sender, and its id; None: that cannot be made here."""
        header = message.header
        sender = header.sender.agent_name
        if self._parts.keyring.store.current(sender) is None or self._is_encrypted(message):
            return None
        now_ms = self._clock.now_ms()
        expiration = header.expiration
        if expiration is not None:
            lifetime_ms = expiration.instant_ms - header.timestamp.instant_ms
            expiration = Timestamp.from_ms(now_ms + max(1, lifetime_ms))
        message_id = new_message_id()
        renewed = header.model_copy(
            update={
                "message_id": message_id,
                "timestamp": Timestamp.from_ms(now_ms),
                "correlation_id": message.conversation_id,
                "conversation_chain": (header.message_id, *header.conversation_chain),
                "expiration": expiration,
            }
        )
        unsigned = message.model_copy(update={"header": renewed, "signature": None})
        return sign_message(unsigned, self._parts.keyring.signer(sender), now_ms=now_ms), message_id

    def _submit(self, message: AgentMessage, body: Launch, *, seed: str) -> str:
        parts = self._parts
        session = root_session_id(seed, parts.settings.shards)
        recipient, title, prompt = message.header.recipient.agent_name, title_of(body), prompt_of(body)
        thread = Thread(correlation=derived_uuid("conversation", session))
        envelope = parts.letters.delegation(
            sender=OPERATOR,
            recipient=recipient,
            task_id=session,
            title=title,
            description=prompt,
            thread=thread,
        )
        parts.ledger.submit(
            session,
            agent=recipient,
            prompt=prompt,
            envelope=envelope,
            correlation=thread.correlation,
            title=title,
        )
        return session

    def drop(self, letter: DeadLetter) -> bool:
        """Remove a dead letter for good; the audit trail keeps who, what and why. False: it is gone already."""
        return self._note(
            letter, f"dead letter {letter.id} was dropped by the operator: {letter.rule}: {letter.reason}"
        )

    def _note(self, letter: DeadLetter, text: str) -> bool:
        # A conversation of its own: the letter's may not allow one message more.
        thread = Thread(correlation=derived_uuid("dead-letter", letter.id))
        note = self._parts.letters.message(sender=OPERATOR, recipient="router", text=text, thread=thread)
        shard = letter.stream.shard
        stream = StreamId(shard, note.type, note.priority)
        return bool(self._leave(letter, stream, note.data, message_id=None))

    def _publish(
        self, letter: DeadLetter, data: bytes, *, how: str, message_id: str | None = None
    ) -> Replayed | None:
        entry = self._leave(letter, letter.stream, data, message_id=message_id)
        if entry is None:
            return None
        return Replayed(how=how, id=message_id if how == "message" and message_id else entry)

    def _leave(
        self, letter: DeadLetter, stream: StreamId, data: bytes, *, message_id: str | None
    ) -> str | None:
        dead = keys.dead(letter.stream.shard)
        mark = keys.seen(stream.shard, message_id.lower()) if message_id else dead
        answer = self._scripts.run(
            "dead_leave",
            [dead, stream_key(stream), keys.totals(stream.shard), mark],
            [letter.id.partition("-")[2], _MARK_MS, "envelope", data, REPLAYS_FIELD, letter.id],
        )
        return answer.decode() if answer else None
