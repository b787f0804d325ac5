"""What stands still, forgets, or loses its connections while a tree runs: frozen processes, a broker without memory."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from orchestrator.client.client import SessionHandle
from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.ledger import RunState
from tests.door import door_to
from tests.refusing import Refusing

from .stack import MakeStack, Stack, again_and_again, children_of, long

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(480)]


def leaves_at_work(stack: Stack) -> bool:
    """Whether any leaf is held by a worker; it will be for a while."""
    return any(stack.ledger.session(lease.session).agent == "leaf" for lease in stack.leases)


def test_a_worker_that_was_frozen_for_longer_than_its_lease_comes_too_late(make_stack: MakeStack) -> None:
    """Its runs are done by another one; when it thaws and goes on, every effect and commit of it is refused."""
    stack = make_stack()
    stack.env["CHAOS_LEAF_S"] = "1"
    frozen = stack.start_all()
    with stack.client() as client:
        session = client.submit("branch", "2,2")
        stack.wait(lambda: leaves_at_work(stack), "a leaf at work")
        os.killpg(frozen.pid, signal.SIGSTOP)
        held = [lease.run for lease in stack.leases]
        stack.start("worker")
        assert stack.answer(session) == "4"
    os.killpg(frozen.pid, signal.SIGCONT)
    runs = [run for run in map(stack.ledger.run, held) if run is not None]
    assert runs
    assert all(run.lost == 1 for run in runs)
    stack.wait(lambda: '"verdict": "lost"' in frozen.log.read_text(), "a late commit")
    stack.assert_settled()


def test_a_server_that_was_frozen_costs_nobody_a_lease(make_stack: MakeStack) -> None:
    """Nobody could renew while it stood still, and nobody could see that."""
    stack = make_stack()
    stack.env["CHAOS_LEAF_S"] = "0.5"
    stack.start_all()
    with stack.client() as client:
        session = client.submit("branch", "2,2")
        stack.wait(lambda: leaves_at_work(stack), "a leaf at work")
        pid = stack.server.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        time.sleep(2 * stack.settings.lease_s)  # for this long it stands still
        os.kill(pid, signal.SIGCONT)
        assert stack.answer(session) == "4"
    stack.assert_settled()
    runs = [run for s in stack.ledger.tree(session.id) for run in stack.ledger.runs(s.id)]
    assert [run.lost for run in runs if run.state == RunState.COMPLETED] == [0] * len(runs)


def test_a_plain_submission_outlasts_a_ledger_that_takes_no_writes(
    make_stack: MakeStack, start_valkey: Callable[..., ValkeyProcess]
) -> None:
    """Only the broker has it until then. It is not given back again and again meanwhile, and not refused."""
    stack = make_stack(broker_url=start_valkey(durable=False).url)
    worker = stack.start_all()
    refusal = Refusing(stack.server, "READONLY")
    refusal.begin()
    task = stack.send("leaf", "7")
    stack.wait(lambda: worker.log.read_text().count("redis-away") > 3, "some tries")
    refusal.end()
    assert task.get(timeout=120) == "7"
    assert "run-not-begun" not in worker.log.read_text()
    stack.assert_settled()


@pytest.mark.parametrize("how", ["READONLY", long("away")])
def test_a_worker_that_starts_while_the_ledger_is_away_serves_when_it_is_back(
    make_stack: MakeStack, start_valkey: Callable[..., ValkeyProcess], how: str
) -> None:
    """Its broker is there, so it takes tasks; it announces its agents as soon as it can."""
    stack = make_stack(broker_url=start_valkey(durable=False).url)
    refusal = Refusing(stack.server, "READONLY")
    (stack.server.kill if how == "away" else refusal.begin)()
    worker = stack.start("worker")
    stack.wait(lambda: "redis-away" in worker.log.read_text(), "a try")
    (stack.server.start if how == "away" else refusal.end)()
    stack.start_services()
    stack.wait_ready()
    with stack.client() as client:
        assert stack.answer(client.submit("branch", "2,2")) == "4"
    assert worker.alive
    stack.assert_settled()


def test_a_broker_apart_dies_and_comes_back_empty(
    make_stack: MakeStack, start_valkey: Callable[..., ValkeyProcess]
) -> None:
    """It keeps nothing on disk. The ledger's server lives on, and with it everything that counts."""
    broker = start_valkey(durable=False)
    stack = make_stack(broker_url=broker.url)
    stack.env["CHAOS_LEAF_S"] = "0.1"
    stack.start_all()
    # A worker may end by itself when an acknowledgement meets a broken connection; its supervisor starts another.
    with stack.client() as client, again_and_again(stack.replace_the_dead, 0.1):
        session = client.submit("branch", "3,2,2")
        for _ in range(2):
            stack.wait(lambda: stack.leases, "work")
            broker.kill()
            time.sleep(0.7)  # nothing can be sent meanwhile
            broker.start()
        assert stack.answer(session) == "12"
    stack.assert_settled()


def test_a_bare_task_that_died_with_its_worker_comes_back_within_leases(make_stack: MakeStack) -> None:
    """Taken from the queue and not yet written down, it is in the broker's records only; nobody need wait for hours."""
    stack = make_stack()
    worker = stack.start_all()
    for child in children_of(worker):
        os.kill(child, signal.SIGSTOP)
    task = stack.send("branch", "2,2")
    stack.wait(lambda: stack.redis.hlen("unacked"), "the worker to take it")
    worker.kill()
    stack.start("worker")
    assert task.get(timeout=120) == "4"
    stack.assert_settled()


def test_a_broker_that_refuses_for_a_while_ends_no_worker(
    make_stack: MakeStack, start_valkey: Callable[..., ValkeyProcess]
) -> None:
    """It answers, but with an error, as a server does that has become a replica and is about to be told otherwise."""
    refusal = b"-READONLY You can't write against a read only replica.\r\n"
    with door_to(start_valkey(durable=False)) as (door, url):
        stack = make_stack(broker_url=url)
        worker = stack.start_all()
        door.keep(lambda _, request: refusal if b"BRPOP" in request else "pass")
        with stack.client() as client:
            session = client.submit("branch", "2,2")
            stack.wait(lambda: worker.log.read_text().count("ReadOnlyError") > 1, "refusals")
            door.open()
            assert stack.answer(session) == "4"
        assert worker.alive
        stack.assert_settled()


def test_connections_that_break_all_the_time_lose_and_double_nothing(make_stack: MakeStack) -> None:
    """Answers get lost after commands were carried out, so clients send them a second time; scripts are forgotten, too.

    A broken connection is a line in the log of each process, and never a traceback.
    """
    stack = make_stack()
    stack.start_all()
    stack.start("router")
    stack.start("callbacks")
    stack.wait_ready()

    def cut() -> None:
        stack.redis.execute_command("SCRIPT", "FLUSH")
        stack.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    with again_and_again(cut, 0.1) as times:
        with stack.client() as client:
            session = client.submit("branch", "3,3,2", key="mine")
        stack.wait(lambda: times[0] > 30, "some cuts")
    with stack.client() as client:
        assert stack.answer(SessionHandle(session.id, client)) == "18"
    for process in stack.running:
        said = process.log.read_text(errors="replace")
        assert process.alive, f"{process.name}: {said[-3000:]}"
        assert "Traceback" not in said, said[said.index("Traceback") - 300 :][:3000]
    stack.assert_settled()
