"""A stack at work with an audit writer, its exporter, and what a scrape of it says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.audit import build_writer
from orchestrator.bootstrap import Container
from orchestrator.config.settings import Settings
from orchestrator.redisdb.client import connect
from orchestrator.telemetry import Exporter, exposition, registry_of
from orchestrator.testing import InProcessStack
from tests.kit import Kit
from tests.waiting import wait_until

#: Label values in the order of the catalogue's labels → value, by the name of the sample.
Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


class Watched:
    """A stack in this process, its trail, and an exporter that keeps nothing between two scrapes."""

    def __init__(self, stack: InProcessStack, parts: Container) -> None:
        self.parts, self.ledger, self.settings = parts, parts.ledger, stack.settings
        self.client, self.run = stack.client, stack.run
        self.exporter = Exporter(parts, keep_s=0)

    def restart(self) -> None:
        """The exporter ends and another one begins."""
        self.exporter.close()
        self.exporter = Exporter(self.parts, keep_s=0)

    def restart_without_keeping(self) -> None:
        """The exporter is killed and another one begins."""
        self.exporter = Exporter(self.parts, keep_s=0)

    def text(self) -> str:
        return exposition(registry_of(self.exporter))[1].decode()

    def samples(self) -> Samples:
        return samples_of(self.text())

    def of(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of that name that have these labels."""
        return total(self.samples(), name, **labels)

    def until(self, expected: float, name: str, **labels: str) -> None:
        """Wait until a value is there: the audit writer is a moment behind."""
        what = f"{name}{labels} to be {expected}"
        wait_until(lambda: self.of(name, **labels) == expected, what, 30, explain=self.text)

    def calm(self) -> None:
        """Wait until the trail has everything."""
        self.until(0, "orchestra_audit_backlog_entries")
        self.samples()  # a reading takes the trail first


def samples_of(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def total(samples: Samples, name: str, **labels: str) -> float:
    rows = samples.get(name, {})
    return sum(value for key, value in rows.items() if set(labels.items()) <= set(key))


@contextmanager
def watched(agents: list[Any], **settings: Any) -> Iterator[Watched]:
    with ExitStack() as leaving:
        stack = leaving.enter_context(InProcessStack(agents, **settings))
        client = connect(stack.settings.redis_url or "", check=False)
        leaving.callback(client.close)
        parts = Container(client, stack.settings)
        stop = threading.Event()
        writer = build_writer(parts, consumer="audit-test")
        thread = threading.Thread(target=writer.run, args=(stop,), daemon=True)
        thread.start()
        leaving.callback(thread.join, 10)
        leaving.callback(stop.set)
        yield Watched(stack, parts)


@pytest.fixture
def kit(redis: redis_py.Redis, redis_url: str, tmp_path: Path) -> Kit:
    """A stack whose processes the test plays."""
    return Kit.on(redis, Settings(data=tmp_path, redis_url=redis_url))


@pytest.fixture
def watch() -> Iterator[Callable[..., Watched]]:
    """Starts watched stacks, which end with the test."""
    with ExitStack() as leaving:
        yield lambda *agents, **settings: leaving.enter_context(watched(list(agents), **settings))
