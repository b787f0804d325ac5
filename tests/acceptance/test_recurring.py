"""Recurring submissions as docs/howto/timers.md has them: each period once, also with two beats and after a kill."""

from __future__ import annotations

import re
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest

from orchestrator.ids import root_session_id
from tests.acceptance.conftest import Terminal, wait_until

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(480)]

AGENTS = """
from orchestrator import agent

@agent("echo")
def echo(ctx):
    return ctx.prompt
"""
#: The page's own schedule, with a period that a test can wait for.
PAGE = (ROOT / "docs/howto/timers.md").read_text()
SCHEDULE = re.search(r"```python\n(from time import time.*?)```", PAGE, re.DOTALL)[1]  # type: ignore[index]
SCHEDULE = SCHEDULE.replace("300, 300", "2, 2").replace('"watcher"', '"echo"')
SENT = "Sending due task look"


def test_two_beats_submit_each_period_once(terminal: Terminal) -> None:
    (terminal.folder / "schedule.py").write_text(SCHEDULE)
    terminal.serve(AGENTS, "--concurrency 1")
    began_s = int(datetime.now(UTC).timestamp()) // 2 * 2
    command = "celery -A schedule beat --loglevel info --max-interval 1 --schedule"
    first = terminal.start(f"{command} one.db")
    second = terminal.start(f"{command} two.db")
    with terminal.client() as client:
        wait_until(lambda: min(beat.output.count(SENT) for beat in (first, second)) >= 3, "two beats")
        # One that is killed and started again does not submit again what it had submitted.
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(60)
        again = terminal.start(f"{command} one.db")
        wait_until(lambda: again.output.count(SENT) >= 2, "a beat that was started again")
        for beat in (again, second):
            beat.process.terminate()
            beat.process.wait(60)
        sent = sum(beat.output.count(SENT) for beat in (first, second, again))
        wait_until(lambda: all(s.state == "finished" for s in client.sessions()), "the answers")
        ended_s = int(datetime.now(UTC).timestamp())
        found = {session.id for session in client.sessions(limit=1000)}
        due = range(began_s // 2, ended_s // 2 + 1)
        assert found <= {root_session_id(f"beat:look:{period}", 1) for period in due}
        assert len(found) >= 3
        assert sent >= len(found) + 3
        assert {client.result(session) for session in found} == {"Look at the queue"}
        assert {client.session(session).runs for session in found} == {1}
