"""Which agents a living worker serves, and who says so where none does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Final

import pytest

from orchestrator.agents.definition import BUNDLED_QUEUE, define_agent
from orchestrator.agents.registry import AgentRecord
from orchestrator.bootstrap import build_container
from orchestrator.doctor import Doctor
from orchestrator.ledger import SessionState
from orchestrator.machine import SystemClock
from orchestrator.redisdb import keys
from orchestrator.runtime.service import MISSED_HEARTBEATS, SignsOfLife, living_agents
from orchestrator.worker.announce import announce, queues_of
from tests.integration.workers.conftest import StackHarness
from tests.waiting import wait_until

_WORKER = """
import os, sys, time
from orchestrator.redisdb.client import connect
from orchestrator.runtime.service import SignsOfLife
from orchestrator.config.settings import load_settings
settings = load_settings(heartbeat_s=0.05, lease_s=1)
SignsOfLife("worker", connect(sys.argv[1]), settings, serves={"lead": "orchestra.lead"}).begin()
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def lead(stage: StackHarness) -> SignsOfLife:
    """The life of a worker that serves `lead`, which is registered; it has not begun."""
    stage.agent("lead", role="coordinator", time_limit_s=77)(lambda _: "done")
    return SignsOfLife("worker", stage.redis, stage.steady, serves=queues_of(stage.catalogue))


def test_an_agent_is_served_from_when_its_worker_begins_until_it_stops(
    stage: StackHarness, lead: SignsOfLife
) -> None:
    def served() -> bool:
        (found,) = json.loads(stage.orchestra("agents", "--json").stdout)["agents"]
        assert ("NO LIVING WORKER" in stage.orchestra("agents").stdout) is not found["served"]
        return bool(found["served"])

    assert not served()
    lead.begin()
    assert served()
    lead.end()
    assert not served()


def test_a_worker_that_is_killed_serves_nothing_after_a_few_heartbeats(stage: StackHarness) -> None:
    """By the server's clock alone: the worker's own may say what it likes."""
    worker = subprocess.Popen(
        [sys.executable, "-c", _WORKER, str(stage.settings.redis_url)],
        stdout=subprocess.PIPE,
        env={**os.environ, "ORCHESTRA_DATA": str(stage.settings.data)},
    )
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
        assert living_agents(stage.redis) == {("lead", "orchestra.lead")}
    finally:
        worker.kill()
        worker.wait()
    killed = time.monotonic()
    wait_until(lambda: not living_agents(stage.redis))
    assert time.monotonic() - killed < 0.05 * MISSED_HEARTBEATS + 5


def test_work_for_an_agent_that_nobody_serves_is_kept_and_everybody_says_so(
    stage: StackHarness, lead: SignsOfLife
) -> None:
    done = stage.orchestra("submit", "lead", "go", "--json")
    assert done.exit_code == 0, done.output
    assert "no living worker serves 'lead': the session waits until one does" in done.stderr
    session = json.loads(done.stdout)["session"]
    dispatch = stage.start(session)
    why = stage.orchestra("why", session)
    assert "nobody: no living worker serves 'lead'; start a worker that does" in why.stdout
    doctor = stage.orchestra("doctor", "--quick")
    (line,) = [line for line in doctor.stdout.splitlines() if "[agent-unserved]" in line]
    assert line.startswith("stuck")
    assert f"{dispatch.run} of {session} waits for a worker, and no living worker serves 'lead'" in line

    lead.begin()
    try:
        assert "a free worker" in stage.orchestra("why", session).stdout
        assert "[agent-unserved]" not in stage.orchestra("doctor", "--quick").stdout
        assert "no living worker" not in stage.orchestra("submit", "lead", "go").stderr
        stage.execute(dispatch)
        assert stage.ledger.result(session) == (SessionState.FINISHED, "done")
    finally:
        lead.end()


def test_why_names_the_agents_own_time_limit(stage: StackHarness, lead: SignsOfLife) -> None:
    session = stage.submit("lead")
    dispatch = stage.start(session)
    stage.ledger.claim(dispatch.run, "c", session_id=session, worker="w")
    _, wait, _ = Doctor(stage.parts, audit=None).why(session)
    assert wait.by.endswith("run limit 77 s")


def test_a_bundled_agent_takes_the_place_of_one_that_nobody_serves_any_more(stage: StackHarness) -> None:
    mine = {"lead": define_agent("lead", function=str, source="here")}
    life = SignsOfLife("worker", stage.redis, stage.steady, serves=queues_of(mine))
    bundled = {"lead": define_agent("lead", function=str, source="here", queue=BUNDLED_QUEUE)}

    def registered() -> AgentRecord:
        record = build_container(stage.redis, stage.settings).agents.get("lead")
        assert record is not None
        return record

    life.begin()
    announce(stage.parts, mine)
    announce(stage.parts, bundled)
    assert registered().queue == "orchestra.lead"
    life.end()
    announce(stage.parts, bundled)
    assert registered().queue == BUNDLED_QUEUE


#: A record that lives for ever, but for one fact that is of another type.
WELL: Final = {
    "service": "worker",
    "instance": "x",
    "host": "h",
    "pid": 1,
    "started_ms": 1,
    "alive_until_ms": 1 << 53,
}


@pytest.mark.parametrize(
    "record",
    [
        "{",
        "7",
        '{"service": "worker"}',
        '{"x": 1}',
        json.dumps({**WELL, "started_ms": "soon"}),
        json.dumps({**WELL, "service": 7}),
        json.dumps({**WELL, "serves": {"lead": ["a queue"]}}),
    ],
)
def test_a_damaged_sign_of_life_ends_nobody(stage: StackHarness, lead: SignsOfLife, record: str) -> None:
    stage.redis.hset(keys.services(), "stranger", record)
    assert stage.orchestra("doctor", "--quick").exit_code == 3  # no service is alive
    lead.begin()
    assert living_agents(stage.redis) == {("lead", "orchestra.lead")}
    lead.end()
    assert stage.redis.hlen(keys.services()) == 0


@pytest.mark.parametrize("days", [-2, 2])
def test_a_registration_lives_by_the_servers_clock(
    stage: StackHarness, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    """A worker whose own clock is days off registers its agents for as long as any other, and clears away nobody's."""
    stage.agent("right")(lambda _: "done")
    with monkeypatch.context() as wrong:
        now_ms = SystemClock().now_ms() + days * 86_400_000
        wrong.setattr(SystemClock, "now_ms", lambda _: now_ms)
        stage.parts.agents.announce([AgentRecord(name="wrong", queue="orchestra.wrong")])
        assert stage.parts.agents.names() == ["right", "wrong"]
    assert build_container(stage.redis, stage.settings).agents.names() == ["right", "wrong"]
    server_ms = int(stage.redis.time()[0]) * 1000
    assert all(
        abs(score - server_ms) < 60_000
        for _, score in stage.redis.zrange(keys.agents(), 0, -1, withscores=True)
    )
