"""Recurring submissions: real beat processes, each due time once, also with two of them and after a kill."""

from __future__ import annotations

import signal
from datetime import UTC, datetime

import pytest

from orchestrator.ids import root_session_id
from tests.acceptance.conftest import Terminal, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(480)]

AGENTS = """
from orchestrator import agent

@agent("echo")
def echo(ctx):
    return ctx.prompt
"""
SCHEDULE = """
from orchestrator import app, recurring

app.conf.beat_schedule = recurring("tick", 2, agent="echo", prompt="tick")
"""
SENT = "Sending due task tick"


def test_two_beats_submit_each_due_time_once(terminal: Terminal) -> None:
    (terminal.folder / "mine.py").write_text(AGENTS)
    (terminal.folder / "schedule.py").write_text(SCHEDULE)
    stack = terminal.start("orchestra up --agents mine.py --concurrency 1")
    stack.wait_for("ready after")
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
        due = [datetime.fromtimestamp(s, UTC).isoformat() for s in range(began_s, ended_s + 1, 2)]
        assert found <= {root_session_id(f"beat:tick:{at}", 1) for at in due}
        assert len(found) >= 3
        assert sent >= len(found) + 3
        assert {client.result(session) for session in found} == {"tick"}
        assert {client.session(session).runs for session in found} == {1}
