"""A scripted session of one agent: its real function or model, no server, no network, no waiting.

    lead = ScriptedSession(my_lead, "How many sources?")
    start = lead.run()
    assert [child.agent for child in start.delegated] == ["finder"]
    lead.end(start.delegated[0], "two sources")
    assert lead.run().answer == "2"

The context is the one of production, on the real transitions of the ledger, which run on a Redis that is a Python
object. What others say (children, the parent, the user) comes from the test.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self, cast

from orchestrator.agents.definition import AgentDefinition
from orchestrator.agents.registry import AgentRecord
from orchestrator.dispatch import RootResults
from orchestrator.errors import InputError
from orchestrator.ledger import CLOSED, ClaimedRun, Lease, Run, RunState, Session, SessionState
from orchestrator.testing.answers import Answer, Answers, NotScripted, Verdict
from orchestrator.testing.in_memory import InMemoryParts
from orchestrator.testing.others import Given, Others
from orchestrator.testing.recording import (
    Attempt,
    Effect,
    EffectKind,
    RecordingLedger,
    ScriptedCrash,
    ScriptedRun,
)
from orchestrator.testing.replies import Respondents
from orchestrator.testing.server import ScriptedBlocking
from orchestrator.testing.stack import AgentSource, catalogue_of
from orchestrator.worker.container import Runtime
from orchestrator.worker.execution.runner import complete_run

#: Attempts of one run after which a test has gone wrong.
_MAX_ATTEMPTS = 100


class ScriptedSession:
    """A session of one agent, run by the test; a ``with`` block closes it.

    Args:
        agent: a function with `@agent`, or a definition such as `model_agent` gives.
        prompt: its task.
        answers: what children say by the name of their agent, for calls that wait (`ctx.call`, `ctx.collect`, a tool
            with ``wait=true``) and for `finish`; `*` stands for every other agent. See `Done`, `Failed`, `Asks`, `Never`.
        replies: what the parent, or the user of a root, replies to questions.
        decisions: what a person says to approvals; a function gets the tool and its arguments.
        parent: the name of the agent that gave it the task; empty: a user did, and it is a root.
        title: what the task is called.
        agents: other agents that it may find and delegate to, by name or definition.
        settings: settings of the stack by name, such as ``run_time_limit_s=5``.
    """

    def __init__(
        self,
        agent: AgentSource,
        prompt: str = "",
        *,
        answers: Answers | None = None,
        replies: Answer | Sequence[Answer] | None = None,
        decisions: Verdict | Sequence[Verdict] | None = None,
        parent: str = "",
        title: str = "",
        agents: Iterable[AgentSource] = (),
        **settings: Any,
    ) -> None:
        self._effects: list[Effect] = []
        self._crash: tuple[str | int, int] | None = None
        self._problem: NotScripted | None = None
        self._definition = _definition(agent)
        self._parts = InMemoryParts(self._note, **settings)
        self._others = Others(self._parts)
        self._respondents = Respondents(
            self._others, self._ledger, answers=answers, replies=replies, decisions=decisions
        )
        self._set_time(self._ledger.server_ms())
        self._attempt = 1
        self._runtime = Runtime(
            parts=self._parts,
            results=cast("RootResults", None),  # only roots with a Celery task have any
            catalogue={self._definition.name: self._definition},
            blocking=partial(ScriptedBlocking, bring=self._bring),
            pause=lambda _: 0.0,
        )
        self._register(parent, agents)
        given = Given(agent=self._definition.name, prompt=prompt, name=title)
        #: The session's id.
        self.id = self._others.begin(given, below=parent)
        self._ledger.of = self._respondents.of = self.id

    @property
    def _ledger(self) -> RecordingLedger:
        return self._parts.ledger

    def _register(self, parent: str, agents: Iterable[AgentSource]) -> None:
        others = self._respondents.agents + ([parent] if parent else [])
        for one in agents:
            if isinstance(one, str):
                others.append(one)
            else:
                self._others.know(_definition(one).record)
        self._others.know(self._definition.record)
        for name in others:
            role: Any = "coordinator" if name == parent else "specialist"
            self._others.know(AgentRecord(name=name, role=role))

    # --- looking -----------------------------------------------------------------------------------

    @property
    def effects(self) -> tuple[Effect, ...]:
        """The effects of the session so far, in all its runs."""
        return tuple(self._effects)

    @property
    def session(self) -> Session:
        """The session as the ledger has it."""
        return self._ledger.session(self.id)

    @property
    def state(self) -> Any:
        """The value of `ctx.state` when the latest run ended; None if no run has changed it."""
        return self._ledger.own_texts(self.session).state

    # --- what others do ----------------------------------------------------------------------------

    def end(
        self, child: Effect | str, text: str = "", *, attachments: Mapping[str, str] | None = None
    ) -> None:
        """A child ends with an answer, which is queued as a callback.

        Raises:
            InputError: the child has ended before.
        """
        self._others.end_child(_id(child), text, attachments=attachments)

    def fail(self, child: Effect | str, reason: str) -> None:
        """A child fails.

        Raises:
            InputError: the child has ended before.
        """
        self._others.end_child(_id(child), reason, failed=True)

    def ask(self, child: Effect | str, question: str, *, kind: str = "query") -> str:
        """Let a child ask the agent something; return the id of the question."""
        return self._others.ask_parent(_id(child), question, kind=kind)

    def tell(self, child: Effect | str, text: str) -> None:
        """A child says something that needs no reply."""
        self._others.tell_parent(_id(child), text)

    def reply(self, question: Effect | str, text: str) -> None:
        """Reply to a question, in the name of whoever the agent asked.

        Raises:
            InputError: the session has no such open question.
        """
        self._others.reply(self.session, _id(question), text)

    def decline(self, question: Effect | str, reason: str) -> None:
        """The agent gets no reply, and the reason.

        Raises:
            InputError: the session has no such open question.
        """
        self._others.reply(self.session, _id(question), reason, declined=True)

    def decide(self, approval: Effect | str, *, approved: bool, comment: str = "") -> None:
        """A person says yes or no.

        Raises:
            WrongState: it was answered before, or its time has passed.
        """
        self._others.decide(_id(approval), approved=approved, comment=comment)

    def say(self, text: str) -> None:
        """A user says something to the session."""
        self._others.say(self.id, text)

    def stop(self, reason: str = "stopped by the test") -> None:
        """Ask the session to stop; a run that is at work learns of it at its next effect."""
        self._ledger.stop(self.id, reason)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, as far as the ledger can tell: for `sleep`, deadlines, and time limits of questions."""
        self._set_time(self._now_ms + round(seconds * 1000))
        for kind, about in self._ledger.sweep.due_timers(0):
            match kind:
                case "question":
                    self._parts.delivery.give_up(about, "nobody replied in time")
                case "approval":
                    self._parts.delivery.expire_approval(about)
                case _:
                    continue
            self._ledger.sweep.drop_due_timer(0, kind, about)

    # --- running -----------------------------------------------------------------------------------

    def run(self, *, crash_after: EffectKind | int | tuple[EffectKind, int] | None = None) -> ScriptedRun:
        """Execute the next run of the session until it ends or frees its slot; attempts that fail are retried at once.

        Args:
            crash_after: the process dies after an effect: the first of a kind, the n-th of a kind (``("delegate", 2)``),
                or the n-th of this run (a number, from 1). The next attempt finds what the dead one did.

        Raises:
            NotScripted: there is nothing to run yet, or the agent waits for something that the script does not have.
            AssertionError: the run had no such effect to crash after.
        """
        run = self._next_run()
        before, attempts = len(self._effects), list[Attempt]()
        self._crash = (
            crash_after if crash_after is None or isinstance(crash_after, tuple) else (crash_after, 1)
        )
        self._counted = 0
        while True:
            attempt, ended = self._try(run)
            attempts.append(attempt)
            if ended:
                break
            if len(attempts) >= _MAX_ATTEMPTS:
                raise AssertionError(f"the run was tried {_MAX_ATTEMPTS} times, at last: {attempt.error!r}")
        if self._problem is not None:
            problem, self._problem = self._problem, None
            raise problem
        if self._crash is not None:
            raise AssertionError(f"the run had no effect to crash after: {crash_after!r}")
        return self._result(attempts, tuple(self._effects[before:]))

    def finish(self, *, most_runs: int = 50) -> ScriptedRun:
        """Run the session to its end: children, questions and approvals are answered as the script says.

        Raises:
            NotScripted: something is outstanding that the script does not have.
            AssertionError: it has not ended after so many runs.
        """
        for _ in range(most_runs):
            if self._ledger.outcome is not None:
                before = self.session
                self._respondents.bring_all()
                if not before.questions and before.state is not SessionState.IDLE:
                    self._wake()
            done = self.run()
            if done.status not in ("idle", "parked"):
                return done
        raise AssertionError(f"the session has not ended after {most_runs} runs")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Forget the session."""
        self._parts.redis.close()

    def _next_run(self) -> Run:
        about = self.session
        if not about.run:
            verdict = self._ledger.flush(self.id)
            if verdict.dispatch is None:
                raise NotScripted(self._why_not(verdict.outcome))
            about = self.session
        run = self._ledger.run(about.run)
        if run is None:
            raise NotScripted(f"session {self.id} has no run")
        return run

    def _why_not(self, outcome: str) -> str:
        about = self.session
        if about.state in CLOSED:
            return f"the session has ended: {about.state.value}: {about.reason}"
        if about.state is SessionState.FINISHED:
            return "the session has finished; `say` something to it to go on"
        outstanding = [
            f"{item.agent} {item.child}" for item in self._ledger.items(self.id) if item.state == "owed"
        ]
        waits = f"; outstanding: {', '.join(outstanding)}" if outstanding else ""
        return f"the session is not resumed yet ({outcome}){waits}: end a child, reply, or let time pass"

    def _try(self, run: Run) -> tuple[Attempt, bool]:
        """Make one attempt; return it, and True if the run goes no further now."""
        held = self._claim(run.id)
        self._attempt, self._ledger.crashed = held.run.attempt, False
        try:
            end = complete_run(self._runtime, held)
        except BaseException:
            if not self._ledger.crashed:
                raise
        else:
            if not self._ledger.crashed:
                if end.verdict == "retry":
                    return Attempt(how="failed", error=end.error, wait_s=end.retry_in_s), False
                if end.verdict == "parked":
                    return Attempt(how="parked"), True
                if end.verdict == "outage":
                    raise AssertionError("the agent used something that a scripted session does not have")
                return Attempt(how="failed" if end.error else "ended", error=end.error), True
        self._release(held)
        return Attempt(how="crashed"), False

    def _claim(self, run: str) -> ClaimedRun:
        name = self._definition.name
        for _ in range(2):
            held = self._ledger.claim(
                run,
                uuid.uuid4().hex,
                session_id=self.id,
                worker="scripted",
                version=self._runtime.version_of(name),
            )
            if held is not None:
                return held
            found = self._ledger.run(run)
            if found is None or found.state is not RunState.QUEUED:
                raise NotScripted(f"the run is {found.state.value if found else 'gone'}")
            parked = bool(found.tries) and found.tries[-1].how == "parked"
            if found.claimable_ms > self._now_ms and parked:
                raise NotScripted(
                    f"the run is parked until {found.tries[-1].reason!r}: reply, decide, or let time pass"
                )
            self._set_time(max(self._now_ms, found.claimable_ms))
        raise NotScripted("the run cannot be taken: its agent is paused or at its limit")

    def _release(self, held: ClaimedRun) -> None:
        """Release the run of a dead process, as the reaper does."""
        found = self._ledger.run(held.run.id)
        if found is not None and found.state is RunState.RUNNING:
            self._ledger.release(
                Lease(
                    run=found.id,
                    session=self.id,
                    claim=found.claim,
                    lease_version=str(found.lease_version),
                    worker="scripted",
                )
            )

    def _result(self, attempts: Sequence[Attempt], effects: tuple[Effect, ...]) -> ScriptedRun:
        outcome, about = self._ledger.outcome, self.session
        assert outcome is not None
        status: Any = "parked" if attempts[-1].how == "parked" else about.state.value
        if outcome.status == "failed" and status == "idle":
            status = "failed"  # the child that asked knows; the session goes on
        return ScriptedRun(
            status=status,
            text=outcome.text,
            effects=effects,
            attempts=tuple(attempts),
            attachments=outcome.attachments,
        )

    # --- the script --------------------------------------------------------------------------------

    def _note(self, effects: Sequence[Effect]) -> None:
        crashes = False
        for effect in effects:
            self._effects.append(replace(effect, attempt=self._attempt))
            self._counted += 1
            crashes = self._is_last(effect) or crashes
        if crashes:
            self._crash = None
            self._ledger.crashed = True
            raise ScriptedCrash

    def _is_last(self, effect: Effect) -> bool:
        """Return True if the process dies after this effect."""
        if self._crash is None:
            return False
        what, times = self._crash
        if isinstance(what, int):
            return self._counted == what
        if effect.kind == what:
            self._crash = (what, times - 1)
        return self._crash[1] <= 0

    def _bring(self, item: str, timeout_s: float | None) -> bool:
        """Bring what a run waits for; False: it does not come, and the time limit of the wait has passed.

        Raises:
            NotScripted: the script does not say.
        """
        try:
            done = self._respondents.bring(item)
            if not done and timeout_s is None:
                raise NotScripted("the agent waits without a time limit for what never comes")
        except NotScripted as problem:
            self._problem = problem  # also where the agent catches it
            raise
        if not done:
            self._set_time(self._now_ms + round((timeout_s or 0) * 1000))
        return done

    def _set_time(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._ledger.set_time(now_ms)

    def _wake(self) -> None:
        """Let the time pass for which a parked run sleeps."""
        run = self._ledger.run(self.session.run) if self.session.run else None
        if run is not None and run.claimable_ms > self._now_ms:
            self.pass_time((run.claimable_ms - self._now_ms) / 1000)


def _definition(source: AgentSource) -> AgentDefinition:
    found = catalogue_of([source])
    if len(found) != 1:
        raise InputError(f"{source!r} defines {len(found)} agents; name one of them")
    return next(iter(found.values()))


def _id(of: Effect | str) -> str:
    return of if isinstance(of, str) else of.id
