"""How an agent hands a matter to whom the routing table names for it: the code-reviewer, the tech-lead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.envelope.bodies import Escalation, EscalationMatter, Review, ReviewRequest
from orchestrator.envelope.bodies.work import EscalationReason
from orchestrator.envelope.model_values import Priority
from orchestrator.envelope.prompt_text import prompt_of
from orchestrator.envelope.structured import part_of
from orchestrator.errors import InputError
from orchestrator.ids import child_session_id
from orchestrator.ledger import Outgoing
from orchestrator.messages.given import check_text
from orchestrator.worker.context.arguments import PRIORITIES, REASONS, check_choice, check_list
from orchestrator.worker.context.delegation import heading_of
from orchestrator.worker.context.launches import LaunchRequest
from orchestrator.worker.context.view import View


class Referring(View):
    """One run of a session, with what its agent may hand to a reviewer or to the tech-lead."""

    def request_review(
        self,
        description: str = "",
        *,
        title: str = "",
        files: Sequence[str] = (),
        priority: Priority | None = None,
        group: str = "",
        key: str | None = None,
        review: Review | Mapping[str, Any] | None = None,
    ) -> str:
        """Ask the code-reviewer (see the routing table) for a review and go on; it comes back as a callback.

        Args:
            description: what is to be reviewed, and for what.
            title: what people call it; by default the beginning of the description.
            files: paths of the files.
            priority: by default that of the routing table.
            group: as for `delegate`.
            key: as for `delegate`.
            review: further parts of the review: focus areas, criteria, context, when it is required.

        Returns:
            The id of the reviewer's session.

        Raises:
            InputError: there is nothing to review.
            LimitExceeded, ClaimLost, SessionStopped, ServerUnavailable: as for `delegate`.
        """
        given = part_of(Review, {} if review is None else review, name="review")
        description, title = _named(description, title, given)
        check_list("files", files)
        check_choice("priority", priority, PRIORITIES)
        if not description.strip():
            raise InputError("a review request needs a description of what is to be reviewed")
        reviewer, effects, title = (
            self._launches.table.code_reviewer,
            self._effects,
            title or heading_of(description),
        )

        def write(child: str) -> Outgoing:
            return effects.message_factory.review_request(
                sender=self.agent,
                recipient=reviewer,
                task_id=child,
                reviewed=self.session,
                title=title,
                description=description,
                files=tuple(files),
                thread=effects.work_thread,
                priority=priority,
                review=given,
            )

        prompt = prompt_of(ReviewRequest(review=given.model_copy(update={"description": description})))
        if files:
            prompt = "\n".join([prompt, "", "Files:", *(f"- {name}" for name in files)])
        return self._launches.launch(
            LaunchRequest(
                agent=reviewer,
                kind="review",
                title=title,
                description=prompt,
                priority=priority,
                group=group,
                key=key,
                write=write,
            )
        )

    def escalate(
        self,
        description: str = "",
        *,
        title: str = "",
        reason: EscalationReason | None = None,
        priority: Priority | None = None,
        group: str = "",
        key: str | None = None,
        matter: EscalationMatter | Mapping[str, Any] | None = None,
    ) -> str | None:
        """Hand what cannot be settled here to the tech-lead (see the routing table); its answer is a callback.

        For coordinators; a specialist asks its parent, see `raise_callback`.

        Args:
            description: what is the matter, and what is needed.
            title: what people call it; by default the beginning of the description.
            reason: `task-failed`, `timeout`, `blocked`, `decision-needed`, `conflict`, …
            priority: by default that of the routing table.
            group: as for `delegate`.
            key: as for `delegate`.
            matter: further parts of it: attempted solutions, options, the requested action, its severity.

        Returns:
            The id of the tech-lead's session; None if no worker serves a tech-lead: then the operator finds it
            in the audit trail, and no callback comes.

        Raises:
            InputError: there is no description.
            LimitExceeded, ClaimLost, SessionStopped, ServerUnavailable: as for `delegate`.
        """
        given = part_of(EscalationMatter, {} if matter is None else matter, name="matter")
        description, title = _named(description, title, given)
        check_choice("priority", priority, PRIORITIES)
        check_choice("reason", reason, REASONS)
        if not description.strip():
            raise InputError("an escalation needs a description of what is the matter")
        effects, table, title = self._effects, self._launches.table, title or heading_of(description)
        has_lead = table.tech_lead != self.agent and self._launches.knows(table.tech_lead)

        def write(child: str) -> Outgoing:
            return effects.message_factory.escalation(
                sender=self.agent,
                recipient=table.tech_lead if has_lead else table.operator,
                task_id=child,
                escalated=self.session,
                title=title,
                description=description,
                reason=reason,
                thread=effects.work_thread,
                priority=priority,
                matter=given,
            )

        if has_lead:
            return self._launches.launch(
                LaunchRequest(
                    agent=table.tech_lead,
                    kind="escalate",
                    title=title,
                    description=prompt_of(
                        Escalation(escalation=given.model_copy(update={"description": description}))
                    ),
                    priority=priority,
                    group=group,
                    key=key,
                    write=write,
                )
            )
        effect = effects.key("escalate", title, description, given=key)
        child = child_session_id(self.session, f"{self.run}:{effect}")
        outgoing = effects.write(lambda: write(child))
        effects.attempt(
            "escalate",
            lambda: self._ledger.effect(self._held.claim, effect=effect, envelope=outgoing),
            effect=effect,
        )
        return None


def _named(description: object, title: str, given: Review | EscalationMatter) -> tuple[str, str]:
    """The description and the title, which may stand in the further parts."""
    return check_text("description", description) or given.description, title or given.title
