"""`orchestra session plan` on a whole stack: waves, callers, the answer; and what is wrong is said before anything begins."""

from __future__ import annotations

import json

import pytest

from tests.acceptance.conftest import Terminal

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

AGENTS = """
import time
from orchestrator import agent

@agent("manager", role="coordinator")
def manager(ctx):
    return "; ".join(f"{c.agent}: {c.result or c.error}" for c in ctx.all_results)

@agent("designer", role="coordinator")
def designer(ctx):
    if ctx.cause == "callbacks":
        return "designed; heard: " + "; ".join(c.text for c in ctx.callbacks)
    return "designed"

def work(ctx):
    began = time.time()
    time.sleep(0.05)
    return f"{ctx.prompt} {began:.3f} {time.time():.3f}"

agent("developer")(work)
agent("tester")(work)

@agent("broken")
def broken(ctx):
    raise RuntimeError("out of order")
"""

PLAN = [
    {"role": "designer", "task": "Design the module", "caller": "manager"},
    {"role": "developer", "task": "develop", "sequence": 2, "caller": "manager"},
    {"role": "tester", "task": "test", "sequence": 2, "caller": "manager"},
    {"role": "tester", "task": "again", "sequence": 3},
    {"role": "developer", "task": "last", "sequence": 9, "caller": "manager"},
]

WAVES = """\
wave 1 (sequence 1): 1 assignment
  designer  Design the module  (callbacks to manager)
wave 2 (sequence 2): 2 assignments
  developer  develop  (callbacks to manager)
  tester     test  (callbacks to manager)
wave 3 (sequence 3): 1 assignment
  tester  again
wave 4 (sequence 9): 1 assignment
  developer  last  (callbacks to manager)
"""


def test_what_is_wrong_with_a_file_is_said_without_a_stack(terminal: Terminal) -> None:
    for text, why in (
        ("[{", "it is not JSON: "),
        ('{"role": "a", "task": "b"}', "array"),
        ('[{"role": "a"}]', "task"),
        ('[{"role": "a", "task": "b", "sequence": 0}]', "sequence"),
        ('[{"role": "a", "task": "b", "squence": 2}]', "squence"),
    ):
        (terminal.folder / "plan.json").write_text(text)
        done = terminal.run("orchestra session plan plan.json --dry-run")
        assert (done.returncode, done.stdout) == (2, ""), text
        assert done.stderr.startswith("Error: "), done.stderr
        assert why in done.stderr, done.stderr
    assert "no such file" in terminal.run("orchestra session plan missing.json").stderr.lower()
    empty = terminal.run("echo '[]' | orchestra session plan -")
    assert (empty.returncode, empty.stdout) == (0, "")
    assert "there is nothing to do" in empty.stderr


def test_a_file_is_carried_out_wave_by_wave(terminal: Terminal) -> None:
    (terminal.folder / "plan.json").write_text(json.dumps(PLAN))
    assert terminal.must("orchestra session plan plan.json --dry-run") == WAVES
    dry = terminal.document("orchestra session plan plan.json --dry-run")
    assert [wave["sequence"] for wave in dry["waves"]] == [1, 2, 3, 9]

    up = terminal.serve(AGENTS, ORCHESTRA_CONCURRENCY="4")
    answered = terminal.run("orchestra session plan plan.json --wait --key once")
    assert answered.returncode == 0, answered.stderr + up.output
    said = answered.stdout.strip().split("; ")
    assert said[0] == "designer: designed"
    assert sorted(part.split(": ")[1].split()[0] for part in said[1:]) == ["develop", "last", "test"]

    # The same key is the same session, and nothing is carried out again.
    again = terminal.run("orchestra session plan plan.json --wait --key once")
    assert again.stdout == answered.stdout
    (root,) = terminal.client().sessions()
    tree = terminal.client().tree(root.id)
    assert [one.agent for one in tree] == [
        "manager",
        "designer",
        "developer",
        "tester",
        "tester",
        "developer",
    ]
    assert all(one.state.value == "finished" for one in tree)
    # No assignment began before the last of the sequence before it had ended.
    times = {one.title: terminal.client().answer(one.id).split()[-2:] for one in tree[2:]}
    assert max(times["develop"][1], times["test"][1]) <= times["again"][0]
    assert times["again"][1] <= times["last"][0]

    # The caller of an assignment hears of it, and not who carries the plan out; a failure fails what waits for it.
    heard = [
        {"role": "designer", "task": "Design", "caller": "manager"},
        {"role": "broken", "task": "break", "sequence": 2, "caller": "designer"},
        {"role": "tester", "task": "never", "sequence": 3, "caller": "manager"},
    ]
    done = terminal.run(
        f"echo '{json.dumps(heard)}' | orchestra session plan - --agent manager --wait --json"
    )
    document = json.loads(done.stdout)
    assert (done.returncode, document["state"]) == (0, "finished")
    assert document["result"].startswith("designer: designed; tester: ")
    assert "out of order" not in document["result"]
    designer = next(one for one in terminal.client().tree(document["session"]) if one.agent == "designer")
    assert "out of order" in terminal.client().answer(designer.id)

    # Agents and callers that there are not are named before anything begins.
    for wrong, why in (
        ([{"role": "painter", "task": "paint", "caller": "manager"}], "painter"),
        ([{"role": "tester", "task": "test", "caller": "nobody"}], "nobody"),
    ):
        refused = terminal.run(
            f"echo '{json.dumps(wrong)}' | orchestra session plan - --agent manager --wait"
        )
        assert refused.returncode == 2
        assert why in refused.stderr
    terminal.must("orchestra doctor")
    assert up.interrupt() == 0
