"""The common work of consumer groups: read new entries, take over from dead consumers, forget those that are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from orchestrator import machine
from orchestrator.machine import Clock, SystemClock
from orchestrator.redisdb.holders import Connected
from orchestrator.streams.redis_streams import RedisStreams
from orchestrator.streams.values import Entry, Portion, StreamId

#: Seconds for which a process must have been missed.
MISSED_S: Final = 0.9
#: Seconds that the oldest connection of a server is old before anybody is missed: after its restart all come back.
SETTLED_S: Final = 5.0


def mark_in(name: str) -> str:
    """Return the mark of a process at the end of a consumer's name or of a claim; empty if it has none."""
    return name.partition("@")[2]


class LostConnections:
    """Observer of the connections of other processes."""

    def __init__(self, clock: Clock, *, missed_s: float = MISSED_S) -> None:
        self._clock = clock
        self._missed_s = missed_s
        self._missed_since: dict[str, float] = {}

    def lost(self, marks: Iterable[str], connected: Connected) -> set[str]:
        """Return those of ``marks`` whose processes are dead. Each look names all marks that matter.

        None is, where the observer does not see its own process either: that server or proxy does not tell.
        """
        if machine.own_mark() not in connected.holders or connected.oldest_s < SETTLED_S:
            self._missed_since = {}
            return set()
        now = self._clock.monotonic()
        missed = set(marks) - connected.holders - {""}
        self._missed_since = {mark: self._missed_since.get(mark, now) for mark in missed}
        return {mark for mark, since in self._missed_since.items() if now - since >= self._missed_s}


#: Milliseconds of silence after which a consumer that holds nothing is forgotten.
GONE_MS: Final = 3_600_000
#: Seconds between two looks for such consumers.
TIDY_EVERY_S: Final = 600.0
#: Seconds between two looks for processes whose connection vanished.
_LOST_EVERY_S: Final = 0.9
#: Seconds for which it is then looked for what they held, and at most between two looks all the same.
_LOOK_EVERY_S: Final = 15.0
#: Milliseconds for which such a consumer must have held an entry: what another one has just taken over is left to that.
_LOST_IDLE_MS: Final = 500


class Consumer:
    """A consumer of a group. It may die at any moment: another consumer takes over what it had not acknowledged.

    ``sources`` is asked at each look for the streams from which to take over. Entries that were held for
    ``reclaim_idle_ms`` are taken over. The entries of a consumer whose process was killed, or had an outage of Redis, are taken over within about two seconds.
    """

    def __init__(
        self,
        streams: RedisStreams,
        group: str,
        name: str,
        sources: Callable[[], Sequence[StreamId]],
        *,
        reclaim_idle_ms: int = 60_000,
        clock: Clock | None = None,
    ) -> None:
        self._streams = streams
        self._group = group
        self.name = name
        self._sources = sources
        self._reclaim_idle_ms = reclaim_idle_ms
        self._look_every_s = min(_LOOK_EVERY_S, reclaim_idle_ms / 2000)
        self._clock = clock or SystemClock()
        self._next_look = self._next_lost = 0.0
        #: Until when every look asks what others hold, and the processes that the last look saw connected. A consumer that
        #: is new has not seen who was there before.
        self._alarmed_until = self._clock.monotonic() + _LOOK_EVERY_S
        self._connected: frozenset[str] = frozenset()
        self._lost = LostConnections(self._clock)
        self._next_tidy = self._clock.monotonic() + TIDY_EVERY_S

    def read(self, portions: Sequence[Portion], *, block_ms: int = 0) -> list[Entry]:
        """Entries that no consumer of the group has had; waits up to ``block_ms`` for a first one."""
        return self._streams.read(self._group, self.name, portions, block_ms=block_ms)

    def left_over(self, *, limit: int) -> Iterator[list[Entry]]:
        """Yield the entries that dead consumers held, ``limit`` of a stream at a time; nothing until the next look is
        due.

        One stream comes after the other, so that a crash counts against no entry of another stream.
        A caller that stops early goes on at its next call.
        """
        now = self._clock.monotonic()
        if now < min(self._next_lost, self._next_look):
            return
        connected = self._streams.connected()
        if self._connected - connected.holders:
            self._alarmed_until = now + _LOOK_EVERY_S
        self._connected = connected.holders
        if now < self._next_look and now >= self._alarmed_until:
            self._next_lost = now + _LOST_EVERY_S
            return
        # One round trip tells where anybody holds anything; mostly that is nowhere.
        held = self._streams.holders(self._group, self._sources())
        if now >= self._next_lost:
            for name, streams in self._dead(held, connected, own=True).items():
                self._alarmed_until = now + _LOOK_EVERY_S  # a caller that stops early goes on with it
                yield from self._take_over(name, streams, limit)
            self._next_lost = now + _LOST_EVERY_S
        if now < self._next_look:
            return
        found = {stream for streams in held.values() for stream in streams}
        for stream in filter(found.__contains__, self._sources()):
            while entries := self._streams.reclaim(
                self._group, self.name, [stream], idle_ms=self._reclaim_idle_ms, limit=limit
            ):
                yield entries
        self._next_look = now + self._look_every_s
        if now >= self._next_tidy:
            self.tidy()
            self._next_tidy = now + TIDY_EVERY_S

    def _take_over(self, dead: str, streams: Sequence[StreamId], limit: int) -> Iterator[list[Entry]]:
        for stream in streams:
            while entries := self._streams.take_over(
                self._group, self.name, stream, of=dead, idle_ms=_LOST_IDLE_MS, limit=limit
            ):
                yield entries

    def dead(self) -> dict[str, list[StreamId]]:
        """Return the consumers that hold entries and whose processes have lost their connections, each with its
        streams.
        """
        held = self._streams.holders(self._group, self._sources())
        return self._dead(held, self._streams.connected() if held else Connected(), own=False)

    def _dead(
        self, held: Mapping[str, list[StreamId]], connected: Connected, *, own: bool
    ) -> dict[str, list[StreamId]]:
        """``own`` adds other consumers of this process: it has made this consumer anew after an outage of Redis."""
        # While no other consumer holds anything, nobody is missed, and what was missed before counts no more.
        held = {name: streams for name, streams in held.items() if name != self.name}
        lost = self._lost.lost({mark_in(name) for name in held}, connected)
        if own:
            lost.add(machine.own_mark())
        return {name: streams for name, streams in held.items() if mark_in(name) in lost}

    def acknowledge(self, entries: Sequence[Entry], *, delete: bool = False) -> None:
        """Acknowledge entries that were handled. ``delete`` removes them from streams that one group alone reads."""
        if entries:
            self._streams.acknowledge(self._group, entries, delete=delete)

    def uncount(self, entry: Entry) -> None:
        """Do not count the last delivery of an entry that was taken over; the consumer keeps it."""
        self._streams.uncount(self._group, self.name, entry)

    def tidy(self, *, gone_ms: int = GONE_MS) -> int:
        """Forget consumers that hold nothing and were silent for ``gone_ms``; how many, counted for each stream."""
        return self._streams.forget(self._group, self._sources(), idle_ms=gone_ms)
