"""`orchestra demo`: the whole system on a source tree, watched, interrupted and with its worker killed."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import time
from pathlib import Path

import pytest

from tests.acceptance.conftest import RETRY_FOR_S, Terminal, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(480)]

FINE = '''"""Module {number}."""


def double(number: int) -> int:
    """Twice the number {number}."""
    return 2 * number
'''
AWFUL = """
def f(a, b, c):  # TODO: finish this
    if a and b or c:
        for x in a:
            while b:
                if x and a and b and c:
                    return 1 if a else 2 if b else 3
    raise NotImplementedError

class Thing:
    def method(self): raise NotImplementedError
"""


@pytest.fixture
def tree(terminal: Terminal) -> Path:
    """A package whose modules are fine but for one; the number of modules can be chosen with `grow`."""
    package = terminal.folder / "some package"
    package.mkdir()
    (package / "awful.py").write_text(AWFUL, encoding="utf-8")
    return package


def grow(package: Path, modules: int) -> None:
    for number in range(modules - len(list(package.glob("*.py")))):
        (package / f"fine_{number}.py").write_text(FINE.format(number=number), encoding="utf-8")


def promise(modules: int) -> str:
    return f"{modules} launched = {modules} delivered + 0 pending + 0 dead"


def test_two_hundred_modules_are_reviewed_worst_first_and_nothing_is_left(
    terminal: Terminal, tree: Path
) -> None:
    grow(tree, 200)
    (tree / "broken.py").write_text("def oops(:\n", encoding="utf-8")
    began = time.monotonic()
    done = terminal.run(f"orchestra demo '{tree}'", COLUMNS="100")
    took_s = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout, "plain lines to a pipe"
    assert promise(201) in done.stdout
    listed = done.stdout.partition("Worst modules first")[2].splitlines()
    assert "some package/broken.py" in listed[2]
    assert "some package/awful.py" in listed[4]
    assert "201 of 201 modules reviewed" in done.stdout
    most = re.search(r"resumes? of `lead` carried 201 callbacks, up to (\d+) at once", done.stdout)
    assert int(most[1]) >= 2, "callbacks queued while the lead was busy"
    assert "What to try next" in done.stdout
    # Thirty seconds on two cores of its own; here it shares them with other tests.
    assert took_s < 60
    terminal.assert_nothing_left()


def test_the_tree_is_live_on_a_terminal(terminal: Terminal, tree: Path) -> None:
    grow(tree, 30)
    pid, screen = pty.fork()
    if pid == 0:  # pragma: no cover  (becomes the demo)
        os.chdir(terminal.folder)
        os.execvpe("orchestra", ["orchestra", "demo", str(tree)], {**terminal.env, "TERM": "xterm-256color"})
    shown = b""
    deadline = time.monotonic() + RETRY_FOR_S
    while time.monotonic() < deadline:
        if select.select([screen], [], [], 0.1)[0]:
            try:
                shown += os.read(screen, 65_536)
            except OSError:  # the demo has closed its end
                break
    _, status = os.waitpid(pid, 0)
    os.close(screen)
    text = shown.decode(errors="replace")
    assert os.waitstatus_to_exitcode(status) == 0, text
    assert "\x1b[" in text
    assert "├─ reviewer" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    assert promise(30) in text


@pytest.mark.parametrize("moment", ["reviewer   pending", "worker alone"])
def test_ctrl_c_at_any_moment_leaves_nothing_behind(terminal: Terminal, tree: Path, moment: str) -> None:
    grow(tree, 120)
    demo = terminal.start(f"orchestra demo '{tree}'")
    if moment == "worker alone":
        wait_until(terminal.workers, "the worker")
    else:
        demo.wait_for(moment)
    code = demo.interrupt()
    # It may have been done by the time it heard.
    assert (code == 130 and "interrupted; everything is stopped" in demo.output) or promise(
        120
    ) in demo.output
    terminal.assert_nothing_left()


def test_a_worker_killed_in_the_middle_changes_nothing_about_the_promise(
    terminal: Terminal, tree: Path
) -> None:
    grow(tree, 150)
    demo = terminal.start(f"orchestra demo '{tree}'")
    demo.wait_for("reviewer")
    # The first is the worker itself, the others are its pool.
    os.kill(terminal.workers()[0], signal.SIGKILL)
    assert demo.process.wait(120) == 0, demo.output
    assert promise(150) in demo.output
    assert "worker ended; starting it again" in demo.output
    terminal.assert_nothing_left()


def test_a_path_that_is_not_there_is_wrong_usage(terminal: Terminal) -> None:
    done = terminal.run("orchestra demo no/such/folder")
    assert done.returncode == 2
    assert "Path 'no/such/folder' does not exist." in done.stderr
