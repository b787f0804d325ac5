"""The ledger of a scripted session: the real one, which also tells what agents do, as effects, and crashes where the test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

import redis

from orchestrator.agents.registry import OPERATOR
from orchestrator.ledger import Claim, Delegated, EndedRun, Launch, Ledger, Outcome, PollRequest, Settled
from orchestrator.ledger.journal import StepHeader, StepRecord
from orchestrator.policy.approval import ApprovalRequest

EffectKind = Literal[
    "delegate",
    "review",
    "escalate",
    "ask",
    "message",
    "reply",
    "report",
    "approval",
    "status",
    "step",
    "policy",
    "withdraw",
]
#: What launches a child.
LAUNCHES = frozenset({"delegate", "review", "escalate"})


@dataclass(frozen=True, kw_only=True)
class Effect:
    """An effect of a run. Another attempt that asks for the same effect adds none."""

    kind: EffectKind
    #: The description of a task, the question, the message, the activity of a status, the name of a step.
    text: str = ""
    #: Who was launched, or spoken to.
    agent: str = ""
    #: The session of the child, or the id of the question, the message or the approval.
    id: str = ""
    title: str = ""
    #: The attempt of the run that had the effect, from 1.
    attempt: int = 1
    #: The run that had it.
    run: str = field(default="", compare=False)
    #: What else belongs to the kind: the options of a launch, `progress`, `arguments`, ….
    facts: Mapping[str, Any] = field(default_factory=dict)


#: How one run ended. `parked`: it has freed its slot, and is tried again when what it waits for is there.
RunStatus = Literal["idle", "finished", "failed", "stopped", "parked"]


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """An attempt of a run."""

    how: Literal["ended", "failed", "crashed", "parked"]
    #: What the agent raised; None where it returned.
    error: BaseException | None = None
    #: Seconds that the next attempt waits for; the test does not.
    wait_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ScriptedRun:
    """Result of one run."""

    status: RunStatus
    #: What the agent answered; of a run that failed or was parked: why.
    text: str
    #: What this run did, each effect once, in all its attempts.
    effects: tuple[Effect, ...]
    attempts: tuple[Attempt, ...]
    #: What is attached to the answer.
    attachments: Mapping[str, str]

    @property
    def answer(self) -> str:
        """The answer of the agent.

        Raises:
            AssertionError: it did not answer; the message says why.
        """
        if self.status not in ("idle", "finished"):
            raise AssertionError(f"the run {self.status}: {self.text}") from self.error
        return self.text

    @property
    def error(self) -> BaseException | None:
        """The error that the agent raised in its last attempt; None if it returned."""
        return self.attempts[-1].error if self.attempts else None

    @property
    def delegated(self) -> tuple[Effect, ...]:
        """The children that it launched: delegations, reviews and escalations."""
        return tuple(effect for effect in self.effects if effect.kind in LAUNCHES)

    def of(self, kind: EffectKind) -> tuple[Effect, ...]:
        """Return the effects of one kind."""
        return tuple(effect for effect in self.effects if effect.kind == kind)


#: The effects that a launch is, by the type of its envelope.
_LAUNCH: dict[str, EffectKind] = {"review-request": "review", "escalation": "escalate"}

#: Takes new effects, in their order; may raise `ScriptedCrash`.
Note = Callable[[Sequence[Effect]], None]
#: A transition of the ledger, whose first argument is the claim of a run.
_Transition = TypeVar("_Transition", bound=Callable[..., Any])
#: The key of what a transition did in its run, and the effects: of the claim, what the transition gave, and its arguments.
_Did = Callable[..., tuple[str, Sequence[Effect]]]


class ScriptedCrash(BaseException):
    """The process of the agent dies here, as far as the agent can tell."""


class RecordingLedger(Ledger):
    """A ledger that reports each effect of the session ``of`` to ``note``, after it was made."""

    def __init__(self, client: redis.Redis, *, note: Note, **given: Any) -> None:
        super().__init__(client, **given)
        self._report_effects = note
        #: Effect keys that were reported, with their runs.
        self._made: set[tuple[str, str]] = set()
        #: The session whose effects are reported; empty: none.
        self.of = ""
        #: How the latest run of that session ended; None before the first.
        self.outcome: Outcome | None = None
        #: Set by a crash: the process that holds the claim makes no commit any more.
        self.crashed = False
        self._commit_all, self._withdraw = self.commit_all, self.withdraw
        self.commit_all, self.withdraw = self._note_ends, self._note_withdrawal
        self.delegate_all = self._recorded(self.delegate_all, self._launched)
        self.delegate = lambda claim, launch: self.delegate_all(claim, [launch])[0]
        self.effect = self._recorded(self.effect, _own)
        self.status = self._recorded(self.status, _status)
        self.send = self._recorded(self.send, self._sent)
        self.journal.record = self._recorded(self.journal.record, _step)  # type: ignore[method-assign]
        self.approvals.request = self._recorded(self.approvals.request, _approval)  # type: ignore[method-assign]

    def _see_alive(self, claim: Claim) -> None:
        """Return unless the process that holds this claim has crashed.

        Raises:
            ScriptedCrash: it has.
        """
        if self.crashed and claim.session == self.of:
            raise ScriptedCrash

    def _note(self, claim: Claim, key: str, effects: Sequence[Effect]) -> None:
        """Report effects under a key that is new in its run."""
        if effects and claim.session == self.of and (claim.run, key) not in self._made:
            self._made.add((claim.run, key))
            self._report_effects(effects)

    def _recorded(self, transition: _Transition, did: _Did) -> _Transition:
        """Return a transition that reports what it did."""

        def recorded(claim: Claim, *args: Any, **given: Any) -> Any:
            self._see_alive(claim)
            done = transition(claim, *args, **given)
            self._note(claim, *did(claim, done, *args, **given))
            return done

        return cast("_Transition", recorded)

    def _note_ends(
        self, runs: Sequence[EndedRun], polls: Sequence[PollRequest] = (), *, shard: int = 0
    ) -> list[Settled | Exception]:
        for run in runs:
            self._see_alive(run.claim)
            if run.claim.session == self.of:
                self.outcome = run.outcome
        return self._commit_all(runs, polls, shard=shard)

    def _note_withdrawal(
        self, question: str, *, asker: str, asked: str, reason: str, claim: Claim | None = None
    ) -> bool:
        if claim is not None:
            self._see_alive(claim)
        done = self._withdraw(question, asker=asker, asked=asked, reason=reason, claim=claim)
        if claim is not None and done:
            effect = Effect(kind="withdraw", text=reason, id=question, run=claim.run)
            self._note(claim, f"withdraw:{question}", [effect])
        return done

    def _launched(
        self, claim: Claim, done: Sequence[Delegated], launches: Sequence[Launch]
    ) -> tuple[str, Sequence[Effect]]:
        new = [
            (launch, made)
            for launch, made in zip(launches, done, strict=True)
            if made.created and (claim.run, launch.effect) not in self._made
        ]
        self._made.update((claim.run, launch.effect) for launch, _ in new)
        keys = "|".join(launch.effect for launch, _ in new)
        return f"batch:{keys}", [_launch(launch, made, claim) for launch, made in new]

    def _sent(
        self, claim: Claim, done: str, session_id: str, text: str, *, effect: str, kind: str, **given: Any
    ) -> tuple[str, Sequence[Effect]]:
        to_user = given.get("opens") and session_id == claim.session
        what: Any = "ask" if given.get("opens") else kind if kind in ("message", "reply") else "report"
        facts = {"kind": kind, "priority": given["priority"], "to": session_id}
        if given.get("answers"):
            facts["answers"] = given["answers"]
        agent = OPERATOR if to_user else next((to.agent for to in self.find([session_id])), "")
        return effect, [Effect(kind=what, text=text, id=done, agent=agent, run=claim.run, facts=facts)]


def _launch(launch: Launch, made: Delegated, claim: Claim) -> Effect:
    facts = {
        **json.loads(launch.options or "{}"),
        "group": launch.group,
        "priority": launch.envelope.priority,
        "callback": launch.callback,
        "on_failure": launch.on_failure,
        "on_close": launch.on_close,
    }
    return Effect(
        kind=_LAUNCH.get(launch.envelope.type, "delegate"),
        text=launch.description,
        agent=launch.agent,
        id=made.child,
        title=launch.title,
        run=claim.run,
        facts=facts,
    )


def _step(claim: Claim, done: StepRecord, header: StepHeader, _value: bytes) -> tuple[str, Sequence[Effect]]:
    """None where an earlier record of the step stays."""
    facts = {"how": header.how, "tries": header.tries}
    effect = Effect(kind="step", text=header.key, run=claim.run, facts=facts)
    key = f"step:{header.key}:{header.how}:{header.tries}:{claim.claim}"
    return key, [effect] if done.header.claim == claim.claim else []


def _approval(
    claim: Claim, done: tuple[str, ApprovalRequest], request: ApprovalRequest, *, effect: str, **_: Any
) -> tuple[str, Sequence[Effect]]:
    facts = {"arguments": json.loads(request.arguments), "reason": request.reason}
    made = Effect(
        kind="approval", text=request.tool, id=done[0], agent="operator", run=claim.run, facts=facts
    )
    return effect, [made]


def _own(
    claim: Claim,
    _done: str,
    *,
    effect: str,
    facts: Mapping[str, Any] | None = None,
    only_audit: bool = False,
    **_: Any,
) -> tuple[str, Sequence[Effect]]:
    """Return an effect that changes nothing but its own session."""
    if only_audit:
        return effect, []
    match effect.partition(":")[0]:
        case "close-policy":
            made = Effect(kind="policy", text=str((facts or {})["close_policy"]), run=claim.run)
        case "escalate":
            made = Effect(kind="escalate", agent="operator", run=claim.run)
        case _:
            made = Effect(kind="status", run=claim.run)
    return effect, [made]


def _status(
    claim: Claim, _done: str, *, effect: str, progress: int | None, activity: str, **_: Any
) -> tuple[str, Sequence[Effect]]:
    facts = {} if progress is None else {"progress": progress}
    return effect, [Effect(kind="status", text=activity, run=claim.run, facts=facts)]
