"""A process of a simulation: a greenlet that runs parts of the product on a machine of its own."""

from __future__ import annotations

import random
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Protocol

import greenlet
import redis

from orchestrator.errors import ServerUnavailable
from orchestrator.redisdb.client import DRIVER, RETRIES
from orchestrator.redisdb.holders import connection_name
from orchestrator.testing.simulation.link import Link, SimulatedPool, SimulatedRedis
from orchestrator.testing.simulation.server import Command, Server, ServerSession
from orchestrator.worker.execution.heartbeat import Beat

#: What a process does, from its start on.
Life = Callable[["Process"], None]


class Killed(BaseException):
    """The process dies here."""


class Surroundings(Protocol):
    """The world of a process, as far as a process knows it."""

    seed: int
    server: Server
    #: Microseconds since the begin.
    us: int
    #: Who decides who goes on, and who goes on now.
    hub: greenlet.greenlet
    current: Strand
    threads: list[Strand]

    def moment(self, strand: Strand, kind: str) -> str:
        """Return what befalls it, once it goes on."""
        ...

    def exchange(self, strand: Strand, session: ServerSession, commands: Sequence[Command]) -> list[Any]:
        """Carry out commands, as one moment."""
        ...

    def wake(self, lane: str) -> None:
        """Wake the workers of a lane."""
        ...

    @property
    def has_woken(self) -> bool:
        """True if a message has arrived."""
        ...

    def take_wake(self) -> str | None:
        """Return the lane of a message that has arrived, which is gone then."""
        ...

    def tell(self, what: str) -> None:
        """Note what happened."""
        ...

    def break_off(self, why: str) -> None:
        """End the play as one that has failed."""
        ...

    def kill(self, process: Process) -> None:
        """Let a process die; another one takes its place."""
        ...


class Strand:
    """A line of work that goes on by itself: a process, or one more thread of it.

    It leaves its greenlet where it exchanges something with the server and where it waits, and nowhere else.
    """

    process: Process

    def __init__(self, world: Surroundings, name: str) -> None:
        self.world, self.name = world, name
        #: How many moments it has had.
        self.moment = 0
        #: Whether it has done what it was to do.
        self.ended = False
        #: It waits until then, or until this is true.
        self._wakes_us = 0
        self._watch: Callable[[], bool] | None = None
        self.greenlet = greenlet.greenlet(self._run, parent=world.hub)

    def _run(self) -> None:
        raise NotImplementedError

    def wait(self, seconds: float, watch: Callable[[], bool] | None = None) -> None:
        """Wait so long, or until ``watch`` is true."""
        self._wakes_us, self._watch = self.world.us + round(seconds * 1e6), watch
        self.world.moment(self, "wait")
        self._wakes_us, self._watch = 0, None

    @property
    def ready(self) -> bool:
        """True if it can go on."""
        process = self.process
        if (
            self.ended
            or process.dead
            or ((process.stands_until_us or process.stands_while) and process.stands)
        ):
            return False
        return self._wakes_us <= self.world.us or (self._watch is not None and self._watch())

    @property
    def due_us(self) -> int:
        """When it can go on at the latest."""
        return max(self._wakes_us, self.process.stands_until_us)


