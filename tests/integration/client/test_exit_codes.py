"""Exit codes: what the table of the page says of the commands is what they do."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from orchestrator import cli
from orchestrator.cli.exit_codes import MEANINGS, Exit
from orchestrator.worker.context.context import Context
from tests.integration.client.conftest import Orchestra
from tests.integration.workers.conftest import StackHarness


def answer(ctx: Context) -> str:
    if ctx.prompt == "fail":
        raise RuntimeError("broken")
    return ctx.prompt


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("result DONE", Exit.DONE),
        ("sessions", Exit.DONE),
        ("result FAILED", Exit.NO),
        ("result FAILED --json", Exit.NO),
        ("result ses_00000000000000000000000000", Exit.NO),
        ("submit nobody hello", Exit.NO),
        ("resume FAILED again", Exit.NO),
        ("reply ask_0 yes", Exit.NO),
        ("submit", Exit.USAGE),
        ("sessions --state asleep", Exit.USAGE),
        ("result PENDING", Exit.NOT_YET),
        ("result PENDING --json", Exit.NOT_YET),
        ("result PENDING --wait --timeout 0", Exit.NOT_YET),
        ("result PENDING --wait --timeout 0 --json", Exit.NOT_YET),
        ("submit solo hello --wait --timeout 0", Exit.NOT_YET),
        ("watch PENDING --timeout 0", Exit.NOT_YET),
        ("watch PENDING --text --timeout 0", Exit.NOT_YET),
        ("sessions --redis-url redis://127.0.0.1:1/0", Exit.NO_STACK),
        ("sessions --redis-url unix:///nowhere.sock", Exit.NO_STACK),
    ],
)
def test_a_command_ends_with_the_code_of_the_table(
    stage: StackHarness, orchestra: Orchestra, command: str, expected: Exit
) -> None:
    stage.agent("solo")(answer)
    sessions = {name: stage.submit("solo", name.lower()[:4]) for name in ("DONE", "FAILED", "PENDING")}
    for name in ("DONE", "FAILED"):
        stage.play(sessions[name])
    done = orchestra(*(sessions.get(word, word) for word in command.split()))
    assert done.exit_code == expected, done.output
    # A JSON document has said it, and usage is several lines.
    if expected not in (Exit.DONE, Exit.USAGE) and "--json" not in command:
        *warnings, error = done.stderr.splitlines()
        assert error.startswith("Error: ")
        assert all(line.startswith("Warning: no living worker") for line in warnings)


def test_without_a_stack_a_command_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    monkeypatch.delenv("ORCHESTRA_REDIS_URL", raising=False)
    done = CliRunner().invoke(cli.main, ["sessions", "--data", str(tmp_path)])
    assert done.exit_code == Exit.NO_STACK
    assert done.stderr.startswith("Error: no stack is running on")


def test_no_command_ends_with_a_code_that_the_table_lacks() -> None:
    assert set(MEANINGS) == set(Exit)
    found = {
        (path.name, value.value)
        for path in Path(cli.__file__).parent.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "exit"
        for value in ast.walk(call)
        if isinstance(value, ast.Constant) and isinstance(value.value, int)
    }
    assert {code for _, code in found} <= set(Exit)
