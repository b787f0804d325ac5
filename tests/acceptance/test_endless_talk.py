"""Agents that would talk for ever, on a whole stack."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.acceptance.conftest import Terminal, open_terminal, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(480)]

AGENTS = '''
from contextlib import suppress

from orchestrator import LimitExceeded, agent


@agent("lead", role="coordinator")
def lead(ctx):
    """Sends every message back, until it is told of an error."""
    if ctx.cause == "start":
        ctx.delegate("echo", "talk to me")
        return "talking"
    for callback in ctx.callbacks:
        if callback.kind == "error":
            ctx.state["told"] = f"stopped by {callback.agent}: {callback.text}"
        if callback.kind == "message":
            with suppress(LimitExceeded):
                ctx.message(callback.session, "and you?")
    return ctx.state.get("told", "still talking")


@agent("echo")
def echo(ctx):
    """Answers every message with one."""
    ctx.message("parent", "and you?")
    return "said so"
'''


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """A terminal beside a running stack that allows conversations of forty messages."""
    with open_terminal() as opened:
        (opened.folder / "agents.py").write_text(AGENTS)
        opened.env["ORCHESTRA_CONVERSATION_MAX_MESSAGES"] = "40"
        opened.start("orchestra up --agents agents.py").wait_for("ready after")
        yield opened


def test_a_conversation_that_runs_away_is_stopped_and_its_root_told(terminal: Terminal) -> None:
    """Beyond the limit nobody gets another word in; the root hears why, and answers."""
    session = json.loads(terminal.run("orchestra submit lead go --json").stdout)["session"]
    with terminal.client() as client:
        answers: list[str] = []

        def told() -> bool:
            answers.append(str(client.result(session)))
            return "stopped by" in answers[-1]

        wait_until(told, "the lead to be told")
    answer = answers[-1]
    assert answer.startswith("stopped by router: conversation ")
    assert "has had 40 messages" in answer
    wait_until(lambda: json.loads(terminal.run("orchestra doctor --json").stdout)["holds"], "quiet")
    dead = json.loads(terminal.run("orchestra dlq list --json").stdout)["dead_letters"]
    assert {letter["rule"] for letter in dead} == {"conversation-limit"}
    assert {letter["type"] for letter in dead} == {"message"}
    shown = terminal.run(f"orchestra tree {session}").stdout
    assert "1 launched = 1 delivered + 0 pending + 0 dead" in shown
