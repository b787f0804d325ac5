"""Reviews and escalations say in full what is to be reviewed or decided."""

from __future__ import annotations

from orchestrator import Context, EscalationMatter, Review, Task, agent
from orchestrator.envelope.bodies import Escalation, ReviewRequest, TaskDelegation
from orchestrator.testing import InProcessStack
from tests.integration.structured.conftest import Published


@agent("code-reviewer")
def code_reviewer(ctx: Context) -> str:
    """Gives back what it was given."""
    return ctx.prompt


@agent("tech-lead", role="coordinator")
def tech_lead(ctx: Context) -> str:
    """Likewise."""
    return ctx.prompt


@agent("maker", role="coordinator")
def maker(ctx: Context) -> str:
    """Has its work reviewed, and escalates."""
    if ctx.cause == "start":
        ctx.request_review(
            review=Review(description="Review it.", focus_areas=["locks"], review_criteria=["no deadlock"]),
            files=["a.py"],
        )
        ctx.escalate(
            matter=EscalationMatter(
                description="Decide it.",
                severity="critical",
                attempted_solutions=["one way", "the other"],
                requested_action="choose",
            )
        )
        ctx.wait_for("all")
        return ""
    return "\n---\n".join(sorted(callback.result for callback in ctx.callbacks))


@agent("crowd", role="coordinator")
def crowd(ctx: Context) -> str:
    """Gives many tasks at once, some of them with all that is said of them."""
    if ctx.cause == "start":
        many = [
            "a plain one",
            Task(title="Quick", description="Make it quick.", objectives=["halve its time"]),
            {"description": "Make it small.", "acceptance_criteria": ["below 1 MB"]},
        ]
        assert len(ctx.delegate_all("one", many)) == 3
        ctx.wait_for("all")
        return ""
    return "\n---\n".join(f"{c.title}: {c.result}" for c in ctx.callbacks)


@agent("one")
def one(ctx: Context) -> str:
    """Gives back what it was given."""
    return f"{ctx.prompt}|{len(ctx.task.objectives)}{len(ctx.task.acceptance_criteria)}"


def test_many_tasks_are_given_in_full(published: Published) -> None:
    with InProcessStack([crowd, one]) as stack:
        answer = stack.run("crowd", "go")
        found = sorted(answer.text.split("\n---\n"))
        assert found[0].startswith("Make it small.: Make it small.")
        assert found[0].endswith("|01")
        assert found[1].startswith("Quick: Make it quick.\n\nObjectives:\n- halve its time")
        assert found[1].endswith("|10")
        assert found[2] == "a plain one: a plain one|00"
        tasks = [m.body.task for m in published(stack, answer.session) if isinstance(m.body, TaskDelegation)]
        assert sorted(len(task.objectives) for task in tasks) == [0, 0, 0, 1]


def test_both_carry_what_else_is_said(published: Published) -> None:
    with InProcessStack([code_reviewer, tech_lead, maker]) as stack:
        answer = stack.run("maker", "go")
        decision, review = answer.text.split("\n---\n")
        assert "Attempted solutions:\n- one way\n- the other" in decision
        assert "Requested action:\n- choose" in decision
        assert review.startswith("Review it.\n\nFocus areas:\n- locks")
        assert review.endswith("Files:\n- a.py")
        bodies = [message.body for message in published(stack, answer.session)]
        (asked,) = [body.review for body in bodies if isinstance(body, ReviewRequest)]
        assert [area.text for area in asked.focus_areas] == ["locks"]
        assert asked.reviewed_task_id == answer.session
        (raised,) = [body.escalation for body in bodies if isinstance(body, Escalation)]
        assert (raised.severity, raised.requested_action) == ("critical", "choose")
