"""Workers that are told which agents to serve: each runs its own, and what nobody serves is said."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import Terminal, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

AGENTS = """
import os
from orchestrator import agent

@agent("lead", role="coordinator", may_send_to=["tag:maths"])
def lead(ctx):
    if ctx.cause == "start":
        ctx.delegate("adder", "1 2")
        ctx.delegate("painter", "blue") if ctx.prompt == "paint" else None
        return ""
    return f"{os.getpid()} {' '.join(str(c.result or c.error) for c in ctx.all_results)}"

@agent("adder", tags=["maths", "gpu"])
def adder(ctx):
    return f"{os.getpid()} {sum(map(int, ctx.prompt.split()))}"

@agent("painter", tags=["gpu"])
def painter(ctx):
    return ctx.prompt
"""


def served(terminal: Terminal, *options: str) -> dict[str, bool]:
    listed = terminal.document(" ".join(["orchestra agents", *options]))
    return {one["agent"]: one["served"] for one in listed["agents"]}


def test_two_workers_serve_their_own_and_what_nobody_serves_is_said(terminal: Terminal) -> None:
    (terminal.folder / "mine.py").write_text(AGENTS)
    wrong = terminal.run("orchestra up --agents mine.py --serve leed")
    assert wrong.returncode == 2
    assert "serve: no agent is 'leed' (there are: adder, lead, painter, tag:gpu, tag:maths)" in wrong.stderr
    up = terminal.start("orchestra up --agents mine.py --serve lead")
    up.wait_for("agents: lead\n")
    assert served(terminal) == {"lead": True}

    # A second worker joins the stack and takes the other agents of its file, by their tag.
    maths = terminal.start(
        "orchestra service worker --serve tag:maths --pool threads", ORCHESTRA_CONCURRENCY="2"
    )
    wait_until(lambda: served(terminal).get("adder"), "the second worker")
    assert served(terminal) == {"lead": True, "adder": True}
    assert served(terminal, "--tag", "gpu") == {"adder": True}
    assert served(terminal, "--tag", "gpu", "--tag", "eu") == {}
    assert served(terminal, "--state", "served", "--since", "1h") == {"lead": True, "adder": True}
    assert served(terminal, "--state", "unserved") == {}
    assert served(terminal, "--until", "1h") == {}
    terminal.must("orchestra agents pause adder")
    assert served(terminal, "--state", "paused", "--state", "unserved") == {"adder": True}
    terminal.must("orchestra agents unpause adder")
    answered = terminal.run("orchestra submit lead add --wait")
    assert answered.returncode == 0, answered.stderr + up.output + maths.output
    first, second, result = answered.stdout.split()
    assert (first != second, result) == (True, "3")

    # What Celery's -Q leaves out is known, and not served. What a list of tags does not mean is refused.
    idle = terminal.start("orchestra service worker --serve painter -Q orchestra")
    wait_until(lambda: "painter" in served(terminal), "the third worker")
    assert served(terminal)["painter"] is False
    refused = terminal.run("orchestra submit lead paint --wait")
    assert "'lead' may send only to tag:maths" in refused.stdout
    session = terminal.must("orchestra submit painter blue").strip()
    wait_until(
        lambda: "no living worker serves 'painter'" in terminal.run(f"orchestra why {session}").stdout,
        "the reason",
    )
    doctor = terminal.run("orchestra doctor --quick")
    assert "no living worker serves 'painter'" in doctor.stdout
    assert idle.process.poll() is None
    idle.process.terminate()
    idle.process.wait(60)
    terminal.start("orchestra service worker --serve painter")
    assert terminal.must(f"orchestra result {session} --wait").strip() == "blue"
    assert up.interrupt() == 0


def test_the_client_of_a_model_is_imported_before_the_pool_is_forked(terminal: Terminal) -> None:
    """Else each process of the pool imports it at the first run that it has of a model agent."""
    (terminal.folder / "mine.py").write_text(
        "import sys\n"
        "from orchestrator import agent, model_agent\n"
        "writer = model_agent('writer', model='anthropic:claude-sonnet-5-5', instructions='write')\n"
        "@agent('look')\n"
        "def look(ctx):\n"
        "    return ' '.join(m for m in ('anthropic', 'pydantic_ai.models.anthropic') if m in sys.modules)\n"
    )
    terminal.start("orchestra up --agents mine.py", ANTHROPIC_API_KEY="none").wait_for(
        "agents: look, writer\n"
    )
    assert terminal.must("orchestra submit look around --wait") == "anthropic pydantic_ai.models.anthropic\n"
