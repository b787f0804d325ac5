"""Makes a play that fails as short as it can be: whatever it fails without is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Generic, Protocol, TypeVar

from orchestrator.testing.simulation.schedule import Schedule

_MOST_TRIES: Final = 300

T = TypeVar("T")


@dataclass(frozen=True)
class Failure(Generic[T]):
    """A play that fails: what was played, what was out of the ordinary, and what was wrong then."""

    task: T
    schedule: Schedule
    wrong: str
    #: What happened, a line each.
    story: tuple[str, ...] = ()
    tries: int = 0


class PlayIt(Protocol[T]):
    """Plays a task with a schedule; None: nothing was wrong."""

    def __call__(self, task: T, schedule: Schedule, /) -> Failure[T] | None: ...


def shrink(
    found: Failure[T],
    play: PlayIt[T],
    smaller: Callable[[T], Iterable[T]],
    *,
    most_tries: int = _MOST_TRIES,
) -> Failure[T]:
    """The shortest failure that was found; ``smaller`` gives tasks with something left out."""
    search = _Search(found, play, most_tries)
    search.schedule()
    while any(search.fails(task, search.best.schedule) for task in smaller(search.best.task)):
        pass
    search.schedule()
    return replace(search.best, tries=search.tries)


def as_test(seed: int, failure: Failure[T]) -> str:
    """Write a failure of a seed as a test that can be pasted where there is a ``machine``."""
    schedule = "".join(f"        {moment!r}: {what!r},\n" for moment, what in failure.schedule.items())
    story = "\n".join(f"    # {line}" for line in (*failure.wrong.splitlines()[:20], *failure.story))
    return f"""def test_seed_{seed}(machine: Machine) -> None:
{story}
    schedule = {{
{schedule}    }}
    assert machine.play({seed}, {failure.task!r}, schedule) is None
"""


class _Search(Generic[T]):
    def __init__(self, found: Failure[T], play: PlayIt[T], most_tries: int) -> None:
        self.best, self._play, self._most, self.tries = found, play, most_tries, 0

    def fails(self, task: T, schedule: Schedule) -> bool:
        """Return True if that fails; if so it is the best one."""
        if self.tries >= self._most:
            return False
        self.tries += 1
        failure = self._play(task, schedule)
        if failure is not None:
            # As it was given: of what a play was given some may not have come to pass.
            self.best = failure
        return failure is not None

    def schedule(self) -> None:
        """Leave parts of the schedule out, in ever smaller pieces."""
        for part in _faults_or_order(self.best.schedule):
            if self.fails(self.best.task, part):
                break
        size = len(self.best.schedule)
        while size:
            at = 0
            while at < len(moments := list(self.best.schedule)):
                left = {m: self.best.schedule[m] for m in moments[:at] + moments[at + size :]}
                if not self.fails(self.best.task, left):
                    at += size
            size //= 2


def _faults_or_order(schedule: Schedule) -> Iterator[Schedule]:
    """The faults alone, and the order alone: mostly one of both will do."""
    for ordered in (False, True):
        part = {moment: what for moment, what in schedule.items() if what.startswith("then") is ordered}
        if part != schedule:
            yield part
