"""What agents print is in `orchestra logs --text`: by run and attempt, within bounds, and still in the log of the worker."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import Context, agent
from orchestrator.agents.definition import define_agent
from orchestrator.ledger import Ledger
from orchestrator.redisdb import ledger_keys
from orchestrator.redisdb.client import connect
from orchestrator.testing import InProcessStack
from orchestrator.worker.execution import printing

TOGETHER = threading.Barrier(2)


@agent("printer", attempts=2, backoff_s=0.01)
def printer(ctx: Context) -> str:
    print(f"attempt {ctx.attempt} \x1b[31mred")
    print("to stderr", file=sys.stderr)
    if ctx.attempt == 1:
        raise ValueError("once more")
    return "done"


@agent("threaded")
async def threaded(ctx: Context) -> str:
    thread = threading.Thread(target=print, args=("in a thread",))
    thread.start()
    thread.join()
    await asyncio.to_thread(print, "in another")
    return "done"


@agent("pair")
def pair(ctx: Context) -> str:
    TOGETHER.wait(60)
    print(f"mine: {ctx.prompt}")
    TOGETHER.wait(60)
    return "done"


@agent("secretive", encrypt=True)
def secretive(ctx: Context) -> str:
    TOGETHER.wait(60)
    print(f"the secret {ctx.prompt}")
    TOGETHER.wait(60)
    return "done"


@agent("bystander")
def bystander(ctx: Context) -> str:
    TOGETHER.wait(60)
    TOGETHER.wait(60)
    return "done"


@agent("wordy")
def wordy(ctx: Context) -> str:
    for number in range(1000):
        print(f"line {number:05}")
    return "done"


COMPLAINER = define_agent(
    "complainer",
    source="here:1",
    executor="command",
    options={
        "command": [
            sys.executable,
            "-c",
            "import sys; print('no config found', file=sys.stderr); print('done')",
        ],
        "output": "text",
    },
    attempts=1,
)


@pytest.fixture(scope="module")
def stack() -> Iterator[InProcessStack]:
    with InProcessStack(
        [printer, threaded, pair, secretive, bystander, wordy, COMPLAINER], slots=2, printed_max_bytes=1000
    ) as stack:
        yield stack


def printed(stack: InProcessStack, session: str) -> list[tuple[str, str]]:
    return [
        (event.text, event.detail)
        for event in stack.client.history(session, texts=True)
        if event.what == "printed"
    ]


def test_each_attempt_has_its_own_and_the_stream_has_it_too(
    stack: InProcessStack, capsys: pytest.CaptureFixture[str]
) -> None:
    session = stack.run("printer", "go").session
    (first, one), (second, two) = printed(stack, session)
    assert (first.split(":")[0], second.split(":")[0]) == ("attempt 1", "attempt 2")
    assert one == "attempt 1 \x1b[31mred\nto stderr\n"  # cleaned where it is shown
    assert two == "attempt 2 \x1b[31mred\nto stderr\n"
    said = capsys.readouterr()
    assert "attempt 2" in said.out
    assert "to stderr" in said.err
    assert [event.what for event in stack.client.history(session)].count("printed") == 0


def test_threads_and_tasks_print_for_their_run(stack: InProcessStack) -> None:
    [(_, text)] = printed(stack, stack.run("threaded", "go").session)
    assert text == "in a thread\nin another\n"


def test_runs_at_the_same_time_are_not_mixed(stack: InProcessStack) -> None:
    sessions = {name: stack.client.submit("pair", name).id for name in ("one", "two")}
    for name, session in sessions.items():
        stack.client.result(session, timeout_s=60)
        assert [text for _, text in printed(stack, session)] == [f"mine: {name}\n"]


def test_what_an_encrypted_session_prints_is_not_kept_as_what_another_run_prints(
    stack: InProcessStack,
) -> None:
    sessions = [stack.client.submit(name, "word").id for name in ("secretive", "bystander")]
    for session in sessions:
        stack.client.result(session, timeout_s=60)
        assert printed(stack, session) == []


def test_the_end_of_much_is_kept(stack: InProcessStack) -> None:
    [(about, text)] = printed(stack, stack.run("wordy", "go").session)
    assert about == "attempt 1: 11000 bytes; the last 1000 are kept"
    assert text.endswith("line 00998\nline 00999\n")
    assert len(text) == 1000


def test_what_the_program_of_a_command_agent_complains_of_and_answers_is_there(stack: InProcessStack) -> None:
    [(_, text)] = printed(stack, stack.run("complainer", "go").session)
    assert text == "no config found\ndone\n"


def test_it_goes_with_its_session(stack: InProcessStack) -> None:
    session = stack.run("wordy", "go").session
    with connect(str(stack.settings.redis_url), check=False) as client:
        assert client.exists(ledger_keys.printed(session))
        assert ledger_keys.printed(session) in Ledger(client).owned_keys(session)


def test_what_was_printed_is_written_down_while_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printing, "WRITE_EVERY_S", 0.0)
    written: list[str] = []
    prints = printing.Prints(100, lambda _size, text: written.append(text))
    prints.add("one ")
    prints.add(b"two")
    prints.flush()
    assert written == ["one ", "one two"]


def test_the_streams_are_as_they_were_afterwards(stack: InProcessStack, tmp_path: Path) -> None:
    before = sys.stdout, sys.stderr
    stack.run("wordy", "go")
    assert (sys.stdout, sys.stderr) == before
