"""The metrics of one stack for Prometheus: one reading of trail and ledger, kept for a few seconds.

Counters come from the audit trail, so that they survive every restart and no exporter counts for another. A scrape reads what
is new there, sizes of indexes in Redis, and of sessions those in which something has changed.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final

import redis
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from orchestrator import machine
from orchestrator.audit.writer import backlog
from orchestrator.bootstrap import Container
from orchestrator.errors import OrchestraError
from orchestrator.ledger.gauges import Gauges, Standing, read_gauges, standings
from orchestrator.redisdb import keys
from orchestrator.redisdb.raw_pipeline import server_ms
from orchestrator.runtime.service import ServiceRecord, hung_services, live_services
from orchestrator.streams import ROUTER_GROUP, RedisStreams, all_streams
from orchestrator.telemetry.catalogue import BUCKETS, METRICS, MOST_VALUES
from orchestrator.telemetry.fold import OpenRun
from orchestrator.telemetry.otlp import TraceSender
from orchestrator.telemetry.trail import Trail, missing

#: Seconds for which one reading answers all scrapes.
KEEP_S: Final = 5.0
#: Seconds that a reading may take for the trail; what is left is read by the next one.
_TRAIL_S: Final = 2.0
#: Seconds between two writings of the file that remembers how far the trail was read.
_WRITE_EVERY_S: Final = 30.0
#: Sessions of which one reading asks the ledger; the others come with the next one.
_LOOK_AT: Final = 2_000

Rows = dict[tuple[str, ...], float]


class NotYet(OrchestraError):
    """The trail is still being read for the first time. Raised without anything."""

    template = "the audit trail is still being read; the counters would be too low"


@dataclass(kw_only=True)
class Reading:
    """A look at the stack: values of the gauges, living services, those that hang."""

    gauges: dict[str, Rows]
    services: list[ServiceRecord]
    hung: list[str] = field(default_factory=list)


class Exporter(Collector):
    """Collects the metrics of one stack. Safe to share between threads."""

    def __init__(
        self, parts: Container, *, keep_s: float = KEEP_S, traces: TraceSender | None = None
    ) -> None:
        self._parts = parts
        self._keep_s = keep_s
        self._traces = traces
        self._trail = Trail(parts.settings, spans=traces is not None)
        self._lock = threading.Lock()
        self._last: Reading | None = None
        self._read_at = self._written_at = float("-inf")
        #: Whether the trail was read to its end once.
        self._caught_up = False
        #: When the first reading began: what ended before is history, and no span of it is sent.
        self._since_ms = 0
        self._standing: dict[str, Standing] = {}
        #: Sessions in which ledger and trail differ: since which look at the ledger, and whether the trail has come to that
        #: look without a word of the session.
        self._suspects: dict[str, tuple[int, bool]] = {}

    def reading(self) -> Reading:
        """Return the last reading, or a new one if it is too old.

        Raises:
            NotYet: the trail is still being read for the first time.
            AuditError: the trail cannot be read.
            redis.RedisError: Redis does not answer.
        """
        with self._lock:
            if self._last is None or machine.monotonic() - self._read_at >= self._keep_s:
                self._last = None
                self._last = self._read()
                self._read_at = machine.monotonic()
            return self._last

    def collect(self) -> Iterator[Metric]:
        """Yield every metric.

        Raises:
            NotYet, AuditError, redis.RedisError: as :meth:`reading`.
        """
        reading = self.reading()
        with self._lock:
            yield from list(self._families(reading))

    def close(self) -> None:
        """Write down how far the trail was read."""
        with self._lock:
            if self._caught_up and self._sent():
                self._trail.keep()

    def _families(self, reading: Reading) -> Iterator[Metric]:
        totals = self._trail.fold.totals
        for metric in METRICS:
            match metric.kind:
                case "counter":
                    counter = CounterMetricFamily(
                        metric.name.removesuffix("_total"), metric.help, labels=metric.labels
                    )
                    for labels, value in totals.counters(metric.name):
                        counter.add_metric(labels, value)
                    yield counter
                case "gauge":
                    gauge = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
                    for labels, value in reading.gauges.get(metric.name, {}).items():
                        gauge.add_metric(labels, value)
                    yield gauge
                case "histogram":
                    histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
                    for labels, total, counts in totals.histograms(metric.name):
                        histogram.add_metric(labels, _buckets(counts), total)
                    yield histogram

    # --- one reading -------------------------------------------------------------------------

    def _read(self) -> Reading:
        self._read_trail()
        client, settings, fold = self._parts.redis, self._parts.settings, self._trail.fold
        services = live_services(client)
        agents = self._agents(services)
        sizes = read_gauges(client, settings.shards, agents)
        self._look_at_changed(client)
        workers = [record for record in services if record.service == "worker"]
        behind = backlog(client, settings.shards)
        now_ms = server_ms(client)
        oldest_ms = {**fold.oldest_ms(), **sizes.oldest_ms, "message": self._messages(client)}
        slots: Counter[str] = Counter()
        for record in workers:
            slots.update(dict.fromkeys(record.serves, record.slots))
        gauges: dict[str, Rows] = {
            "orchestra_callbacks_pending": {(): fold.pending},
            "orchestra_promise_gap": {(): abs(fold.gap) + self._confirmed_gap()},
            "orchestra_runs_ready": _by_agent(agents, sizes.ready),
            "orchestra_runs_running": _by_agent(agents, sizes.at_work),
            "orchestra_slots": _by_agent(agents, slots),
            "orchestra_workers_up": {(): len(workers)},
            "orchestra_sessions_waiting": self._waiting(agents, sizes, now_ms),
            "orchestra_oldest_pending_seconds": {
                (kind,): max(0, now_ms - at_ms) / 1000 if at_ms else 0.0 for kind, at_ms in oldest_ms.items()
            },
            "orchestra_approvals_open": {(): sizes.approvals},
            "orchestra_audit_backlog_entries": {
                ("messages",): behind.messages,
                ("transitions",): behind.steps,
                ("dead-letters",): behind.dead_letters,
            },
            "orchestra_audit_backlog_oldest_seconds": {(): behind.oldest_ms / 1000},
            "orchestra_build_info": {(version("agent-orchestra"),): 1},
        }
        hung = [record.service for record, _ in hung_services(client)]
        return Reading(gauges=gauges, services=services, hung=hung)

    def _read_trail(self) -> None:
        if self._traces is not None and not self._since_ms:
            self._since_ms = server_ms(self._parts.redis)
        if missing(self._parts.settings):
            self._caught_up = True
            return
        until = machine.monotonic() + _TRAIL_S
        ended = self._trail.read(
            self._parts.redis, self._agents_of, go_on=lambda: machine.monotonic() < until
        )
        self._caught_up = self._caught_up or ended
        # What was not sent yet is read again by the next process, if this one is killed.
        if self._sent() and machine.monotonic() - self._written_at >= _WRITE_EVERY_S:
            self._trail.keep()
            self._written_at = machine.monotonic()
        if not self._caught_up:
            raise NotYet

    def _sent(self) -> bool:
        """Send the spans of attempts that have ended; return True if none is left."""
        spans = self._trail.fold.spans
        if self._traces is None or spans is None:
            return True
        restored = self._trail.restored
        self._traces.add(span for span in spans if restored or span.ended_ms >= self._since_ms)
        spans.clear()
        return self._traces.send()

    def _agents_of(self, sessions: Sequence[str]) -> dict[str, tuple[str, str]]:
        found = standings(self._parts.redis, sessions)
        return {name: (standing.agent, standing.root) for name, standing in found.items()}

    def _agents(self, services: Iterable[ServiceRecord]) -> list[str]:
        """Return the agents that are registered, or that a living worker serves."""
        announced: Any = self._parts.redis.zrange(keys.agents(), 0, MOST_VALUES - 1)
        names = {name.decode(errors="replace") for name in announced}
        names |= {agent for record in services for agent in record.serves}
        return sorted(names)[:MOST_VALUES]

    def _messages(self, client: redis.Redis) -> int:
        """Count the messages that the router is done with; return since when the oldest of the others waits."""
        done: Counter[str] = Counter()
        since: list[int] = []
        for row in RedisStreams(client).backlog(ROUTER_GROUP, all_streams(self._parts.settings.shards)):
            done[row.stream.type] += row.published - row.unread - row.pending
            since += [ms for ms in (row.unread_since_ms, row.pending_since_ms) if ms is not None]
        totals, dead = self._trail.fold.totals, self._trail.dead_by_type
        for kind, number in done.items():
            totals.at_least("orchestra_messages_total", number - dead.get(kind, 0), kind, "accepted")
            totals.at_least("orchestra_messages_total", dead.get(kind, 0), kind, "dead")
        return min(since, default=0)

    # --- sessions ----------------------------------------------------------------------------

    def _look_at_changed(self, client: redis.Redis) -> None:
        """Ask the ledger for the sessions in which something has changed, and for those in which trail and ledger differ."""
        fold = self._trail.fold
        wanted = [*self._suspects, *(name for name in fold.changed if name not in self._suspects)][:_LOOK_AT]
        anew = fold.changed.intersection(wanted)
        fold.changed.difference_update(anew)
        now_ms = server_ms(client)
        found = standings(client, wanted)
        for session in wanted:
            standing = found.get(session)
            over = standing is None or standing.state not in ("idle", "running", "pending", "scheduled")
            if standing is None or over:
                self._standing.pop(session, None)
            else:
                self._standing[session] = standing
            if standing is None or standing.pending == fold.pending_of(session):
                self._suspects.pop(session, None)
            elif session in anew or session not in self._suspects:
                self._suspects[session] = now_ms, False
            else:
                # Where the trail was behind, it has told of the session by then.
                since_ms, confirmed = self._suspects[session]
                self._suspects[session] = since_ms, confirmed or self._trail.settled_ms > since_ms

    def _confirmed_gap(self) -> int:
        looks = [session for session, (_, confirmed) in self._suspects.items() if confirmed]
        found = standings(self._parts.redis, looks)
        fold = self._trail.fold
        return sum(abs(standing.pending - fold.pending_of(name)) for name, standing in found.items())

    def _waiting(self, agents: Sequence[str], sizes: Gauges, now_ms: int) -> Rows:
        fold = self._trail.fold
        reasons: Counter[str] = Counter(
            dict.fromkeys(
                (
                    *("children", "question", "approval", "slot"),
                    *("limit", "paused", "retry", "provider", "scheduled"),
                ),
                0,
            )
        )
        for session, state in fold.sessions.items():
            standing = self._standing.get(session)
            if state == "scheduled":
                reasons["scheduled"] += 1
            elif state == "idle" and session in fold.approvals:
                reasons["approval"] += 1
            elif state == "idle" and standing is not None and standing.questions:
                reasons["question"] += 1
            elif state == "idle" and session in fold.callbacks:
                reasons["children"] += 1
        for run in fold.runs.values():
            if not run.claimed_ms and run.ready_ms > now_ms:
                reasons[self._parked(run)] += 1
        reasons["limit"] += sizes.blocked
        for limit in self._parts.concurrency.agents(agents) if any(sizes.ready.values()) else ():
            full = limit.limit is not None and limit.at_work >= limit.limit
            why = "paused" if limit.paused else "limit" if full else "slot"
            reasons[why] += sizes.ready[limit.agent]
        return {(reason,): number for reason, number in reasons.items()}

    def _parked(self, run: OpenRun) -> str:
        """Return what a run waits for that gave up its slot and is not ready."""
        standing = self._standing.get(run.session)
        if run.provider:
            return "provider"
        if run.how != "parked":
            return "retry"
        if run.session in self._trail.fold.approvals:
            return "approval"
        return "question" if standing is not None and standing.questions else "scheduled"


def registry_of(exporter: Exporter) -> CollectorRegistry:
    """Return a registry that has the metrics of an exporter and no others."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(exporter)
    return registry


def exposition(registry: CollectorRegistry, accept: str = "") -> tuple[str, bytes]:
    """Return content type and body of an answer to `GET /metrics`; ``accept`` is the header of the request.

    Raises:
        NotYet, AuditError, redis.RedisError: there are no right values now; answer with 503.
    """
    encode, content_type = choose_encoder(accept)
    return content_type, encode(registry)


def _buckets(counts: Sequence[float]) -> list[tuple[str, float]]:
    """Return the buckets as Prometheus has them: each counts those below it, too."""
    found, total = [], 0.0
    for bound, number in zip((*BUCKETS, float("inf")), counts, strict=True):
        total += number
        found.append(("+Inf" if bound == float("inf") else str(bound), total))
    return found


def _by_agent(agents: Iterable[str], numbers: Counter[str]) -> Rows:
    return {(agent,): numbers[agent] for agent in agents}
