"""Workers make their agents known; a bundled agent gives way to a user's of the same name."""

from __future__ import annotations

from orchestrator.agents.definition import BUNDLED_QUEUE, AgentDefinition, define_agent
from orchestrator.agents.registry import AgentRegistry
from orchestrator.bootstrap import build_container
from orchestrator.clock import SystemClock
from orchestrator.keyring.registry import KeyRegistry
from orchestrator.keyring.vouchers import AgentVouchers
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
    assert record is not None
    assert (record.role, record.tier, record.queue) == ("coordinator", "opus", "orchestra.mine")
    keyring = stage.parts.keyring
    key = KeyRegistry(stage.redis, keyring.store).lookup(keyring.signer("mine").key_id)
    assert key is not None
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

    registry = AgentRegistry(stage.redis, AgentVouchers(stage.parts.keyring.registry), clock=Moments())
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
    assert record is not None
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
