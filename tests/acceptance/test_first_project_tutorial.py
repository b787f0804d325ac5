"""The tutorial of a first project, each command as it is printed there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("pydantic_ai", reason="the extra `llm` is not installed")

from tests.acceptance.conftest import Terminal

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]


def test_from_an_empty_folder_to_a_tested_tree(terminal: Terminal, root: Path) -> None:
    terminal.env.pop("ANTHROPIC_API_KEY", None)
    page = (root / "docs/tutorial/first-project.md").read_text(encoding="utf-8")
    install, make, up, submit, test, change, again, adapt = re.findall(r"```\n(.*?)```", page, re.DOTALL)
    first, second = re.findall(r"The answer is `(.+?)`", page)
    assert "pip install 'agent-orchestra[anthropic]' pytest" in install
    init, enter = make.strip().splitlines()
    made = terminal.run(init)
    assert made.returncode == 0, made.stderr
    terminal.folder /= enter.removeprefix("cd ")
    running = terminal.start(up.strip())
    running.wait_for("ready after")
    assert terminal.run(submit).stdout == f"{first}\n"
    tested = terminal.run(test)
    assert (tested.returncode, "1 passed" in tested.stdout) == (0, True), tested.stdout

    assert terminal.run(change).returncode == 0
    running.wait_for("worker is replaced")
    running.wait_for("that was replaced has finished")
    assert terminal.run(again).stdout == f"{second}\n"
    assert terminal.run(test).returncode == 1
    tested = terminal.run(adapt)
    assert (tested.returncode, "1 passed" in tested.stdout) == (0, True), tested.stdout
    assert running.interrupt() == 0
