"""The tutorial of a first project, each command as it is printed there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("pydantic_ai", reason="the extra `llm` is not installed")

from tests.acceptance.conftest import Terminal, own_packages
from tests.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(480)]


def test_from_an_empty_folder_to_a_tested_tree(tutorial_terminal: Terminal, root: Path) -> None:
    terminal = tutorial_terminal
    terminal.env.pop("ANTHROPIC_API_KEY", None)
    page = (root / "docs/tutorial/first-project.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(?:python)?\n(.*?)```", page, re.DOTALL)
    (install, make, up, submit, look, test, change, again, adapt, desk, ask, answer, desk_test, last) = blocks
    first, second, third = re.findall(r"The answer is `(.+?)`", page)
    assert "pip install 'agent-orchestra[anthropic]' pytest" in install
    init, enter = make.strip().splitlines()
    terminal.must(init)
    terminal.folder /= enter.removeprefix("cd ")
    own_packages(terminal.folder)
    running = terminal.start(up.strip())
    running.wait_for("ready after")
    assert terminal.must(submit) == f"{first}\n"
    shown = [terminal.must(line) for line in look.strip().splitlines()]
    assert all("lead" in one for one in shown)
    assert "1 launched = 1 delivered" in shown[1]
    assert first in shown[3]
    assert "1 passed" in terminal.must(test)

    terminal.must(change)
    running.wait_for("worker is replaced")
    running.wait_for("that was replaced has finished")
    assert terminal.must(again) == f"{second}\n"
    assert terminal.run(test).returncode == 1
    assert "1 passed" in terminal.must(adapt)

    append(terminal.folder / "my_agents.py", desk)
    wait_until(lambda: running.output.count("that was replaced has finished") == 2, "another worker")
    submit_desk, why = ask.strip().splitlines()
    terminal.must(submit_desk)
    wait_until(lambda: "a reply to its question" in terminal.must(why), "the question")
    questions, reply, result = answer.strip().splitlines()
    assert "Publish this?" in terminal.must(questions)
    terminal.must(reply)
    assert terminal.must(result) == f"{third}\n"
    append(terminal.folder / "test_my_agents.py", desk_test)
    assert "2 passed" in terminal.must(last)
    assert running.interrupt() == 0


def append(path: Path, text: str) -> None:
    path.write_text(f"{path.read_text()}\n\n{text}")
