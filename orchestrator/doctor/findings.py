"""Findings of the doctor: lost or doubled callbacks, what is stuck, and what deserves a look."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

import redis

from orchestrator.audit.heads import Proof
from orchestrator.audit.reader import AuditReader, LaunchRecords, Parent
from orchestrator.bootstrap import Container
from orchestrator.envelope.message_types import SESSION_STARTING
from orchestrator.ids import shard_of
from orchestrator.ledger import HeldBack, RunState, Session, Tally
from orchestrator.ledger.snapshot import Snapshot
from orchestrator.machine import Clock
from orchestrator.redisdb import keys
from orchestrator.runtime.service import is_served, living_agents
from orchestrator.streams import AUDIT_GROUP, RedisStreams, all_streams

#: A break of the promise in one session: the rule, the subject, and what is said of the session.
Broken = tuple[str, str, str]


class Severity(StrEnum):
    """Severity of a finding."""

    BREAK = "break"  #: a callback is lost or doubled, or a record is wrong
    STUCK = "stuck"  #: nothing is lost, but it will not move by itself, or is late
    WARNING = "warning"  #: a set-up that weakens a guarantee


@dataclass(frozen=True)
class Problem:
    """A problem, in one sentence that says what is wrong and, where there is one, the next step."""

    #: How bad it is: `break`, `stuck` or `warning` of `doctor`; `error`, `warning` or `info` of `validate`.
    severity: Severity
    #: The rule that is broken; rules are never renamed.
    rule: str
    #: The callback, run or service concerned; else empty.
    subject: str
    #: What is wrong and, where there is one, the next step.
    message: str
    #: The session concerned; empty: the stack as a whole.
    session: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """The identity of a finding across examinations."""
        return self.rule, self.session, self.subject


@dataclass(frozen=True)
class Blocker:
    """The thing for which something pending waits, what will move it, and by when."""

    #: The session concerned.
    session: str
    #: The callback or other item that is pending, or the session itself.
    subject: str
    #: What it waits for, in words.
    waits_for: str
    #: What will move it: a worker, a timer, an entry, a policy, a person.
    mover: str
    #: By when, in words; empty: only an agent's own work decides.
    by: str


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Everything one examination found."""

    #: The promise in numbers.
    tally: Tally
    #: Trees that were looked at.
    trees: int
    #: What breaks the promise, is stuck or deserves a look.
    findings: tuple[Problem, ...]
    #: What is pending, and what will move it.
    waits: tuple[Blocker, ...]
    #: Whether launches were compared with the audit trail.
    audited: bool
    #: Whether everything was looked at, and not only what changed.
    full: bool = True
    #: Trees at rest that were not looked at.
    at_rest: int = 0

    @property
    def holds(self) -> bool:
        """True if every callback that was launched is delivered, pending or dead."""
        return not any(f.severity == Severity.BREAK for f in self.findings)

    @property
    def promise(self) -> str:
        """The promise in numbers, as one line."""
        return str(self.tally)

    @property
    def exit_code(self) -> int:
        """The exit code. 0: nothing is broken, and all moves; 1: something is; 3: nothing is, and something is stuck."""
        if not self.holds:
            return 1
        return 3 if any(f.severity == Severity.STUCK for f in self.findings) else 0


def stuck(rule: str, subject: str, message: str, *, session: str = "") -> Problem:
    """Return a problem that will not resolve by itself, or is late."""
    return Problem(Severity.STUCK, rule, subject, message, session)


def warning(rule: str, subject: str, message: str, *, session: str = "") -> Problem:
    """Return a set-up that weakens a guarantee."""
    return Problem(Severity.WARNING, rule, subject, message, session)


