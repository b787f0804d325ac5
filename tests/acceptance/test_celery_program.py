"""`celery -A workers …`: the same stack through Celery's own program, and what it says when it cannot start."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import Terminal

pytestmark = pytest.mark.acceptance


def refusal(terminal: Terminal, command: str, **env: str) -> str:
    done = terminal.run(command, **env)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.startswith("Error: "), done.stderr
    assert done.stderr.count("\n") == 1
    terminal.assert_nothing_left()
    return done.stderr


def test_a_worker_without_a_stack_says_how_to_get_one(terminal: Terminal) -> None:
    said = refusal(terminal, "celery -A workers worker")
    assert f"no stack is running on {terminal.folder}/.orchestra; start `orchestra up`" in said


def test_a_worker_whose_agents_cannot_be_loaded_does_not_start(terminal: Terminal) -> None:
    (terminal.folder / "mine.py").write_text("x = 1\nfrom nowhere import agents\n", encoding="utf-8")
    said = refusal(
        terminal,
        "celery -A workers worker",
        ORCHESTRA_AGENTS="mine.py",
        ORCHESTRA_REDIS_URL="unix:///nowhere/valkey.sock",
    )
    assert said == (
        "Error: cannot load agents from mine.py: line 2: ModuleNotFoundError: No module named 'nowhere'\n"
    )


def test_a_wrong_setting_is_named(terminal: Terminal) -> None:
    said = refusal(terminal, "celery -A workers flower", ORCHESTRA_LEASE_S="soon")
    assert "ORCHESTRA_LEASE_S: input should be a valid number" in said


def test_the_commands_are_there_without_a_stack(terminal: Terminal) -> None:
    done = terminal.run("celery -A workers orchestra --help")
    assert done.returncode == 0, done.stderr
    assert "Run the whole stack in this terminal." in done.stdout