class Process(Strand):
    """A process, until it dies; its supervisor starts the next one of the same name."""

    def __init__(self, world: Surroundings, name: str, life: Life, generation: int = 1) -> None:
        super().__init__(world, f"{name}#{generation}" if generation > 1 else name)
        self.process = self
        self.base, self.life, self.generation = name, life, generation
        self._link = _ProcessLink(self)
        self.client = self.connect()
        #: How many threads it has begun beside its first one.
        self.threads = 0
        #: Whether it was killed.
        self.dead = False
        #: How far the wall clock of its host is ahead, in microseconds.
        self.ahead_us = 0
        #: Until when it does not reach the server.
        self.cut_off_us = 0
        #: It stands still until then, or until this is true.
        self.stands_until_us = 0
        self.stands_while: Callable[[], bool] | None = None
        #: What its ticker carries out.
        self.beats: list[Beat] = []
        self._chance = random.Random(f"{world.seed} {self.name}")  # noqa: S311  (a play is repeated)

    def _run(self) -> None:
        try:
            self.life(self)
            self.ended = True
        except Killed:
            pass
        except (redis.RedisError, OSError, ServerUnavailable) as error:
            self.world.tell(f"{self.name} ended by {error!r}")
            self.world.kill(self)
        except Exception as error:  # noqa: BLE001  (whatever it is, a process must not end so)
            self.world.break_off(f"{self.name} raised {error!r}\n{traceback.format_exc()}")

    def connect(self) -> redis.Redis:
        """A client of its own, whose connections are closed when it dies."""
        pool = SimulatedPool(
            self._link,
            client_name=connection_name(self.base, self.mark),
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), RETRIES),
            **DRIVER,
        )
        return SimulatedRedis(connection_pool=pool)

    def close(self) -> None:
        """Close its connections, as the kernel does."""
        self._link.close()

    # --- its machine -----------------------------------------------------------------------------

    @property
    def mark(self) -> str:
        """The mark that no other process has."""
        return f"sim.{self.name}"

    def random_bytes(self, size: int) -> bytes:
        return self._chance.randbytes(size)

    def add(self, beat: Beat) -> None:
        """Carry this out whenever it is due; with :meth:`remove` what `Beats` asks for."""
        self.beats.append(beat)

    def remove(self, beat: Beat) -> None:
        if beat in self.beats:
            self.beats.remove(beat)

    # --- whether it can go on --------------------------------------------------------------------

    @property
    def stands(self) -> bool:
        """True if it stands still, as by SIGSTOP."""
        if self.stands_while is not None and not self.stands_while():
            self.stands_while, self.stands_until_us = None, 0
        return self.stands_until_us > self.world.us


class Thread(Strand):
    """A further thread of the process that is current, as far as `threading.Thread` is used; it dies with the process."""

    def __init__(self, world: Surroundings, work: Callable[[], object]) -> None:
        self.process = world.current.process
        self.process.threads += 1
        self._work = work
        super().__init__(world, f"{self.process.name}/{self.process.threads}")
        world.threads.append(self)

    def _run(self) -> None:
        try:
            self._work()
        except Killed:
            pass
        except Exception as error:  # noqa: BLE001  (whatever it is, a thread must not end so)
            self.world.break_off(f"{self.name} raised {error!r}\n{traceback.format_exc()}")
        self.ended = True
        if not self.process.dead:
            self.world.threads.remove(self)

    def is_alive(self) -> bool:
        """Return whether it is at work."""
        return not self.ended

    def join(self) -> None:
        """Wait until it has ended."""
        while not self.ended:
            self.world.current.wait(3600, lambda: self.ended)


class Threads(Executor):
    """Threads of a process that carry out what it gives them, as many as it likes."""

    def __init__(self, process: Process) -> None:
        self._world = process.world

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        """Return what a thread of its own will come to."""
        future: Future[Any] = Future()

        def carry_out() -> None:
            try:
                future.set_result(work(*args, **options))
            except Exception as error:  # noqa: BLE001  (whoever asks for the outcome gets it)
                future.set_exception(error)

        Thread(self._world, carry_out)
        return future


class _ProcessLink(Link):
    """Its way to the server; each exchange is a moment of the thread that makes it."""

    def __init__(self, process: Process) -> None:
        super().__init__(process.world.server)
        self._process = process

    def exchange(self, session: ServerSession, commands: Sequence[Command]) -> list[Any]:
        world = self._process.world
        strand = world.current if world.current.process is self._process else self._process
        return world.exchange(strand, session, commands)


class Event(threading.Event):
    """Something that threads of one process wait for."""

    def __init__(self, world: Surroundings) -> None:
        super().__init__()
        self._world = world

    def wait(self, timeout: float | None = None) -> bool:
        self._world.current.wait(3600 if timeout is None else timeout, self.is_set)
        return self.is_set()


class Stop(threading.Event):
    """The request that a service ends, which never comes: a process dies."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    def wait(self, timeout: float | None = None) -> bool:
        self._process.wait(3600 if timeout is None else timeout)
        return False
