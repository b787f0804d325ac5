"""Counting of what the ledger changed: a fold of the transitions in the audit trail, which has each of them once.

The same transitions give the same counts, whoever reads them and however often: no exporter can count twice or lose anything
by a restart. What it remembers beside the counts is bounded by what is open in the ledger.
"""

from __future__ import annotations

import re
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from orchestrator.audit.transitions import Step, Transition, transitions_of
from orchestrator.ids import child_of, span_id
from orchestrator.telemetry.spans import RunSpan
from orchestrator.telemetry.totals import Totals

#: Links of a span at most, as collectors have it by default.
MOST_LINKS: Final = 128
#: Agents of sessions that are remembered; of others the ledger is asked.
_MOST_AGENTS: Final = 50_000
_FACT: Final = re.compile(r"(?:^| )(\w+)=(\S*)")
#: Who was launched, and by which session. A name may hold spaces, but no other fact follows it.
_AGENT: Final = re.compile(r"^agent=(.*) parent=(\S*)$")
_OPEN: Final = frozenset({"owed", "queued", "claimed"})
_OVER: Final = frozenset({"finished", "failed", "stopped", "deleted", "removed"})
_ENDED: Final = frozenset({"completed", "failed", "stopped"})
_GONE: Final = frozenset({"lost", "died"})
_NANO: Final = 1e9
#: Label values that are there from the beginning.
_KNOWN: Final = {
    "orchestra_callbacks_total": ("launched", "delivered", "dead"),
    "orchestra_leases_lost_total": ("lost", "died"),
    "orchestra_budget_refusals_total": ("requests", "tokens", "money"),
}

#: Agent and root of sessions, by session; those that the ledger does not have are missing.
AgentsOf = Callable[[Sequence[str]], Mapping[str, tuple[str, str]]]


@dataclass(slots=True)
class OpenRun:
    """A run that has not ended."""

    session: str
    #: When it may be taken, and when it was; 0: nobody has it.
    ready_ms: int
    claimed_ms: int = 0
    #: Why it waits to be tried again: failed, lost, died, parked; empty: it does not.
    how: str = ""
    provider: str = ""
    #: When the callbacks that it carries were queued; empty once it was claimed.
    wakes: list[int] = field(default_factory=list)
    cause: str = ""
    attempt: int = 0
    #: Callbacks that it carries, and the spans that ended with them.
    carries: int = 0
    links: list[str] = field(default_factory=list)
    #: Tokens of this attempt: input, output.
    tokens: list[int] = field(default_factory=lambda: [0, 0])


@dataclass(slots=True)
class OpenCallback:
    """A callback that is neither delivered nor dead."""

    state: str
    #: When the end of the child was queued; 0: the child has not ended.
    queued_ms: int = 0
    carried: bool = False
    #: The span of the run that ended the child.
    span: str = ""


