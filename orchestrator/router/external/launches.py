"""Work that reaches us by message alone: sessions that launches of external programs begin, and messages to sessions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis

from orchestrator.agents.registry import ROUTER, SYSTEM_AGENTS
from orchestrator.envelope.bodies import TaskDelegation
from orchestrator.envelope.message_types import LaunchBody, task_id_of
from orchestrator.envelope.prompt_text import pack, prompt_of, title_of
from orchestrator.errors import InputError
from orchestrator.ids import (
    child_session_id,
    external_session_id,
    item_id,
    question_id,
    reply_id,
    run_id,
    shard_of,
)
from orchestrator.ledger import CLOSED, Ledger, Session, layout
from orchestrator.ledger.large_text import MAX_BESIDE_BYTES, Seal, beginning
from orchestrator.policy.routing import RoutingTable
from orchestrator.redisdb.scripts import Arg
from orchestrator.router.commands import (
    Batched,
    CommandOutcome,
    ConversationLimits,
    Resolved,
    ScriptCommand,
    Step,
    not_taking_part,
    outcome_of,
    rejected,
    session_unknown,
    task_taken,
    wrong_shard,
)
from orchestrator.router.received import SEALED_TITLE, ReceivedMessage, shard_of_message
from orchestrator.router.session_resolver import SessionResolver, launched


def seal_for(session: Session, reader: str) -> Seal | None:
    """Return the seal for an external program's message about or to a session; None if the session is not encrypted."""
    return Seal(label=session.root, by=ROUTER, to=(reader,)) if session.encrypted else None


@dataclass(frozen=True, kw_only=True)
class QueuedMessage:
    """A message, as it goes into the queue of a session."""

    text: str
    kind: str
    title: str = ""  #: what people see of it
    opens: bool = False  #: whether it is a question of the speaker, which is open from now on
    answers: str = ""  #: the question of the session that it answers
    priority: str = ""  #: by default that of the message
    body: str = ""  #: the parts of the message beside the text, as JSON


class SessionMessages:
    """Makes the steps that put messages into the queues of sessions."""

    def __init__(self, ledger: Ledger, limits: ConversationLimits) -> None:
        self._ledger = ledger
        self._limits = limits

    def _as_kept(self, session: Session, record: dict[str, Any], text: str) -> tuple[dict[str, Any], str]:
        """Record and text as the ledger holds them: encrypted, if the session is and the sender has not done it."""
        seals = self._ledger.seals
        if "sealed" in record:
            return record, text
        seal = seal_for(session, session.agent)
        return seals.write_record(record, seal), seals.write(text, seal)

    def facts_as_kept(self, speaker: Session | None, facts: Sequence[str | int]) -> list[str | int]:
        """Names and values, in turn, as the ledger holds them."""
        seal = seal_for(speaker, speaker.delegator) if speaker is not None else None
        write = self._ledger.seals.write
        return [write(one, seal) if at % 2 and isinstance(one, str) else one for at, one in enumerate(facts)]

    def put(
        self,
        received: ReceivedMessage,
        session: Session,
        message: QueuedMessage,
        *,
        speaker: Session | None = None,
        facts: Sequence[str | int] = (),
    ) -> ScriptCommand:
        """The step that puts a message into the queue of a session.

        Args:
            received: the message.
            session: the session whose queue it goes into.
            message: what goes into it.
            speaker: the session that sends it, if the ledger records that; or None.
            facts: names and values, in turn, that are written down about the speaker.
        """
        opens, answers = message.opens and speaker is not None, message.answers
        record: dict[str, Any] = {
            "kind": message.kind,
            "priority": message.priority or received.entry.stream.priority,
            "child": speaker.id if speaker is not None else "",
            "agent": received.sender,
            "title": beginning(message.title, MAX_BESIDE_BYTES),
            "status": "",
            "message": received.id,
            **({"question": True} if opens else {}),
            **({"answers": answers} if answers else {}),
            **({"body": message.body} if message.body else {}),
            **({"sealed": True} if received.sealed else {}),
        }

        def read(answer: Any) -> CommandOutcome:
            if known := outcome_of(answer[0], received):
                return known
            match answer[0]:
                case b"closed":
                    reason = f"session {session.id} is {answer[1].decode()} and takes nothing more"
                    return rejected("session-over", reason, received)
                case b"answered":
                    return rejected(
                        "session-over", f"the question of session {session.id} has its reply", received
                    )
                case b"person":
                    reason = f"an approval of session {session.id} is given by a person: `orchestra approve`"
                    return rejected("unauthorised", reason, received)
            return session_unknown(received)

        facts = self.facts_as_kept(speaker, facts)
        speaking = speaker.id if (opens or facts) and speaker is not None else session.id
        if answers:
            item = reply_id(answers)
        elif opens:
            item = question_id(speaking, f"message|{received.sender}|{received.id}")
        else:
            item = item_id(session.id, f"message|{received.sender}|{received.id}")
        record, text = self._as_kept(session, record, message.text)
        # Who signed the message is known here and nowhere later.
        record["proof"] = self._ledger.attest_item(
            item, session.id, record, text, by=ROUTER, to=session.agent
        )
        names, args = layout.post(
            session.id,
            text,
            *facts,
            id=item,
            record=record,
            speaker=speaking,
            opens=speaking if opens else "",
            answers=answers,
            mark=self._limits.mark(received),
        )
        return ScriptCommand(script="post", keys=names, args=args, read=read)


