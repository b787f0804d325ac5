"""The ledger of a scripted session: the real one, which also tells what agents do and crashes where the test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import redis

from orchestrator.ledger import Claim, Committed, Delegated, Launch, Ledger, Outcome, Outgoing, RetryLater
from orchestrator.ledger.approvals import Approvals
from orchestrator.ledger.inbox import Inbox
from orchestrator.ledger.journal import Journal, StepHeader, StepRecord
from orchestrator.ledger.launches import Launches
from orchestrator.ledger.runs import Runs
from orchestrator.policy.approval import ApprovalRequest
from orchestrator.redisdb.scripts import Arg
from orchestrator.testing.effects import Effect, EffectKind

#: The effects that a launch is, by the type of its envelope.
_LAUNCH: dict[str, EffectKind] = {"review-request": "review", "escalation": "escalate"}

#: Takes new effects, in their order; may raise `ScriptedCrash`.
Note = Callable[[Sequence[Effect]], None]


class ScriptedCrash(BaseException):
    """The process of the agent dies here, as far as the agent can tell."""


class RecordingLedger(Ledger):
    """A ledger that reports each effect of the session ``of`` to ``note``, after it was made."""

    def __init__(self, client: redis.Redis, *, note: Note, **given: Any) -> None:
        super().__init__(client, **given)
        self._report_effects = note
        #: Effect keys that were reported, with their runs.
        self.made: set[tuple[str, str]] = set()
        #: The session whose effects are reported; empty: none.
        self.of = ""
        #: How the latest run of that session ended; None before the first.
        self.outcome: Outcome | None = None
        #: Set by a crash: the process that holds the claim makes no commit any more.
        self.crashed = False
        self.journal = _RecordingJournal(self)
        self.approvals = _RecordingApprovals(self)
        launches, held, inbox = _RecordingLaunches(self), _RecordingRuns(self), _RecordingInbox(self)
        self.delegate, self.delegate_all = launches.delegate, launches.delegate_all
        self.effect, self.status, self.commit = held.effect, held.status, held.commit
        self.send, self.ask_user, self.withdraw = inbox.send, inbox.ask_user, inbox.withdraw

    def see_alive(self, claim: Claim) -> None:
        """Return unless the process that holds this claim has crashed.

        Raises:
            ScriptedCrash: it has.
        """
        if self.crashed and claim.session == self.of:
            raise ScriptedCrash

    def note(self, claim: Claim, key: str, effects: Sequence[Effect]) -> None:
        """Report effects under a key that is new in its run."""
        if claim.session != self.of or (claim.run, key) in self.made:
            return
        self.made.add((claim.run, key))
        if effects:
            self._report_effects(effects)


class _RecordingLaunches(Launches):
    """The launches of a ledger that reports effects."""

    def __init__(self, ledger: RecordingLedger) -> None:
        super().__init__(ledger)
        self._ledger = ledger

    def delegate_all(self, claim: Claim, launches: Sequence[Launch]) -> list[Delegated]:
        self._ledger.see_alive(claim)
        done = super().delegate_all(claim, launches)
        new = [
            (launch, made)
            for launch, made in zip(launches, done, strict=True)
            if made.created and (claim.run, launch.effect) not in self._ledger.made
        ]
        keys = "|".join(launch.effect for launch, _ in new)
        effects = [_launched(launch, made, claim) for launch, made in new]
        self._ledger.made.update((claim.run, launch.effect) for launch, _ in new)
        self._ledger.note(claim, f"batch:{keys}", effects)
        return done


class _RecordingRuns(Runs):
    """What holders of runs do to a ledger that reports effects."""

    def __init__(self, ledger: RecordingLedger) -> None:
        super().__init__(ledger)
        self._ledger = ledger

    def effect(
        self,
        claim: Claim,
        *,
        effect: str,
        envelope: Outgoing | None = None,
        value: str = "",
        facts: Mapping[str, Arg] | None = None,
        only_audit: bool = False,
    ) -> str:
        self._ledger.see_alive(claim)
        done = super().effect(
            claim, effect=effect, envelope=envelope, value=value, facts=facts, only_audit=only_audit
        )
        if not only_audit:
            self._ledger.note(claim, effect, [_own(effect, dict(facts or {}), claim)])
        return done

    def commit(self, claim: Claim, outcome: Outcome, **given: Any) -> Committed | RetryLater:
        self._ledger.see_alive(claim)
        if claim.session == self._ledger.of:
            self._ledger.outcome = outcome
        return super().commit(claim, outcome, **given)


class _RecordingInbox(Inbox):
    """The inboxes of a ledger that reports effects."""

    def __init__(self, ledger: RecordingLedger) -> None:
        super().__init__(ledger)
        self._ledger = ledger

    def send(self, claim: Claim, session_id: str, text: str, **given: Any) -> str:
        self._ledger.see_alive(claim)
        done = super().send(claim, session_id, text, **given)
        kind: EffectKind = "report"
        if given.get("opens"):
            kind = "ask"
        elif given["kind"] in ("message", "reply"):
            kind = given["kind"]
        facts = {"kind": given["kind"], "priority": given["priority"], "to": session_id}
        if given.get("answers"):
            facts["answers"] = given["answers"]
        to = self._ledger.find([session_id])
        self._ledger.note(
            claim,
            given["effect"],
            [
                Effect(
                    kind=kind, text=text, id=done, agent=to[0].agent if to else "", run=claim.run, facts=facts
                )
            ],
        )
        return done

    def ask_user(self, claim: Claim, text: str, **given: Any) -> str:
        self._ledger.see_alive(claim)
        done = super().ask_user(claim, text, **given)
        facts = {"kind": given["kind"], "priority": given["priority"], "to": claim.session}
        self._ledger.note(
            claim,
            given["effect"],
            [Effect(kind="ask", text=text, id=done, agent="operator", run=claim.run, facts=facts)],
        )
        return done

    def withdraw(
        self, question: str, *, asker: str, asked: str, reason: str, claim: Claim | None = None
    ) -> bool:
        if claim is not None:
            self._ledger.see_alive(claim)
        done = super().withdraw(question, asker=asker, asked=asked, reason=reason, claim=claim)
        if claim is not None and done:
            self._ledger.note(
                claim,
                f"withdraw:{question}",
                [Effect(kind="withdraw", text=reason, id=question, run=claim.run)],
            )
        return done


class _RecordingJournal(Journal):
    """The journal of a ledger that reports effects."""

    def __init__(self, ledger: RecordingLedger) -> None:
        super().__init__(ledger)
        self._ledger = ledger

    def record(self, claim: Claim, header: StepHeader, value: bytes) -> StepRecord:
        self._ledger.see_alive(claim)
        done = super().record(claim, header, value)
        if done.header.claim == claim.claim:
            facts = {"how": header.how, "tries": header.tries}
            self._ledger.note(
                claim,
                f"step:{header.key}:{header.how}:{header.tries}:{claim.claim}",
                [Effect(kind="step", text=header.key, run=claim.run, facts=facts)],
            )
        return done


class _RecordingApprovals(Approvals):
    """The approvals of a ledger that reports effects."""

    def __init__(self, ledger: RecordingLedger) -> None:
        super().__init__(ledger)
        self._recording = ledger

    def request(
        self,
        claim: Claim,
        request: ApprovalRequest,
        *,
        approval: str,
        effect: str,
        title: str,
        envelope: Outgoing,
    ) -> tuple[str, ApprovalRequest]:
        self._recording.see_alive(claim)
        done = super().request(
            claim, request, approval=approval, effect=effect, title=title, envelope=envelope
        )
        facts = {"arguments": json.loads(request.arguments), "reason": request.reason}
        self._recording.note(
            claim,
            effect,
            [
                Effect(
                    kind="approval",
                    text=request.tool,
                    id=done[0],
                    agent="operator",
                    run=claim.run,
                    facts=facts,
                )
            ],
        )
        return done


def _launched(launch: Launch, made: Delegated, claim: Claim) -> Effect:
    facts = {
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


def _own(effect: str, facts: dict[str, Any], claim: Claim) -> Effect:
    """An effect that changes nothing but its own session."""
    kind = effect.partition(":")[0]
    if kind == "close-policy":
        return Effect(kind="policy", text=str(facts["close_policy"]), run=claim.run)
    if kind == "escalate":
        return Effect(kind="escalate", agent="operator", run=claim.run)
    shown = {"progress": facts["progress"]} if "progress" in facts else {}
    return Effect(kind="status", text=str(facts.get("activity", "")), run=claim.run, facts=shown)
