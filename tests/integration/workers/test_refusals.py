"""A server that answers and takes no writes for a while: what a worker has done is not thrown away."""

from __future__ import annotations

import ctypes
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kombu.exceptions import OperationalError

from orchestrator.config.settings import load_settings
from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.dispatch import build_celery
from orchestrator.dispatch.celery_app import LONGEST_PAUSE_S
from orchestrator.ledger import Ledger, RunState, SessionState
from orchestrator.redisdb.client import connect
from orchestrator.worker.context.context import Context
from orchestrator.worker.execution import heartbeat
from orchestrator.worker.flower import FlowerApp
from tests.door import door_to
from tests.kit import Kit
from tests.refusing import REFUSALS, Refusing


@pytest.fixture(params=REFUSALS)
def refusing(
    request: pytest.FixtureRequest, start_valkey: Callable[..., ValkeyProcess], tmp_path: Path
) -> Iterator[tuple[Kit, Refusing]]:
    server = start_valkey(durable=False)
    client = connect(server.url)
    settings = load_settings(
        redis_url=server.url, data=tmp_path, heartbeat_s=0.05, lease_s=1, stop_grace_s=20, run_time_limit_s=60
    )
    yield Kit.on(client, settings), Refusing(server, request.param)
    client.close()


def test_a_finished_run_is_committed_once_when_writes_are_taken_again(
    refusing: tuple[Kit, Refusing],
) -> None:
    """Its answer is kept, and nothing is done a second time."""
    kit, refusal = refusing
    calls: list[int] = []
    enders: list[threading.Thread] = []

    @kit.agent("solo")
    def solo(ctx: Context) -> str:
        calls.append(1)
        ctx.status(50, "at work")
        refusal.begin()
        enders.append(threading.Thread(target=refusal.end_after, args=(5,)))
        enders[0].start()
        return "the answer"

    session = kit.begin("solo", task="task-1", ends="finished")
    enders[0].join()
    assert calls == [1]
    assert kit.ledger.result(session) == (SessionState.FINISHED, "the answer")
    (run,) = kit.ledger.runs(session)
    assert (run.state, run.attempt, run.lost) == (RunState.COMPLETED, 1, 0)


def test_an_effect_and_a_claim_outlast_it_too(refusing: tuple[Kit, Refusing]) -> None:
    kit, refusal = refusing

    def refuse_three_times() -> threading.Thread:
        refusal.begin()
        ender = threading.Thread(target=refusal.end_after, args=(3,))
        ender.start()
        return ender

    @kit.agent("solo")
    def solo(ctx: Context) -> str:
        at_the_claim.join()
        at_the_effect = refuse_three_times()
        ctx.status(50, "at work")
        at_the_effect.join()
        return ctx.prompt

    session = kit.submit("solo")
    dispatch = kit.start(session)
    at_the_claim = refuse_three_times()
    assert kit.execute(dispatch) == "finished", kit.ledger.session(session).reason
    assert kit.ledger.session(session).progress == 50


# --- A broker that is away: whoever listens to it is back a few seconds after it, however long the outage was.


class Enough(Exception):
    """Ends a wait that would have no end."""


def test_a_worker_looks_for_its_broker_every_few_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as long as it is away. Celery's own pauses grow to half a minute, and a hundred of them are its last."""
    monkeypatch.setattr("kombu.utils.functional.sleep", lambda _: None)
    pauses: list[float] = []

    def note(_error: Exception, pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) > 200:
            raise Enough

    app = build_celery(load_settings(redis_url=f"unix://{tmp_path}/nobody.sock", data=tmp_path))
    with app.connection_for_read() as connection, pytest.raises(Enough):
        connection.ensure_connection(note, app.conf.broker_connection_max_retries)
    assert (pauses[0], max(pauses)) == (1, LONGEST_PAUSE_S)


def test_what_flower_listens_over_waits_for_the_broker(
    start_valkey: Callable[..., ValkeyProcess], tmp_path: Path
) -> None:
    """Flower would sleep after each failure, for twice as long each time. What a page asks for fails at once."""
    server = start_valkey(durable=False)
    server.stop()
    app = build_celery(load_settings(redis_url=server.url, data=tmp_path), kind=FlowerApp)
    connected = threading.Event()

    def listen() -> None:
        with app.connection() as connection:
            assert connection.default_channel is not None
            connected.set()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    with pytest.raises(OperationalError), app.connection_for_write() as connection:
        assert connection.default_channel is not None
    assert not connected.is_set()
    server.start()
    assert connected.wait(60)
    listener.join()


# --- No lease is renewed and no error comes: a cable was pulled, or an agent holds the interpreter.


def test_a_lease_is_renewed_in_time_over_another_connection(
    start_valkey: Callable[..., ValkeyProcess], tmp_path: Path
) -> None:
    """And the run is committed over another one, too; nobody takes it meanwhile."""
    server = start_valkey(durable=False)
    with door_to(server) as (door, url):
        settings = load_settings(redis_url=url, data=tmp_path, heartbeat_s=0.5, lease_s=6)
        client = connect(url, timeout_s=settings.command_timeout_s)
        kit, observer = Kit.on(client, settings), Ledger(connect(server.url))
        still_s: list[float] = []

        @kit.agent("solo")
        def solo(ctx: Context) -> str:
            (before,) = observer.sweep.leases(0)
            door.forget()
            began = time.monotonic()
            while observer.sweep.leases(0)[0].lease_version == before.lease_version:
                assert time.monotonic() - began < settings.lease_s, "the lease ran out"
                time.sleep(0.01)
            still_s.append(time.monotonic() - began)
            return "the answer"

        session = kit.begin("solo", ends="finished")
        assert still_s[0] < settings.lease_s / 2 + settings.command_timeout_s
        (run,) = kit.ledger.runs(session)
        assert (run.state, run.lost) == (RunState.COMPLETED, 0)
        client.close()


@pytest.mark.parametrize(("lease_s", "timeout_s"), [(15, 5), (60, 20), (600, 30), (1, 2)])
def test_a_command_is_waited_for_far_less_long_than_a_lease_lasts(lease_s: float, timeout_s: float) -> None:
    assert load_settings(lease_s=lease_s, heartbeat_s=0.5).command_timeout_s == timeout_s


def test_a_process_that_stands_still_ends_and_says_where(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its slot would be lost for good: nothing in the process can end it, and nobody beside it knows."""
    monkeypatch.setattr(heartbeat, "_LEAST_STANDSTILL_S", 0.2)
    monkeypatch.setattr(heartbeat.current_process(), "name", "a process of the pool")

    def computing() -> None:
        heartbeat.show(redis_url, 0.1)
        ctypes.PyDLL(None).sleep(100)

    pool_process = multiprocessing.get_context("fork").Process(target=computing)
    pool_process.start()
    pool_process.join(30)
    pool_process.kill()
    assert pool_process.exitcode == 1
    assert "in computing" in capfd.readouterr().err
