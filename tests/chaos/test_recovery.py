"""How soon work goes on after a worker or a service was killed, with the settings that everybody has."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from orchestrator.config.settings import Settings
from orchestrator.ledger import Lease
from orchestrator.redisdb.holders import connected_holders
from orchestrator.streams import ROUTER_GROUP, RedisStreams, all_streams
from orchestrator.streams.consumer import SETTLED_S

from .stack import MakeStack, Running, Stack, children_of

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

LONG = os.environ.get("CHAOS") == "long"
KILLS = 30 if LONG else 1
#: How many while the machine has too much to do, which costs all of its cores.
CROWDED_KILLS = 30 if LONG else 1
#: Seconds that may pass, by the slowest machine, until the run is at work again.
WORST_S = 10


@pytest.fixture
def crowd() -> Iterator[None]:
    """Twice as many processes as there are cores want them all."""
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))
    ]
    yield
    for process in busy:
        process.kill()
        process.wait()


def test_a_killed_workers_run_is_at_work_again_before_its_lease_has_run_out(
    make_stack: MakeStack, request: pytest.FixtureRequest
) -> None:
    """And a run whose worker lives is left to it, on a machine with too much to do."""
    stack = usual_stack(make_stack, "lease_s", "heartbeat_s", "sweep_interval_s")
    stack.start_all()
    stack.start("worker")
    stack.wait_ready()
    took: list[float] = []
    with stack.client() as client:
        sessions = [client.submit("sleeper", "go") for _ in range(3)]
        stack.wait(lambda: len(stack.leases) == 3, "work for all")
        request.getfixturevalue("crowd")
        for turn in range(CROWDED_KILLS):
            session = sessions[turn % 3].id
            stack.wait(lambda: len(stack.leases) == 3, "work for all")
            lease = lease_of(stack, session)
            # A holder that came and went between two looks of the reaper is nobody that it could miss.
            time.sleep(2.5)
            beside = {other.run: other for other in stack.leases if not same_worker(stack, other, lease)}
            worker = worker_of(stack, lease)
            began = time.monotonic()
            os.kill(worker.pid, signal.SIGKILL)
            stack.running.remove(worker)
            stack.start("worker")
            stack.wait(
                lambda session=session, lease=lease: is_taken_again(stack, session, lease), "another attempt"
            )
            took.append(time.monotonic() - began)
            for run, other in beside.items():
                (now,) = [found for found in stack.leases if found.run == run]
                assert now.claim == other.claim, "a run was taken from a worker that lives"
        for handle in sessions:
            client.stop(handle.id, "enough")
            stack.wait(lambda handle=handle: not handle.session().busy, "its end")
    tail = statistics.quantiles(2 * took, n=100, method="inclusive")[98]  # it wants two at least
    print(
        f"{len(took)} kills: {statistics.median(took):.1f} s in the median, p99 {tail:.1f} s, worst {max(took):.1f} s"
    )
    assert max(took) < WORST_S
    stack.assert_settled()


#: Seconds from the death of a service to the wake-up that it was at.
SOON_S = 5


def usual_stack(make_stack: MakeStack, *names: str) -> Stack:
    """A stack with the settings that everybody has."""
    usual = Settings.model_fields
    return make_stack(**{name: str(usual[name].default) for name in names})


@pytest.mark.parametrize("service", ["router", "callbacks", "reaper"])
def test_a_killed_service_delays_a_wake_up_by_five_seconds_at_most(
    service: str, make_stack: MakeStack
) -> None:
    """It dies with what it has read and not handled; its supervisor starts it again, or another copy is there."""
    stack = usual_stack(make_stack, "lease_s", "heartbeat_s", "sweep_interval_s")
    stack.start_all()
    took: list[float] = []
    with stack.client() as client:
        assert stack.answer(client.submit("branch", "1"), timeout_s=30) == "1"
        # The server is no longer taken for one that was just started.
        stack.wait(lambda: connected_holders(stack.redis).oldest_s > SETTLED_S, "connections of some age")
        for _ in range(KILLS):
            if service == "reaper":
                dying = next(p for p in stack.running if p.name == service)
                session = client.submit("branch", "1")
                dying.kill()
            else:
                dying = stack.replace(service, crash_at=f"{service}.read")
                session = client.submit("branch", "1")
                stack.wait(dying.mark.exists, "its death")
            began = time.monotonic()
            stack.running.remove(dying)
            stack.start(service)
            assert stack.answer(session, timeout_s=30) == "1"
            took.append(time.monotonic() - began)
    print(
        f"{service}: {len(took)} kills, {statistics.median(took):.1f} s in the median, worst {max(took):.1f} s"
    )
    assert max(took) < SOON_S
    stack.assert_settled()


def test_a_router_that_was_stopped_and_cut_off_goes_on_and_doubles_nothing(
    make_stack: MakeStack,
) -> None:
    """What it had read is taken over before its lease is over; then it wakes up and handles that, too."""
    stack = usual_stack(make_stack, "lease_s")
    stack.start("worker")
    stack.start_services(but="router")
    stopped = stack.start("router", crash_at="router.read=stop")
    stack.wait_ready()
    with stack.client() as client:
        session = client.submit("branch", "3")
        stack.wait(stopped.mark.exists, "its stop")
        (held,) = RedisStreams(stack.redis).holders(ROUTER_GROUP, all_streams(len(stack.shards)))
        mark = held.rpartition("@")[2]
        stack.start("router")
        for row in stack.redis.client_list():
            if row["name"].endswith(f"@{mark}"):
                stack.redis.client_kill_filter(_id=row["id"])
        began = time.monotonic()
        assert stack.answer(session, timeout_s=30) == "3"
        assert time.monotonic() - began < 2 * SOON_S
        os.kill(stopped.pid, signal.SIGCONT)
        assert stack.answer(client.submit("branch", "2"), timeout_s=30) == "2"
    stack.assert_settled()


def lease_of(stack: Stack, session: str) -> Lease:
    (lease,) = [lease for lease in stack.leases if lease.session == session]
    return lease


def is_taken_again(stack: Stack, session: str, before: Lease) -> bool:
    return any(lease.session == session and lease.claim != before.claim for lease in stack.leases)


def worker_of(stack: Stack, lease: Lease) -> Running:
    """The worker one of whose processes holds a run."""
    pid = int(lease.claim.rpartition(".")[2])
    (worker,) = [p for p in stack.running if p.name == "worker" and pid in {p.pid, *children_of(p)}]
    return worker


def same_worker(stack: Stack, one: Lease, other: Lease) -> bool:
    return worker_of(stack, one) is worker_of(stack, other)
