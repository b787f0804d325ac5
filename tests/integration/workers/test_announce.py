"""Workers make their agents known; a bundled agent gives way to a user's of the same name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any, Final

import pytest

from orchestrator.agents.definition import BUNDLED_QUEUE, AgentDefinition, define_agent
from orchestrator.agents.registry import AgentRecord, AgentRecords, AgentRegistry
from orchestrator.client.client import Client
from orchestrator.keyring.registry import KeyRegistry
from orchestrator.ledger import SessionState
from orchestrator.machine import SystemClock
from orchestrator.redisdb import keys
from orchestrator.runtime.service import MISSED_HEARTBEATS, SignsOfLife, living_agents
from orchestrator.worker.announce import announce, queues_of
from orchestrator.worker.context.context import Context
from tests.examined import doctor_of
from tests.kit import Kit
from tests.waiting import wait_until

from .test_gateway import remote


def defined(name: str, **options: object) -> dict[str, AgentDefinition]:
    return {name: define_agent(name, function=str, source="here", **options)}  # type: ignore[arg-type]


def fresh(kit: Kit) -> AgentRegistry:
    """A registry that remembers nothing of earlier look-ups."""
    return kit.beside().parts.agents


def test_agents_and_their_keys_are_announced(kit: Kit) -> None:
    announce(kit.parts, defined("mine", role="coordinator", tier="opus"))
    record = fresh(kit).get("mine")
    assert (record.role, record.tier, record.queue) == ("coordinator", "opus", "orchestra.mine")
    keyring = kit.parts.keyring
    key = KeyRegistry(kit.redis, keyring.store).lookup(keyring.signer("mine").key_id)
    assert key.agent == "mine"


def test_names_are_read_while_agents_are_announced(kit: Kit) -> None:
    """A thread that withdraws an agent comes between the look at what is remembered and its use."""

    class Moment(float):
        def __sub__(self, other: float) -> float:
            registry.withdraw("mine")
            return float(self) - other

    class Moments(SystemClock):
        def monotonic(self) -> float:
            return Moment(super().monotonic())

    registry = AgentRegistry(kit.redis, AgentRecords(kit.parts.keyring.registry), clock=Moments())
    announce(kit.parts, defined("mine"))
    assert registry.names() == ["mine"]
    assert registry.names() == ["mine"]


def test_a_users_agent_takes_the_place_of_a_bundled_one_whoever_comes_first(kit: Kit) -> None:
    mine, bundled = defined("lead"), defined("lead", queue=BUNDLED_QUEUE)
    life = SignsOfLife("worker", kit.redis, kit.steady, serves=queues_of(mine))
    life.begin()
    for catalogue in (bundled, mine, bundled):
        announce(kit.parts, catalogue)
    life.end()
    record = fresh(kit).get("lead")
    assert record.queue == "orchestra.lead"


def test_a_bundled_agent_is_announced_again_and_again(kit: Kit) -> None:
    bundled = defined("lead", queue=BUNDLED_QUEUE)
    announce(kit.parts, bundled)
    announce(kit.parts, bundled)
    assert fresh(kit).names() == ["lead"]


def test_a_foreign_agent_is_announced_without_a_key_of_ours(kit: Kit) -> None:
    external = {"outside": define_agent("outside", function=None, source="here", executor="foreign")}
    announce(kit.parts, external)
    assert fresh(kit).names() == ["outside"]
    assert kit.parts.keyring.store.current("outside") is None


def _let_days_pass(kit: Kit, days: float) -> None:
    """So long nobody announces anything; keys that live shorter are gone."""
    for key in kit.redis.scan_iter("ao:*"):
        left_ms = kit.redis.pttl(key)
        if 0 < left_ms < days * 86_400_000:
            kit.redis.delete(key)
    names = keys.agents()
    found: Any = kit.redis.zrange(names, 0, -1, withscores=True)
    kit.redis.zadd(names, {name: at - days * 86_400_000 for name, at in found})


def test_work_for_agents_whose_last_worker_left_long_ago_waits(kit: Kit, client: Client) -> None:
    """So scaling to zero loses nothing: neither a submission, nor what a running agent delegates."""
    kit.agent("lead", role="coordinator")(lambda ctx: ctx.delegate("helper", "help") and "waiting")
    kit.agent("helper")(lambda ctx: "helped")
    kit.agent("other")(lambda ctx: "")
    _let_days_pass(kit, 365)
    announce(kit.beside().parts, {"other": kit.catalogue["other"]})
    root = client.submit("lead", "go").id
    assert kit.play(root) == "idle"
    (child,) = kit.children(root)
    kit.beside(registration_patience_s=0.0).route()
    assert kit.dead() == []
    assert client.session(child.id).busy
    assert {record.name for record in fresh(kit).all()} == {"lead", "helper", "other"}


def test_a_setting_lets_registrations_lapse(kit: Kit) -> None:
    brief = kit.beside(registration_ttl_s=3600.0)
    announce(brief.parts, defined("brief"))
    announce(kit.beside().parts, defined("lasting"))
    _let_days_pass(kit, 0.5)
    assert [record.name for record in fresh(kit).all()] == ["lasting"]
    announce(brief.beside().parts, defined("lasting"))
    _let_days_pass(kit, 0.5)
    assert fresh(kit).all() == []
    announce(brief.beside().parts, defined("new"))
    assert kit.redis.zrange(keys.agents(), 0, -1) == [b"new"]


# --- Which agents a living worker serves, and who says so where none does.


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
def lead(kit: Kit) -> SignsOfLife:
    """The life of a worker that serves `lead`, which is registered; it has not begun."""
    kit.agent("lead", role="coordinator", time_limit_s=77)(lambda _: "done")
    return SignsOfLife("worker", kit.redis, kit.steady, serves=queues_of(kit.catalogue))


def test_an_agent_is_served_from_when_its_worker_begins_until_it_stops(kit: Kit, lead: SignsOfLife) -> None:
    def served() -> bool:
        (found,) = json.loads(kit.orchestra("agents", "--json").stdout)["agents"]
        assert ("NO LIVING WORKER" in kit.orchestra("agents").stdout) is not found["served"]
        return bool(found["served"])

    assert not served()
    lead.begin()
    assert served()
    lead.end()
    assert not served()


def test_a_worker_that_is_killed_serves_nothing_after_a_few_heartbeats(kit: Kit) -> None:
    """By the server's clock alone: the worker's own may say what it likes."""
    worker = subprocess.Popen(
        [sys.executable, "-c", _WORKER, str(kit.settings.redis_url)],
        stdout=subprocess.PIPE,
        env={**os.environ, "ORCHESTRA_DATA": str(kit.settings.data)},
    )
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
        assert living_agents(kit.redis) == {("lead", "orchestra.lead")}
    finally:
        worker.kill()
        worker.wait()
    killed = time.monotonic()
    wait_until(lambda: not living_agents(kit.redis))
    assert time.monotonic() - killed < 0.05 * MISSED_HEARTBEATS + 5


def test_work_for_an_agent_that_nobody_serves_is_kept_and_everybody_says_so(
    kit: Kit, lead: SignsOfLife
) -> None:
    done = kit.orchestra("submit", "lead", "go", "--json")
    assert done.exit_code == 0, done.output
    assert "no living worker serves 'lead': the session waits until one does" in done.stderr
    session = json.loads(done.stdout)["session"]
    dispatch = kit.start(session)
    why = kit.orchestra("why", session)
    assert "nobody: no living worker serves 'lead'; start a worker that does" in why.stdout
    doctor = kit.orchestra("doctor", "--quick")
    (line,) = [line for line in doctor.stdout.splitlines() if "[agent-unserved]" in line]
    assert line.startswith("stuck")
    assert f"{dispatch.run} of {session} waits for a worker, and no living worker serves 'lead'" in line

    lead.begin()
    try:
        assert "a free worker" in kit.orchestra("why", session).stdout
        assert "[agent-unserved]" not in kit.orchestra("doctor", "--quick").stdout
        assert "no living worker" not in kit.orchestra("submit", "lead", "go").stderr
        kit.execute(dispatch)
        assert kit.ledger.result(session) == (SessionState.FINISHED, "done")
    finally:
        lead.end()


def test_why_names_the_agents_own_time_limit(kit: Kit, lead: SignsOfLife) -> None:
    session = kit.submit("lead")
    dispatch = kit.start(session)
    kit.ledger.claim(dispatch.run, "c", session_id=session, worker="w")
    _, wait, _ = doctor_of(kit).why(session)
    assert wait.by.endswith("run limit 77 s")


def test_a_bundled_agent_takes_the_place_of_one_that_nobody_serves_any_more(kit: Kit) -> None:
    mine, bundled = defined("lead"), defined("lead", queue=BUNDLED_QUEUE)
    life = SignsOfLife("worker", kit.redis, kit.steady, serves=queues_of(mine))
    life.begin()
    announce(kit.parts, mine)
    announce(kit.parts, bundled)
    assert fresh(kit).get("lead").queue == "orchestra.lead"
    life.end()
    announce(kit.parts, bundled)
    assert fresh(kit).get("lead").queue == BUNDLED_QUEUE


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
def test_a_damaged_sign_of_life_ends_nobody(kit: Kit, lead: SignsOfLife, record: str) -> None:
    kit.redis.hset(keys.services(), "stranger", record)
    assert kit.orchestra("doctor", "--quick").exit_code == 3  # no service is alive
    lead.begin()
    assert living_agents(kit.redis) == {("lead", "orchestra.lead")}
    lead.end()
    assert kit.redis.hlen(keys.services()) == 0


@pytest.mark.parametrize("days", [-2, 2])
def test_a_registration_lives_by_the_servers_clock(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    """A worker whose own clock is days off registers its agents for as long as any other, and clears away nobody's."""
    kit.agent("right")(lambda _: "done")
    with monkeypatch.context() as wrong:
        now_ms = SystemClock().now_ms() + days * 86_400_000
        wrong.setattr(SystemClock, "now_ms", lambda _: now_ms)
        kit.parts.agents.announce([AgentRecord(name="wrong", queue="orchestra.wrong")])
        assert kit.parts.agents.names() == ["right", "wrong"]
    assert fresh(kit).names() == ["right", "wrong"]
    server_ms = int(kit.redis.time()[0]) * 1000
    assert all(
        abs(score - server_ms) < 60_000
        for _, score in kit.redis.zrange(keys.agents(), 0, -1, withscores=True)
    )


