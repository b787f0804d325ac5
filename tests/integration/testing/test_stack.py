"""What ships for users' tests: a stack in the process, a scripted model, assertions on a tree."""

from __future__ import annotations

from pydantic import BaseModel

from orchestrator import agent, model_agent
from orchestrator.testing import ByInstructions, Call, InProcessStack, Say, Script, scripted_model
from orchestrator.worker.context.context import Context


class Report(BaseModel):
    found: int


SCRIPT = ByInstructions(
    {
        "You lead": Script(
            Say(calls=[Call("delegate", agent="finder", task=f"part {n}", wait=True) for n in range(2)]),
            Say(calls=[Call("final_result", found=2)]),
        ),
        "You find": Script(Say(calls=[Call("look", place="here")]), Say("<response>found it</response>")),
    }
)


def look(place: str) -> str:
    """Look somewhere."""
    return f"nothing {place}"


MODEL = scripted_model(SCRIPT)
LEAD = model_agent("lead", role="coordinator", model=MODEL, instructions="You lead.", output=Report)
FINDER = model_agent("finder", model=MODEL, instructions="You find.", tools=[look])


@agent("boss", role="coordinator")
def boss(ctx: Context) -> str:
    """A Python parent of a model agent: it has the typed answer."""
    if ctx.cause == "start":
        ctx.delegate("lead", "lead")
        return "delegated"
    [callback] = ctx.callbacks
    return f"{callback.value} {callback.value_as(Report).found}"


def test_a_tree_of_models_and_functions_runs_in_the_process() -> None:
    with InProcessStack([boss, LEAD, FINDER]) as stack:
        answer = stack.run("boss", "go")
        assert answer.text == "{'found': 2} 2"
        assert answer.tree.agents == {"boss": 1, "lead": 1, "finder": 2}
        answer.tree.assert_settled()
        lead = answer.tree.children(answer.session)[0]
        assert stack.client.result(lead.id, type=Report) == Report(found=2)
