"""Claude Code, Codex and Gemini CLI, as their presets start them."""

from __future__ import annotations

import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.client.client import Client
from orchestrator.policy.budget import Budget
from orchestrator.worker.context.context import Context
from orchestrator.worker.worktrees import Worktrees
from tests.crew import ROOT
from tests.integration.workers.test_command_worktrees import git
from tests.programs.conftest import FOLDER, PROGRAMS, Programs
from tests.programs.server import INPUT, OUTPUT, Ask, Call, Cut

pytestmark = [pytest.mark.parametrize("name", PROGRAMS), pytest.mark.timeout(120)]

#: Seconds within which each has asked the model, on a machine that has other work.
_BEGINS_S = {"claude": 25, "codex": 15, "gemini": 50}


def test_a_first_turn_is_read_and_counted_and_a_later_one_knows_it(programs: Programs, name: str) -> None:
    crew, model = programs.agent(name, protocol=True), programs.model
    kit = crew.kit
    model.script = lambda _: "I looked. <response>the first answer</response>"
    root = Client(parts=kit.parts).submit("coder", "the first prompt", budget=Budget(requests=2)).id
    assert kit.play(root) == "finished", crew.answer(root)
    assert "the first answer" in crew.answer(root)
    model.script = lambda _: "<response>the second answer</response>"
    kit.ledger.enqueue(root, "the second prompt", item_id="itm_more")
    assert kit.play(root) == "finished", crew.answer(root)
    assert "the second answer" in crew.answer(root)
    said = model.asked[-1].said
    assert said.index("the first prompt") < said.index("the first answer") < said.index("the second prompt")
    memory = crew.memory(root)
    assert memory["turns"] == 2
    assert memory["conversation"]
    assert (memory["input_tokens"], memory["output_tokens"]) == (2 * INPUT, 2 * OUTPUT)
    used = kit.ledger.session(root).used
    assert (used.requests, used.input_tokens, used.output_tokens) == (2, 2 * INPUT, 2 * OUTPUT)
    # A limit that is reached: the turn is not begun.
    kit.ledger.enqueue(root, "the third prompt", item_id="itm_third")
    kit.play(root)
    assert "budget" in crew.answer(root)
    assert "the third prompt" not in model.asked[-1].said
    # As the page says: of the three only this one wants other hosts, and does without.
    assert all(name == "codex" for _ in model.refused), model.refused


def test_of_a_cut_answer_the_error_names_the_limit(programs: Programs, name: str) -> None:
    """As the page says: Gemini CLI reports it as a whole one, so that nobody can tell."""
    said = {
        "claude": "exceeded the 64000 output token maximum",
        "codex": "reason: max_output_tokens",
        "gemini": "half an answer",
    }
    crew = programs.agent(name)
    programs.model.script = lambda _: Cut("half an answer")
    assert said[name] in crew.ask("think")


def test_a_busy_provider_is_asked_again_by_the_program_or_named(programs: Programs, name: str) -> None:
    """As the page says: Codex leaves it to the attempts of its agent."""
    said = {"codex": "last status: 429 Too Many Requests"}
    crew = programs.agent(name)
    programs.model.script = lambda _: 429 if len(programs.model.asked) < 2 else "the answer"
    assert said.get(name, "the answer") in crew.ask("think")


@pytest.mark.parametrize("boxed", [False, True], ids=["open", "sandbox"])
def test_it_works_in_its_worktree_and_its_sandbox(
    programs: Programs, name: str, boxed: bool, tmp_path: Path, program: Any
) -> None:
    program("git")
    if boxed:
        program("bwrap")
    repository, key = tmp_path / "repository", tmp_path / "key.pem"
    repository.mkdir()
    key.write_text("private words")
    git(repository, "init", "-q")
    git(repository, "commit", "-q", "--allow-empty", "-m", "first")
    python = Path(sys.executable).resolve().parent.parent
    sandbox = {"network": True, "read": (FOLDER, ROOT, python), "write": (programs.home,)} if boxed else None
    crew = programs.agent(name, worktree={"repository": repository}, sandbox=sandbox)

    def work(ask: Ask) -> str | Call:
        if "private words" in ask.last or "No such file" in ask.last:
            return "<response>written</response>"
        return PROGRAMS[name].shell(f"echo two > made.txt; cat {key}")

    programs.model.script = work
    root = crew.kit.submit("coder", "write it")
    assert crew.kit.play(root) == "finished", crew.answer(root)
    assert "written" in crew.answer(root)
    assert ("private words" in programs.model.asked[-1].said) != boxed
    worktrees = Worktrees(crew.kit.settings.data)
    (worktree,) = worktrees.all()
    assert "+two" in worktrees.diff(worktree)
    # In the same place it finds its conversation.
    crew.kit.ledger.enqueue(root, "No such file, again", item_id="itm_more")
    assert crew.kit.play(root) == "finished", crew.answer(root)
    assert "write it" in programs.model.asked[-1].said


def test_it_uses_the_tools_of_its_session(programs: Programs, name: str) -> None:
    crew = programs.agent(name)

    @crew.kit.agent("helper")
    def helper(_: Context) -> str:
        return "helped"

    def work(ask: Ask) -> str | Call:
        if re.search(r"ses_[0-9a-z]{20}", ask.last) or len(programs.model.asked) > 3:
            return "<response>delegated</response>"
        return Call("delegate", {"agent": "helper", "task": "the dishes"})

    programs.model.script = work
    root = crew.kit.begin("coder", "have it done")
    assert [child.agent for child in crew.kit.children(root)] == ["helper"], (
        crew.answer(root),
        [one.tools for one in programs.model.asked],
        programs.model.asked[-1].last,
    )


def test_past_its_time_it_ends_and_leaves_nothing(programs: Programs, name: str) -> None:
    crew, over = programs.agent(name, time_limit_s=_BEGINS_S[name]), threading.Event()

    def hang(_: Ask) -> str:
        over.wait(60)
        return "<response>late</response>"

    programs.model.script = hang
    begun = time.monotonic()
    try:
        answer = crew.ask("think")
    finally:
        over.set()
    assert programs.model.asked
    assert "time limit" in answer
    assert time.monotonic() - begun < _BEGINS_S[name] + 40
    mark = f"HOME={programs.home}\0".encode()
    assert [one for one in Path("/proc").glob("[0-9]*/environ") if mark in environment_of(one)] == []


def environment_of(file: Path) -> bytes:
    """The environment of a process; nothing of one that has ended."""
    try:
        return file.read_bytes()
    except OSError:
        return b""
