"""`orchestra watch` on a terminal: it shows ids, takes keys, and leaves the terminal as it was."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from orchestrator import Context, agent
from orchestrator.testing import InProcessStack
from tests.commands import place

DEADLINE_S = 60.0
AT_WORK, LET_GO = threading.Semaphore(0), threading.Event()
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@agent("asker")
def asker(ctx: Context) -> str:
    return f"called {ctx.ask('Which name shall it have?')}"


@agent("boss", role="coordinator")
def boss(ctx: Context) -> str:
    if ctx.cause == "start":
        ctx.delegate("idler", "wait for the user", title="the child")
        return "delegated"
    return "done"


@agent("careful")
def careful(ctx: Context) -> str:
    approved = ctx.request_approval("deploy", {"version": "7"})
    return f"approved: {approved.approved}"


@agent("idler")
def idler(ctx: Context) -> str:
    ctx.sleep(3600)
    return "slept"


@agent("manager", role="coordinator")
def manager(ctx: Context) -> str:
    for title in ("one", "two"):
        ctx.delegate("stubborn", title)
    return "delegated"


@agent("stubborn")
def stubborn(_: Context) -> str:
    AT_WORK.release()
    LET_GO.wait(60)
    return "done"


@pytest.fixture(scope="module")
def stack() -> Iterator[InProcessStack]:
    with InProcessStack([asker, boss, careful, idler, manager, stubborn], slots=2) as stack:
        yield stack


class Watch:
    """`orchestra watch` on a terminal of its own."""

    def __init__(self, stack: InProcessStack, session: str, *, columns: int = 120) -> None:
        self.ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.before = termios.tcgetattr(self.theirs)
        env = {
            name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "watch", session],
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            env={**env, **place(stack.settings), "TERM": "xterm"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )
        self.shown = ""

    def press(self, keys: str) -> None:
        self.shown = ""
        os.write(self.ours, keys.encode())

    def wait_for(self, words: str) -> None:
        self._read(lambda: words in self.shown)
        assert words in self.shown, self.shown

    def end(self) -> int:
        self._read(lambda: self.process.poll() is not None)
        code = self.process.wait(60)
        assert termios.tcgetattr(self.theirs) == self.before
        os.close(self.theirs)
        os.close(self.ours)
        return code

    def _read(self, done: Callable[[], bool]) -> None:
        until = time.monotonic() + DEADLINE_S
        while not done() and time.monotonic() < until:
            if select.select([self.ours], [], [], 0.05)[0]:
                self.shown += _CONTROL.sub("", os.read(self.ours, 65536).decode(errors="replace"))


def test_a_question_is_answered_from_the_tree(stack: InProcessStack) -> None:
    session = stack.client.submit("asker", "Name it.").id
    watch = Watch(stack, session)
    watch.wait_for(session)
    watch.wait_for("? help")
    watch.press("?")
    watch.wait_for("reply to what it asks")
    watch.press("x")
    watch.wait_for("? help")
    while not stack.client.questions(session):
        time.sleep(0.02)
    watch.press("r")
    watch.wait_for("Which name shall it have?")
    watch.press("Ännika\x7fe\r")
    assert watch.end() == 0
    assert stack.client.result(session, timeout_s=60) == "called Ännike"


def test_the_command_for_an_approval_fits_80_columns_and_the_promise_is_said_once(
    stack: InProcessStack,
) -> None:
    session = stack.client.submit("careful", "Deploy.").id
    watch = Watch(stack, session, columns=80)
    while not (asked := stack.client.approvals(session)):
        time.sleep(0.02)
    watch.wait_for(f"orchestra approve {asked[0].id}\r\n")
    stack.client.approve(asked[0].id)
    assert watch.end() == 0
    *_, last = watch.shown.split("? help")
    assert "launched" not in last


def test_trees_fold_and_sessions_are_stopped_after_a_question(stack: InProcessStack) -> None:
    session = stack.client.submit("boss", "Go.").id
    watch = Watch(stack, session)
    watch.wait_for("the child")
    watch.press("h")
    watch.wait_for("1 child folded")
    watch.press("l")
    watch.wait_for("the child")
    watch.press("s")
    watch.wait_for("Stop ses_")
    watch.press("n")
    watch.wait_for("not stopped")
    watch.press("s")
    watch.wait_for("everything below it? y/n")
    watch.press("y")
    assert watch.end() == 0
    assert stack.client.session(session).state.value == "stopped"


def test_a_stop_says_how_many_sessions_below_are_still_stopping(stack: InProcessStack) -> None:
    session = stack.client.submit("manager", "Go.").id
    assert AT_WORK.acquire(timeout=60)
    assert AT_WORK.acquire(timeout=60)
    while stack.client.session(session).state.value != "idle":
        time.sleep(0.02)
    watch = Watch(stack, session)
    watch.wait_for("? help")
    watch.press("s")
    watch.wait_for("everything below it? y/n")
    watch.press("y")
    watch.wait_for("it has ended; 2 sessions below it are still stopping")
    LET_GO.set()
    assert watch.end() == 0


@pytest.mark.parametrize(
    ("leave", "code"),
    [
        (lambda watch: watch.press("q"), 130),
        (lambda watch: watch.press("\x03"), 130),
        (lambda watch: watch.process.send_signal(signal.SIGTERM), 143),
    ],
    ids=["q", "ctrl-c", "term"],
)
def test_the_terminal_is_as_it_was_however_it_ends(
    stack: InProcessStack, leave: Callable[[Watch], None], code: int
) -> None:
    session = stack.client.submit("boss", "Go.").id
    watch = Watch(stack, session)
    watch.wait_for("? help")
    assert termios.tcgetattr(watch.theirs) != watch.before
    leave(watch)
    assert watch.end() == code
    assert stack.client.session(session).state.value == "idle"
    stack.client.stop(session)
