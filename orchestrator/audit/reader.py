"""Questions to the audit trail: conversations, searches, launches, and whether it is complete."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from sqlalchemy import ColumnElement, func, select

from orchestrator.agents.registry import SYSTEM_AGENTS
from orchestrator.audit.amendments import TOMBSTONE
from orchestrator.audit.database import MESSAGES
from orchestrator.audit.heads import Proof
from orchestrator.audit.records import MessageRecord
from orchestrator.audit.search import Conditions, Search
from orchestrator.audit.store import IS_DEAD, AuditStore
from orchestrator.audit.text import body_of
from orchestrator.audit.words import words_of
from orchestrator.envelope.message_types import SESSION_STARTING
from orchestrator.ids import is_session_id
from orchestrator.streams import AUDIT_GROUP, RedisStreams, StreamId

_M = MESSAGES.c
#: The outcome of a message that became a dead letter.
DEAD = "dead"
#: Messages that one query reads.
_PAGE = 5000
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


@dataclass(frozen=True, kw_only=True)
class LaunchRecords:
    """Launches of one conversation, as the envelopes say."""

    #: Message-id of the launch of a session → the sessions that it launched under task-ids of ours.
    children: Mapping[str, set[str]]
    #: The message-ids of all launches, also those of external programs, which have task-ids of their own.
    messages: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Parent:
    """A session that may have launched others, as the ledger has it."""

    agent: str
    children: AbstractSet[str]


class MessageSummary(NamedTuple):
    """A message of the trail by its facts alone."""

    seq: int
    stream: str
    entry_id: str
    message_id: str
    type: str
    sender: str
    recipient: str
    task_id: str
    published_ms: int
    received_ms: int


_SUMMARIES = select(*(_M[name] for name in MessageSummary._fields))


@dataclass(frozen=True)
class Coverage:
    """Coverage of a stream by the audit trail."""

    stream: StreamId
    published: int
    audited: int
    #: Handed to a writer and not written yet.
    pending: int
    #: What no writer has had.
    unread: int

    @property
    def missing(self) -> int:
        """Entries that are not written."""
        return self.published - self.audited

    @property
    def lost(self) -> int:
        """Entries that are not written, and that no writer will write."""
        return max(0, self.missing - self.pending - self.unread)


class AuditReader:
    """Reads an audit database that others may be writing to."""

    def __init__(self, store: AuditStore) -> None:
        #: The database that is read.
        self.store = store

    def find(self, identifier: str) -> list[MessageRecord]:
        """Return the messages that an id stands for, oldest first.

        A message-id stands for its message, a correlation-id for its conversation, a session id or any other
        task-id for the launch and everything that followed upon it.
        """
        lowered = identifier.lower()
        if _UUID.fullmatch(lowered):
            return self.store.messages(_M.message_id == lowered) or self.store.messages(
                _M.correlation_id == lowered
            )
        launches = self.store.messages(
            _M.task_id == identifier, _M.type.in_(sorted(SESSION_STARTING)), limit=1
        )
        return self._below(launches[0]) if launches else self.store.messages(_M.task_id == identifier)

    def about(self, identifier: str, launch: Callable[[], str]) -> list[MessageRecord]:
        """Return what an id stands for; of a session whose task has an id of an external program's own, by the message-id
        of its ``launch``, which is asked for then; empty: unknown.
        """
        records = self.find(identifier)
        message = launch() if not records and is_session_id(identifier) else ""
        return [one for top in self.find(message)[:1] for one in self._below(top)] if message else records

    def _below(self, launch: MessageRecord) -> list[MessageRecord]:
        """Return a launch and everything that followed upon it, directly or not."""
        conversation = self.conversation(launch.correlation_id)
        replies: dict[str, set[str]] = {}
        for record in conversation:
            replies.setdefault(record.parent_id, set()).add(record.message_id)
        # Times do not tell what follows upon what: a clock may have been put back between two messages.
        wanted, new = set[str](), {launch.message_id}
        while new:
            wanted |= new
            new = {reply for message in new for reply in replies.get(message, ())} - wanted
        return [record for record in conversation if record.message_id in wanted]

    def conversation(self, correlation_id: str, *, limit: int | None = None) -> list[MessageRecord]:
        """Return the messages of a conversation in the order in which they were published: all, or the first ones."""
        return self.store.messages(
            _M.correlation_id == correlation_id.lower(), order=(_M.published_ms, _M.seq), limit=limit
        )

    def count(self, correlation_id: str) -> int:
        """Return the number of messages of a conversation."""
        query = select(func.count()).where(_M.correlation_id == correlation_id.lower())
        return int(self.store.query(query)[0][0])

    def search(
        self,
        *,
        text: str | None = None,
        message_type: str | None = None,
        sender: str | None = None,
        recipient: str | None = None,
        task_id: str | None = None,
        priority: str | None = None,
        correlation: str | None = None,
        attempt: int | None = None,
        rule: str | None = None,
        outcome: str | None = None,
        message_id: str | None = None,
        before: int | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        dead: bool = False,
        limit: int = 100,
    ) -> list[MessageRecord]:
        """Return the latest messages that meet every condition given, newest first; ``before``: of those after that
        message.

        ``text``: words that follow each other in what the message says. ``outcome``: `dead`, or how the task stands by a
        message that is not dead.
        """
        facts = (
            ("type", message_type),
            ("sender", sender),
            ("recipient", recipient),
            ("task_id", task_id),
            ("priority", priority),
            ("correlation_id", correlation.lower() if correlation else None),
            ("attempt", attempt),
            ("message_id", message_id.lower() if message_id else None),
            ("status", outcome if outcome != DEAD else None),
        )
        conditions = Conditions(
            facts=tuple((name, value) for name, value in facts if value is not None),
            since_ms=since_ms,
            until_ms=until_ms,
            dead=True if dead or outcome == DEAD or rule is not None else None if outcome is None else False,
            rule=rule,
        )
        phrase = None if text is None else words_of(text)
        return Search(self.store).page(conditions, phrase, before=before, limit=limit)

    def launches(
        self, correlation_id: str, *, parents: Mapping[str, Parent], proof: Proof
    ) -> LaunchRecords | None:
        """Return the launches of one conversation, which is that of a whole tree: evidence for the doctor.

        ``parents`` are the sessions of the tree by the message-id that launched each. A launch that the ledger does not
        know is an accusation, and anybody can append an envelope: it counts if the parent's agent has signed it, and
        no router refused it. An escalation to the operator begins no session, as no worker serves one. None: the
        operator has removed a part of the conversation, so that the trail says nothing for certain.
        """
        which = (
            _M.correlation_id == correlation_id.lower(),
            _M.type.in_(sorted(SESSION_STARTING)),
            _M.recipient.not_in(sorted(SYSTEM_AGENTS)),
        )
        rows = self.store.query(select(_M.parent_id, _M.task_id, _M.message_id).where(*which).distinct())
        if parents.keys() - {row[2] for row in rows} and any(
            known.kind == TOMBSTONE and not known.fault(proof.keys, self.store.id)
            for known in self.store.amendments()
        ):
            return None
        children: dict[str, set[str]] = {}
        for parent_id, child, _ in rows:
            if not parent_id or not is_session_id(child):
                continue
            parent = parents.get(parent_id)
            if parent is not None and child not in parent.children:
                claims = self.store.messages(
                    *which, _M.parent_id == parent_id, _M.task_id == child, _M.sender == parent.agent
                )
                if not any(not c.dead and not proof.fault(c.xml, c.published_ms) for c in claims):
                    continue
            children.setdefault(parent_id, set()).add(child)
        return LaunchRecords(children=children, messages=frozenset(row[2] for row in rows))

    def latest(self, *, since_ms: int, limit: int) -> list[MessageSummary]:
        """Return the newest messages that can be read and were not refused, those that were published later than
        that.
        """
        newest = select(func.coalesce(func.max(_M.seq), 0)).scalar_subquery()
        asked = _SUMMARIES.where(
            _M.seq > newest - limit, _M.published_ms > since_ms, _M.message_id != "", ~IS_DEAD
        ).order_by(_M.seq.desc())
        return [MessageSummary(*row) for row in self.store.query(asked)]

    def delegations(self, *, since_ms: int, newest: int | None) -> Iterator[list[MessageSummary]]:
        """Yield the tasks that were given to agents, and not refused, since then; page by page, of the ``newest``
        messages.
        """
        top: int = self.store.query(select(func.coalesce(func.max(_M.seq), 0)))[0][0]
        after = -1 if newest is None else top - newest
        which = (
            _M.type == "task-delegation",
            _M.published_ms > since_ms,
            _M.message_id != "",
            _M.recipient.not_in(sorted(SYSTEM_AGENTS)),
            ~IS_DEAD,
        )
        while True:
            asked = _SUMMARIES.where(_M.seq > after, *which).order_by(_M.seq).limit(_PAGE)
            page = [MessageSummary(*row) for row in self.store.query(asked)]
            if not page:
                return
            yield page
            after = page[-1].seq

    def xml(self, mention: MessageSummary) -> bytes:
        """Return the bytes of a message as they were published."""
        return bytes(self.store.query(select(_M.xml).where(_M.seq == mention.seq))[0][0])

    def given_above(self, mention: MessageSummary) -> str:
        """Return the agent that was given the task under which a message was sent; empty if the trail does not say."""
        above = select(_M.parent_id).where(_M.seq == mention.seq).scalar_subquery()
        asked = (
            select(_M.recipient).where(_M.message_id == above, _M.type.in_(sorted(SESSION_STARTING))).limit(1)
        )
        return "".join(row[0] for row in self.store.query(asked))

    def entries(self, mention: MessageSummary) -> list[str]:
        """Return the entries of its stream in which the same octets were published, its own among them."""
        return [row[0] for row in self.store.query(select(_M.entry_id).where(*self._same_octets(mention)))]

    def was_refused(self, mention: MessageSummary) -> bool:
        """Return True if one of those entries became a dead letter."""
        return bool(self.store.query(select(_M.seq).where(*self._same_octets(mention), IS_DEAD).limit(1)))

    def _same_octets(self, mention: MessageSummary) -> tuple[ColumnElement[bool], ...]:
        other = MESSAGES.alias("o")
        digest = select(other.c.sha256).where(other.c.seq == mention.seq)
        return (
            _M.message_id == mention.message_id,
            _M.stream == mention.stream,
            _M.sha256 == digest.scalar_subquery(),
        )

    def body(self, record: MessageRecord) -> bytes:
        """Return the body of a message as a whole element: the stored one, the compressed one, or that of its
        envelope.

        What is encrypted stays so. Nothing: the message has none that can be read, or its text was removed.
        """
        stored = self.store.body(record.body)
        return body_of(record.xml) if stored is None else stored

    def coverage(self, streams: RedisStreams, sources: Sequence[StreamId]) -> list[Coverage]:
        """Return how much of each stream that was ever published is written: the audit must miss nothing.

        What is written between two of the reads counts as missing: look again before you accuse anybody.
        """
        audited = self.store.counts()
        rows = []
        for row in streams.backlog(AUDIT_GROUP, sources):
            written = audited.get(str(row.stream), 0)
            if row.published or written:
                most = row.published - written - row.pending
                unread = min(row.unread, max(0, most))
                rows.append(Coverage(row.stream, row.published, written, row.pending, unread))
        return rows


@dataclass
class Node:
    """A message and what followed upon it."""

    record: MessageRecord
    replies: list[Node] = field(default_factory=list)


def trees(records: Sequence[MessageRecord]) -> list[Node]:
    """Messages as trees by their chains; a message whose forerunner is not among them is a root.

    What cannot be read, and a chain that leads back to itself, is a root too.
    """
    nodes: dict[str, Node] = {}
    order: list[Node] = []
    for record in records:
        known = nodes.get(record.message_id) if record.message_id else None
        if known is not None and known.record.sha256 == record.sha256:
            # A later attempt stands where the first one was made, and says how it went.
            attempt = max(known.record.attempt, record.attempt)
            known.record = replace(known.record, attempt=attempt, dead=record.dead or known.record.dead)
            continue
        node = Node(record)
        order.append(node)
        if record.message_id:  # a message with the id of another one takes nothing from it
            nodes.setdefault(record.message_id, node)
    roots: list[Node] = []
    above: dict[int, Node] = {}  # by identity: two messages may have one id
    for node in order:
        parent = nodes.get(node.record.parent_id) if node.record.parent_id else None
        if parent is None or _top_of(parent, above) is node:
            roots.append(node)
        else:
            parent.replies.append(node)
            above[id(node)] = parent
    return roots


def _top_of(node: Node, above: dict[int, Node]) -> Node:
    """Return the node at the top of a node's tree. Each step halves the way of the next look: a chain may be long."""
    while (parent := above.get(id(node))) is not None:
        above[id(node)] = above.get(id(parent), parent)
        node = above[id(node)]
    return node
