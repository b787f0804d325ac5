"""One process of a simulation: a greenlet that runs parts of the product on a machine of its own."""

from __future__ import annotations

import random
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import greenlet
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from orchestrator.errors import ServerUnavailable
from orchestrator.redisdb.client import DRIVER, RETRIES
from orchestrator.redisdb.holders import connection_name
from orchestrator.testing.simulation.link import Link, SimulatedConnection
from orchestrator.testing.simulation.server import Command, ServerSession
from orchestrator.worker.execution.ticker import Beat

if TYPE_CHECKING:
    from orchestrator.testing.simulation.world import World

#: What a process does, from its start on.
Life = Callable[["Process"], None]


class Killed(BaseException):
    """The process dies here."""


class Process:
    """A process, until it dies; its supervisor starts the next one of the same name.

    It leaves its greenlet where it exchanges something with the server and where it waits, and nowhere else.
    """

    def __init__(self, world: World, name: str, life: Life, generation: int = 1) -> None:
        self.world, self.base, self.life, self.generation = world, name, life, generation
        self.name = f"{name}#{generation}" if generation > 1 else name
        self._link = _ProcessLink(self)
        self.client = self.connect()
        #: How many moments it has had.
        self.moment = 0
        #: Whether it was killed, and whether it has done what it was to do.
        self.dead = self.ended = False
        #: How far the wall clock of its host is ahead, in microseconds.
        self.ahead_us = 0
        #: Until when it does not reach the server.
        self.cut_off_us = 0
        #: It stands still until then, or until this is true.
        self.stands_until_us = 0
        self.stands_while: Callable[[], bool] | None = None
        #: It waits until then, or until this is true.
        self._wakes_us = 0
        self._watch: Callable[[], bool] | None = None
        #: What its ticker carries out.
        self.beats: list[Beat] = []
        self._chance = random.Random(f"{world.seed} {self.name}")  # noqa: S311  (a play is repeated)
        self.greenlet = greenlet.greenlet(self._run, parent=world.hub)

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
        pool = redis.ConnectionPool(
            connection_class=SimulatedConnection,
            link=self._link,
            client_name=connection_name(self.base, self.mark),
            protocol=2,
            retry=Retry(NoBackoff(), RETRIES),
            **DRIVER,
        )
        return redis.Redis(connection_pool=pool)

    def close(self) -> None:
        """Close its connections, as the kernel does."""
        self._link.close()

    # --- its machine -----------------------------------------------------------------------------

    @property
    def mark(self) -> str:
        """What no other process has."""
        return f"sim.{self.name}"

    def random_bytes(self, size: int) -> bytes:
        return self._chance.randbytes(size)

    def wait(self, seconds: float, watch: Callable[[], bool] | None = None) -> None:
        """Wait so long, or until ``watch`` is true."""
        self._wakes_us, self._watch = self.world.us + round(seconds * 1e6), watch
        self.world.moment(self, "wait")
        self._wakes_us, self._watch = 0, None

    def add(self, beat: Beat) -> None:
        """Carry this out whenever it is due; with :meth:`remove` what `Beats` asks for."""
        self.beats.append(beat)

    def remove(self, beat: Beat) -> None:
        if beat in self.beats:
            self.beats.remove(beat)

    # --- whether it can go on --------------------------------------------------------------------

    @property
    def stands(self) -> bool:
        """Whether it stands still, as by SIGSTOP."""
        if self.stands_while is not None and not self.stands_while():
            self.stands_while, self.stands_until_us = None, 0
        return self.stands_until_us > self.world.us

    @property
    def ready(self) -> bool:
        """Whether it can go on."""
        if self.dead or self.ended or self.stands:
            return False
        return self._wakes_us <= self.world.us or (self._watch is not None and self._watch())

    @property
    def due_us(self) -> int:
        """When it can go on at the latest."""
        return max(self._wakes_us, self.stands_until_us)


class _ProcessLink(Link):
    """Its way to the server; each exchange is a moment."""

    def __init__(self, process: Process) -> None:
        super().__init__(process.world.server)
        self._process = process

    def exchange(self, session: ServerSession, commands: Sequence[Command]) -> list[Any]:
        return self._process.world.exchange(self._process, session, commands)


class Stop(threading.Event):
    """The wish that a service ends, which never comes: a process dies."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    def wait(self, timeout: float | None = None) -> bool:
        self._process.wait(3600 if timeout is None else timeout)
        return False
