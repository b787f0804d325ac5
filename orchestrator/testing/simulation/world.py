"""The world of a simulation: its time, its server, its processes, and who of them goes on next."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Protocol

import greenlet
import redis

from orchestrator import machine
from orchestrator.testing.simulation.process import Event, Killed, Life, Process, Strand, Thread
from orchestrator.testing.simulation.schedule import FAULTS, RUNS, WAKEUPS, At, Schedule, Scheduler
from orchestrator.testing.simulation.server import Command, Server, ServerSession

#: When a play begins, in microseconds since the epoch.
BEGIN_US: Final = 1_700_000_000_000_000
#: What one round trip takes.
EXCHANGE_US: Final = 300
#: Seconds without a fault after which everything has to be over, and the most moments of a play.
_LIMIT_S: Final = 120.0
_MOST_MOMENTS: Final = 12_000
#: Moments between two looks at everything.
_LOOK_EVERY: Final = 200
#: Seconds until a supervisor has started a process again.
_RESTART_S: Final = 1.0
#: Seconds between two copies of the server's data: so much it loses at most when it restarts.
_COPY_EVERY_S: Final = 0.5
_COPY_LASTS_S: Final = 1.0


class _SetUp(machine.System):
    """The machine on which a stack is set up, at the moment at which plays begin."""

    def __init__(self) -> None:
        self._given = 0

    def time_ns(self) -> int:
        return BEGIN_US * 1000

    def monotonic(self) -> float:
        return 0

    def sleep(self, seconds: float) -> None:
        pass

    def random_bytes(self, size: int) -> bytes:
        self._given += 1
        return self._given.to_bytes(size, "big")

    def mark(self, pid: int) -> str:
        return "set-up"


def machine_of_the_set_up() -> AbstractContextManager[None]:
    """Let a stack be set up within the block."""
    return machine.run_on(_SetUp())


class Broken(AssertionError):
    """Something that must hold does not."""


class Play(Protocol):
    """A play in a world."""

    #: The processes of it → what each does.
    lives: Mapping[str, Life]

    def faults(self, process: str) -> Mapping[str, int]:
        """Return what may befall the exchanges of a process; with ``wake`` in front of its name, its messages of
        Celery.
        """
        ...

    @property
    def begun(self) -> int:
        """The number of tries of runs that have begun."""
        ...

    def is_over(self, world: World) -> bool:
        """Return True if nothing will happen any more."""
        ...

    def what_is_open(self, world: World) -> str:
        """Return what has not ended, for a play that takes too long."""
        ...

    def wrongs_now(self, world: World) -> Iterable[str]:
        """Yield what must hold at every moment and does not."""
        ...

    def wrongs(self, world: World) -> Iterable[str]:
        """Yield what must hold in the end and does not."""
        ...


class World:
    """A play, from its begin to its end."""

    def __init__(self, server: Server, play: Play, scheduler: Scheduler, *, seed: int) -> None:
        self.server, self.play, self.seed = server, play, seed
        self._scheduler = scheduler
        #: What was out of the ordinary so far.
        self.schedule: Schedule = {}
        #: Microseconds since the begin, and how far all wall clocks are ahead of that.
        self.us = self.ahead_us = 0
        #: What happened to whom, a line each.
        self.story: list[str] = []
        self.moments = 0
        #: When each wake-up arrives, and for which lane.
        self.wakeups: list[tuple[int, str]] = []
        self.hub = greenlet.getcurrent()
        self._trace = hashlib.blake2b(digest_size=8)
        self._broken = ""
        self._fault_us = 0
        self._known_faults: dict[tuple[str, str], Mapping[str, int]] = {}
        self._alone = True
        #: How many entries have been added to streams.
        self._added = server.added
        self._copy: tuple[int, Any] = (0, None)
        self.processes = [Process(self, name, life) for name, life in play.lives.items()]
        #: What goes on beside the first threads of processes, and what they have left behind where another thread died.
        self.threads: list[Strand] = []
        self.current: Strand = self.processes[0]
        self._next: Strand | None = None
        self._alone = False

    @property
    def trace(self) -> str:
        """A digest of everything that was sent to the server, in its order."""
        return self._trace.hexdigest()

    # --- the machine of whoever is current -------------------------------------------------------

    def time_ns(self) -> int:
        return (BEGIN_US + self.us + self.ahead_us + self.current.process.ahead_us) * 1000

    def monotonic(self) -> float:
        return 1000 + self.us / 1e6

    def sleep(self, seconds: float) -> None:
        if not self._alone:
            self.current.wait(seconds)

    def random_bytes(self, size: int) -> bytes:
        return self.current.process.random_bytes(size)

    def mark(self, pid: int) -> str:
        return self.current.process.mark

    def start_thread(self, work: Callable[[], object], name: str) -> Any:
        return Thread(self, work)

    def event(self) -> Event:
        return Event(self)

    # --- what processes ask for ------------------------------------------------------------------

    def exchange(
        self, strand: Strand, session: ServerSession, commands: Sequence[Command], *, until_us: int = 0
    ) -> list[Any]:
        """Carry out commands of a process, as one moment.

        A command that waits for entries is carried out again, as another moment, once there are some, or at ``until_us``.

        Raises:
            redis.ConnectionError: the answers were lost, or the server is out of the reach of the process.
        """
        if self._alone:
            answers = [session.execute(command) for command in commands]
            self._added = self.server.added
            return answers
        fault = self.moment(strand, "exchange", changes=any(c[0] == b"EVALSHA" for c in commands))
        process = strand.process
        if process.cut_off_us > self.us or fault == "away":
            self.us += EXCHANGE_US
            raise redis.ConnectionError("simulated: the server is out of reach")
        answers = self._send(strand, session, commands)
        if fault == "answer lost":
            raise redis.ConnectionError("simulated: the connection broke before the answer")
        if fault == "dies after":
            self.kill(process)
            raise Killed
        command = commands[0]
        if len(commands) > 1 or answers[0] is not None or command[0] not in (b"XREADGROUP", b"XREAD"):
            return answers
        words = [part.upper() for part in command[:10]]
        if b"BLOCK" not in words:
            return answers
        until_us = until_us or self.us + int(command[words.index(b"BLOCK") + 1]) * 1000
        strand.wait((until_us - self.us) / 1e6, self._is_added_to(command))
        return answers if self.us >= until_us else self.exchange(strand, session, commands, until_us=until_us)

    def _is_added_to(self, command: Command) -> Callable[[], bool]:
        """Return whether something was added to the streams of a command that reads, since now."""
        names = command[command.index(b"STREAMS") + 1 :]
        names = names[: len(names) // 2]
        seen, before, added = self._added, self.server.added_to(names), False

        def is_added() -> bool:
            nonlocal seen, added
            if not added and self._added != seen:
                seen, added = self._added, self.server.added_to(names) != before
            return added

        return is_added

    def _send(self, strand: Strand, session: ServerSession, commands: Sequence[Command]) -> list[Any]:
        self.us += EXCHANGE_US
        self._set_server_time()
        self._trace.update(strand.name.encode())
        for command in commands:
            self._trace.update(b"\0".join(command))
        # Copies are for a server that restarts, and cost a lot.
        due = self.us - self._copy[0] > _COPY_EVERY_S * 1e6
        if due and self._scheduler.may_happen("server restarts"):
            self._copy = (self.us, self.server.copy())
        answers = [session.execute(command) for command in commands]
        self._added = self.server.added
        return answers

    def _set_server_time(self) -> None:
        self.server.set_time(BEGIN_US + self.us + self.ahead_us)

    def wake(self, lane: str) -> None:
        """A message of Celery to the workers, by the process that is current."""
        process = self.current
        if self._alone:
            self.wakeups.append((self.us, lane))
            return
        what = self.moment(process, "wake")
        if what != "lost":
            self.wakeups.append((self.us + (5_000_000 if what == "late" else 0), lane))
        if what == "twice":
            self.wakeups.append((self.us, lane))

    def take_wake(self) -> str | None:
        """A message that has arrived; it is gone then."""
        due = next((wake for wake in self.wakeups if wake[0] <= self.us), None)
        if due is not None:
            self.wakeups.remove(due)
        return due[1] if due else None

    @property
    def has_woken(self) -> bool:
        """True if a message has arrived."""
        return any(at <= self.us for at, _ in self.wakeups)

    # --- moments ---------------------------------------------------------------------------------

    def moment(self, strand: Strand, kind: str, *, changes: bool = False) -> str:
        """A moment of a process: it goes on, or others do first, or something befalls it. What befalls its exchange.

        Raises:
            Killed: the process is dead.
        """
        if strand.process.dead:
            raise Killed
        strand.moment += 1
        self.moments += 1
        if self.moments % _LOOK_EVERY == 0 and not self._broken:
            with self.nobody_between():
                self.break_off("\n".join(self.play.wrongs_now(self)))
        event = self._event(strand, kind, changes=changes)
        self._befall(strand.process, event)
        if kind == "wait" or event.partition(" ")[0] in ("then", "pauses", "stands"):
            self.hub.switch()
            if strand.process.dead:
                raise Killed
            self.current = strand
        return event

    def _befall(self, process: Process, event: str) -> None:
        """Do what an event says, but for what it does to an exchange.

        Raises:
            Killed: it says that the process dies now.
        """
        word, _, value = event.partition(" ")
        match word:
            case "then":
                self._next = next((s for s in self._strands if s.name == value), None)
            case "pauses":
                process.stands_until_us = self.us + round(float(value) * 1e6)
            case "stands":
                process.stands_until_us = self.us + 15_000_000
                process.stands_while = self._not_overtaken(process, int(value))
            case "cut":
                process.cut_off_us = self.us + round(float(value.removeprefix("off ")) * 1e6)
            case "clock":
                process.ahead_us += int(value) * 1_000_000
            case "clocks":
                self.ahead_us += int(value) * 1_000_000
                # What was to be done at a time of the wall clock is done so much later.
                self._fault_us += max(0, -int(value)) * 1_000_000
            case "server":
                self._restart_server()
            case "dies" if value == "before":
                self.kill(process)
                raise Killed

    def _event(self, strand: Strand, kind: str, *, changes: bool) -> str:
        at = At(
            process=strand.name,
            number=strand.moment,
            kind=kind,
            changes=changes,
            ready=lambda: [s.name for s in self._strands if s is not strand and s.ready],
            faults=self._faults(strand.process.base, kind),
        )
        event = self._scheduler.at(at)
        if event:
            self.schedule[strand.name, strand.moment] = event
            if not event.startswith("then"):
                self._fault_us = max(self._fault_us, self.us)
                self.tell(f"{strand.name} at {strand.moment}: {kind} {event}")
        return event

    def _faults(self, process: str, kind: str) -> Mapping[str, int]:
        """Return what may befall the moments of a kind of a process."""
        found = self._known_faults.get((process, kind))
        if found is None:
            of_kind = {"wake": WAKEUPS, "exchange": FAULTS, "run": RUNS}.get(kind, {})
            found = {name: share for name, share in self.play.faults(process).items() if name in of_kind}
            self._known_faults[process, kind] = found
        return found

    def _not_overtaken(self, process: Process, moments: int) -> Callable[[], bool]:
        """Return a test that is true while no other process of its kind has begun anything since its lease ended and
        gone on so far.
        """
        lease_over_us, begun, before = self.us + 5_000_000, -1, -1
        kind = process.base.partition("-")[0]

        def waits() -> bool:
            nonlocal begun, before
            if self.us < lease_over_us or self.us >= process.stands_until_us:
                return self.us < lease_over_us
            begun = self.play.begun if begun < 0 else begun
            if kind == "worker" and self.play.begun == begun:
                return True
            others = [s for s in self._strands if s.process is not process]
            now = sum(s.moment for s in others if s.process.base.startswith(kind))
            before = now if before < 0 else before
            return now < before + moments

        return waits

    def _restart_server(self) -> None:
        lost = self._copy[1] is not None and self.us - self._copy[0] <= _COPY_LASTS_S * 1e6
        self.server.restart(self._copy[1] if lost else self.server.copy())
        self._set_server_time()

    def kill(self, process: Process) -> None:
        """A process never exchanges anything again; another one takes its place after a second."""
        if process.dead:
            return
        process.dead = True
        process.close()
        if self.current is not process:
            self.threads.append(process)
        with self.nobody_between():
            following = Process(self, process.base, process.life, process.generation + 1)
        following.stands_until_us = self.us + round(_RESTART_S * 1e6)
        self.processes[self.processes.index(process)] = following

    @contextmanager
    def nobody_between(self) -> Iterator[None]:
        """Exchanges within the block are no moments."""
        before, self._alone = self._alone, True
        try:
            yield
        finally:
            self._alone = before

    def tell(self, what: str) -> None:
        """Note what happened."""
        self.story.append(f"{self.us / 1e6:9.4f} s  {what}")

    def break_off(self, why: str) -> None:
        """End the play as one that has failed, unless ``why`` is empty."""
        self._broken = self._broken or why

    # --- the hub ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Play to the end.

        Raises:
            Broken: something that must hold does not.
        """
        try:
            with machine.run_on(self):
                self._run()
                if not self._broken:
                    with self.nobody_between():
                        self.break_off("\n".join(self.play.wrongs(self)))
        finally:
            self._end()
        if self._broken:
            raise Broken(self._broken)

    def _run(self) -> None:
        while not self._broken:
            if self.moments > _MOST_MOMENTS or self.us - self._fault_us > _LIMIT_S * 1e6:
                with self.nobody_between():
                    what = self.play.what_is_open(self)
                self.break_off(f"not over after {self.us / 1e6:.0f} s and {self.moments} moments: {what}")
                return
            strand, self._next = self._next, None
            if strand is None or not strand.ready:
                strand = self._following()
            if strand is not None:
                self.current = strand
                strand.greenlet.switch()
                continue
            with self.nobody_between():
                if self.play.is_over(self):
                    return
            self._let_time_pass()

    @property
    def _strands(self) -> list[Strand]:
        """All that may go on."""
        return [*self.processes, *self.threads]

    def _following(self) -> Strand | None:
        """The next one in turn that can go on."""
        strands, base = self._strands, self.current.process.base
        at = next((i for i, s in enumerate(strands) if s.process.base == base), 0)
        turn = strands[at:] + strands[:at]
        return next((s for s in turn if s.ready), None)

    def _let_time_pass(self) -> None:
        """To the next moment at which something is due."""
        alive = [p for p in self.processes if not p.dead and not p.ended]
        due = [s.due_us for s in self._strands if not s.process.dead and not s.ended]
        due += [at for at, _ in self.wakeups if at > self.us]
        due += [round((b.due_at - 1000) * 1e6) for p in alive if not p.stands for b in p.beats]
        self.us = max(self.us + 1, min(due))
        self._set_server_time()
        for process in alive:
            if not process.stands:
                self._beat(process)

    def _beat(self, process: Process) -> None:
        for beat in list(process.beats):
            if beat.due_at <= self.monotonic():
                self.current = process
                # Nobody comes between: its thread holds a lock that the run's end waits for.
                with self.nobody_between():
                    if process.cut_off_us > self.us:
                        beat.due_at = self.monotonic() + 1
                    else:
                        beat.beat()

    def _end(self) -> None:
        """End every process now, and not when its greenlet is collected: its last words would be heard by the next play."""
        for process in self.processes:
            process.dead = True
            process.close()
        for strand in self._strands:
            if strand.greenlet:  # it has begun, and has not ended
                strand.greenlet.throw(Killed)
