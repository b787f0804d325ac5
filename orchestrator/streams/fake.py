"""The streams port in memory, for tests and for people who try things out; not shared between processes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.clock import Clock, SystemClock
from orchestrator.errors import StreamFull
from orchestrator.streams.port import Backlog, Entry, Portion, StreamId

_Position = tuple[int, int]


@dataclass
class _Held:
    consumer: str
    since_ms: int
    deliveries: int


@dataclass
class _Group:
    last: _Position = (0, 0)
    held: dict[_Position, _Held] = field(default_factory=dict)


@dataclass
class _Stream:
    entries: dict[_Position, tuple[bytes | None, dict[str, str]]] = field(default_factory=dict)
    last: _Position = (0, 0)
    published: int = 0
    groups: dict[str, _Group] = field(default_factory=dict)


class FakeStreams:
    """Keeps every promise of the port within one process."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._streams: dict[StreamId, _Stream] = {}
        self._changed = threading.Condition()

    def publish(
        self, stream: StreamId, data: bytes, *, limit: int = 0, extra: dict[str, str] | None = None
    ) -> str:
        """See :class:`~orchestrator.streams.port.Streams`."""
        with self._changed:
            held = self._streams.setdefault(stream, _Stream())
            if limit and len(held.entries) >= limit:
                raise StreamFull(str(stream), len(held.entries), limit)
            now = self._clock.now_ms()
            held.last = (now, 0) if now > held.last[0] else (held.last[0], held.last[1] + 1)
            held.entries[held.last] = (data, dict(extra or {}))
            held.published += 1
            self._changed.notify_all()
            return _text(held.last)

    def ensure_groups(self, groups: Sequence[str], streams: Sequence[StreamId]) -> None:
        """See :class:`~orchestrator.streams.port.Streams`."""
        with self._changed:
            for stream in streams:
                for group in groups:
                    self._streams.setdefault(stream, _Stream()).groups.setdefault(group, _Group())

    def read(
        self, group: str, consumer: str, portions: Sequence[Portion], *, block_ms: int = 0
    ) -> list[Entry]:
        """See :class:`~orchestrator.streams.port.Streams`."""
        with self._changed:
            entries = self._take(group, consumer, portions)
            if not entries and block_ms > 0:
                self._changed.wait_for(lambda: self._waits(group, portions), timeout=block_ms / 1000)
                entries = self._take(group, consumer, portions)
            return entries

    def _waits(self, group: str, portions: Sequence[Portion]) -> bool:
        streams = (self._streams[s] for portion in portions for s in portion.streams)
        return any(stream.last > stream.groups[group].last for stream in streams)

    def _take(self, group: str, consumer: str, portions: Sequence[Portion]) -> list[Entry]:
        taken = []
        for streams, count in portions:
            for name in streams:
                stream = self._streams[name]
                reader = stream.groups[group]
                fresh = sorted(p for p in stream.entries if p > reader.last)[:count]
                for position in fresh:
                    reader.last = position
                    reader.held[position] = _Held(consumer, self._clock.now_ms(), 1)
                    taken.append(self._entry(name, position, 1))
        return taken

    def _entry(self, name: StreamId, position: _Position, deliveries: int) -> Entry:
        data, extra = self._streams[name].entries[position]
        return Entry(name, _text(position), data, dict(extra), deliveries)

    def reclaim(
        self, group: str, consumer: str, streams: Sequence[StreamId], *, idle_ms: int, limit: int
    ) -> list[Entry]:
        """See :class:`~orchestrator.streams.port.Streams`."""
        claimed = []
        with self._changed:
            now = self._clock.now_ms()
            for name in streams:
                stream = self._streams[name]
                held = stream.groups[group].held
                idle = sorted(p for p, h in held.items() if now - h.since_ms >= idle_ms)
                for position in idle[:limit]:
                    if position not in stream.entries:
                        del held[position]
                        continue
                    deliveries = held[position].deliveries + 1
                    held[position] = _Held(consumer, now, deliveries)
                    claimed.append(self._entry(name, position, deliveries))
        return claimed

    def acknowledge(self, group: str, entries: Sequence[Entry]) -> int:
        """See :class:`~orchestrator.streams.port.Streams`."""
        with self._changed:
            held = (self._streams[e.stream].groups[group].held.pop(_position(e.id), None) for e in entries)
            return sum(h is not None for h in held)

    def trim(self, groups: Sequence[str], streams: Sequence[StreamId], *, also: Sequence[str] = ()) -> int:
        """See :class:`~orchestrator.streams.port.Streams`."""
        dropped = 0
        with self._changed:
            for name in streams:
                stream = self._streams.get(name, _Stream())
                readers = [stream.groups.get(g) for g in groups]
                readers += [stream.groups[g] for g in also if g in stream.groups]
                for position in sorted(stream.entries):
                    if any(r is None or position > r.last or position in r.held for r in readers):
                        break
                    del stream.entries[position]
                    dropped += 1
        return dropped

    def backlog(self, group: str, streams: Sequence[StreamId]) -> list[Backlog]:
        """See :class:`~orchestrator.streams.port.Streams`."""
        with self._changed:
            now = self._clock.now_ms()
            rows = []
            for name in streams:
                stream = self._streams.get(name, _Stream())
                held = stream.groups.get(group, _Group()).held
                oldest = held[min(held)].since_ms if held else now
                rows.append(Backlog(name, len(stream.entries), stream.published, len(held), now - oldest))
        return rows


def _text(position: _Position) -> str:
    return f"{position[0]}-{position[1]}"


def _position(text: str) -> _Position:
    ms, _, seq = text.partition("-")
    return int(ms), int(seq)
