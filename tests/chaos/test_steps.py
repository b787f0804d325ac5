"""kill -9 right before and right after each step is recorded: nothing is paid twice that was recorded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .stack import Stack, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(480)]

STEPS = 3


def payments(stack: Stack, session: str) -> dict[str, int]:
    """How often each step's function was called."""
    names = [*(f"call-{n}" for n in range(STEPS)), "launch"]
    return {name: len((stack.marks / f"paid-{session}-{name}").read_text()) for name in names}


@pytest.mark.kills("at a step")
@pytest.mark.parametrize("number", range(1, STEPS + 2))
@pytest.mark.parametrize("place", ["worker.stepped", "worker.recorded"])
def test_a_worker_that_dies_at_a_step_pays_at_most_for_that_one_again(
    place: str, number: int, stack: Stack
) -> None:
    """Once more where the kill fell between the function and its record, never after the record; one child each."""
    worker = stack.replace("worker", crash_at=f"{place}#{number}")
    stack.wait_ready()
    with stack.client() as client:
        session = client.submit("stepper", str(STEPS))
        wait_until(worker.mark.exists, f"a crash at {place}", explain=stack.logs)
        assert stack.answer(session) == str(STEPS + 1)
    stack.assert_settled()
    found = list(payments(stack, session.id).values())
    twice = number - 1 if place == "worker.stepped" else None
    assert found == [2 if n == twice else 1 for n in range(STEPS + 1)]
    assert [s.agent for s in stack.ledger.tree(session.id)] == ["stepper", "leaf"]
    assert not [key for key in stack.redis.scan_iter() if b":steps" in key]


def test_steps_outlast_a_restart_of_redis(make_stack: Callable[..., Stack]) -> None:
    """Redis is killed while a worker lies dead after its second step; the next worker goes on with the third."""
    stack = make_stack()
    stack.start_all(but="worker")
    worker = stack.start("worker", "--pool", "solo", crash_at="worker.recorded#2")
    stack.wait_ready()
    with stack.client() as client:
        session = client.submit("stepper", str(STEPS))
        wait_until(worker.mark.exists, "a crash", explain=stack.logs)
        wait_until(lambda: not worker.alive, "its end")
        stack.server.kill()
        stack.server.start()
        stack.replace_the_dead()
        assert stack.answer(session) == str(STEPS + 1)
    assert set(payments(stack, session.id).values()) == {1}
