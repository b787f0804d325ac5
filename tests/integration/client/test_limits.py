"""`orchestra agents pause`, `unpause` and `limit`, and who says of a run that it waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from orchestrator.agents.registry import AgentRecord
from orchestrator.client.client import Client
from orchestrator.config.stack import Announcement, Stack
from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.errors import ServerUnavailable
from orchestrator.redisdb.client import connect
from orchestrator.runtime.service import SignsOfLife
from tests.commands import Orchestra, run_command
from tests.kit import Kit


@pytest.fixture
def ready(kit: Kit) -> str:
    """A session whose run is ready."""
    kit.agent("helper")(lambda ctx: "done")
    kit.parts.concurrency.announce({"helper": ("orchestra.helper", None)})
    session = kit.submit("helper")
    kit.start(session)
    return session


def test_a_pause_is_said_by_whoever_is_asked(
    kit: Kit, client: Client, orchestra: Orchestra, ready: str
) -> None:
    done = orchestra("agents", "pause", "helper")
    assert (done.exit_code, done.stdout) == (0, "agent helper is paused\n")
    assert orchestra("agents", "pause", "helper").stdout == "agent helper was paused already\n"
    assert "PAUSED since" in orchestra("agents").stdout
    (record,) = kit.document("agents")["agents"]
    assert record["paused"] == "agent"
    assert "'helper' is paused" in " ".join(client.held_back([client.session(ready)]))
    assert "agent helper, PAUSED since" in orchestra("agents", "limit").stdout
    findings = kit.document("doctor", "--quick")["findings"]
    (paused,) = [f for f in findings if f["rule"] == "paused"]
    assert paused["severity"] == "warning"
    assert "1 queued run waits for it: orchestra agents unpause helper" in paused["message"]
    assert orchestra("agents", "unpause", "helper").stdout == "agent helper goes on\n"
    assert orchestra("agents", "unpause", "helper").stdout == "agent helper was not paused\n"
    assert "PAUSED" not in orchestra("agents").stdout


@pytest.mark.usefixtures("ready")
def test_the_runs_that_wait_for_a_paused_queue_are_its_own(kit: Kit, orchestra: Orchestra) -> None:
    kit.agent("other")(lambda ctx: "done")
    kit.parts.concurrency.announce({"other": ("orchestra.other", None)})
    for queue in ("orchestra.helper", "orchestra.other"):
        assert orchestra("agents", "pause", queue).exit_code == 0
    findings = kit.document("doctor", "--quick")["findings"]
    said = {f["subject"]: f["message"] for f in findings if f["rule"] == "paused"}
    assert "1 queued run waits for it" in said["orchestra.helper"]
    assert "0 queued runs wait for it" in said["orchestra.other"]


@pytest.fixture
def served(kit: Kit) -> Iterator[None]:
    """A living worker is known that serves the agent."""
    life = SignsOfLife("worker", kit.redis, kit.steady, serves={"helper": "orchestra.helper"})
    life.begin()
    yield
    life.end()


@pytest.mark.usefixtures("served")
def test_why_names_the_pause_or_the_limit(kit: Kit, orchestra: Orchestra, ready: str) -> None:
    def why() -> dict[str, str]:
        found: dict[str, str] = kit.document("why", ready)["wait"]
        return found

    assert "is queued for a worker" in why()["waits_for"]
    orchestra("agents", "pause", "orchestra.helper")
    assert "queue 'orchestra.helper' is paused since" in why()["waits_for"]
    assert why()["mover"] == "you: orchestra agents unpause orchestra.helper"
    orchestra("agents", "unpause", "orchestra.helper")
    orchestra("agents", "limit", "helper", "1")
    kit.redis.hset("ao:{00}:at-work", mapping={"agent:helper": 1, f"tree:{ready}": 2})
    assert "agent 'helper' has 1 of at most 1 runs at work" in why()["waits_for"]
    orchestra("agents", "limit", "helper", "none")
    orchestra("agents", "limit", ready, "2")
    assert "its tree has 2 of at most 2 runs at work" in why()["waits_for"]
    assert "orchestra agents limit ses_" in why()["mover"]


def test_limits_are_set_listed_and_taken_back(kit: Kit, orchestra: Orchestra, ready: str) -> None:
    assert orchestra("agents", "limit").stdout == "nothing is limited and nothing is paused\n"
    assert orchestra("agents", "limit", "helper", "3").stdout == "agent helper, 0 of at most 3 at work\n"
    orchestra("agents", "limit", ready, "4")
    found = kit.document("agents", "limit", "--each-tree", "5")
    assert found["agents"] == [
        {"agent": "helper", "at_work": 0, "limit": 3, "set_by": "operator", "paused": None}
    ]
    assert found["each_tree"] == 5
    assert found["trees"] == [{"root": ready, "at_work": 0, "limit": 4, "blocked": 0}]
    orchestra("agents", "limit", "helper", "default")
    orchestra("agents", "limit", ready, "default")
    assert (
        orchestra("agents", "limit", "--each-tree", "default").stdout
        == "nothing is limited and nothing is paused\n"
    )


def test_what_cannot_be_limited_or_paused_is_said(kit: Kit, orchestra: Orchestra, ready: str) -> None:
    for arguments, words in (
        (("pause", "nobody"), "no agent or queue 'nobody' is registered"),
        (("pause", "helper", "--as", "queue"), "no queue 'helper' is registered"),
        (("limit", "nobody", "3"), "no agent 'nobody' is registered"),
        (("limit", "helper", "0"), "to let nothing of 'helper' run: orchestra agents pause helper"),
        (("limit", "helper", "many"), "'many' is not a number"),
        (("limit", "helper"), "say how many"),
        (("limit", "--each-tree", "0"), "at least 1"),
        (("limit", "ses_00" + "0" * 24, "3"), "no session"),
    ):
        done = orchestra("agents", *arguments)
        assert done.exit_code != 0, arguments
        assert words in done.stderr, (arguments, done.stderr)
    kit.parts.agents.announce([AgentRecord(name="outside", executor="foreign")])
    assert "is an external program" in orchestra("agents", "pause", "outside").stderr


def test_a_watcher_sees_that_a_run_is_held_back(kit: Kit, orchestra: Orchestra, ready: str) -> None:
    orchestra("agents", "pause", "helper")
    assert "agent 'helper' is paused since" in orchestra("watch", ready, "--timeout", "0.3").stdout


def test_a_watcher_outlasts_an_outage_while_it_asks_what_holds_runs_back(
    kit: Kit, client: Client, orchestra: Orchestra, ready: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> list[str]:
        client.stop(ready)
        raise ServerUnavailable("Redis", "gone")

    monkeypatch.setattr(Client, "held_back", away)
    done = orchestra("watch", ready)
    assert (done.exit_code, "stopped" in done.stdout) == (0, True), done.stderr


def test_workers_are_told_on_the_broker_of_the_stack_that_runs_on_the_data_folder(
    kit: Kit, ready: str, start_valkey: Callable[..., ValkeyProcess]
) -> None:
    """Its address is known from nowhere else."""
    broker = start_valkey(durable=False)
    running = Stack(
        redis_url=str(kit.settings.redis_url), broker_url=broker.url, agents=(), pid=1, started_ms=1
    )
    announcement = Announcement(kit.settings.data, running)
    try:
        for command in ("pause", "unpause"):
            done = run_command("agents", command, "helper", "--data", str(kit.settings.data))
            assert done.exit_code == 0, done.output
    finally:
        announcement.close()
    with connect(broker.url, ledger=False) as client:
        assert client.keys("*helper*")
