"""What was given up is work for the agent at the end of the escalation path."""

from __future__ import annotations

from orchestrator import Context, agent
from orchestrator.ledger import Session
from orchestrator.testing import InProcessStack
from tests.waiting import wait_until

SEEN: list[tuple[str, str, str]] = []


@agent("tech-lead", role="coordinator", tier="opus")
def tech_lead(ctx: Context) -> str:
    """Notes what it is told."""
    SEEN.append((ctx.cause, ctx.session, ctx.prompt))
    return "noted"


@agent("chief", role="coordinator")
def chief(ctx: Context) -> str:
    """Delegates to agents that no worker serves."""
    if ctx.cause == "start":
        for name in ("nobody", "noone"):
            ctx.delegate(name, f"do it, {name}")
        ctx.wait_for("all")
        return ""
    return " ".join(callback.status for callback in ctx.callbacks)


def test_a_tech_lead_of_the_stack_is_run_by_what_was_given_up_once_for_a_conversation() -> None:
    with InProcessStack([tech_lead, chief]) as stack:
        assert stack.run("chief", "go").text == "failed failed"

        def leads() -> list[Session]:
            return [s for s in stack.client.sessions() if s.agent == "tech-lead"]

        wait_until(lambda: len(SEEN) == 2 and all(s.state == "finished" for s in leads()), SEEN)
        (lead,) = leads()
        assert {session for _, session, _ in SEEN} == {lead.id}
        assert [cause for cause, _, _ in SEEN] == ["start", "callbacks"]
        assert "could not be delivered" in SEEN[0][2]
        said = "".join(prompt for _, _, prompt in SEEN)
        assert '"to": "nobody"' in said
        assert '"to": "noone"' in said
        assert "It needs no reply." in SEEN[1][2]
