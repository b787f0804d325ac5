"""A play that fails is made as short as it can be."""

from __future__ import annotations

from orchestrator.testing.simulation.schedule import Schedule
from orchestrator.testing.simulation.shrinking import Failure, shrink


def test_what_a_failure_does_not_need_is_left_out() -> None:
    """It needs two events of forty, and two of the five things of its task."""

    def play(task: str, schedule: Schedule) -> Failure[str] | None:
        needed = {("router", 7): "dies before", ("worker", 3): "then router"}
        if not set("bd") <= set(task) or not needed.items() <= schedule.items():
            return None
        return Failure(task, schedule, "lost")

    schedule = {("router", n): "dies before" if n == 7 else "then worker" for n in range(20)}
    schedule |= {("worker", n): "then router" for n in range(20)}
    found = shrink(
        Failure("abcde", schedule, "lost"), play, lambda task: (task.replace(one, "") for one in task)
    )
    assert (found.task, found.schedule) == (
        "bd",
        {("router", 7): "dies before", ("worker", 3): "then router"},
    )


def test_a_search_ends_after_so_many_tries() -> None:
    tries = []

    def play(task: str, schedule: Schedule) -> Failure[str] | None:
        tries.append(schedule)
        return Failure(task, schedule, "lost") if len(schedule) == 64 else None

    schedule = {("router", n): "then worker" for n in range(64)}
    found = shrink(Failure("", schedule, "lost"), play, lambda _: (), most_tries=10)
    assert (found.schedule, found.tries, len(tries)) == (schedule, 10, 10)