# --- Tags of agents: they are found by them, and lists of agents may name them.


def test_an_agent_and_its_programs_find_others_by_tag(kit: Kit) -> None:
    """Only those that it may delegate to, as ever."""
    found: list[list[str]] = []

    @kit.agent("lead", role="coordinator", may_send_to=["tag:gpu", "plain"])
    def lead(ctx: Context) -> str:
        programs = remote(ctx)
        for tag in ("", "gpu", "eu", "cpu"):
            found.append([record.name for record in ctx.agents(tag)])
            assert [one["agent"] for one in programs.call("agents", tag=tag)["agents"]] == found[-1]
        assert programs.call("agents", tag="eu")["agents"][0]["tags"] == ["gpu", "eu"]
        return "done"

    kit.agent("one", tags=["gpu"])(str)
    kit.agent("two", tags=["gpu", "eu"])(str)
    kit.agent("plain")(str)
    kit.agent("other", tags=["cpu", "eu"])(str)
    kit.begin("lead", ends="finished")
    assert found == [["one", "plain", "two"], ["one", "two"], ["two"], []]


def test_the_command_lists_agents_by_tag_and_registers_programs_with_tags(kit: Kit) -> None:
    kit.agent("one", tags=["gpu"])(str)
    kit.agent("two", tags=["gpu", "eu"])(str)
    assert "tags gpu eu" in kit.orchestra("agents").stdout
    listed = json.loads(kit.orchestra("agents", "--tag", "eu", "--json").stdout)["agents"]
    assert [(one["agent"], one["tags"]) for one in listed] == [("two", ["gpu", "eu"])]
    none = kit.orchestra("agents", "--tag", "eu", "--tag", "cpu")
    assert (none.exit_code, none.stdout) == (0, "")
    assert "no registered agent has the tags eu cpu" in none.stderr
    made = kit.orchestra(
        "agents", "register", "ci", "--tag", "outside", "--accepts-from", "tag:gpu", "--json"
    )
    assert made.exit_code == 0, made.output
    document = json.loads(made.stdout)
    assert (document["tags"], document["accepts_from"]) == (["outside"], ["tag:gpu"])
    wrong = kit.orchestra("agents", "register", "ci2", "--tag", "a b")
    assert wrong.exit_code == 2
    assert "tag 'a b': a tag has 1 to 50 letters" in wrong.output
