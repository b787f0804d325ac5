"""Replaying and dropping dead letters, and replaying messages of the audit trail; the trail records both.

A replay signs with keys of this data folder, so it verifies the original first: a program that may append to a stream must
not get its text signed in another name. An original that does not verify is refused; the operator may sign one such
message, named by its id, in the operator's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.agents.registry import OPERATOR
from orchestrator.bootstrap import Container
from orchestrator.envelope.bodies import Task, TaskDelegation
from orchestrator.envelope.codec import encode_unsigned
from orchestrator.envelope.message_types import MAX_TIMEOUT_S, LaunchBody
from orchestrator.envelope.model import AgentMessage, Party
from orchestrator.envelope.model_values import Timestamp, with_values
from orchestrator.envelope.prompt_text import pack, prompt_of, title_of
from orchestrator.envelope.sealing import Opener
from orchestrator.envelope.signature import sign_message
from orchestrator.errors import InputError, Refused
from orchestrator.ids import derived_uuid, new_message_id, root_session_id
from orchestrator.ledger.large_text import Seal
from orchestrator.machine import Clock, SystemClock
from orchestrator.messages.factory import Terms, Thread
from orchestrator.notifier import NOTIFICATION, targets_of
from orchestrator.operations.table import SUBMIT
from orchestrator.policy.budget import Budget
from orchestrator.redisdb import keys
from orchestrator.redisdb.scripts import Scripts
from orchestrator.router.deadletters.originals import Originals
from orchestrator.router.deadletters.store import DeadLetter, DeadLetters
from orchestrator.router.received import shard_of_message
from orchestrator.runtime.process import user_at_host
from orchestrator.streams import ENVELOPE_FIELD, RedisStreams, StreamId, stream_key

_MARK_MS: Final = 86_400_000
#: Milliseconds within which the trail has what was replayed.
_REPLAYED_MS: Final = 7 * 86_400_000
#: The field of a replayed entry that names its dead letter.
REPLAYS_FIELD: Final = "replays"


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """Result of the replay of a dead letter."""

    #: `message`: a new message of the sender; `task`: a new root session; `copy`: the same bytes once more;
    #: `notification`: its target has it.
    how: str
    #: The new message-id, session id, or entry id; the name of the target.
    id: str


#: A stream, and field, value, … of the entry that goes there.
Publication = tuple[StreamId, list[str | bytes]]


@dataclass(frozen=True)
class _Planned:
    """The plan of a replay: what the message is to become."""

    message: AgentMessage
    fault: tuple[str, str] | None
    replayed: Replayed
    launch: LaunchBody | None
    #: Whether the operator sends it, and not its sender.
    by_operator: bool = True


class Replays:
    """Replays dead letters and messages of the audit trail, and drops dead letters."""

    def __init__(self, parts: Container, *, clock: Clock | None = None, opener: Opener | None = None) -> None:
        """``opener`` fetches bodies that were stored apart; None: that of the stack."""
        self._parts = parts
        self._clock = clock or SystemClock()
        self._scripts = Scripts(parts.redis)
        self._originals = Originals(parts, clock=self._clock, opener=opener or parts.opener)

    def replay(self, dead_letter: DeadLetter, *, sign_unverified: bool = False) -> Replayed | None:
        """Publish a dead letter again; None: it is gone already.

        A message becomes a new one that names the old in its chain, signed by its sender, if the sender's key is
        in this data folder; else, and if its body is encrypted and so fits into no other message, the same bytes
        are published again. A task of our own whose session has failed becomes a new root session: its parent has
        been told of the failure already.

        A notification is delivered to its target, under the id that it had.

        ``sign_unverified``: a message that does not verify is signed by the operator, in the operator's name, and a note
        in the audit trail records it.

        Raises:
            Unverified: the original is no valid envelope, or its sender is not known to have signed it.
            Refused: it cannot be signed by the operator, as its body is encrypted; or a target does not take it.
        """
        if dead_letter.stream.type == NOTIFICATION:
            return self._deliver(dead_letter)
        original = self._originals.verified(
            dead_letter.data, f"dead letter {dead_letter.id}", sign_unverified=sign_unverified
        )
        message, fault = original.message, original.fault
        what = f"dead letter {dead_letter.id} was replayed"
        launch = self._originals.launch(message) if fault else self._originals.own_launch(message)
        if launch is not None:
            if DeadLetters(self._parts.redis, shards=self._parts.settings.shards).get(dead_letter.id) is None:
                return None
            # Derived from the dead letter's id, so that two people who replay it at once make one session.
            session = self._session(f"replay|{dead_letter.id}")
            self._submit(message, launch, session=session, verified=fault is None)
            self._note(dead_letter, f"{what} as session {session}{_by_operator(fault)}")
            return Replayed(how="task", id=session)
        renewed = self._renewed(message, by_operator=fault is not None)
        if renewed is None:
            if fault:
                raise _not_to_be_signed(message)
            return self._copy(dead_letter, message)
        data, message_id = renewed
        stream = self._stream_of(message, dead_letter.stream.shard)
        published: list[Publication] = [(stream, [ENVELOPE_FIELD, data, REPLAYS_FIELD, dead_letter.id])]
        if fault:
            text = f"{what} as message {message_id}{_by_operator(fault)}"
            notes, signed = self._noted(dead_letter.id, text, shard=dead_letter.stream.shard)
            published.append((notes, [ENVELOPE_FIELD, signed]))
        sender = OPERATOR if fault else message.header.sender.agent_name
        left = self._leave(dead_letter, published, marked=(sender, message_id))
        return Replayed(how="message", id=message_id) if left else None

    def _deliver(self, dead_letter: DeadLetter) -> Replayed | None:
        """Deliver a notification that was given up; if this process dies then, the target may get it twice."""
        name = dead_letter.stream.priority
        target = next((one for one in targets_of(self._parts.settings) if one.name == name), None)
        event = f"{dead_letter.stream.shard:02x}-{dead_letter.entry}"
        reason = f"no {name} is set" if target is None else target.deliver(event, dead_letter.data)
        if reason:
            raise Refused(f"dead letter {dead_letter.id}: {name} has not taken it: {reason}")
        left = self._note(dead_letter, f"dead letter {dead_letter.id} was delivered to {name}")
        return Replayed(how=NOTIFICATION, id=name) if left else None

    def plan(self, octets: bytes, *, sign_unverified: bool = False, seed: str = "") -> Replayed:
        """Return what :meth:`again` would make of it, with the same id if there is a ``seed``; publish nothing.

        Raises:
            Unverified, Refused: as :meth:`again`.
        """
        return self._planned(octets, sign_unverified=sign_unverified, seed=seed).replayed

    def again(self, octets: bytes, *, sign_unverified: bool = False, seed: str = "") -> Replayed:
        """Send a message once more, as a new message that names the old one; a task begins again as a root.

        The operator sends and signs it; where the operator may not send it, its sender does. A note of the operator in
        the audit trail names the old message of a task. The same ``seed`` makes the same message or session.

        ``sign_unverified`` as in :meth:`replay`.

        Raises:
            Unverified: the bytes are no valid envelope, or its sender is not known to have signed it.
            Refused: the key of its sender is not in this data folder, or its body is encrypted.
        """
        planned = self._planned(octets, sign_unverified=sign_unverified, seed=seed)
        message, replayed = planned.message, planned.replayed
        shard = shard_of_message(message, self._parts.settings.shards)
        streams = RedisStreams(self._parts.redis)
        if planned.launch is not None:
            self._submit(message, planned.launch, session=replayed.id, verified=planned.fault is None)
        else:
            renewed = self._renewed(message, by_operator=planned.by_operator, message_id=replayed.id)
            assert renewed is not None, "the plan has looked"
            stream = self._stream_of(message, shard)
            # Published before by a replay that was cut short, and perhaps not in the trail yet.
            places = [stream_key(stream), keys.totals(shard), keys.replayed(shard, replayed.id)]
            self._scripts.run("publish_once", places, [_REPLAYED_MS, renewed[0]])
        if planned.fault or planned.launch is not None:
            what = "session" if replayed.how == "task" else "message"
            by = _by_operator(planned.fault) or f" for {user_at_host()}"
            text = f"message {message.header.message_id} was replayed as {what} {replayed.id}{by}"
            streams.publish(*self._noted(replayed.id, text, shard=shard))
        return replayed

    def _planned(self, octets: bytes, *, sign_unverified: bool, seed: str) -> _Planned:
        original = self._originals.verified(octets, "the message", sign_unverified=sign_unverified)
        message, fault = original.message, original.fault
        launch = self._originals.launch(message) if fault else self._originals.own_launch(message)
        if launch is not None:
            session = self._session(f"replay|{seed}" if seed else new_message_id())
            return _Planned(message, fault, Replayed(how="task", id=session), launch)
        by_operator = fault is not None or self._originals.operator_may_send(message)
        here = by_operator or self._parts.keyring.store.current(message.header.sender.agent_name) is not None
        if not here or self._originals.is_encrypted(message):
            raise _not_to_be_signed(message) if fault else _not_renewed(message)
        new_id = derived_uuid("replay", seed) if seed else new_message_id()
        return _Planned(message, fault, Replayed(how="message", id=new_id), None, by_operator)

    def _stream_of(self, message: AgentMessage, shard: int) -> StreamId:
        """Return the stream in which a message belongs, whatever stream it was found in."""
        priority = message.header.priority or self._parts.routing[message.body.type].priority
        return StreamId(shard, message.body.type, priority)

    def _renewed(
        self, message: AgentMessage, *, by_operator: bool = False, message_id: str = ""
    ) -> tuple[bytes, str] | None:
        """The message as a new one and its id, signed by its sender or by the operator as its sender.

        None: the key is not here, or the body is encrypted. A message that counts without a signature gets none.
        """
        header = message.header
        party = Party(agent_name=OPERATOR, agent_role="orchestrator") if by_operator else header.sender
        here = by_operator or self._parts.keyring.store.current(party.agent_name) is not None
        if not here or self._originals.is_encrypted(message):
            return None
        now_ms = self._clock.now_ms()
        expiration = header.expiration
        if expiration is not None:
            lifetime_ms = expiration.instant_ms - header.timestamp.instant_ms
            expiration = Timestamp.from_ms(now_ms + max(1, lifetime_ms))
        message_id = message_id or new_message_id()
        renewed = header.model_copy(
            update={
                "message_id": message_id,
                "sender": party,
                "timestamp": Timestamp.from_ms(now_ms),
                "correlation_id": message.conversation_id,
                "conversation_chain": (header.message_id, *header.conversation_chain),
                "expiration": expiration,
            }
        )
        unsigned = message.model_copy(update={"header": renewed, "signature": None})
        if message.signature is None and not by_operator:
            return encode_unsigned(unsigned), message_id
        signer = self._parts.keyring.signer(party.agent_name)
        return sign_message(unsigned, signer, now_ms=now_ms), message_id

    def _session(self, seed: str) -> str:
        return root_session_id(seed, self._parts.settings.shards)

    def _submit(self, message: AgentMessage, body: LaunchBody, *, session: str, verified: bool) -> None:
        """Make a root session of the task in a message, with all options of that task's session.

        Its group and the tasks that it waited for are those of its old parent, and count no more. What nobody is known
        to have signed gives its session a task and nothing else.

        Raises:
            Refused: the message gives its session more than any launch can be given.
        """
        parts, header = self._parts, message.header
        recipient, title, prompt = header.recipient.agent_name, title_of(body), prompt_of(body)
        lasts_s: float = MAX_TIMEOUT_S
        if header.expiration is not None:
            lasts_s = (header.expiration.instant_ms - header.timestamp.instant_ms) / 1000
        given = {
            "agent": recipient,
            "priority": header.priority,
            "expires_s": lasts_s if lasts_s < MAX_TIMEOUT_S else None,
            "retry_policy": header.retry_policy,
        }
        try:
            terms = Terms.of_message(body.launch if verified else None)
            request = SUBMIT.read({**given, **terms.options, "group": None})
        except InputError as error:
            raise Refused(f"message {header.message_id} cannot be replayed: {error}") from None
        task = body.task.model_copy(update={"dependencies": ()}) if isinstance(body, TaskDelegation) else None
        budget = terms.budget or Budget.of(parts.settings.tree_budget)
        terms = Terms.of({**request, "budget": budget}, plan=terms.plan)
        thread = Thread(
            correlation=derived_uuid("conversation", session),
            encrypted=self._originals.is_encrypted(message),
            traceparent=header.traceparent if verified else None,
        )
        envelope = parts.message_factory.delegation(
            sender=OPERATOR,
            recipient=recipient,
            task_id=session,
            task=Task(title=title, description=prompt) if task is None else with_values(task, title=title),
            thread=thread,
            terms=terms,
        )
        parts.ledger.submit(
            session,
            agent=recipient,
            prompt=prompt,
            envelope=envelope,
            correlation=thread.correlation,
            title=title,
            planned=terms.plan,
            budget=terms.budget,
            structured="" if task is None else pack(task),
            time_limit_ms=terms.time_limit_ms,
            options=SUBMIT.options(request),
            seal=Seal(label=session, by=OPERATOR, to=(recipient,)) if envelope.encrypted else None,
        )

    def drop(self, dead_letter: DeadLetter) -> bool:
        """Remove a dead letter for good; the audit trail keeps who, what and why. False: it is gone already."""
        return self._note(
            dead_letter,
            f"dead letter {dead_letter.id} was dropped by the operator: {dead_letter.rule}: {dead_letter.reason}",
        )

    def _note(self, dead_letter: DeadLetter, text: str) -> bool:
        stream, data = self._noted(dead_letter.id, text, shard=dead_letter.stream.shard)
        return bool(self._leave(dead_letter, [(stream, [ENVELOPE_FIELD, data])]))

    def _noted(self, about: str, text: str, *, shard: int) -> tuple[StreamId, bytes]:
        """Return the operator's note for the audit trail about a dead letter or a message, and its stream."""
        # A conversation of its own: the message's may not allow one message more.
        thread = Thread(correlation=derived_uuid("dead-letter", about))
        note = self._parts.message_factory.message(
            sender=OPERATOR, recipient="router", text=text, thread=thread
        )
        return StreamId(shard, note.type, note.priority), note.data

    def _copy(self, dead_letter: DeadLetter, message: AgentMessage) -> Replayed | None:
        """Publish the same bytes once more, as the same message."""
        fields: list[str | bytes] = [ENVELOPE_FIELD, dead_letter.data, REPLAYS_FIELD, dead_letter.id]
        header = message.header
        marked = (header.sender.agent_name, header.message_id)
        entry = self._leave(dead_letter, [(dead_letter.stream, fields)], marked=marked)
        return Replayed(how="copy", id=entry) if entry else None

    def _leave(
        self,
        dead_letter: DeadLetter,
        published: Sequence[Publication],
        *,
        marked: tuple[str, str] | None = None,
    ) -> str | None:
        """Take a dead letter out and publish entries in the same step; the first one's id, None: it is gone already.

        ``marked`` are sender and message-id of the first, by which a copy of it is a duplicate.
        """
        shard = dead_letter.stream.shard  # that of the dead letters it is among
        dead = keys.dead(shard)
        args: list[str | bytes | int] = []
        for _, fields in published:
            args += [len(fields), *fields]
        answer = self._scripts.run(
            "dead_leave",
            [
                dead,
                keys.totals(shard),
                keys.seen(shard, marked[0], marked[1].lower()) if marked else dead,
                keys.dead_index(shard),
                keys.dead_usage(shard),
                *[stream_key(stream) for stream, _ in published],
            ],
            [dead_letter.id.partition("-")[2], _MARK_MS, *args],
        )
        return answer.decode() if answer else None


def _by_operator(fault: tuple[str, str] | None) -> str:
    """The end of a note about a replay that the operator signed; empty for any other replay."""
    if fault is None:
        return ""
    return f", signed by the operator for {user_at_host()}: the original was not verified ({fault[0]}: {fault[1]})"


def _not_renewed(message: AgentMessage) -> Refused:
    return Refused(
        f"message {message.header.message_id} cannot be sent again: the key of its sender "
        f"{message.header.sender.agent_name!r} is not in this data folder, or its body is encrypted; "
        "a copy would be a duplicate"
    )


def _not_to_be_signed(message: AgentMessage) -> Refused:
    return Refused(
        f"message {message.header.message_id} cannot be signed by the operator: its body is encrypted or cannot "
        "be fetched; have its sender send it again"
    )
