"""The tutorial of a tree of models, each step as it is printed there, against the scripted provider that it has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("anthropic", reason="the extra `anthropic` is not installed")

from tests.acceptance.conftest import Terminal, wait_until
from tests.ports import free_port

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(480)]


def blocks(page: Path) -> list[str]:
    """The fenced blocks of a page, in order."""
    return re.findall(r"```\w*\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def test_from_zero_to_a_tree_of_models(tutorial_terminal: Terminal, root: Path) -> None:
    terminal = tutorial_terminal
    install, agents, provider, environment, up, run, kill, go_on = blocks(
        root / "docs/tutorial/model-tree.md"
    )
    assert "pip install 'agent-orchestra[anthropic]'" in install
    port = str(free_port())  # the one of the page may be taken here
    (terminal.folder / "my_agents.py").write_text(agents)
    (terminal.folder / "provider.py").write_text(provider.replace("8765", port))
    # The page has a terminal in which Enter is never pressed.
    terminal.start("sh -c 'tail -f /dev/null | python provider.py'").wait_for("A scripted provider listens")
    for name, value in re.findall(r"(\w+)=(\S+)", environment):
        terminal.env[name] = value.replace("8765", port)
    running = terminal.start(up.strip())
    running.wait_for("ready after")
    running.wait_for("agents: lead, long, short")

    submit, sessions, tree = run.strip().splitlines()
    assert terminal.must(submit) == "The short one wins.\n"
    listed = terminal.run(sessions).stdout
    assert len(re.findall(r"ses_[0-9a-z]+", listed)) == 1
    shown = terminal.run(tree).stdout
    assert [shown.count(name) > 0 for name in ("lead", "long", "short")] == [True] * 3

    again, answer, logs = kill.strip().splitlines()
    [worker] = re.findall(r"worker: process (\d+)", running.output)
    terminal.run(again.replace("PID", worker))
    running.wait_for("worker ended; starting it again")
    assert terminal.run(answer).stdout == "The short one wins.\n"
    told = terminal.run(logs).stdout
    assert "model" in told

    assert terminal.must(go_on.strip()) == "I would ask for two short texts.\n"
    assert running.interrupt() == 0
    wait_until(lambda: not terminal.workers(), "the end of the stack")
