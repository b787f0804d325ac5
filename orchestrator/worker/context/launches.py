"""Work that goes beside or above: a review by the code-reviewer, what one cannot settle to the tech-lead.

Each is a child of the session that asks, like any delegation, launched by an envelope of its own type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.agents.registry import AgentRecord
from orchestrator.envelope.bodies import Escalation, EscalationMatter, Review, ReviewRequest
from orchestrator.envelope.bodies.work import EscalationReason
from orchestrator.envelope.model_values import Priority
from orchestrator.envelope.prompt_text import prompt_of
from orchestrator.ids import child_session_id
from orchestrator.ledger import Outgoing
from orchestrator.policy.authorisation import refusal
from orchestrator.policy.routing import RoutingTable
from orchestrator.worker.context.effects import Effects


class AgentLaunches:
    """The review requests and escalations of one run."""

    def __init__(
        self,
        effects: Effects,
        table: RoutingTable,
        *,
        exists: Callable[[str], bool],
        agents: Callable[[], Sequence[AgentRecord]] = tuple,
    ) -> None:
        self._effects = effects
        self._table = table
        self._exists = exists
        self._agents = agents

    def delegates(self) -> tuple[AgentRecord, ...]:
        """The agents that this session's agent may delegate to, by name.

        Raises:
            ClaimLost, SessionStopped, ServerUnavailable: as `Effects.launch`.
        """
        records = {record.name: record for record in self._effects.retrying("agents", self._agents)}
        own = records.get(self._effects.held.session.agent)
        if own is None:
            return ()
        return tuple(
            record
            for name, record in sorted(records.items())
            if name != own.name
            and refusal("task-delegation", own.principal, record.principal, self._table) is None
        )

    def review(
        self,
        description: str,
        *,
        title: str,
        files: Sequence[str],
        priority: Priority | None,
        group: str,
        key: str | None,
        review: Review | None = None,
    ) -> str:
        """Launch a review; its session id. ``review`` has what else is said of it.

        Raises:
            LimitExceeded, StreamFull, ClaimLost, SessionStopped, ServerUnavailable: as `Effects.launch`.
        """
        effects, session = self._effects, self._effects.held.session
        reviewer = self._table.code_reviewer

        def write(child: str) -> Outgoing:
            return effects.message_factory.review_request(
                sender=session.agent,
                recipient=reviewer,
                task_id=child,
                reviewed=session.id,
                title=title,
                description=description,
                files=tuple(files),
                thread=effects.work_thread,
                priority=priority,
                review=review,
            )

        return effects.launch(
            reviewer,
            write=write,
            kind="review",
            title=title,
            description=_with_files(_prompt_of_review(description, review), files),
            priority=priority,
            group=group,
            key=key,
        )

    def escalate(
        self,
        description: str,
        *,
        title: str,
        reason: EscalationReason | None,
        priority: Priority | None,
        group: str,
        key: str | None,
        matter: EscalationMatter | None = None,
    ) -> str | None:
        """Launch the tech-lead on what cannot be settled here; its session id. ``matter`` has what else is said of it.

        None: there is no tech-lead, or this is it; the operator finds it in the audit trail.

        Raises:
            LimitExceeded, StreamFull, ClaimLost, SessionStopped, ServerUnavailable: as `Effects.launch`.
        """
        effects, session = self._effects, self._effects.held.session
        lead = self._table.tech_lead
        up = self._table.operator
        if lead != session.agent and effects.retrying("tech-lead", lambda: self._exists(lead)):
            up = lead

        def write(child: str) -> Outgoing:
            return effects.message_factory.escalation(
                sender=session.agent,
                recipient=up,
                task_id=child,
                escalated=session.id,
                title=title,
                description=description,
                reason=reason,
                thread=effects.work_thread,
                priority=priority,
                matter=matter,
            )

        if up == self._table.operator:
            effect = effects.key("escalate", title, description, given=key)
            outgoing = write(child_session_id(session.id, f"{effects.held.claim.run}:{effect}"))
            effects.attempt(
                "escalate",
                lambda: effects.ledger.effect(effects.held.claim, effect=effect, envelope=outgoing),
            )
            return None
        return effects.launch(
            up,
            write=write,
            kind="escalate",
            title=title,
            description=_prompt_of_matter(description, matter),
            priority=priority,
            group=group,
            key=key,
        )


def _prompt_of_review(description: str, review: Review | None) -> str:
    if review is None:
        return description
    return prompt_of(ReviewRequest(review=review.model_copy(update={"description": description})))


def _prompt_of_matter(description: str, matter: EscalationMatter | None) -> str:
    if matter is None:
        return description
    return prompt_of(Escalation(escalation=matter.model_copy(update={"description": description})))


def _with_files(description: str, files: Sequence[str]) -> str:
    if not files:
        return description
    return "\n".join([description, "", "Files:", *(f"- {name}" for name in files)])
