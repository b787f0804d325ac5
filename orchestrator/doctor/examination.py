"""One examination of all live trees: gather, judge, look again at what seems wrong, report."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.audit.kept import KeptHeads
from orchestrator.audit.proof import EitherKeys, proof_of
from orchestrator.audit.reader import AuditReader, LaunchRecords, Parent
from orchestrator.audit.verification import rolled_back
from orchestrator.bootstrap import Container
from orchestrator.clock import Clock, SystemClock, isoformat
from orchestrator.display.text import counted
from orchestrator.doctor import approvals, leftovers
from orchestrator.doctor import blockers as waits
from orchestrator.doctor import health as vitals
from orchestrator.doctor import invariants as promise
from orchestrator.doctor.authenticity import not_genuine
from orchestrator.doctor.findings import Blocker, Diagnosis, Problem, Severity, Tally
from orchestrator.doctor.launches import taken
from orchestrator.doctor.messages import TakenMessages
from orchestrator.doctor.policies import is_ready
from orchestrator.doctor.repair import repair
from orchestrator.doctor.snapshot import Snapshot, take
from orchestrator.ids import is_session_id
from orchestrator.ledger import CLOSED, Lease, Run, RunState, Session, SessionState, decode
from orchestrator.policy.versions import lane_queue, split_lane
from orchestrator.redisdb import keys
from orchestrator.redisdb.client import is_outage, refuses_everything
from orchestrator.runtime.service import is_served, living_agents

#: Looks at a session that seems wrong, and the seconds before each: a live system moves between two reads.
SECOND_LOOKS = (0.05, 0.25, 1.0)
#: Milliseconds after which an idle session with nothing to come, or a closed one with children, is stuck.
_LATE_MS = 60_000


@dataclass(frozen=True, kw_only=True)
class Step:
    """One session on the way to what holds another one up, and what it waits for; None: it has ended."""

    session: Session
    wait: Blocker | None


#: Seconds for which it is remembered which agents are served.
_LIVING_S = 1.0


class Doctor:
    """Examines one stack. ``audit`` is its audit trail where one is at hand."""

    def __init__(
        self,
        parts: Container,
        *,
        audit: AuditReader | None,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._parts = parts
        self._ledger = parts.ledger
        self._audit = audit
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._living: frozenset[tuple[str, str]] = frozenset()
        self._look_again_at = -math.inf
        settings = parts.settings
        self._proof = proof_of(EitherKeys(parts.keyring, parts.keyring.store), settings)
        self._shards = range(settings.shards)
        self._terms = waits.Terms(
            lease_s=settings.lease_s,
            sweep_s=settings.sweep_interval_s,
            run_limit_s=settings.run_time_limit_s,
        )

    def examine(self, *, watch_leases: bool = True) -> Diagnosis:
        """Look at every tree that is kept.

        With ``watch_leases`` it takes a little more than a heartbeat while runs are at work.

        Raises:
            redis.RedisError: Redis does not answer.
        """
        began = self._clock.monotonic()
        leases = self._leases() if watch_leases else []
        findings: list[Problem] = []
        pending: list[Blocker] = []
        totals: Counter[str] = Counter()
        waiting_for: dict[str, list[Run]] = defaultdict(list)
        trees: set[str] = set()
        for snapshot in self._sessions(findings):
            session = snapshot.session
            trees.add(session.root)
            totals.update(
                sessions=1,
                launched=session.launched,
                delivered=session.delivered,
                dead=session.dead,
                pending=session.pending,
            )
            if snapshot.run is not None and snapshot.run.state == RunState.QUEUED:
                waiting_for[session.lane].append(snapshot.run)
            pending += waits.of_pending(snapshot, self._terms_in(snapshot))
            findings += vitals.deaths(snapshot)
            findings += self._pinned(snapshot)
        with self._readable("the stack", "", findings):
            findings += self._stack(waiting_for)
        if leases:
            rest = self._parts.settings.heartbeat_s * 1.5 - (self._clock.monotonic() - began)
            if rest > 0:
                self._sleep(rest)
            findings += vitals.leases(leases, self._leases(), self._terms.lease_s)
        return Diagnosis(
            tally=Tally(
                sessions=totals["sessions"],
                launched=totals["launched"],
                delivered=totals["delivered"],
                pending=totals["pending"],
                dead=totals["dead"],
            ),
            trees=len(trees),
            findings=tuple(findings),
            waits=tuple(pending),
            audited=self._audit is not None,
        )

    def repair(self, diagnosis: Diagnosis) -> None:
        """Put right what an examination found broken, as far as the ledger knows how; harmless to repeat."""
        repair(self._parts, diagnosis.findings)

    def why(self, session_id: str) -> tuple[Session, Blocker | None, list[Problem]]:
        """Why one session sleeps, and what breaks the promise in it.

        Raises:
            UnknownSession: there is no such session.
        """
        session = self._ledger.session(session_id)
        snapshot = take(self._ledger, session_id)
        if snapshot is None:
            return session, None, []
        launches, children = self._evidence(session.root or session.id)
        found = self._confirmed(snapshot, launches, children)
        wait = waits.of_session(snapshot.session, snapshot, self._terms_in(snapshot))
        return snapshot.session, wait, found

    def held_up_by(self, session_id: str) -> list[Step]:
        """The way from a session, which is left out, down to the one that holds everything up.

        Of several that are waited for at once, it follows the one that is least likely to end by itself, and of
        those the one in which nothing has happened for longest.
        """
        found: list[Step] = []
        seen = {session_id}
        snapshot = take(self._ledger, session_id)
        while snapshot is not None:
            candidates = [one for one in waits.held_up_by(snapshot) if one not in seen and is_session_id(one)]
            sessions = self._ledger.find(candidates)
            snapshot = None
            if sessions:
                next_one = min(sessions, key=lambda s: (self._prospects(s), s.updated_ms, s.id))
                seen.add(next_one.id)
                snapshot = take(self._ledger, next_one.id)
            if snapshot is not None:
                wait = waits.of_session(snapshot.session, snapshot, self._terms_in(snapshot))
                found.append(Step(session=snapshot.session, wait=wait))
        return found

    def _prospects(self, session: Session) -> int:
        """How likely a session is to end by itself: 0 for one in which nothing can move."""
        if session.damage or self._terms_of(session.lane).nobody:
            return 0
        if session.questions and not session.busy:
            return 1
        if session.state in (SessionState.SCHEDULED, SessionState.PENDING):
            return 2
        return 4 if session.busy else 3

    def _terms_in(self, snapshot: Snapshot) -> waits.Terms:
        """What holds for a session: the terms of its agent, and what keeps its queued run from being taken."""
        session, run = snapshot.session, snapshot.run
        terms = self._terms_of(session.lane)
        if run is None or run.state != RunState.QUEUED or terms.nobody:
            return terms
        shard = self._ledger.shard(session.id)
        held_back = self._parts.concurrency.held_back(session.agent, shard=shard, root=session.root)
        return replace(terms, held_back=held_back)

    def _terms_of(self, lane: str) -> waits.Terms:
        """The times that hold for an agent, and who serves it, or the version that a session is pinned to."""
        agent, version = split_lane(lane)
        record = self._parts.agents.get(agent)
        if record is None:
            return replace(self._terms, nobody=f"no agent {agent!r} is registered")
        now = self._clock.monotonic()
        if now >= self._look_again_at:
            self._living, self._look_again_at = living_agents(self._parts.redis), now + _LIVING_S
        nobody = "" if is_served(record, self._living) else f"no living worker serves {agent!r}"
        if version and (lane, lane_queue(lane)) not in self._living:
            nobody = f"no living worker has version {version} of {agent!r}"
        return replace(self._terms, run_limit_s=record.time_limit_s or self._terms.run_limit_s, nobody=nobody)

    # --- one tree ---------------------------------------------------------------------------

    def _sessions(self, findings: list[Problem]) -> Iterator[Snapshot]:
        """Every session that is kept, what is wrong with it being among the findings.

        First those that the indexes name, tree by tree; then those that no index names.
        """
        seen: set[str] = set()
        for root in self._roots(findings):
            with self._readable(f"the tree of {root}", root, findings):
                findings += self._gone(root)
            yield from self._tree(root, seen, findings)
        left = {session: root for session, root in self._ledger.all_sessions() if session not in seen}
        for root in dict.fromkeys(left.values()):
            yield from self._tree(root, seen, findings)
        for session, root in left.items():
            if session not in seen:
                yield from self._examined([session], root, findings)

    def _roots(self, findings: list[Problem]) -> Iterator[str]:
        """Every root that is indexed, in no order."""
        for shard in self._shards:
            found: list[str] = []
            with self._readable(f"the roots of shard {shard}", "", findings):
                found += self._ledger.all_roots(shard)
            yield from found

    def _tree(self, root: str, seen: set[str], findings: list[Problem]) -> Iterator[Snapshot]:
        """The sessions that the index of a tree names and that were not seen yet."""
        members: list[str] = []
        with self._readable(f"the tree of {root}", root, findings):
            members = [member.id for member in self._ledger.tree(root) if member.id not in seen]
        seen.update(members)
        yield from self._examined(members, root, findings)

    def _examined(self, sessions: Sequence[str], root: str, findings: list[Problem]) -> Iterator[Snapshot]:
        """Sessions of one tree."""
        launches: LaunchRecords | None = None
        children: dict[str, set[str]] = {}
        with self._readable(f"the tree of {root}", root, findings):
            launches, children = self._evidence(root)
        for session in sessions:
            snapshot = None
            with self._readable(f"session {session}", session, findings):
                snapshot = take(self._ledger, session)
                if snapshot is not None:
                    findings += self._confirmed(snapshot, launches, children)
                    findings += self._stuck(snapshot)
                    findings += approvals.waiting(
                        snapshot,
                        nobody=self._terms_of(snapshot.session.agent).nobody
                        if snapshot.session.approvals
                        else "",
                        now_ms=self._ledger.server_ms(),
                        late_ms=_LATE_MS,
                    )
                    findings += not_genuine(snapshot, self._ledger, self._parts.authenticity)
            if snapshot is not None:
                yield snapshot

    @contextlib.contextmanager
    def _readable(self, what: str, session: str, findings: list[Problem]) -> Iterator[None]:
        """What cannot be examined is a finding, and keeps nobody from examining the rest."""
        try:
            yield
        except Exception as error:
            if is_outage(error) or refuses_everything(error):
                raise
            findings.append(
                Problem(
                    severity=Severity.BREAK,
                    rule="damaged",
                    session=session,
                    subject=what,
                    message=f"{what} cannot be read: {type(error).__name__}: {error}",
                )
            )

    def _gone(self, root: str) -> Iterator[Problem]:
        """Sessions that the tree names and that are not there: they leave both together, or not at all."""
        client = self._parts.redis
        named = [decode.text(name) for name in client.zrange(keys.tree(root), 0, -1)]
        found = {session.id for session in self._ledger.tree(root)}
        for name in [n for n in named if n not in found]:  # seldom any: one may have come or gone in between
            pipe = client.pipeline(transaction=True)
            pipe.zscore(keys.tree(root), name)
            pipe.exists(keys.session(name))
            member, there = pipe.execute()
            if member is not None and not there:
                yield Problem(
                    severity=Severity.BREAK,
                    rule="session-gone",
                    session=name,
                    subject=name,
                    message=f"{name} is in the tree of {root} and its books are gone",
                )

    def _evidence(self, root: str) -> tuple[LaunchRecords | None, dict[str, set[str]]]:
        """Who launched whom, by the audit trail and by the sessions of the tree themselves."""
        children: dict[str, set[str]] = defaultdict(set)
        correlation = ""
        members = self._ledger.tree(root)
        for member in members:
            if member.id == root:
                correlation = member.correlation
            if member.parent:
                children[member.parent].add(member.id)
        if self._audit is None or not correlation:
            return None, children
        parents = {
            member.message.lower(): Parent(agent=member.agent, children=children.get(member.id, set()))
            for member in members
        }
        return self._audit.launches(correlation, parents=parents, proof=self._proof), children

    def _confirmed(
        self, snapshot: Snapshot, launches: LaunchRecords | None, children: dict[str, set[str]]
    ) -> list[Problem]:
        """The breaks that are still there on every later look, so that a moving system is not accused."""
        found = list(self._breaks(snapshot, launches, children))
        for pause in SECOND_LOOKS:
            if not found:
                break
            self._sleep(pause)
            again = take(self._ledger, snapshot.session.id)
            if again is None:
                return []
            launches, children = self._evidence(snapshot.session.root or snapshot.session.id)
            still = {f.key for f in self._breaks(again, launches, children)}
            found = [f for f in found if f.key in still]
        return found

    def _breaks(
        self, snapshot: Snapshot, launches: LaunchRecords | None, children: dict[str, set[str]]
    ) -> Iterator[Problem]:
        own = snapshot.session.id
        yield from promise.breaks(
            snapshot, launches, children.get(own, set()), whole_trail=not self._other_trails()
        )
        yield from taken(self._parts.redis, snapshot.session)

    def _stuck(self, snapshot: Snapshot) -> Iterator[Problem]:
        s = snapshot.session
        late = self._ledger.server_ms() - s.updated_ms > _LATE_MS
        if not late or s.busy:
            return
        said = waits.of_session(s, snapshot, self._terms_in(snapshot))
        over = s.state in CLOSED or s.state == SessionState.FINISHED
        if s.state == SessionState.PENDING:
            message = (
                "has not started for over a minute: its task-delegation was not routed; is a router running?"
            )
        elif (
            snapshot.stop_pending and s.state not in CLOSED
        ):  # an earlier version left that mark on closed ones
            message = "is to be ended for over a minute: is a callback service running?"
        elif snapshot.queue and is_ready(snapshot) and not snapshot.window_until_ms:
            message = f"has {counted(len(snapshot.queue), 'item')} queued for over a minute and no run: is a callback service running?"
        elif (
            s.parent and len(s.questions) > len(s.approvals) and said is not None
        ):  # a person may take any time
            message = f"waits for over a minute for {said.waits_for}; {said.mover}"
        elif over and "results" in snapshot.indexed:
            message = (
                "has ended, and its Celery result has not been stored for over a minute: is a reaper running?"
            )
        else:
            return
        yield Problem(
            severity=Severity.STUCK, rule="late", session=s.id, subject=s.id, message=f"{s.id} {message}"
        )

    # --- the stack --------------------------------------------------------------------------

    def _stack(self, waiting_for: Mapping[str, Sequence[Run]]) -> Iterator[Problem]:
        client = self._parts.redis
        yield from vitals.services(client)
        programs = [record.name for record in self._parts.agents.all() if record.external]
        most = self._parts.settings.stream_max_entries
        yield from vitals.streams(client, len(self._shards), programs)
        yield from vitals.inboxes(client, len(self._shards), programs, most)
        yield from vitals.strays(client, len(self._shards))
        yield from vitals.dropped_letters(client, len(self._shards))
        yield from vitals.results(self._ledger, self._shards)
        yield from approvals.strays(self._ledger, self._shards)
        yield from self._leftovers()
        yield from self._unserved(waiting_for)
        yield from self._paused(waiting_for)
        yield from vitals.setup(client, self._parts.settings)
        if others := self._other_trails():
            yield Problem(
                severity=Severity.WARNING,
                rule="audit-split",
                session="",
                subject="",
                message=f"{others} other audit databases hold a part of what was said: a launch that this one lacks "
                "may be in them; run the audit writers of one stack on one database",
            )
        yield from self._taken_messages()
        if self._audit is not None:
            for broken in rolled_back(self._audit.store, self._proof, KeptHeads.of(self._parts.settings)):
                yield Problem(
                    severity=Severity.BREAK,
                    rule="audit-rolled-back",
                    session="",
                    subject="",
                    message=f"{self._parts.settings.audit_name}: {broken.table} row {broken.seq}: {broken.what}",
                )
        if self._audit is None:
            yield Problem(
                severity=Severity.WARNING,
                rule="no-audit-trail",
                session="",
                subject="",
                message=f"no audit trail at {self._parts.settings.audit_name}: launches were taken from the ledger itself, and "
                "nobody looked for messages that were taken from the streams unrouted; run the doctor where the audit "
                "writer runs",
            )

    def _leftovers(self) -> list[Problem]:
        """What runs left behind, on every look, so that a moving system is not accused."""
        found = list(leftovers.found(self._ledger))
        for pause in SECOND_LOOKS:
            if not found:
                break
            self._sleep(pause)
            still = {f.key for f in leftovers.found(self._ledger)}
            found = [f for f in found if f.key in still]
        return found

    def _pinned(self, snapshot: Snapshot) -> Iterator[Problem]:
        """A session that nobody can take: it is pinned to a version of its agent that no living worker has."""
        s = snapshot.session
        over = s.state in CLOSED or (s.state == SessionState.FINISHED and not s.busy)
        if not s.pinned or over or not (nobody := self._terms_of(s.lane).nobody):
            return
        yield Problem(
            severity=Severity.STUCK,
            rule="version-unserved",
            session=s.id,
            subject=s.lane,
            message=f"{s.id} is pinned to the version that it began with, and {nobody}: start a worker that has "
            f"it, or let any version go on with it: orchestra unpin {s.id}",
        )

    def _unserved(self, waiting_for: Mapping[str, Sequence[Run]]) -> Iterator[Problem]:
        """Agents that queued runs wait for, and that no living worker serves."""
        for agent, runs in sorted(waiting_for.items()):
            if split_lane(agent)[1]:
                continue  # each session that is pinned is named by itself
            if nobody := self._terms_of(agent).nobody:
                first, more = runs[0], len(runs) - 1
                wait = (
                    f"{first.id} of {first.session} waits"
                    if not more
                    else (f"{first.id} of {first.session} and {more} more wait")
                )
                yield Problem(
                    severity=Severity.STUCK,
                    rule="agent-unserved",
                    session=first.session,
                    subject=agent,
                    message=f"{wait} for a worker, and {nobody}: start one that does, "
                    "for example: orchestra up --agents my_agents.py",
                )

    def _paused(self, waiting_for: Mapping[str, Sequence[Run]]) -> Iterator[Problem]:
        """What is paused, and how many runs wait for it to go on."""
        concurrency = self._parts.concurrency
        runs_of: dict[str, list[Run]] = defaultdict(list)
        for lane, found in waiting_for.items():
            runs_of[split_lane(lane)[0]] += found
        held = {limit.agent: limit for limit in concurrency.agents(sorted(runs_of)) if limit.paused}
        for (kind, name), since_ms in sorted(concurrency.paused().items()):
            mine = [a for a, limit in held.items() if name == a or limit.paused == kind == "queue"]
            runs = sum(len(runs_of[agent]) for agent in mine)
            yield Problem(
                severity=Severity.WARNING,
                rule="paused",
                session="",
                subject=name,
                message=f"{kind} {name!r} is paused since {isoformat(since_ms)}, and "
                f"{counted(runs, 'queued run')} wait{'s' if runs == 1 else ''} for it: orchestra unpause {name}",
            )

    def _taken_messages(self) -> list[Problem]:
        """Messages that left their streams unrouted, on every look, so that a moving system is not accused."""
        if self._audit is None or self._other_trails():  # what became of a message may be in another database
            return []
        found = TakenMessages(self._parts, self._audit, self._proof).find()
        for pause in SECOND_LOOKS:
            if not found:
                break
            self._sleep(pause)
            still = {f.key for f in TakenMessages(self._parts, self._audit, self._proof).find()}
            found = [f for f in found if f.key in still]
        return found

    def _other_trails(self) -> int:
        """How many audit databases beside the one at hand hold a part of what was said."""
        if self._audit is None:
            return 0
        heads: Any = self._parts.redis.hkeys(keys.audit_heads())
        return len({name.decode() for name in heads} - {self._audit.database})

    def _leases(self) -> list[Lease]:
        return [lease for shard in self._shards for lease in self._ledger.sweep.leases(shard)]
