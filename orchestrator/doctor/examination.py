"""Examination of all live trees: gather, check, look again at what seems wrong, report."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from orchestrator import machine
from orchestrator.audit.heads import EitherKeys, KeptHeads, proof_of
from orchestrator.audit.reader import AuditReader
from orchestrator.audit.verification import rolled_back
from orchestrator.bootstrap import Container
from orchestrator.doctor import approvals, blockers, health, invariants, repair
from orchestrator.doctor.authenticity import MOST, TakenMessages, altered_texts, not_genuine
from orchestrator.doctor.blockers import lost_stop, taken_launch
from orchestrator.doctor.findings import (
    Blocker,
    Diagnosis,
    Evidence,
    Problem,
    Severity,
    TermsReader,
    evidence,
    other_trails,
    warning,
)
from orchestrator.doctor.late import late
from orchestrator.ids import is_session_id
from orchestrator.ledger import CLOSED, Lease, Run, RunState, Session, SessionState, Tally, leftovers
from orchestrator.ledger.snapshot import Snapshot, take_snapshot
from orchestrator.machine import Clock, SystemClock
from orchestrator.redisdb.client import is_outage, refuses_everything

#: Milliseconds for which a tree or a session that came to rest counts as changed.
CHANGED_MS: Final = 3_600_000
#: Looks at a session that seems wrong, and the seconds before each: a live system moves between two reads.
SECOND_LOOKS = (0.05, 0.25, 1.0)

#: What seems wrong, by tree and session.
_Suspects = dict[str, dict[str, list[Problem]]]


@dataclass(frozen=True, kw_only=True)
class Step:
    """A session on the way to what holds another one up, and what it waits for; None if it has ended."""

    session: Session
    wait: Blocker | None


class Doctor:
    """Examines one stack. ``audit`` is its audit trail where one is at hand."""

    def __init__(
        self,
        parts: Container,
        *,
        audit: AuditReader | None,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = machine.sleep,
    ) -> None:
        self._parts = parts
        self._ledger = parts.ledger
        self._audit = audit
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._proof = proof_of(EitherKeys(parts.keyring, parts.keyring.store), parts.settings)
        self._shards = range(parts.settings.shards)
        self._terms = TermsReader(parts, self._clock)
        self._full, self._at_rest, self._since_ms = True, 0, 0

    def examine(self, *, watch_leases: bool = True, full: bool = True) -> Diagnosis:
        """Look at every tree that is kept; without ``full`` at what is not at rest, or came to rest within an hour.

        With ``watch_leases`` it takes a little more than a heartbeat while runs are at work. With ``full`` it takes a
        few milliseconds for each session that is kept, reads all large texts, and looks through all keys of the server.

        Raises:
            redis.RedisError: Redis does not answer.
        """
        began = self._clock.monotonic()
        leases: list[Lease] = []
        findings: list[Problem] = []
        with self._readable(
            "the public keys", "", findings
        ):  # whoever looks for a key of this folder registers it
            findings += health.keys_unregistered(self._parts)
        with self._readable("the running runs", "", findings):
            leases = self._leases() if watch_leases else []
        pending: list[Blocker] = []
        totals = Counter(sessions=0, launched=0, delivered=0, pending=0, dead=0)
        waiting: dict[str, list[Run]] = defaultdict(list)
        trees: set[str] = set()
        self._full, self._at_rest = full, 0
        self._since_ms = self._ledger.server_ms() - CHANGED_MS
        for session, snapshot in self._sessions(findings):
            trees.add(session.root)
            totals.update(asdict(Tally.of([session])))
            if snapshot is None:
                continue
            if snapshot.run is not None and snapshot.run.state == RunState.QUEUED:
                waiting[session.agent].append(snapshot.run)
            with self._readable(f"session {session.id}", session.id, findings):
                pending += blockers.of_pending(snapshot, self._terms.within(snapshot))
                findings += health.deaths(snapshot)
        for what, look in self._of_the_stack(waiting).items():
            with self._readable(what, "", findings):
                findings += look()
        if leases:
            settings = self._parts.settings
            rest = settings.heartbeat_s * 1.5 - (self._clock.monotonic() - began)
            if rest > 0:
                self._sleep(rest)
            findings += health.leases(leases, self._leases(), settings.lease_s)
        return Diagnosis(
            tally=Tally(**totals),
            trees=len(trees),
            findings=tuple(dict.fromkeys(findings)),
            waits=tuple(pending),
            audited=self._audit is not None,
            full=full,
            at_rest=self._at_rest,
        )

    def repair(self, diagnosis: Diagnosis) -> None:
        """Fix what an examination found broken, as far as the ledger knows how; harmless to repeat."""
        if any(finding.rule in repair.OF_KEYS for finding in diagnosis.findings):
            repair.set_aside(self._parts)
            diagnosis = self.examine(watch_leases=False)  # what the indexes lack is seen only now
        repair.repair(self._parts, diagnosis.findings, self._audit)
        self._release({found.subject for found in diagnosis.findings if found.rule == "claim-altered"})

    def _release(self, runs: Collection[str]) -> None:
        """Take runs from holders that cannot end them, unless one is renewed after all."""
        leases = [lease for lease in self._leases() if lease.run in runs]
        if leases:
            self._sleep(self._parts.settings.heartbeat_s * 1.5)
        for lease in leases:
            self._ledger.release(lease)

    def why(self, session_id: str) -> tuple[Session, Blocker | None, list[Problem]]:
        """Return a session, why it sleeps, and what is wrong: lost callbacks in it, services that hang.

        Raises:
            UnknownSession: there is no such session.
        """
        session = self._ledger.session(session_id)
        snapshot = take_snapshot(self._ledger, session_id)
        if snapshot is None:
            return session, None, []
        root = session.root or session.id
        breaks = list(self._breaks(snapshot, self._evidence(root, self._ledger.tree(root))))
        problems = self._confirmed_breaks({root: {session_id: breaks}})
        wait = blockers.of_session(snapshot, self._terms.within(snapshot))
        if wait is not None:
            with self._readable("the services", "", problems):
                problems += health.hung(self._parts.redis)
        return snapshot.session, wait, problems

    def wait_of(self, session_id: str) -> Blocker | None:
        """Return what a session waits for, as :meth:`why` does, without looking for what is wrong with it."""
        snapshot = take_snapshot(self._ledger, session_id)
        return None if snapshot is None else blockers.of_session(snapshot, self._terms.within(snapshot))

    def held_up_by(self, session_id: str) -> list[Step]:
        """Return the way from a session, which is left out, down to the session that everything waits for.

        Of several that are waited for at once, it follows the one that is least likely to end by itself, and of
        those the one in which nothing has happened for longest.
        """
        steps: list[Step] = []
        seen = {session_id}
        snapshot = take_snapshot(self._ledger, session_id)
        while snapshot is not None:
            candidates = [
                one for one in blockers.held_up_by(snapshot) if one not in seen and is_session_id(one)
            ]
            sessions = self._ledger.find(candidates)
            snapshot = None
            if sessions:
                next_one = min(sessions, key=lambda s: (self._prospects(s), s.updated_ms, s.id))
                seen.add(next_one.id)
                snapshot = take_snapshot(self._ledger, next_one.id)
            if snapshot is not None:
                wait = blockers.of_session(snapshot, self._terms.within(snapshot))
                steps.append(Step(session=snapshot.session, wait=wait))
        return steps

    def _prospects(self, session: Session) -> int:
        """Return how likely a session is to end by itself: 0 for one in which nothing can move."""
        if session.damage or self._terms.of(session.agent).nobody:
            return 0
        if session.questions and not session.busy:
            return 1
        if session.state in (SessionState.SCHEDULED, SessionState.PENDING):
            return 2
        return 4 if session.busy else 3

    # --- one tree ---------------------------------------------------------------------------

    def _sessions(self, findings: list[Problem]) -> Iterator[tuple[Session, Snapshot | None]]:
        """Yield the sessions that are to be looked at, what is wrong with them being among the findings.

        First those that the indexes name, tree by tree; then, of a full examination, those that no index names.
        A session that is at rest within a tree which is not has no snapshot.
        """
        seen: set[str] = set()
        suspects: _Suspects = {}
        for shard in self._shards:
            roots: list[str] = []
            with self._readable(f"the roots of shard {shard}", "", findings):
                if self._full:
                    roots += self._ledger.all_roots(shard)
                else:
                    for page, at_rest in self._ledger.sweep.changed_roots(shard, since_ms=self._since_ms):
                        roots += page
                        self._at_rest += at_rest
            for root in roots:
                yield from self._tree(root, seen, findings, suspects)
        left: dict[str, list[str]] = defaultdict(list)
        for session, root in self._ledger.all_sessions() if self._full else ():
            if session not in seen:
                left[root].append(session)
        for root, sessions in left.items():
            yield from self._tree(root, seen, findings, suspects, others=sessions)
        # All together: what is wrong with many sessions takes no longer than what is wrong with one.
        findings += self._confirmed_breaks(suspects)

    def _tree(
        self,
        root: str,
        seen: set[str],
        findings: list[Problem],
        suspects: _Suspects,
        others: Sequence[str] = (),
    ) -> Iterator[tuple[Session, Snapshot | None]]:
        """Yield the sessions of a tree that were not seen yet: those that its index names, and ``others``."""
        members: list[Session] = []
        known = Evidence()
        with self._readable(f"the tree of {root}", root, findings):
            members = self._ledger.tree(root)
            findings += self._gone(root, members)
            known = self._evidence(root, members)
        now_ms = self._ledger.server_ms()
        by_id = {member.id: member for member in members}
        for session in dict.fromkeys([*by_id, *others]):
            if session in seen:
                continue
            seen.add(session)
            if not self._full and self._rests(by_id[session]):
                yield by_id[session], None
                continue
            snapshot = None
            with self._readable(f"session {session}", session, findings):
                snapshot = take_snapshot(self._ledger, session)
                if snapshot is not None:
                    if breaks := list(self._breaks(snapshot, known)):
                        suspects.setdefault(root, {})[session] = breaks
                    findings += late(snapshot, self._terms, now_ms)
                    findings += approvals.waiting(snapshot, self._terms, now_ms)
                    findings += not_genuine(snapshot, self._ledger, self._parts.authenticity)
                    if self._full:
                        findings += altered_texts(snapshot, self._ledger)
            if snapshot is not None:
                yield snapshot.session, snapshot

    def _rests(self, session: Session) -> bool:
        """Return True if nothing has happened in a session for a while, and nothing is to happen."""
        ended = session.state in CLOSED or session.state is SessionState.FINISHED
        calm = not session.busy and not session.damage and session.pending == 0
        return ended and calm and session.updated_ms < self._since_ms

    @contextlib.contextmanager
    def _readable(self, what: str, session: str, findings: list[Problem]) -> Iterator[None]:
        """Report what cannot be examined as a finding, and go on with the rest."""
        try:
            yield
        except Exception as error:
            if is_outage(error) or refuses_everything(error):
                raise
            unread = f"{what} cannot be read: {type(error).__name__}: {error}"
            findings.append(Problem(Severity.BREAK, "damaged", what, unread, session=session))

    def _gone(self, root: str, members: Sequence[Session]) -> Iterator[Problem]:
        """Sessions that the tree names and that are not there: they leave both together, or not at all."""
        for name in self._ledger.gone(root, known={member.id for member in members}):
            gone = f"{name} is in the tree of {root} and its records are gone"
            yield Problem(Severity.BREAK, "session-gone", name, gone, session=name)

    def _evidence(self, root: str, members: Sequence[Session]) -> Evidence:
        return evidence(self._parts.redis, self._audit, self._proof, root, members)

    def _confirmed(self, found: list[Problem], look: Callable[[], Iterable[Problem]]) -> list[Problem]:
        """Return the problems that are still there on every later look, so that a moving system is not accused."""
        for pause in SECOND_LOOKS:
            if not found:
                break
            self._sleep(pause)
            still = {problem.key for problem in look()}
            found = [problem for problem in found if problem.key in still]
        return found

    def _confirmed_breaks(self, suspects: _Suspects) -> list[Problem]:
        """Return what is still broken on every later look at these sessions."""
        findings: list[Problem] = []

        def look() -> Iterator[Problem]:
            for root, sessions in suspects.items():
                with self._readable(f"the tree of {root}", root, findings):
                    again = {name: take_snapshot(self._ledger, name) for name in sessions}
                    known = self._evidence(root, self._ledger.tree(root))
                    for name, snapshot in again.items():
                        with self._readable(f"session {name}", name, findings):
                            yield from [] if snapshot is None else self._breaks(snapshot, known)

        first = [problem for sessions in suspects.values() for one in sessions.values() for problem in one]
        return findings + self._confirmed(first, look)

    def _breaks(self, snapshot: Snapshot, known: Evidence) -> Iterator[Problem]:
        yield from invariants.breaks(snapshot, known)
        yield from taken_launch(self._parts.redis, snapshot.session)
        yield from lost_stop(self._parts.redis, snapshot)

    # --- the stack --------------------------------------------------------------------------

    def _of_the_stack(
        self, waiting: Mapping[str, Sequence[Run]]
    ) -> dict[str, Callable[[], Iterable[Problem]]]:
        """Return the checks of the stack, by the name of the part that each examines."""
        client, settings, shards = self._parts.redis, self._parts.settings, len(self._shards)

        def programs() -> list[str]:
            return [record.name for record in self._parts.agents.all() if record.external]

        # These look through all keys of the server.
        everywhere: dict[str, Callable[[], Iterable[Problem]]] = {
            "the names of streams": lambda: health.strays(client, shards),
            "what is left behind": lambda: self._confirmed_by(self._left_behind),
        }
        return {
            "the shared keys": lambda: health.overwritten(client, settings),
            "the services": lambda: health.services(client),
            "the streams": lambda: health.streams(client, shards, programs()),
            "the inboxes": lambda: health.inboxes(client, shards, programs(), settings.stream_max_entries),
            "the dead letters": lambda: health.dropped_dead_letters(client, shards),
            "the results": lambda: health.results(self._ledger, self._shards),
            "the approvals": lambda: approvals.strays(self._ledger, self._shards),
            "the slots": lambda: self._confirmed_by(lambda: health.claims(self._ledger, self._shards)),
            "the agents": lambda: blockers.unserved(waiting, self._terms),
            "the limits": lambda: self._confirmed_by(lambda: blockers.limits_lost(self._parts)),
            "what is paused": lambda: blockers.paused(waiting, self._parts),
            "the set-up": lambda: health.setup(client, settings),
            "the audit trail": self._trail,
            **(everywhere if self._full else {}),
        }

    def _left_behind(self) -> Iterator[Problem]:
        for left in leftovers.found(self._ledger):
            yield Problem(Severity.BREAK, left.rule, left.subject, left.message, session=left.session)

    def _confirmed_by(self, look: Callable[[], Iterable[Problem]]) -> list[Problem]:
        return self._confirmed(list(look()), look)

    def _trail(self) -> Iterator[Problem]:
        """Yield problems of the stack that the audit trail shows, and what it cannot show."""
        settings, audit = self._parts.settings, self._audit
        if audit is None:
            yield warning(
                "no-audit-trail",
                "",
                f"no audit trail at {settings.audit_name}: launches were taken from the ledger itself, and nobody "
                "looked for messages that were taken from the streams unrouted; run the doctor where the audit "
                "writer runs",
            )
            return
        if others := other_trails(self._parts.redis, audit):
            yield warning(
                "audit-split",
                "",
                f"{others} other audit databases hold a part of the trail: a launch that this one lacks "
                "may be in them; run the audit writers of one stack on one database",
            )
        else:  # what became of a message is in this database
            yield from self._confirmed_by(lambda: TakenMessages(self._parts, audit, self._proof).find())
        yield from self._confirmed_by(
            lambda: repair.LostSessions(self._parts, audit, self._proof).find(
                newest=None if self._full else MOST
            )
        )
        for broken in rolled_back(audit.store, self._proof, KeptHeads.of(settings)):
            where = f"{settings.audit_name}: {broken.table} row {broken.seq}: {broken.what}"
            yield Problem(Severity.BREAK, "audit-rolled-back", "", where)

    def _leases(self) -> list[Lease]:
        return [lease for shard in self._shards for lease in self._ledger.sweep.leases(shard)]