class ExternalLaunches:
    """Makes the steps for launches that the ledger does not know yet."""

    def __init__(
        self,
        client: redis.Redis,
        ledger: Ledger,
        session_resolver: SessionResolver,
        *,
        table: RoutingTable,
        limits: ConversationLimits,
        shards: int,
    ) -> None:
        self._redis = client
        self._ledger = ledger
        self._resolver = session_resolver
        self._mailbox = SessionMessages(ledger, limits)
        self._table = table
        self._limits = limits
        self._shards = shards

    def launch(self, received: ReceivedMessage, body: LaunchBody | None) -> Step:
        """Begin a session for the recipient: a root, or a child of the session that the sender runs.

        ``body`` is None if it is sealed: the recipient's worker opens it.
        """
        if received.recipient == self._table.operator:
            return Batched.ACK_ONLY  # for people to see: there is nobody to start
        home = self._home(received)
        if home != received.entry.stream.shard:
            return Resolved(wrong_shard(home, received))
        if received.type == "escalation":
            session = self._resolver.latest(received.recipient, received)
            if session is not None and session.state not in CLOSED:
                if not self._resolver.takes_part(received, session):
                    return Resolved(not_taking_part(received))
                title, prompt = _title_and_prompt(received, body)
                message = QueuedMessage(text=prompt, kind="escalation", title=title)
                return self._mailbox.put(received, session, message)
        return self._begin(received, body)

    def _home(self, received: ReceivedMessage) -> int:
        """The one shard in which the message may begin a session: that of the tree it names, else its conversation's.

        In the streams of other shards it is a copy, and each copy would begin a session.
        """
        if self._shards == 1:
            return 0
        chain = received.message.header.conversation_chain
        sessions = launched(self._redis, self._shards, received.conversation, chain)
        return shard_of(sessions[0]) if sessions else shard_of_message(received.message, self._shards)

    def _begin(self, received: ReceivedMessage, body: LaunchBody | None) -> ScriptCommand:
        shard = received.entry.stream.shard
        parent = self._resolver.by_chain(received.sender, received)
        if parent is not None:
            session = child_session_id(parent.id, f"message|{received.id}")
        else:
            session = external_session_id(shard, received.sender, received.id)
        run = run_id(session, 1)
        title, prompt = _title_and_prompt(received, body)
        # A task-id that cannot be read is as good as one of its own.
        task_id = task_id_of(body) or received.id
        chain = [received.id, *(ref.lower() for ref in received.message.header.conversation_chain)]
        facts: dict[str, str] = {
            "agent": received.recipient,
            "title": title,
            "task": "",
            "priority": received.entry.stream.priority,
            "correlation": received.conversation,
            "message": received.id,
            "chain": json.dumps(chain),
            "delegator": received.sender,
            "task_id": task_id,
            **({"sealed": "1", "encrypted": "1"} if received.sealed else {}),
        }
        structured = _structured(body)
        facts["task_proof"] = self._ledger.attest_task(session, facts, prompt, structured, by=ROUTER)
        octets: list[Arg] = []
        about: dict[str, object] = {
            "id": session,
            **{name: facts[name] for name in ("agent", "priority", "title")},
        }
        about = layout.launch(about, facts, octets, prompt=prompt, envelope="", task=structured)

        def read(answer: Any) -> CommandOutcome:
            if known := outcome_of(answer[0], received):
                return known
            match answer[0]:
                case b"started":
                    return CommandOutcome(kind="done", dispatch=layout.ready_run(session, *answer[1:5]))
                case b"stranger":
                    return not_taking_part(received)
                case b"task":
                    return task_taken(task_id, answer[1].decode(), received)
                case b"closed":
                    reason = (
                        f"the session it would belong to is {answer[1].decode()} and launches nothing more"
                    )
                    return rejected("session-over", reason, received)
            return self._limits.conversation_fault(answer[0].decode(), received)

        names, args = layout.call(
            session,
            *octets,
            launches=[about],
            mark=self._limits.mark(received),
            message=received.id,
            run=run,
            parent=parent.id if parent is not None else "",
            task=task_id,
            first=received.first,
            most_messages=self._limits.conversation_messages,
            look_ms=self._ledger.limits.redispatch_ms,
            review_ms=self._limits.review_due_ms(received),
            sender="" if received.sender in SYSTEM_AGENTS else received.sender,
            names_conversation=received.conversation == received.id,
            replay="replays" in received.entry.extra,
        )
        return ScriptCommand(script="launch", keys=names, args=args, read=read)


def _structured(body: LaunchBody | None) -> str:
    """Return a task as the ledger keeps it beside its prompt; empty if it is too large, or no task."""
    try:
        return pack(body.task) if isinstance(body, TaskDelegation) else ""
    except InputError:
        return ""  # the prompt has all of it


def _title_and_prompt(received: ReceivedMessage, body: LaunchBody | None) -> tuple[str, str]:
    """Title and prompt of what begins a session."""
    if body is None:
        return SEALED_TITLE, received.sealed
    return beginning(title_of(body), MAX_BESIDE_BYTES), prompt_of(body)