#: Seconds for which it is remembered which agents are served.
_LIVING_S: Final = 1.0


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Terms for the sessions of an agent. Times are in seconds."""

    lease_s: float
    sweep_s: float
    run_limit_s: float
    #: Why nobody takes the runs of the agent, in words; empty: a living worker serves it.
    nobody: str = ""
    #: What keeps the ready runs of the agent, or of the tree, from being taken; None: nothing.
    held_back: HeldBack | None = None


class TermsReader:
    """Reads the terms of agents from one stack."""

    def __init__(self, parts: Container, clock: Clock) -> None:
        self._parts = parts
        self._clock = clock
        self._living: frozenset[tuple[str, str]] = frozenset()
        self._look_again_at = -math.inf
        settings = parts.settings
        self._terms = Terms(
            lease_s=settings.lease_s,
            sweep_s=settings.sweep_interval_s,
            run_limit_s=settings.run_time_limit_s,
        )

    def of(self, agent: str) -> Terms:
        """Return the terms of an agent."""
        record = self._parts.agents.get(agent)
        if record is None:
            return replace(self._terms, nobody=f"no agent {agent!r} is registered")
        now = self._clock.monotonic()
        if now >= self._look_again_at:
            self._living, self._look_again_at = living_agents(self._parts.redis), now + _LIVING_S
        nobody = "" if is_served(record, self._living) else f"no living worker serves {agent!r}"
        return replace(self._terms, run_limit_s=record.time_limit_s or self._terms.run_limit_s, nobody=nobody)

    def within(self, snapshot: Snapshot) -> Terms:
        """Return the terms of a session: those of its agent, and what keeps its queued run from being taken."""
        session, run = snapshot.session, snapshot.run
        terms = self.of(session.agent)
        if run is None or run.state != RunState.QUEUED or terms.nobody:
            return terms
        shard = shard_of(session.id)
        held_back = self._parts.concurrency.held_back(session.agent, shard=shard, root=session.root)
        return replace(terms, held_back=held_back)


#: Milliseconds that the times of a session and of its launch may differ, which one step has written.
_APART_MS: Final = 1000


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The launches of one tree."""

    #: By the audit trail; None: no trail is at hand, or it says nothing for certain.
    launches: LaunchRecords | None = None
    #: Parent → the sessions of the tree that name it.
    children: Mapping[str, AbstractSet[str]] = field(default_factory=dict)
    #: Whether the trail is in one database, so that a launch which it lacks was not made.
    whole_trail: bool = True
    #: Sessions of the tree whose launch no audit writer may have written yet.
    unwritten: AbstractSet[str] = frozenset()


def evidence(
    client: redis.Redis, audit: AuditReader | None, proof: Proof, root: str, members: Sequence[Session]
) -> Evidence:
    """Gather the evidence about the tree of ``root``, whose sessions are ``members``."""
    children: dict[str, set[str]] = defaultdict(set)
    for member in members:
        if member.parent:
            children[member.parent].add(member.id)
    correlation = next((member.correlation for member in members if member.id == root), "")
    if audit is None or not correlation:
        return Evidence(children=children)
    parents = {
        member.message.lower(): Parent(agent=member.agent, children=children.get(member.id, set()))
        for member in members
    }
    launches = audit.launches(correlation, parents=parents, proof=proof)
    known = launches.messages if launches is not None else frozenset()
    return Evidence(
        launches=launches,
        children=children,
        whole_trail=not other_trails(client, audit),
        unwritten=_unwritten(
            client, root, [m for m in members if m.parent and m.message.lower() not in known]
        ),
    )


def _unwritten(client: redis.Redis, root: str, lacking: Sequence[Session]) -> set[str]:
    """Return those of the sessions that were launched when, or after, the oldest launch was that no audit writer has
    written.
    """
    if not lacking:
        return set()
    shard = shard_of(root)
    streams = [one for one in all_streams(shard + 1, sorted(SESSION_STARTING)) if one.shard == shard]
    rows = RedisStreams(client).backlog(AUDIT_GROUP, streams)
    since = [ms for row in rows for ms in (row.unread_since_ms, row.pending_since_ms) if ms is not None]
    return {one.id for one in lacking if since and one.created_ms + _APART_MS >= min(since)}


def other_trails(client: redis.Redis, audit: AuditReader) -> int:
    """Return how many other audit databases hold a part of the trail."""
    heads: Any = client.hkeys(keys.audit_heads())
    return len({name.decode() for name in heads} - {audit.store.id})
