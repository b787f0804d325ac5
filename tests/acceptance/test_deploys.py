"""Parked sessions of each mode live through a deploy: the workers stop, the agents change, others start."""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest

from orchestrator.bootstrap import build_container
from orchestrator.client.client import Client
from orchestrator.errors import SessionFailed
from orchestrator.ledger import Session, SessionState
from orchestrator.redisdb.client import connect
from tests.acceptance.conftest import Background, Terminal, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.chaos, pytest.mark.timeout(480)]

#: Sessions of each mode.
PARKED = 100 if os.environ.get("CHAOS") == "long" else 25
MODES = ("latest", "refuse")

AGENT = """
@agent("{mode}_lead", role="coordinator", on_deploy="{mode}")
def {mode}_lead(ctx):
    if ctx.cause == "start":
        ctx.delegate("helper", "help " + ctx.prompt)
        return "waits"
    return "{version} was told: " + ctx.callbacks[0].result
"""
HELPER = """
from orchestrator import agent

@agent("helper")
def helper(ctx):
    return "done"
"""


def worker(terminal: Terminal, version: str) -> Background:
    """A worker with one version of the agents."""
    agents = HELPER + "".join(AGENT.format(mode=mode, version=version) for mode in MODES)
    (terminal.folder / f"{version}.py").write_text(agents, encoding="utf-8")
    started = terminal.start(
        "celery -A workers worker --concurrency 2",
        ORCHESTRA_AGENTS=f"{version}.py",
        ORCHESTRA_HEARTBEAT_S="0.5",
    )
    started.wait_for(" ready.")
    return started


def of(client: Client, sessions: list[str]) -> list[Session]:
    time.sleep(0.5)  # looked at again and again: the stack itself needs the processor
    return build_container(connect(client.settings.redis_url or ""), client.settings).ledger.find(sessions)


def states(client: Client, sessions: list[str]) -> Counter[SessionState]:
    return Counter(session.state for session in of(client, sessions))


def test_parked_sessions_live_through_a_deploy(terminal: Terminal) -> None:
    """`latest` goes on with the new version, `refuse` fails with one sentence."""
    terminal.up("--concurrency 1", ORCHESTRA_SWEEP_INTERVAL_S="0.5")
    old = worker(terminal, "v1")
    terminal.must("orchestra agents pause helper")
    with terminal.client() as client:
        parked = {
            mode: [client.submit(f"{mode}_lead", str(number)).id for number in range(PARKED)]
            for mode in MODES
        }
        everything = [session for sessions in parked.values() for session in sessions]
        wait_until(lambda: states(client, everything)[SessionState.IDLE] == 2 * PARKED, "the parked sessions")
        old.process.terminate()
        assert old.process.wait(60) == 0, old.output
        worker(terminal, "v2")
        terminal.must("orchestra agents unpause helper")
        wait_until(
            lambda: (
                states(client, parked["latest"])[SessionState.FINISHED] == PARKED
                and states(client, parked["refuse"])[SessionState.FAILED] == PARKED
            ),
            "the sessions that need no old worker",
        )
        assert {client.result(one) for one in parked["latest"]} == {"v2 was told: done"}
        began = of(client, parked["refuse"])[0].version
        with pytest.raises(
            SessionFailed, match=rf"'refuse_lead' has changed: the session began with version {began}"
        ):
            client.result(parked["refuse"][0])
    healthy = terminal.document("orchestra doctor --quick")
    assert healthy["holds"], healthy
