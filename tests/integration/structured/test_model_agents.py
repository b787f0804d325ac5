"""Model agents give tasks, report and end in full, with their tools and a typed output."""

from __future__ import annotations

from orchestrator import Completion, Context, agent, model_agent
from orchestrator.testing import ByInstructions, Call, InProcessStack, Say, Script, scripted_model

SCRIPT = ByInstructions(
    {
        "You lead": Script(
            Say(
                calls=[
                    Call("delegate", agent="maker", task="make it", objectives=["small", "quick"], wait=True)
                ]
            ),
            Say(
                calls=[
                    Call(
                        "final_result",
                        status="partial-success",
                        summary="half of it",
                        acceptance_criteria_met=[{"name": "small", "met": True}],
                    )
                ]
            ),
        ),
        "You make": Script(
            Say(calls=[Call("report_status", activity="making", progress=50, next_steps=["finish"])]),
            lambda request: Say(f"<response>{'small' in str(request.messages)}</response>"),
        ),
    }
)
MODEL = scripted_model(SCRIPT)
LEAD = model_agent("model-lead", role="coordinator", model=MODEL, instructions="You lead.", output=Completion)
MAKER = model_agent("maker", model=MODEL, instructions="You make.")


@agent("boss", role="coordinator")
def boss(ctx: Context) -> str:
    """Has the completion of a model agent as a value."""
    if ctx.cause == "start":
        ctx.delegate("model-lead", "go")
        return ""
    done = ctx.callbacks[0].completion
    return f"{ctx.callbacks[0].status}: {done.result}: {done.acceptance_criteria_met[0].name}"


def test_a_models_completion_is_a_value_at_its_parent() -> None:
    with InProcessStack([LEAD, MAKER, boss]) as stack:
        answer = stack.run("boss", "go")
        assert answer.text == "partial-success: half of it: small"
        (maker,) = [session for session in answer.tree.sessions if session.agent == "maker"]
        assert (maker.progress, maker.activity) == (50, "making")
