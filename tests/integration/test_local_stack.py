"""A stack as a whole, with toy services in the place of the real ones: it starts, repairs itself, and ends."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from orchestrator.config.settings import Settings, load_settings
from orchestrator.config.stack import running_stacks
from orchestrator.deployment import local_stack
from orchestrator.deployment.embedded.server_manager import read_record
from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.deployment.local_stack import LocalStack, describe, worker_spec
from orchestrator.deployment.supervisor import ChildSpec, Notice
from orchestrator.errors import ConfigurationError, OrchestraError, ServerUnavailable
from orchestrator.redisdb.client import connect
from orchestrator.runtime.service import live_services
from tests.waiting import wait_until

READY = "import os, time; os.write(int(os.environ['ORCHESTRA_READY_FD']), b'ready');"
TOY = ChildSpec(
    name="toy",
    command=(
        sys.executable,
        "-S",
        "-c",
        READY + "print(os.environ['ORCHESTRA_REDIS_URL'], flush=True); time.sleep(600)",
    ),
)
BROKEN = ChildSpec(
    name="broken", command=(sys.executable, "-S", "-c", "import sys; sys.exit('Error: no luck')")
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(data=tmp_path / "data", agents=["mine.py", "some.module"])


def test_children_get_the_server_and_others_find_the_stack(settings: Settings) -> None:
    with LocalStack(settings, specs=[TOY]) as stack:
        stack.wait_ready()
        assert stack.ready
        assert stack.embedded
        (announced,) = running_stacks(settings.data)
        assert announced.redis_url == stack.url
        assert announced.agents == (str(Path("mine.py").absolute()), "some.module")
        wait_until(lambda: stack.logs["toy"].read_text().strip() == stack.url)
        assert connect(stack.url).ping()
    assert running_stacks(settings.data) == []
    assert read_record(settings.data) is None
    assert stack.pids == stack.logs == {}


def test_a_second_stack_in_the_folder_writes_logs_of_its_own(settings: Settings) -> None:
    first, second, third = (LocalStack(settings, specs=[TOY]) for _ in range(3))
    with ExitStack() as leaving:
        leaving.enter_context(first)
        with second:
            first.wait_ready()
            second.wait_ready()
            assert first.url == second.url
            assert first.logs["toy"] != second.logs["toy"]
            leaving.close()
            with third:  # when the first one is gone
                assert third.logs["toy"] != second.logs["toy"]


def test_a_dead_server_is_reported_and_comes_back(settings: Settings) -> None:
    notices: list[Notice] = []
    with LocalStack(settings, specs=[TOY], notify=notices.append) as stack:
        stack.wait_ready()
        os.kill(int(connect(stack.url).info("server")["process_id"]), signal.SIGKILL)
        wait_until(lambda: [n.kind for n in notices if n.name == "server"] == ["died", "recovered"])
    assert describe(notices[-1]) == "stack stopping"


def test_a_killed_keeper_is_replaced_and_nothing_is_lost(settings: Settings) -> None:
    """The stack moves to another server on the same data, with all of its processes."""
    with LocalStack(settings, specs=[TOY]) as stack:
        stack.wait_ready()
        before, first_url = stack.pids["toy"], stack.url
        connect(stack.url).set("a", "kept")
        record = read_record(settings.data)
        os.kill(record.pid, signal.SIGKILL)
        wait_until(lambda: stack.pids.get("toy", before) != before)
        assert stack.url == first_url
        assert connect(stack.url).get("a") == b"kept"
        assert running_stacks(settings.data)[0].redis_url == stack.url


HANGING_WORKER = """
import signal, time
from orchestrator import agent

@agent("idle")
def idle(ctx):
    return ""

def hang(*_):
    time.sleep(600)

signal.signal(signal.SIGUSR2, hang)
"""


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings of a worker that hangs when it is told so by a signal, and is taken to hang after 3 s."""
    monkeypatch.setattr(local_stack, "hangs_after_s", lambda _: 3)
    agents = tmp_path / "mine.py"
    agents.write_text(HANGING_WORKER)
    return load_settings(data=tmp_path / "data", agents=[str(agents)], concurrency=1, heartbeat_s=0.3)


def test_a_worker_whose_main_process_hangs_or_is_stopped_is_ended_and_started_again(
    hanging: Settings,
) -> None:
    """Its sign of life comes from its loop; one that is well is left alone."""
    notices: list[Notice] = []

    def said(kind: str) -> list[str]:
        return [notice.detail for notice in notices if notice.kind == kind]

    with LocalStack(hanging, specs=[worker_spec(hanging)], notify=notices.append) as stack:
        stack.wait_ready()
        time.sleep(5)
        assert [notice.kind for notice in notices] == ["ready"]
        for number, how in enumerate((signal.SIGUSR2, signal.SIGSTOP), start=1):
            pid = stack.pids["worker"]
            os.kill(pid, how)
            wait_until(partial(lambda n: len(said("recovered")) == n, number), "another one")
            assert stack.pids["worker"] != pid
        hung, stopped = said("restarting")
        assert "it hung: File" in hung
        assert "in hang" in hung
        assert "killed by signal 9" in stopped
        assert said("hung") == ["", ""]


