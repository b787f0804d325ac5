"""The frame of the commands: lazily loaded, one line for an error, exit codes that mean something."""

from __future__ import annotations

import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
import redis
from click.testing import CliRunner, Result

from orchestrator import cli
from orchestrator.cli import COMMANDS, RENAMED, SECTIONS, main
from orchestrator.cli.documents.audit import Dropped
from orchestrator.cli.documents.table import DOCUMENTS
from orchestrator.cli.options import json_option, period_options, stack_options
from orchestrator.cli.output import print_json, say
from orchestrator.cli.render import progress_bar
from orchestrator.cli.up import _welcome
from orchestrator.config.settings import Settings, load_settings
from orchestrator.errors import OrchestraError, UnknownSession
from tests.commands import run_command


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a function as the command `probe`."""

    def invoke(function: Callable[..., None], *arguments: str) -> Result:
        module = types.ModuleType("probe_module")
        command = function if isinstance(function, click.Command) else click.command("probe")(function)
        module.probe = command  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "orchestrator.cli.probe_module", module)
        monkeypatch.setitem(cli.COMMANDS, "probe", "probe_module")
        return CliRunner().invoke(main, ["probe", *arguments], catch_exceptions=True)

    return invoke


def test_an_error_of_ours_is_one_line_and_exit_code_2(run: Callable[..., Result]) -> None:
    def probe() -> None:
        raise UnknownSession("ses_x")

    result = run(probe)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Error: no session 'ses_x'")
    assert result.stderr.count("\n") == 1


def test_an_error_of_many_lines_is_folded_into_one(run: Callable[..., Result]) -> None:
    def probe() -> None:
        raise OrchestraError("first\n  second")

    assert run(probe).stderr == "Error: first second\n"


def test_an_outage_of_redis_is_one_line(run: Callable[..., Result]) -> None:
    def probe() -> None:
        raise redis.ConnectionError("gone")

    result = run(probe)
    assert result.exit_code == 4
    assert result.stderr == "Error: Redis did not answer: gone; is it running?\n"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            redis.exceptions.ReadOnlyError("You can't write against a read only replica."),
            "is a replica and takes no writes (You can't write against a read only replica); name its primary",
        ),
        (
            redis.exceptions.OutOfMemoryError("used memory > 'maxmemory'."),
            "; raise its maxmemory, or make room",
        ),
        (redis.ResponseError("MISCONF Errors writing to the AOF file"), "; make room there, and see its log"),
    ],
)
def test_a_server_that_takes_no_writes_is_one_line(
    run: Callable[..., Result], error: Exception, words: str
) -> None:
    def probe() -> None:
        raise error

    result = run(probe)
    assert result.exit_code == 4
    assert result.stderr.startswith("Error: Redis ")
    assert result.stderr.endswith(f"{words}\n")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--out", "no-such-folder/signed.xml"],
            "no-such-folder/signed.xml: No such file or directory; check the path",
        ),
        (["--out", "/dev/full"], "No space left on device; make room, or write to another disk"),
        (["--data", "in-the-way"], "Not a directory; check the path, and that this user may use it"),
    ],
)
def test_a_file_that_cannot_be_written_is_one_line(
    options: list[str], words: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the user named: a folder that is not there, a full disk, a file in the place of the data folder."""
    message = str(root / "schemas" / "templates" / "query.xml")
    monkeypatch.chdir(tmp_path)
    Path("in-the-way").touch()
    result = run_command("message", "sign", message, *options)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert words in result.stderr


def test_a_bug_is_not_hidden(run: Callable[..., Result]) -> None:
    def probe() -> None:
        raise ZeroDivisionError

    result = run(probe)
    assert result.exit_code == 70
    assert result.stdout == ""
    assert result.stderr.startswith("Traceback (most recent call last):\n")
    assert result.stderr.endswith("\nZeroDivisionError\n")


def test_interrupting_a_command_is_exit_code_130(run: Callable[..., Result]) -> None:
    def probe() -> None:
        raise KeyboardInterrupt

    result = run(probe)
    assert result.exit_code == 130
    assert result.stderr == "interrupted\n"


def test_wrong_usage_is_exit_code_2() -> None:
    assert run_command("no-such-command").exit_code == 2
    assert run_command("up", "--no-such-option").exit_code == 2
    assert run_command("up", "--concurrency", "0").exit_code == 2