class Fold:
    """The counts of one audit trail, up to some row of it."""

    def __init__(self) -> None:
        self.totals = Totals()
        #: Sessions that have not ended, with their states.
        self.sessions: dict[str, str] = {}
        self.runs: dict[str, OpenRun] = {}
        #: Session → callback → what is known of it.
        self.callbacks: dict[str, dict[str, OpenCallback]] = {}
        #: Session → its open approvals.
        self.approvals: dict[str, set[str]] = {}
        #: Session → when its launch was published, until it has a run.
        self.launches: dict[str, int] = {}
        #: Sessions of which something has changed since somebody took them from here.
        self.changed: set[str] = set()
        #: Session → the span of the run that launched it; sessions that have not ended.
        self.parents: dict[str, str] = {}
        #: Spans of attempts that have ended, for who takes them; None: nobody does.
        self.spans: list[RunSpan] | None = None
        #: Session → its run that is at work.
        self._at_work: dict[str, str] = {}
        self._last_span: str | None = None
        self._agents: OrderedDict[str, tuple[str, str]] = OrderedDict()
        # A counter that appears with its first event has no increase that Prometheus could see.
        for name, values in _KNOWN.items():
            for value in values:
                self.totals.count(name, value, by=0)

    def apply(self, stream: str, steps: Sequence[Step], agents_of: AgentsOf) -> None:
        """Count what these steps changed."""
        read = [(step, list(transitions_of(stream, step))) for step in steps]
        launched: dict[str, str] = {}
        needed: set[str] = set()
        for _, changes in read:
            for change in changes:
                if change.kind == "session" and (made := _AGENT.match(change.detail)):
                    launched[change.session] = made[2]
                elif change.kind in ("run", "budget"):
                    needed.add(change.session)
        needed |= {parent for parent in launched.values() if parent}
        self._learn(agents_of, needed - launched.keys())
        for step, changes in read:
            self._step(step, changes)

    def _learn(self, agents_of: AgentsOf, sessions: Iterable[str]) -> None:
        unknown = [session for session in sessions if session not in self._agents]
        if unknown:
            for session, (agent, root) in agents_of(unknown).items():
                self._remember(session, agent, root)

    def _remember(self, session: str, agent: str, root: str) -> None:
        self._agents[session] = agent, root
        while len(self._agents) > _MOST_AGENTS:
            self._agents.popitem(last=False)

    def _agent(self, session: str) -> str:
        if session in self._agents:
            self._agents.move_to_end(session)
        return self._agents.get(session, ("", ""))[0]

    def _root(self, session: str) -> str:
        return self._agents.get(session, ("", session))[1] or session

    def _step(self, step: Step, changes: Sequence[Transition]) -> None:
        carried: dict[str, list[OpenCallback]] = defaultdict(list)
        #: Session → the span of its run that this step ended.
        ended: dict[str, str] = {}
        for change in changes:
            match change.kind:
                case "session":
                    self._session(change)
                case "callback":
                    self._callback(change, carried, ended)
                case "run":
                    self._run(change, step.by, carried)
                    if change.state in _ENDED and (last := self._last_span) is not None:
                        ended[change.session] = last
                case "budget":
                    self._budget(change)
                case "approval":
                    self._approval(change)
        # What a run that is at work takes in has no claim to wait for.
        for session, callbacks in carried.items():
            self._carry(self.runs.get(self._at_work.get(session, "")), callbacks)
            for callback in callbacks:
                self.totals.observe("orchestra_wake_seconds", changes[0].at_ms - callback.queued_ms)

    def _carry(self, run: OpenRun | None, callbacks: Sequence[OpenCallback]) -> None:
        if run is not None:
            run.carries += len(callbacks)
            run.links += [callback.span for callback in callbacks if callback.span][
                : MOST_LINKS - len(run.links)
            ]

    def _session(self, change: Transition) -> None:
        session = change.session
        if launched := _AGENT.match(change.detail):
            parent = launched[2]
            self._remember(session, launched[1], self._root(parent) if parent else session)
            if launcher := self._at_work.get(parent):
                self.parents[session] = span_id(launcher, self.runs[launcher].attempt)
        if change.state == "pending":
            self.launches[session] = change.at_ms
        if change.state in _OVER:
            self.sessions.pop(session, None)
            self.launches.pop(session, None)
            self.approvals.pop(session, None)
            self.parents.pop(session, None)
        else:
            self.sessions[session] = change.state
        if change.state == "removed":
            # One that was still open is missing from now on, and the gap says so.
            self.callbacks.pop(session, None)
        self.changed.add(session)

    def _callback(
        self, change: Transition, carried: dict[str, list[OpenCallback]], ended: Mapping[str, str]
    ) -> None:
        if change.state not in _OPEN and change.state not in ("delivered", "dead"):
            return  # a delegation without a callback
        known = self.callbacks.setdefault(change.session, {})
        callback = known.get(change.id)
        if callback is None:
            self.totals.count("orchestra_callbacks_total", "launched")
            callback = known[change.id] = OpenCallback(change.state)
        callback.state = change.state
        if change.state == "queued" and not callback.queued_ms:
            callback.queued_ms = change.at_ms
            callback.span = ended.get(child_of(change.id) or "", "")
        if change.state == "claimed" and callback.queued_ms and not callback.carried:
            callback.carried = True
            carried[change.session].append(callback)
        if change.state not in _OPEN:
            self.totals.count("orchestra_callbacks_total", change.state)
            del known[change.id]
            if not known:
                del self.callbacks[change.session]
        self.changed.add(change.session)

    def _run(self, change: Transition, by: str, carried: dict[str, list[OpenCallback]]) -> None:
        facts = dict(_FACT.findall(change.detail))
        run = self.runs.get(change.id)
        match change.state:
            case "queued" if "again_in_ms" in facts:
                self._end_try(change, run, facts.get("how", ""), facts.get("provider", ""))
                self.changed.add(change.session)  # it may have asked something
                self.runs[change.id] = replace(
                    run or OpenRun(change.session, 0),
                    ready_ms=change.at_ms + int(facts["again_in_ms"] or 0),
                    claimed_ms=0,
                    how=facts.get("how", ""),
                    provider=facts.get("provider", ""),
                )
            case "queued":
                launched_ms = self.launches.pop(change.session, None)
                if launched_ms is not None and by == "start":
                    self.totals.observe("orchestra_route_seconds", change.at_ms - launched_ms)
                callbacks = carried.pop(change.session, [])
                wakes = [callback.queued_ms for callback in callbacks]
                run = OpenRun(change.session, change.at_ms, wakes=wakes, cause=change.detail)
                self._carry(run, callbacks)
                self.runs[change.id] = run
            case "running" if "attempt" in facts or "program" in facts:
                # A program outside of the stack has one attempt, whatever workers had before.
                before = run.attempt if run is not None else 0
                self._claim(change, run, int(facts.get("attempt") or before + 1))
            case state if state in _ENDED:
                how = facts.get("how", "")
                self._end_try(change, run, how if how in _GONE else state, "")
                self.runs.pop(change.id, None)

    def _claim(self, change: Transition, run: OpenRun | None, attempt: int) -> None:
        run = run or OpenRun(change.session, change.at_ms)
        wait_ms = change.at_ms - run.ready_ms
        self.totals.observe("orchestra_queue_wait_seconds", wait_ms, self._agent(change.session))
        for queued_ms in run.wakes:
            self.totals.observe("orchestra_wake_seconds", change.at_ms - queued_ms)
        run.claimed_ms, run.attempt = change.at_ms, attempt
        run.how = run.provider = ""
        run.wakes, run.tokens = [], [0, 0]
        self.runs[change.id] = run
        self._at_work[change.session] = change.id

    def _end_try(self, change: Transition, run: OpenRun | None, how: str, provider: str) -> None:
        agent = self._agent(change.session)
        end = "lost" if how in _GONE else how or "failed"
        self.totals.count("orchestra_runs_total", agent, end)
        self._last_span = None
        if run is not None and run.claimed_ms:
            self.totals.observe("orchestra_run_seconds", change.at_ms - run.claimed_ms, agent)
            self._span(change, run, agent, end)
        if how in _GONE:
            self.totals.count("orchestra_leases_lost_total", how)
        if provider:
            self.totals.count("orchestra_provider_waits_total", provider)

    def _span(self, change: Transition, run: OpenRun, agent: str, end: str) -> None:
        self._at_work.pop(change.session, None)
        self._last_span = span_id(change.id, run.attempt)
        if self.spans is None:
            return
        span = RunSpan(
            root=self._root(change.session),
            session=change.session,
            run=change.id,
            attempt=run.attempt,
            agent=agent,
            cause=run.cause,
            end=end,
            began_ms=run.claimed_ms,
            ended_ms=change.at_ms,
            input_tokens=run.tokens[0],
            output_tokens=run.tokens[1],
            callbacks=run.carries,
            links=tuple(run.links),
            launched_by=self.parents.get(change.session, ""),
        )
        self.spans.append(span)

    def _budget(self, change: Transition) -> None:
        facts = dict(_FACT.findall(change.detail))
        if change.state == "refused":
            kind = facts.get("what", "")
            self.totals.count("orchestra_budget_refusals_total", "money" if kind == "nano" else kind)
        if change.state != "spent":
            return
        agent, model = self._agent(change.session), change.id.partition(":")[2]
        run = self.runs.get(self._at_work.get(change.session, ""))
        for place, direction in enumerate(("input", "output")):
            tokens = int(facts.get(f"{direction}_tokens") or 0)
            if run is not None:
                run.tokens[place] += tokens
            if tokens:
                self.totals.count("orchestra_tokens_total", agent, model, direction, by=tokens)
        nano = int(facts.get("nano_usd") or 0)
        if nano:
            self.totals.count("orchestra_cost_usd_total", agent, model, by=nano / _NANO)

    def _approval(self, change: Transition) -> None:
        known = self.approvals.setdefault(change.session, set())
        if change.state == "delivered":  # into the hands of a person
            known.add(change.id)
        else:
            known.discard(change.id)
        if not known:
            del self.approvals[change.session]

    # --- what is open ------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Callbacks that are neither delivered nor dead."""
        return sum(map(len, self.callbacks.values()))

    @property
    def gap(self) -> int:
        """Callbacks that were launched and of which nothing else is known."""
        launched, delivered, dead = (
            self.totals.of("orchestra_callbacks_total", state) for state in ("launched", "delivered", "dead")
        )
        return round(launched - delivered - dead - self.pending)

    def pending_of(self, session: str) -> int:
        """Return how many callbacks of a session are open."""
        return len(self.callbacks.get(session, ()))

    def oldest_ms(self) -> dict[str, int]:
        """Return since when the oldest callback waits, and the oldest run that may be taken; 0: none."""
        queued = [
            callback.queued_ms
            for known in self.callbacks.values()
            for callback in known.values()
            if callback.state == "queued"
        ]
        ready = [run.ready_ms for run in self.runs.values() if not run.claimed_ms]
        return {"callback": min(queued, default=0), "run": min(ready, default=0)}

    # --- as JSON -----------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        return {
            "totals": self.totals.to_json(),
            "sessions": self.sessions,
            "runs": {name: asdict(run) for name, run in self.runs.items()},
            "callbacks": {
                session: {name: asdict(callback) for name, callback in known.items()}
                for session, known in self.callbacks.items()
            },
            "approvals": {session: sorted(known) for session, known in self.approvals.items()},
            "launches": self.launches,
            "parents": self.parents,
        }

    @classmethod
    def from_json(cls, document: Any) -> Fold:
        """Return the inverse of :meth:`to_json`.

        Raises:
            ValueError, TypeError, KeyError, IndexError, AttributeError: it is something else.
        """
        found = cls()
        found.totals = Totals.from_json(document["totals"])
        found.sessions = {str(name): str(state) for name, state in document["sessions"].items()}
        found.runs = {name: OpenRun(**run) for name, run in document["runs"].items()}
        found.callbacks = {
            session: {name: OpenCallback(**callback) for name, callback in known.items()}
            for session, known in document["callbacks"].items()
        }
        found.approvals = {session: set(known) for session, known in document["approvals"].items()}
        found.launches = {name: int(at_ms) for name, at_ms in document["launches"].items()}
        found.parents = {str(name): str(span) for name, span in document["parents"].items()}
        found._at_work = {run.session: name for name, run in found.runs.items() if run.claimed_ms}
        return found
