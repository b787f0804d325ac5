"""A database server that is away delays the audit trail and loses nothing."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import redis as redis_py

from orchestrator.audit import AuditStore, AuditWriter, build_writer
from orchestrator.audit.database import MESSAGES as MESSAGE_ROWS
from orchestrator.audit.verification import broken_chain
from orchestrator.audit.writer import backlog
from orchestrator.errors import AuditError, AuditUnavailable
from orchestrator.redisdb import keys
from orchestrator.streams import (
    AUDIT_GROUP,
    TRANSITIONS,
    Portion,
    RedisStreams,
    StreamId,
    all_streams,
    ledger_streams,
    stream_key,
)
from tests.kit import Kit
from tests.postgres import PostgresServer
from tests.waiting import act_until, wait_until

MESSAGES = StreamId(0, "message", "normal")


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of its own, which the test may stop."""
    server = PostgresServer()
    server.start()
    yield server
    server.remove()


def test_what_is_published_while_the_server_is_away_is_written_when_it_is_back(
    kit: Kit, server: PostgresServer
) -> None:
    """Stopped as if the power failed, under load: the writer goes on by itself, and nothing is missing or doubled."""
    url = server.make()
    kit = kit.beside(audit_url=url)
    streams, writer = kit.streams, build_writer(kit.parts, consumer="w")
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
        wait_until(lambda: AuditStore(url, read_only=True).total() == 300)
    finally:
        stop.set()
        thread.join(30)
    store = AuditStore(url, read_only=True)
    assert (store.total(), list(broken_chain(store))) == (300, [])
    assert {record.xml for record in store.messages()} == {b"%d" % number for number in range(300)}
    assert streams.backlog("audit", all_streams())[0].pending == 0


@contextmanager
def away(database: str, server: PostgresServer | None, path: Path) -> Iterator[None]:
    """The database cannot be written to: its server is stopped, or another process holds its lock."""
    if server is not None:
        server.stop()
        yield
        server.start()
        return
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_an_outage_under_load_loses_and_doubles_nothing(
    kit: Kit,
    tmp_path: Path,
    database: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Messages and transitions go on being published; by the count of Redis each is in the trail, once."""
    # A writer says soon that it is locked, and has tried again and again when it is not any more.
    monkeypatch.setattr("orchestrator.audit.database._BUSY_S", 0.2)
    monkeypatch.setattr("orchestrator.audit.writer._RETRY_S", 0.2)
    server: PostgresServer | None = request.getfixturevalue("server") if database == "postgresql" else None
    options = {"audit_url": server.make()} if server is not None else {}
    kit = kit.beside(**options)
    writer = build_writer(kit.parts, consumer="w")
    redis, streams = kit.redis, kit.streams
    stop, done = threading.Event(), threading.Event()
    spoken: list[bytes] = []

    def load() -> None:
        while not done.wait(0.005):
            spoken.append(b"%d" % len(spoken))
            streams.publish(MESSAGES, spoken[-1])
            if len(spoken) % 5 == 0:
                kit.given(f"root {len(spoken)}")

    def waiting() -> int:
        rows = streams.backlog(AUDIT_GROUP, [MESSAGES, *ledger_streams(TRANSITIONS)])
        return sum(row.unread for row in rows)

    threads = [threading.Thread(target=writer.run, args=(stop,)), threading.Thread(target=load)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(spoken) > 100)
        with away(database, server, tmp_path / "audit.sqlite"):
            begun = len(spoken)
            wait_until(lambda: len(spoken) > begun + 300)
            assert waiting() > (len(spoken) - begun) / 2
        done.set()
        threads[1].join(30)
        wait_until(lambda: not backlog(redis, 1).entries)
    finally:
        done.set(), stop.set()
        for thread in threads:
            thread.join(30)
    everything = [*all_streams(), *ledger_streams(TRANSITIONS)]
    store = AuditStore(kit.settings.audit_database, read_only=True)
    added = {str(s): int(redis.xinfo_stream(stream_key(s))["entries-added"]) for s in everything}
    assert store.counts() == {name: count for name, count in added.items() if count}
    assert added["00/ledger/transitions"] == store.ends().transitions.entries >= len(spoken) // 5 > 50
    assert sorted(r.xml for r in store.messages(MESSAGE_ROWS.c.type == "message")) == sorted(spoken)
    assert list(broken_chain(store)) == []


def test_two_writers_write_to_one_server_at_once(redis: redis_py.Redis, server: PostgresServer) -> None:
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
    assert (store.total(), list(broken_chain(store))) == (400, [])


def test_the_backlog_counts_up_while_the_server_is_away_and_goes_to_zero(
    kit: Kit, server: PostgresServer
) -> None:
    """Of what was read and not written as of what nobody has read; asked while the database does not answer."""
    kit = kit.beside(audit_url=server.make())
    redis, streams, writer = kit.redis, kit.streams, build_writer(kit.parts, consumer="w")
    assert backlog(redis, 1).entries == 0
    server.stop()
    for number in range(3):
        streams.publish(MESSAGES, b"%d" % number)
    with pytest.raises(AuditError):
        writer.run_once()
    for number in range(4):
        streams.publish(MESSAGES, b"more %d" % number)
    redis.xadd(stream_key(ledger_streams(TRANSITIONS)[0]), {"commit": "session ses_1 - finished"})
    redis.xadd(keys.dead(0), {"stream": str(MESSAGES), "entry": "1-0", "rule": "expired", "reason": "x"})
    found = backlog(redis, 1)
    assert (found.entries, found.messages, found.steps, found.dead_letters) == (9, 7, 1, 1)
    assert found.oldest_ms > 0
    server.start()
    # Dead letters are looked for twice a second.
    act_until(lambda: not backlog(redis, 1).entries, lambda: writer.run_once(block_ms=50))
    assert (backlog(redis, 1).entries, backlog(redis, 1).oldest_ms) == (0, 0)
    verified = kit.orchestra("audit", "verify", "--json", env={"ORCHESTRA_AUDIT_URL": kit.settings.audit_url})
    assert json.loads(verified.output)["behind_ms"] == 0


def test_the_backlog_is_known_where_nobody_has_read_and_where_something_was_deleted(
    redis: redis_py.Redis,
) -> None:
    """Without a group everything waits; a server that cannot tell how much is left is asked for the entries."""
    streams = RedisStreams(redis)
    entries = [streams.publish(MESSAGES, b"%d" % number) for number in range(5)]
    assert backlog(redis, 1).messages == 5
    streams.ensure_groups([AUDIT_GROUP], [MESSAGES])
    assert len(streams.read(AUDIT_GROUP, "w", [Portion([MESSAGES], 1)])) == 1
    redis.xdel(stream_key(MESSAGES), entries[3])
    assert backlog(redis, 1).messages == 4
