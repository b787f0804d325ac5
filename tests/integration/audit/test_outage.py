"""A database server that is away delays the audit trail and loses nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis as redis_py

from orchestrator.audit import AuditStore, AuditWriter, build_writer
from orchestrator.bootstrap import build_container
from orchestrator.config.settings import load_settings
from orchestrator.errors import AuditUnavailable
from orchestrator.streams import RedisStreams, StreamId, all_streams
from tests.postgres import PostgresServer

MESSAGES = StreamId(0, "message", "normal")


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of its own, which the test may stop."""
    server = PostgresServer()
    server.start()
    yield server
    server.remove()


def test_what_is_published_while_the_server_is_away_is_written_when_it_is_back(
    redis: redis_py.Redis, server: PostgresServer, redis_url: str, tmp_path: Path
) -> None:
    """Stopped as if the power failed, under load: the writer goes on by itself, and nothing is missing or doubled."""
    url = server.make()
    settings = load_settings(redis_url=redis_url, data=tmp_path, audit_url=url)
    parts = build_container(redis, settings)
    streams = RedisStreams(redis)
    writer = build_writer(parts, consumer="w")
    stop = threading.Event()
    thread = threading.Thread(target=writer.run, args=(stop,))
    thread.start()
    try:
        for number in range(300):
            streams.publish(MESSAGES, b"%d" % number)
            if number == 100:
                server.stop()
            if number == 250:
                with pytest.raises(AuditUnavailable, match="nothing is lost meanwhile"):
                    AuditStore(url)
                server.start()
        waiting = streams.backlog("audit", [MESSAGES])[0]
        assert waiting.published == 300
        pause = threading.Event()
        for _ in range(1200):
            if AuditStore(url, read_only=True).total() == 300:
                break
            pause.wait(0.05)
    finally:
        stop.set()
        thread.join(30)
    store = AuditStore(url, read_only=True)
    assert (store.total(), list(store.broken_chain())) == (300, [])
    assert {record.xml for record in store.messages()} == {b"%d" % number for number in range(300)}
    assert streams.backlog("audit", all_streams())[0].pending == 0


def test_two_writers_write_to_one_server_at_once(
    redis: redis_py.Redis, server: PostgresServer, tmp_path: Path
) -> None:
    """One chain, every message once, whichever of them writes it."""
    url, streams = server.make(), RedisStreams(redis)
    writers = [AuditWriter(redis, AuditStore(url), consumer=f"w{n}", sources=all_streams()) for n in range(2)]
    left = threading.Event()

    def work(writer: AuditWriter) -> None:
        while not left.is_set() or writer.run_once():
            writer.run_once()

    threads = [threading.Thread(target=work, args=(writer,)) for writer in writers]
    for thread in threads:
        thread.start()
    for number in range(400):
        streams.publish(MESSAGES, b"%d" % number)
    left.set()
    for thread in threads:
        thread.join(60)
    store = AuditStore(url, read_only=True)
    assert (store.total(), list(store.broken_chain())) == (400, [])
