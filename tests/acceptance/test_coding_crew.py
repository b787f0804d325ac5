"""The example crew on a whole stack: coders in worktrees, one forgets its tag, workers are killed, the answer is right."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.testing import Call, Request, Say, WireServer
from tests.acceptance.conftest import Terminal, parent_of, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

CREW = Path(__file__).resolve().parents[2] / "examples" / "coding_crew"


@pytest.fixture
def crew(terminal: Terminal, program: Callable[[str], str]) -> Terminal:
    program("git")
    for file in CREW.iterdir():
        if file.is_file():
            shutil.copy(file, terminal.folder)
    terminal.env["FAKE_AGENT_HOME"] = str(terminal.folder / "conversations")
    times = {"ORCHESTRA_LEASE_S": "3", "ORCHESTRA_HEARTBEAT_S": "0.5"}
    terminal.env |= {**times, "ORCHESTRA_CONCURRENCY": "2"}
    crew = (terminal.folder / "crew.toml").read_text()
    allowed = 'command = ["./fake_agent.py"]\nenv = ["FAKE_AGENT_HOME"]'
    (terminal.folder / "crew.toml").write_text(crew.replace('command = ["./fake_agent.py"]', allowed))
    terminal.must(
        "git init -q shop && git -C shop -c user.name=t -c user.email=t@t.invalid commit -q --allow-empty -m Begin"
    )
    return terminal


def test_workers_are_killed_and_the_answer_is_right(crew: Terminal) -> None:
    up = crew.up("--agents crew.toml")
    pid_file = crew.folder / "coder.pid"
    prompt = (
        f"Greet the customer\n!touch {pid_file}\n!sleep 4\n!write greeting.txt Hello\n!result greeted\n"
        "Say goodbye\n!write goodbye.txt Bye\n!untagged said goodbye"
    )
    session = crew.must(f"orchestra submit lead '{prompt}'").strip()
    wait_until(lambda: pid_file.exists() and pid_file.read_text(), "the first coder at work")
    coder = int(pid_file.read_text())
    guard = parent_of(coder)
    worker = parent_of(guard)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{coder}").exists(), "the end of the killed worker's coder")
    answered = crew.run(f"orchestra result {session} --wait")
    assert answered.returncode == 0, answered.stderr + up.output
    assert sorted(answered.stdout.splitlines()[:2]) == [
        "Greet the customer: greeted",
        "Say goodbye: said goodbye",
    ]
    assert "Review: I was told: Review these changes" in answered.stdout
    assert int(pid_file.read_text()) != coder
    crew.must("orchestra doctor")
    tree = crew.client().tree(session)
    coders = [one for one in tree if one.agent == "coder"]
    diffs = [crew.run(f"orchestra result {one.id} --attachment diff").stdout for one in coders]
    assert "+Hello" in diffs[0]
    assert "+Bye" in diffs[1]
    crew.must("orchestra session worktrees --json")
    assert up.interrupt() == 0


MODEL_LEAD = """
[agents.lead]
role = "coordinator"
executor = "llm"
model = "anthropic:claude-sonnet-5-5"
instructions = "You lead."
"""

TASKS = (
    "Greet the customer\n!touch {pid}\n!sleep 4\n!write greeting.txt Hello\n!result greeted",
    "Say goodbye\n!write goodbye.txt Bye\n!untagged said goodbye",
)


def kill_workers(crew: Terminal) -> int:
    """Kill every worker that was started from this terminal; how many there were."""
    workers = crew.workers()
    for pid in workers:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return len(workers)


def everything_said(request: Request) -> str:
    return "\n".join(part for message in request.messages for part in (*message.results, message.text))


def test_a_model_leads_command_agents_in_worktrees_while_workers_are_killed(crew: Terminal) -> None:
    """The worker dies under the model twice and under a coder once; a coder forgets its tag; nothing is done twice."""
    pytest.importorskip("pydantic_ai", reason="the extra `llm` is not installed")
    text = (crew.folder / "crew.toml").read_text()
    (crew.folder / "crew.toml").write_text(MODEL_LEAD + text[text.index("[agents.coder]") :])
    pid_file = crew.folder / "coder.pid"
    killed: list[int] = []

    def lead(request: Request) -> Say:
        """One conversation: delegate, read what was attached, answer. The first request of two turns costs a worker."""
        if request.turn in (0, 1) and len(killed) == request.turn * 2:
            killed.append(kill_workers(crew))
        if request.turn == 0:
            return Say(
                calls=[
                    Call("delegate", agent="coder", task=task.format(pid=pid_file), wait=True)
                    for task in TASKS
                ]
            )
        if request.turn == 1:
            told = everything_said(request)
            sessions = re.findall(r'\[attached: diff; read_result\("(ses_[0-9a-z]+)"', told)
            if len(sessions) != 2:
                return Say(f"what was attached is missing: {told}")
            return Say(calls=[Call("read_result", session=name, attachment="diff") for name in sessions])
        found = re.findall(r"^(greeted|said goodbye|\+Hello|\+Bye)$", everything_said(request), re.MULTILINE)
        return Say(" ".join(sorted(set(found))))

    with WireServer(lead) as wire:
        crew.env.update(wire.environment())
        up = crew.up("--agents crew.toml")
        session = crew.must("orchestra submit lead 'Greet and say goodbye'").strip()
        wait_until(lambda: pid_file.exists() and pid_file.read_text(), "the first coder at work")
        coder = int(pid_file.read_text())
        killed.append(kill_workers(crew))
        wait_until(lambda: not Path(f"/proc/{coder}").exists(), "the end of the killed worker's coder")
        answered = crew.run(f"orchestra result {session} --wait")
        assert answered.returncode == 0, answered.stderr + up.output
        assert answered.stdout.strip() == "+Bye +Hello greeted said goodbye"
        assert len(killed) == 3
        assert all(killed)
        tree = crew.client().tree(session)
        assert sorted(one.agent for one in tree) == ["coder", "coder", "lead"]
        # A turn that was recorded before a worker died is not paid for again.
        assert len(wire.answered) <= 3 + len(killed)
        crew.must("orchestra doctor")
        assert up.interrupt() == 0