def test_a_command_gets_its_settings_from_options_and_environment(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Settings] = []

    @click.command()
    @stack_options
    def probe(settings: Settings) -> None:
        seen.append(settings)

    monkeypatch.setenv("ORCHESTRA_SHARDS", "3")
    assert run(probe, "--redis-url", "redis://h/1").exit_code == 0
    assert (seen[0].redis_url, seen[0].shards) == ("redis://h/1", 3)
    assert run(probe, "--redis-url", "ftp://h").stderr.startswith(
        "Error: setting 'redis_url': 'ftp' is not a Redis URL scheme"
    )


def test_json_is_one_readable_document(run: Callable[..., Result]) -> None:
    @json_option
    def probe(as_json: bool) -> None:
        assert as_json
        print_json(Dropped(dropped=("ä", "b")))

    output = run(probe, "--json").stdout
    assert "ä" in output
    assert output.startswith("{")


@pytest.mark.parametrize("value", ["soon", "", "99999999999999d", "9" * 5000, "0001-01-01T00:00"])
def test_a_time_that_is_none_is_wrong_usage(run: Callable[..., Result], value: str) -> None:
    @period_options
    def probe(since_ms: int | None, until_ms: int | None) -> None:
        raise AssertionError

    result = run(probe, "--since", value)
    assert result.exit_code == 2
    assert "is neither how long ago (90s, 15m, 2h, 7d) nor a time" in result.stderr


def test_a_time_is_a_moment_or_how_long_ago_it_was(run: Callable[..., Result]) -> None:
    seen: list[int | None] = []

    @period_options
    def probe(since_ms: int | None, until_ms: int | None) -> None:
        seen.extend((since_ms, until_ms))

    now_ms = time.time_ns() // 1_000_000
    assert run(probe, "--since", "2w", "--until", "1970-01-01T00:00:01Z").exit_code == 0
    assert seen[1] == 1000
    assert seen[0] is not None
    assert 0 <= seen[0] - (now_ms - 14 * 86_400_000) < 60_000


def test_a_stack_that_is_ready_outlasts_that_redis_is_away_when_it_says_so(tmp_path: Path) -> None:
    settings = load_settings(redis_url=f"unix://{tmp_path}/gone", data=tmp_path)
    assert _welcome(settings, 1.0, []) is None


def test_what_is_printed_beside_a_bar_stays_on_standard_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard error is a terminal and standard output a file: the lines belong into the file."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar("replay") as show:
        show("replay", 1, 2)
        say("a line")
    assert capsys.readouterr().out == "a line\n"


def test_every_command_that_prints_json_has_its_documents_in_the_table() -> None:
    def printing(command: click.Command, path: str) -> Iterator[str]:
        if any(parameter.name == "as_json" for parameter in command.params):
            yield path
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                assert below is not None
                yield from printing(below, f"{path} {name}".strip())

    assert sorted(printing(main, "")) == sorted(DOCUMENTS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_explains_itself(name: str) -> None:
    result = run_command(name, "--help")
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.stdout


@pytest.mark.parametrize("old", [*RENAMED, "audit writer"])
def test_a_command_that_moved_into_a_group_is_found_under_its_old_name(old: str) -> None:
    result = run_command(*old.split(), "--help")
    path = RENAMED.get(old, "service audit")
    assert (result.exit_code, "Usage:" in result.stdout) == (0, True)
    assert result.stdout == run_command(*path.split(), "--help").stdout or old == "audit writer"
    assert result.stderr == f"note: `orchestra {old.rsplit(maxsplit=1)[-1]}` is `orchestra {path}` now\n"


@pytest.mark.parametrize("name", SECTIONS["Groups of commands"])
def test_the_help_of_a_group_cuts_no_sentence(name: str) -> None:
    listed = run_command(name, "--help", terminal_width=80).stdout.partition("Commands:")[2]
    assert listed
    assert "..." not in listed


@pytest.mark.parametrize("module", ["cli", "client.client", "deployment.local_stack"])
def test_what_commands_begin_with_is_quick_to_load(module: str) -> None:
    """Every `celery …` call loads the group, each look a client, and a stack's `up` is small beside what it starts."""
    heavy = {"lxml", "celery", "rich", "nacl", "xmlschema", "sqlalchemy"}
    heavy |= {"redis", "pydantic", "cryptography"} if module == "cli" else set()
    code = f"import sys, orchestrator.{module}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_celery_has_the_commands_too() -> None:
    from importlib.metadata import entry_points

    (entry,) = [ep for ep in entry_points(group="celery.commands") if ep.name == "orchestra"]
    assert entry.load() is main


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("orchestra, version ")
