"""`orchestra up --reload`: a changed file gets a new worker, what runs is finished, and a broken file changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.conftest import Terminal, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

#: Its run says that it began, and ends when it is told to.
AGENTS = """\
import time
from pathlib import Path

import words
from orchestrator import agent


@agent("speaker")
def speaker(ctx):
    if ctx.prompt == "long":
        Path("began").touch()
        while not Path("go").exists():
            time.sleep(0.02)
    return words.WORD
"""


def write(path: Path, text: str) -> None:
    """Write a file as editors do: another one is put in its place."""
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.replace(path)


def test_a_changed_file_replaces_the_worker_and_a_broken_one_does_not(terminal: Terminal) -> None:
    agents, words = terminal.folder / "my_agents.py", terminal.folder / "words.py"
    agents.write_text(AGENTS)
    words.write_text("WORD = 'one'")
    up = terminal.up("--agents my_agents.py --reload --concurrency 2")
    assert terminal.must("orchestra submit speaker say --wait") == "one\n"
    long = terminal.must("orchestra submit speaker long").strip()
    wait_until((terminal.folder / "began").exists, "the long run")

    write(words, "WORD = 'two'  # beside the file that is named")
    up.wait_for("worker is being replaced (words.py changed)")
    up.wait_for("worker is replaced; the old one finishes what runs")
    assert terminal.must("orchestra submit speaker say --wait") == "two\n"
    assert "that was replaced has finished" not in up.output
    (terminal.folder / "go").touch()
    assert terminal.must(f"orchestra result {long} --wait") == "one\n"
    up.wait_for("worker that was replaced has finished")
    assert "try 2" not in terminal.run(f"orchestra logs {long}").stdout

    write(agents, AGENTS.replace("return words.WORD", "return words.WORD +"))
    up.wait_for("my_agents.py: line 14: SyntaxError")
    assert up.output.count("worker stays as it is (") == 1
    assert terminal.must("orchestra submit speaker say --wait") == "two\n"
    write(agents, AGENTS.replace('@agent("speaker")', '@agent("speaker", attempts="many")'))
    wait_until(lambda: up.output.count("stays as it is") == 2, "the second refusal")
    assert up.output.count("is being replaced") == 1

    write(agents, AGENTS.replace("words.WORD", "words.WORD.upper()"))
    wait_until(lambda: up.output.count("is replaced; the old one") == 2, "another worker")
    assert terminal.must("orchestra submit speaker say --wait") == "TWO\n"
    assert up.interrupt() == 0
    terminal.assert_nothing_left()


def test_a_stack_without_files_of_agents_cannot_watch_them(terminal: Terminal) -> None:
    refused = terminal.run("orchestra up --reload")
    assert refused.returncode == 2
    assert "no file of agents is named; give --agents FILE" in refused.stderr
    terminal.assert_nothing_left()
