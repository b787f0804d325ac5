"""Schedules: what happens at the moments of a simulation beside the ordinary, who goes on, and what befalls whom.

A *moment* is an exchange of a process with the server, a wait or a wake-up; each process counts its own. A *schedule* says
what happens at some of them; at any other moment the process goes on. A seed makes a schedule up while it is played
(:class:`Chance`), and a given one is played as it is (:class:`Given`), so that a play can be shrunk and kept as a test.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

#: A process, and the number of one of its moments.
Moment = tuple[str, int]
#: What happens at moments. An event is a word and, for some, a name or a number: `then router-1`, `pauses 5`.
Schedule = dict[Moment, str]

#: What may befall an exchange → how often, beside the others.
FAULTS: Final[Mapping[str, int]] = {
    "dies before": 4,  # the process, with its commands not sent
    "dies after": 4,  # the server has carried them out, and nobody learns the answers
    "answer lost": 4,  # redis-py sends the commands again
    "away": 1,  # the server cannot be reached, and redis-py gives up
    "cut off 6": 2,  # this process alone does not reach the server for so many seconds
    "pauses 10": 2,  # as by SIGSTOP, longer than a lease
    "pauses 5": 2,  # about as long
    "pauses 1": 1,
    "stands 1": 3,  # until its lease is over, and another one has taken its work and is so many moments further
    "stands 2": 3,
    "stands 4": 3,
    "clock 240": 1,  # the wall clock of its host jumps, by less than what signatures allow
    "clock -240": 1,
    "clocks 3600": 1,  # those of all hosts do, and the server's
    "clocks -60": 1,
    "server restarts": 4,  # and has lost its last moment
}
#: What may befall a message of Celery.
WAKEUPS: Final[Mapping[str, int]] = {"lost": 1, "twice": 1, "late": 1}
#: What may befall a run.
RUNS: Final[Mapping[str, int]] = {"fails": 1}
#: Of exchanges that change something, and of others, this part is befallen by something while faults are left.
_CHANGES_FAIL: Final = 0.04
_LOOKS_FAIL: Final = 0.004
_WAKEUPS_FAIL: Final = 0.05
_RUNS_FAIL: Final = 0.15


@dataclass(frozen=True)
class At:
    """A moment as a scheduler sees it."""

    process: str
    number: int
    #: `exchange`, `wait`, `wake` or `run`.
    kind: str
    #: Whether its commands may change something.
    changes: bool
    #: The other processes that can go on; asked for where that matters.
    ready: Callable[[], Sequence[str]]
    #: What may befall it.
    faults: Mapping[str, int]


class Scheduler(Protocol):
    """Decision on moments."""

    def at(self, moment: At) -> str:
        """Return what happens there; empty: it goes on."""
        ...

    def may_happen(self, event: str) -> bool:
        """Return True if that may happen at some moment."""
        ...


class Given:
    """Plays a schedule."""

    def __init__(self, schedule: Mapping[Moment, str]) -> None:
        self._schedule = schedule

    def at(self, moment: At) -> str:
        return self._schedule.get((moment.process, moment.number), "")

    def may_happen(self, event: str) -> bool:
        return event in self._schedule.values()


class Chance:
    """Makes a schedule up: a random walk, or processes that go on by priority (PCT: Burckhardt et al., ASPLOS 2010)."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        #: How many things befall somebody.
        self.faults = chance.choice([0, 1, 2, 4])
        #: At this part of its moments a process is interrupted by another; None: by priority.
        self._switches = chance.choice([0.0, 0.1, 0.3, 0.6, None])
        self._priorities: dict[str, float] = {}
        self._falls = {chance.randrange(1, 400) for _ in range(3)}
        self._moments = 0

    def at(self, moment: At) -> str:
        self._moments += 1
        number = self._chance.random()
        if self.faults and moment.faults and number < self._share(moment):
            self.faults -= 1
            return self._chance.choices(list(moment.faults), list(moment.faults.values()))[0]
        if moment.kind in ("wake", "run"):
            return ""
        whom = self._next(moment, number)
        return f"then {whom}" if whom else ""

    def may_happen(self, event: str) -> bool:
        return self.faults > 0

    def _share(self, moment: At) -> float:
        match moment.kind:
            case "wake":
                return _WAKEUPS_FAIL
            case "run":
                return _RUNS_FAIL
            case "exchange":
                return _CHANGES_FAIL if moment.changes else _LOOKS_FAIL
            case _:
                return 0

    def _next(self, moment: At, number: float) -> str:
        """Return the process that goes on in its stead; empty if none."""
        if self._switches is None:
            if self._moments in self._falls:
                self._priorities[moment.process] = -number
            first = max(moment.ready(), key=self._priority, default="")
            ahead = moment.kind == "wait" or self._priority(first) > self._priority(moment.process)
            return first if first and ahead else ""
        if moment.kind == "wait" or number > 1 - self._switches:
            ready = moment.ready()
            return self._chance.choice(ready) if ready else ""
        return ""

    def _priority(self, process: str) -> float:
        if process not in self._priorities:
            self._priorities[process] = self._chance.random()
        return self._priorities[process]