def test_a_worker_that_waits_for_its_broker_does_not_hang(
    hanging: Settings, start_valkey: Callable[..., ValkeyProcess]
) -> None:
    """Its loop does not look up while there is no connection."""
    server = start_valkey()
    settings = hanging.model_copy(update={"redis_url": server.url})
    notices: list[Notice] = []
    with LocalStack(settings, specs=[worker_spec(settings)], notify=notices.append) as stack:
        stack.wait_ready()
        server.kill()
        time.sleep(9)
        server.start()
        with connect(server.url, settings=settings) as client:
            wait_until(lambda: [r for r in live_services(client) if r.pid == stack.pids["worker"]])
        assert [notice.kind for notice in notices] == ["ready"]


def test_a_stack_of_another_version_may_announce_more(settings: Settings) -> None:
    with LocalStack(settings, specs=[TOY]) as stack:
        stack.wait_ready()
        (announced,) = (settings.data / "up").glob("*.json")
        announced.write_text(json.dumps({**json.loads(announced.read_text()), "colour": "blue"}))
        assert running_stacks(settings.data)[0].redis_url == stack.url


def test_what_does_not_start_is_said_to_whoever_waits(settings: Settings) -> None:
    with LocalStack(settings, specs=[TOY, BROKEN]) as stack:
        with pytest.raises(ConfigurationError, match="broken does not start: no luck"):
            stack.wait_ready()
        wait_until(lambda: not running_stacks(settings.data))
    assert read_record(settings.data) is None


def test_waiting_has_an_end(settings: Settings) -> None:
    slow = ChildSpec(name="slow", command=(sys.executable, "-S", "-c", "import time; time.sleep(600)"))
    with LocalStack(settings, specs=[slow]) as stack, pytest.raises(OrchestraError, match="not ready after"):
        stack.wait_ready(0.2)


def test_a_stack_runs_in_the_foreground_until_it_is_stopped(settings: Settings) -> None:
    stack = LocalStack(settings, specs=[TOY])
    ticks = 0

    def on_tick() -> None:
        nonlocal ticks
        ticks += 1
        if stack.ready:
            stack.stop()

    stack.run(on_tick)
    assert ticks > 1
    stack.close()
    assert read_record(settings.data) is None


def test_stopping_at_once_does_not_wait_for_the_deaf(settings: Settings) -> None:
    deaf = ChildSpec(
        name="deaf",
        command=(
            sys.executable,
            "-S",
            "-c",
            "import signal; signal.signal(15, signal.SIG_IGN);" + READY + "time.sleep(600)",
        ),
        stop_with=((signal.SIGTERM, 60.0),),
    )
    stack = LocalStack(settings, specs=[deaf])
    thread = threading.Thread(target=stack.run)
    thread.start()
    stack.wait_ready()
    stack.stop()
    stack.stop(at_once=True)
    thread.join(20)
    assert not thread.is_alive()


def test_a_given_server_is_used_and_left_running(
    start_valkey: Callable[..., ValkeyProcess], tmp_path: Path
) -> None:
    server = start_valkey(durable=False)
    given = load_settings(
        data=tmp_path / "other", redis_url=server.url, broker_url=server.url.replace("db=0", "db=1")
    )
    with LocalStack(given, specs=[TOY]) as stack:
        stack.wait_ready()
        assert not stack.embedded
        assert running_stacks(given.data)[0].broker_url == given.broker_url
    assert connect(server.url).ping()


#: Brokers that are not there, and those that cannot be.
AWAY = (
    "redis://:hunter2@127.0.0.1:1/0",
    "redis+socket:///nowhere.sock?virtual_host=0",
    "amqp://guest:hunter2@127.0.0.1:1//",
)
UNUSABLE = (
    "nosuch://user:hunter2@host//",
    "no.such+kind://user:hunter2@host//",
    "amqp://user:hunter2#half@host//",
    "amqp://user:half;hunter2@host//",
    "sentinel://:hunter2@host",  # which wants an option that no URL can give
)


@pytest.mark.parametrize(
    ("error", "said", "broker"),
    [(ServerUnavailable, "cannot reach ", broker) for broker in AWAY]
    + [(ConfigurationError, r"cannot be used: .*[^.]; use redis://", broker) for broker in UNUSABLE],
)
def test_a_broker_that_is_not_there_or_cannot_be_used_is_named(
    error: type[OrchestraError], said: str, broker: str, tmp_path: Path
) -> None:
    stack = LocalStack(load_settings(data=tmp_path / "data", broker_url=broker), specs=[TOY])
    with pytest.raises(error, match=said) as caught:
        stack.run()
    assert "hunter2" not in str(caught.value)
    assert read_record(tmp_path / "data") is None
    with pytest.raises(error), stack:
        pass
    assert read_record(tmp_path / "data") is None


def test_another_kind_of_broker_is_handed_on_to_celery(tmp_path: Path) -> None:
    given = load_settings(data=tmp_path / "data", broker_url="memory://user:guest@host//")
    with LocalStack(given, specs=[TOY]) as stack:
        stack.wait_ready()
        assert stack.settings.to_env()["ORCHESTRA_BROKER_URL"] == given.broker_url


def test_every_worker_has_a_name_of_its_own() -> None:
    settings = load_settings(concurrency=3)
    names = {
        worker_spec(settings).module[worker_spec(settings).module.index("--hostname") + 1] for _ in range(3)
    }
    assert len(names) == 3
    assert "3" in worker_spec(settings).module
