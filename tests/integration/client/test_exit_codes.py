"""Exit codes: what the table of the page says of the commands is what they do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from orchestrator import cli
from orchestrator.cli.exit_codes import MEANINGS, Exit
from orchestrator.worker.context.context import Context
from tests.commands import Orchestra, run_command
from tests.kit import Kit

MESSAGE = Path(cli.__file__).parents[2] / "schemas" / "templates" / "query.xml"


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
        ("result ses_00000000000000000000000000", Exit.REFUSED),
        ("submit nobody hello", Exit.REFUSED),
        ("resume FAILED again", Exit.REFUSED),
        ("reply ask_0 yes", Exit.REFUSED),
        ("submit", Exit.REFUSED),
        ("sessions --state asleep", Exit.REFUSED),
        ("result PENDING", Exit.NOT_YET),
        ("result PENDING --json", Exit.NOT_YET),
        ("result PENDING --wait --timeout 0", Exit.NOT_YET),
        ("result PENDING --wait --timeout 0 --json", Exit.NOT_YET),
        ("submit solo hello --wait --timeout 0", Exit.NOT_YET),
        ("watch PENDING --timeout 0", Exit.NOT_YET),
        ("watch PENDING --text --timeout 0", Exit.NOT_YET),
        ("result DONE --attachment nothing", Exit.REFUSED),
        ("dlq replay 00-9-9", Exit.REFUSED),
        ("audit replay msg_00000000000000000000000000", Exit.REFUSED),
        ("message validate MESSAGE", Exit.DONE),
        ("message validate SESSIONS", Exit.NO),
        ("message validate nothing.xml", Exit.NO),
        ("message verify MESSAGE", Exit.NO),
        ("message send SESSIONS", Exit.REFUSED),
        ("doctor --redis-url unix:///nowhere.sock", Exit.REFUSED),
        ("sessions --redis-url redis://127.0.0.1:1/0", Exit.NO_STACK),
        ("sessions --redis-url unix:///nowhere.sock", Exit.NO_STACK),
    ],
)
def test_a_command_ends_with_the_code_of_the_table(
    kit: Kit, orchestra: Orchestra, command: str, expected: Exit
) -> None:
    kit.agent("solo")(answer)
    sessions = {name: kit.submit("solo", name.lower()[:4]) for name in ("DONE", "FAILED", "PENDING")}
    for name in ("DONE", "FAILED"):
        kit.play(sessions[name])
    files = {"MESSAGE": str(MESSAGE), "SESSIONS": __file__}
    done = orchestra(*((sessions | files).get(word, word) for word in command.split()))
    assert done.exit_code == expected, done.output
    # A JSON document has said it, a verdict is a result, and usage is several lines.
    silent = (
        "--json" in command
        or command.startswith(("message validate", "message verify"))
        or "Usage:" in done.stderr
    )
    if expected is not Exit.DONE and not silent:
        *warnings, error = done.stderr.splitlines()
        assert error.startswith("Error: ")
        assert all(line.startswith("Warning: no living worker") for line in warnings)


def test_without_a_stack_a_command_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORCHESTRA_REDIS_URL", raising=False)
    done = run_command("sessions", "--data", str(tmp_path))
    assert done.exit_code == Exit.NO_STACK
    assert done.stderr.startswith("Error: no stack is running on")


#: Commands that ask no server unless they are told to.
ASKS_NOBODY = ("service acl", "message validate")
#: Commands that go on until they are stopped, with or without a stack.
STAYS = (
    *("up", "demo", "flower"),
    *[f"service {name}" for name in ("router", "callbacks", "reaper", "notifier", "audit", "worker")],
)


def leaves(command: click.Command, *path: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from leaves(found, *path, name)
    else:
        yield " ".join(path), command


@pytest.mark.parametrize("path", [name for name, _ in leaves(cli.main) if name not in STAYS])
def test_a_command_that_cannot_do_what_it_is_told_says_neither_yes_nor_no(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each command with a stack: its server is away, and what it is told of is nowhere."""
    command = dict(leaves(cli.main))[path]
    options = {name for parameter in command.params for name in parameter.opts}
    if path in ASKS_NOBODY or "--redis-url" not in options:
        pytest.skip("it needs no stack")
    needed = [p for p in command.params if isinstance(p, click.Argument) and p.required]
    words = [*path.split(), *("nothing" for _ in needed), "--redis-url", "unix:///nowhere.sock"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORCHESTRA_DATA", str(tmp_path / "data"))
    done = run_command(*words)
    assert done.exit_code in (Exit.REFUSED, Exit.NO_STACK), done.output
    assert "Traceback" not in done.output


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
    # An error of click's own would end with 1.
    words = {path.name: path.read_text() for path in Path(cli.__file__).parent.rglob("*.py")}
    assert [name for name, text in words.items() if "raise click.ClickException" in text] == []
