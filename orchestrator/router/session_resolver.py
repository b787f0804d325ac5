"""The sessions that messages name by their chains and task-ids, looked up for a whole round at once.

The record of a conversation names the session that each launch began. It is written when the router carries a launch
out, and forgotten some time after the conversation's last message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import redis

from orchestrator.ids import is_session_id, shard_of
from orchestrator.ledger import Ledger, Session
from orchestrator.redisdb import keys
from orchestrator.router.received import ReceivedMessage

#: References at the beginning of a chain among which the launch of the sender's own session stands.
NEAREST: Final = 4
#: A field of a conversation's record: shard, conversation, name.
_Field = tuple[int, str, str]


def launched(client: redis.Redis, shards: int, conversation: str, references: Sequence[str]) -> list[str]:
    """The sessions that these messages of a conversation launched, in whatever shard; in the order of ``references``."""
    names = [f"launch:{reference.lower()}" for reference in references]
    pipeline = client.pipeline(transaction=False)
    for shard in range(shards if names else 0):
        pipeline.hmget(keys.conversation(shard, conversation), names)
    answers: list[list[bytes | None]] = pipeline.execute()
    return [
        session.decode() for of_reference in zip(*answers, strict=True) for session in of_reference if session
    ]


class SessionResolver:
    """Lookup of sessions and conversations for the messages of a round.

    It is loaded before the round is carried out; the scripts decide on what the round itself changes.
    """

    def __init__(self, client: redis.Redis, ledger: Ledger) -> None:
        self._redis = client
        self._ledger = ledger
        self._fields: dict[_Field, str | None] = {}
        self._sessions: dict[str, Session | None] = {}

    def load(self, messages: Iterable[ReceivedMessage]) -> None:
        """Look up everything that these messages may name, in two round trips."""
        self._fields.clear()
        self._sessions.clear()
        wanted = dict.fromkeys(field for received in messages for field in _fields(received))
        if not wanted:
            return
        self._read_fields(list(wanted))
        named = [
            value for (*_, name), value in self._fields.items() if value and not name.startswith("party:")
        ]
        named += [task for received in messages if is_session_id(task := received.task_id)]
        self._read_sessions(list(dict.fromkeys(named)))

    def _read_fields(self, fields: Sequence[_Field]) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        for shard, conversation, name in fields:
            pipeline.hget(keys.conversation(shard, conversation), name)
        for field, answer in zip(fields, pipeline.execute(), strict=True):
            self._fields[field] = answer.decode() if answer else None

    def _read_sessions(self, session_ids: Sequence[str]) -> None:
        found = {session.id: session for session in self._ledger.find(session_ids)} if session_ids else {}
        for session_id in session_ids:
            self._sessions[session_id] = found.get(session_id)

    def session(self, session_id: str | None, agent: str, received: ReceivedMessage) -> Session | None:
        """The session of that id, if it is the agent's and lives where the message came in."""
        if not session_id or shard_of(session_id) != received.entry.stream.shard:
            return None
        if session_id not in self._sessions:
            self._read_sessions([session_id])
        session = self._sessions[session_id]
        return session if session is not None and session.agent == agent else None

    def by_task(self, task_id: str, agent: str, received: ReceivedMessage) -> Session | None:
        """The session of a task that the agent was given."""
        if is_session_id(task_id):
            return self.session(task_id, agent, received)
        return self.session(self._field(received, f"task:{task_id}"), agent, received)

    def by_chain(self, agent: str, received: ReceivedMessage) -> Session | None:
        """The nearest session of the agent among those that the message's chain launched."""
        for ref in received.message.header.conversation_chain:
            session = self.session(self._field(received, f"launch:{ref.lower()}"), agent, received)
            if session is not None:
                return session
        return None

    def latest(self, agent: str, received: ReceivedMessage) -> Session | None:
        """The session of the agent that the message's conversation launched last."""
        return self.session(self._field(received, f"agent:{agent}"), agent, received)

    def recipient(self, received: ReceivedMessage, sender: Session | None) -> Session | None:
        """The session that a message is for: the parent of the sender's session, else the nearest in its chain."""
        if sender is not None and sender.parent:
            parent = self.session(sender.parent, received.recipient, received)
            if parent is not None:
                return parent
        return self.by_chain(received.recipient, received)

    def takes_part(self, received: ReceivedMessage, session: Session) -> bool:
        """Return True if a message's sender may send to a session: it took part in the conversation, or gave the
        task.

        A conversation's record of its parties only grows.
        """
        return received.sender == session.delegator or any(
            self._field(received, name) for name in _parts(received.sender)
        )

    def _field(self, received: ReceivedMessage, name: str) -> str | None:
        return self._fields[received.entry.stream.shard, received.conversation, name]


def _fields(received: ReceivedMessage) -> list[_Field]:
    shard, conversation = received.entry.stream.shard, received.conversation
    names = [f"launch:{ref.lower()}" for ref in received.message.header.conversation_chain]
    task_id = received.task_id
    if task_id and not is_session_id(task_id):
        names.append(f"task:{task_id}")
    if received.type == "escalation":
        names.append(f"agent:{received.recipient}")
    names += _parts(received.sender)
    return [(shard, conversation, name) for name in names]


def _parts(agent: str) -> tuple[str, str]:
    """The fields of a conversation's record of which one is there if the agent has a part in it."""
    return f"agent:{agent}", f"party:{agent}"
