"""Workers make their agents known; a bundled agent gives way to a user's of the same name."""

from __future__ import annotations

from typing import Any

from orchestrator.agents.definition import BUNDLED_QUEUE, AgentDefinition, define_agent
from orchestrator.agents.registry import AgentRecords, AgentRegistry
from orchestrator.bootstrap import build_container
from orchestrator.client.client import Client
from orchestrator.keyring.registry import KeyRegistry
from orchestrator.machine import SystemClock
from orchestrator.redisdb import keys
from orchestrator.router.build import build_router
from orchestrator.router.deadletters.store import DeadLetters
from orchestrator.runtime.service import SignsOfLife
from orchestrator.worker.announce import announce, queues_of
from tests.integration.workers.conftest import StackHarness


def defined(name: str, **options: object) -> dict[str, AgentDefinition]:
    return {name: define_agent(name, function=str, source="here", **options)}  # type: ignore[arg-type]


def fresh(stage: StackHarness) -> AgentRegistry:
    """A registry that remembers nothing of earlier look-ups."""
    return build_container(stage.redis, stage.settings).agents


def test_agents_and_their_keys_are_announced(stage: StackHarness) -> None:
    announce(stage.parts, defined("mine", role="coordinator", tier="opus"))
    record = fresh(stage).get("mine")
    assert (record.role, record.tier, record.queue) == ("coordinator", "opus", "orchestra.mine")
    keyring = stage.parts.keyring
    key = KeyRegistry(stage.redis, keyring.store).lookup(keyring.signer("mine").key_id)
    assert key.agent == "mine"


def test_names_are_read_while_agents_are_announced(stage: StackHarness) -> None:
    """A thread that withdraws an agent comes between the look at what is remembered and its use."""

    class Moment(float):
        def __sub__(self, other: float) -> float:
            registry.withdraw("mine")
            return float(self) - other

    class Moments(SystemClock):
        def monotonic(self) -> float:
            return Moment(super().monotonic())

    registry = AgentRegistry(stage.redis, AgentRecords(stage.parts.keyring.registry), clock=Moments())
    announce(stage.parts, defined("mine"))
    assert registry.names() == ["mine"]
    assert registry.names() == ["mine"]


def test_a_users_agent_takes_the_place_of_a_bundled_one_whoever_comes_first(stage: StackHarness) -> None:
    bundled = defined("lead", queue=BUNDLED_QUEUE)
    mine = defined("lead")
    life = SignsOfLife("worker", stage.redis, stage.steady, serves=queues_of(defined("lead")))
    life.begin()
    for catalogue in (bundled, mine, bundled):
        announce(stage.parts, catalogue)
    life.end()
    record = fresh(stage).get("lead")
    assert record.queue == "orchestra.lead"


def test_a_bundled_agent_is_announced_again_and_again(stage: StackHarness) -> None:
    bundled = defined("lead", queue=BUNDLED_QUEUE)
    announce(stage.parts, bundled)
    announce(stage.parts, bundled)
    assert fresh(stage).names() == ["lead"]


def test_a_foreign_agent_is_announced_without_a_key_of_ours(stage: StackHarness) -> None:
    external = {"outside": define_agent("outside", function=None, source="here", executor="foreign")}
    announce(stage.parts, external)
    assert fresh(stage).names() == ["outside"]
    assert stage.parts.keyring.store.current("outside") is None


def _let_days_pass(stage: StackHarness, days: float) -> None:
    """So long nobody announces anything; keys that live shorter are gone."""
    for key in stage.redis.scan_iter("ao:*"):
        left_ms = stage.redis.pttl(key)
        if 0 < left_ms < days * 86_400_000:
            stage.redis.delete(key)
    names = keys.agents()
    found: Any = stage.redis.zrange(names, 0, -1, withscores=True)
    stage.redis.zadd(names, {name: at - days * 86_400_000 for name, at in found})


def test_work_for_agents_whose_last_worker_left_long_ago_waits(stage: StackHarness) -> None:
    """So scaling to zero loses nothing: neither a submission, nor what a running agent delegates."""
    stage.agent("lead", role="coordinator")(lambda ctx: ctx.delegate("helper", "help") and "waiting")
    stage.agent("helper")(lambda ctx: "helped")
    stage.agent("other")(lambda ctx: "")
    _let_days_pass(stage, 365)
    announce(build_container(stage.redis, stage.settings), {"other": stage.catalogue["other"]})
    with Client(stage.settings) as client:
        root = client.submit("lead", "go").id
        assert stage.play(root) == "idle"
        (child,) = stage.children(root)
        impatient = stage.settings.model_copy(update={"registration_patience_s": 0.0})
        build_router(stage.redis, impatient, consumer="r").run_once()
        assert DeadLetters(stage.redis).all() == []
        assert client.session(child.id).busy
        assert {record.name for record in fresh(stage).all()} == {"lead", "helper", "other"}


def test_a_setting_lets_registrations_lapse(stage: StackHarness) -> None:
    settings = stage.settings.model_copy(update={"registration_ttl_s": 3600.0})
    announce(build_container(stage.redis, settings), defined("brief"))
    announce(build_container(stage.redis, stage.settings), defined("lasting"))
    _let_days_pass(stage, 0.5)
    assert [record.name for record in fresh(stage).all()] == ["lasting"]
    announce(build_container(stage.redis, settings), defined("lasting"))
    _let_days_pass(stage, 0.5)
    assert fresh(stage).all() == []
    announce(build_container(stage.redis, settings), defined("new"))
    assert stage.redis.zrange(keys.agents(), 0, -1) == [b"new"]
