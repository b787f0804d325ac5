"""The audit trail: misses nothing, writes nothing twice, shows what was changed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis as redis_py

from orchestrator.audit import AuditReader, AuditStore, AuditWriter, records, trees
from orchestrator.audit import text as text_module
from orchestrator.audit.heads import Proof
from orchestrator.audit.records import read_entry
from orchestrator.audit.transfer import export
from orchestrator.audit.verification import broken_chain
from orchestrator.envelope.parse import parse
from orchestrator.errors import AuditError
from orchestrator.ids import new_message_id
from orchestrator.keyring.store import KeyStore
from orchestrator.redisdb import keys
from orchestrator.streams import Entry, Portion, RedisStreams, StreamId, all_streams, stream_key
from tests.commands import Orchestra
from tests.postgres import PostgresServer, TrailDatabase
from tests.waiting import act_until

MESSAGES = StreamId(0, "message", "normal")
DELEGATIONS = StreamId(0, "task-delegation", "high")
CONVERSATION = "6f1c6a3e-6a52-4d4f-9d7a-0c8f3f6f2b11"


def xml(
    *,
    message_id: str | None = None,
    sender: str = "lead",
    parent: str = "",
    task: str = "",
    text: str = "hello",
) -> bytes:
    """An envelope without a signature; the audit trail judges nothing."""
    chain = f'<conversation-chain><message-ref index="0">{parent}</message-ref></conversation-chain>'
    body = (
        f'<body type="task-delegation"><task><task-id>{task}</task-id><title>t</title>'
        f"<description>{text}</description></task></body>"
        if task
        else f'<body type="message"><content>{text}</content></body>'
    )
    return (
        '<agent-message xmlns="http://agent-orchestra.local/protocol/1.0" version="1.0"><header>'
        f"<message-id>{message_id or new_message_id()}</message-id><timestamp>2026-01-01T00:00:00Z</timestamp>"
        f"<sender><agent-name>{sender}</agent-name><agent-role>coordinator</agent-role></sender>"
        "<recipient><agent-name>reviewer</agent-name><agent-role>specialist</agent-role></recipient>"
        f"<correlation-id>{CONVERSATION}</correlation-id>{chain if parent else ''}</header>{body}</agent-message>"
    ).encode()


@pytest.fixture
def streams(redis: redis_py.Redis) -> RedisStreams:
    """The streams of an empty server."""
    return RedisStreams(redis)


@pytest.fixture
def file(trail_database: TrailDatabase) -> Path | str:
    """Where the audit database is."""
    return trail_database.where


def test_everything_published_is_written_once(
    streams: RedisStreams, writer: Callable[..., AuditWriter], file: Path | str
) -> None:
    """What was there before the writer, what is malformed, what comes later; and nothing twice."""
    streams.publish(MESSAGES, xml())
    streams.publish(MESSAGES, b"\xffnot xml")
    one = writer()
    assert one.run_once() == 2
    streams.publish(DELEGATIONS, xml(task="t1"))
    assert (one.run_once(), one.run_once()) == (1, 0)
    coverage = AuditReader(AuditStore(file)).coverage(streams, all_streams())
    assert [(c.published, c.audited, c.missing, c.pending) for c in coverage] == [(1, 1, 0, 0), (2, 2, 0, 0)]


def test_what_comes_within_a_moment_is_written_with_what_came_first(
    streams: RedisStreams, writer: Callable[..., AuditWriter]
) -> None:
    """The first of a burst waits for the others; nobody waits where nothing comes."""
    one = writer()
    waits: list[str] = []

    def moment() -> None:
        waits.append(streams.publish(DELEGATIONS, xml()))

    assert one.run_once(linger=moment) == 0
    streams.publish(MESSAGES, xml())
    assert one.run_once(linger=moment) == 2
    assert len(waits) == 1
    assert one.run_once() == 0


def test_what_a_dead_writer_read_is_written_by_the_next(
    streams: RedisStreams, writer: Callable[..., AuditWriter], file: Path | str
) -> None:
    """An entry that was committed and not acknowledged is written once; one that was only read is not lost."""
    streams.publish(MESSAGES, xml(text="committed"))
    streams.publish(MESSAGES, xml(text="read"))
    one = writer()
    entries = streams.read("audit", "dead", [Portion([MESSAGES], 10)])
    one._held = [entries[0]]
    one._consumer.acknowledge = lambda *_, **__: None  # type: ignore[method-assign]
    one._write([])
    assert writer("a2", reclaim_idle_ms=0).run_once() == 1
    texts = [r.xml for r in AuditStore(file).messages()]
    assert [b"committed" in texts[0], b"read" in texts[1], len(texts)] == [True, True, 2]
    assert streams.backlog("audit", [MESSAGES])[0].pending == 0


def test_what_ends_each_writer_alone_is_kept_unread(
    streams: RedisStreams,
    writer: Callable[..., AuditWriter],
    file: Path | str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After three deaths alone its octets are kept without facts, and are not parsed for its words either."""
    parsed: list[bytes] = []
    for module in (records, text_module):
        monkeypatch.setattr(
            module, "parse", lambda octets, *limits: parsed.append(octets) or parse(octets, *limits)
        )
    for text in ("poison", "good"):
        streams.publish(MESSAGES, xml(text=text).replace(b"<header>", b" <header>"))
    writer("dead")
    first, _ = streams.read("audit", "dead", [Portion([MESSAGES], 10)])
    for deaths in range(2, 5):
        (again,) = streams.reclaim("audit", "dead", [MESSAGES], idle_ms=0, limit=1)
        assert (again.id, again.deliveries) == (first.id, deaths)
    assert writer("a2", reclaim_idle_ms=0).run_once() == 2
    assert caplog.messages.count("audit-poison") == 1
    store = AuditStore(file)
    assert [(b"poison" in r.xml, r.sender) for r in store.messages()] == [(True, ""), (False, "lead")]
    assert store.indexed() == 2
    assert not [octets for octets in parsed if b"poison" in octets]
    assert [len(AuditReader(store).search(text=text)) for text in ("poison", "good")] == [1, 1]


@contextmanager
def unwritable(trail_database: TrailDatabase) -> Iterator[None]:
    """No message can be written for a while."""
    with trail_database.tamper() as db:
        db.execute("ALTER TABLE messages RENAME TO away")
    yield
    with trail_database.tamper() as db:
        db.execute("ALTER TABLE away RENAME TO messages")


def test_a_delivery_that_a_writer_survives_counts_against_no_message(
    streams: RedisStreams, writer: Callable[..., AuditWriter], trail_database: TrailDatabase
) -> None:
    """Writers that end because their database is away, one after the other, lose no facts."""
    writer().run_once()
    streams.publish(MESSAGES, xml())
    with unwritable(trail_database):
        for number in range(8):
            with pytest.raises(AuditError, match="nothing is lost meanwhile"):
                writer(f"dead{number}", reclaim_idle_ms=0).run_once()
    assert writer("a2", reclaim_idle_ms=0).run_once() == 1
    assert [r.sender for r in AuditStore(trail_database.where).messages()] == ["lead"]


def test_a_database_that_cannot_be_written_to_loses_nothing(
    streams: RedisStreams, writer: Callable[..., AuditWriter], trail_database: TrailDatabase
) -> None:
    """The writer holds what it read, says so, and writes it when it can."""
    one = writer()
    streams.publish(MESSAGES, xml())
    with unwritable(trail_database):
        with pytest.raises(AuditError, match="nothing is lost meanwhile"):
            one.run_once()
        assert streams.backlog("audit", [MESSAGES])[0].pending == 1
    assert one.run_once() == 1
    assert streams.backlog("audit", [MESSAGES])[0].pending == 0


def test_two_writers_share_a_database(
    streams: RedisStreams, writer: Callable[..., AuditWriter], file: Path | str
) -> None:
    """Their rows form one unbroken chain."""
    one, two = writer("a1"), writer("a2")
    for number in range(6):
        streams.publish(MESSAGES, xml(text=str(number)))
        (one if number % 2 else two).run_once()
    store = AuditStore(file)
    assert (store.total(), list(broken_chain(store))) == (6, [])


@pytest.mark.parametrize(
    ("statement", "value", "what"),
    [
        ("UPDATE messages SET xml = ? WHERE seq = 3", b"\0", "XML"),
        # A frame that asks for 64 PiB.
        ("UPDATE messages SET xml = ? WHERE seq = 3", b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 7 + b"\0", "XML"),
        ("UPDATE messages SET octets = ? WHERE seq = 3", 1, "XML"),
        ("DELETE FROM messages WHERE seq = 3", None, "missing"),
    ],
)
def test_tampering_shows(
    streams: RedisStreams,
    writer: Callable[..., AuditWriter],
    trail_database: TrailDatabase,
    orchestra: Orchestra,
    statement: str,
    value: object,
    what: str,
) -> None:
    """A changed text, and a removed row: each is named, and the command says no."""
    for number in range(5):
        streams.publish(MESSAGES, xml(text=str(number)))
    writer().run_once()
    good = orchestra("audit", "verify")
    assert (good.exit_code, "published 5, written 5, still to be written 0" in good.output) == (0, True)
    with trail_database.tamper() as db:
        db.execute(statement, [value] * statement.count("?"))
    bad = orchestra("audit", "verify")
    assert (bad.exit_code, what in bad.output) == (1, True), bad.output


def test_a_dead_letters_reason_stands_beside_its_message(
    redis: redis_py.Redis, streams: RedisStreams, writer: Callable[..., AuditWriter], file: Path | str
) -> None:
    """The refusal is audited with the message."""
    entry = streams.publish(MESSAGES, xml())
    one = writer()
    redis.xadd(
        keys.dead(0),
        {"stream": str(MESSAGES), "entry": entry, "rule": "expired", "reason": "too late", "attempts": 2},
    )
    assert one.run_once() == 2
    store = AuditStore(file)
    assert [r.dead for r in AuditReader(store).search(dead=True)] == ["expired: too late"]
    assert list(broken_chain(store)) == []


def test_a_conversation_is_shown_as_a_tree(
    streams: RedisStreams, writer: Callable[..., AuditWriter], orchestra: Orchestra
) -> None:
    """Each message stands below the one it follows upon; a session shows its own part."""
    root, child = new_message_id(), new_message_id()
    session = "ses_00" + "a" * 24
    streams.publish(DELEGATIONS, xml(message_id=root, sender="operator", task="ses_00" + "b" * 24))
    streams.publish(DELEGATIONS, xml(message_id=child, parent=root, task=session))
    streams.publish(MESSAGES, xml(sender="reviewer", parent=child))
    writer().run_once()
    whole = orchestra("audit", "show", CONVERSATION)
    lines = [line.partition("Z  ")[2] for line in whole.output.splitlines()[1:]]
    assert [line[: line.index(" →")] for line in lines] == [
        "task-delegation operator",
        "└ task-delegation lead",
        "  └ message reviewer",
    ]
    part = orchestra("audit", "show", session, "--json")
    assert [record["sender"] for record in json.loads(part.output)["messages"]] == ["lead", "reviewer"]
    for command in ("show", "replay"):
        unknown = orchestra("audit", command, "ses_nobody_knows")
        assert unknown.exit_code == 2
        assert "'ses_nobody_knows'" in unknown.stderr
        assert unknown.stderr.endswith("; `orchestra audit search` lists what is there\n")
    raw = orchestra("audit", "show", child, "--xml")
    assert raw.output.encode() == xml(message_id=child, parent=root, task=session)


def test_a_session_keeps_its_part_though_a_clock_was_put_back(file: Path | str) -> None:
    """What followed upon a message may have an earlier time than it, in another stream."""
    launch, reply, last = (new_message_id() for _ in range(3))
    said = [xml(message_id=last, parent=reply), xml(message_id=reply, parent=launch), xml(parent="x")]
    entries = [Entry(MESSAGES, f"{number}-0", octets, {}) for number, octets in enumerate(said, 1)]
    entries.append(Entry(DELEGATIONS, "9-0", xml(message_id=launch, task="t1"), {}))
    store = AuditStore(file)
    store.add([read_entry(entry, received_ms=1) for entry in entries])
    assert [record.message_id for record in AuditReader(store).find("t1")] == [last, reply, launch]


def test_launches_are_read_from_the_envelopes(
    streams: RedisStreams, writer: Callable[..., AuditWriter], file: Path | str, tmp_path: Path
) -> None:
    """What a session launched is known without the ledger; a copy of a launch is no second one."""
    parent, launch = "ses_00" + "b" * 24, new_message_id()
    children = [f"ses_00{number:024x}" for number in range(3)]
    streams.publish(DELEGATIONS, xml(message_id=launch, sender="operator", task=parent))
    for child in children:
        streams.publish(DELEGATIONS, xml(parent=launch, task=child))
    streams.publish(DELEGATIONS, xml(parent=launch, task=children[0]))
    writer().run_once()
    reader = AuditReader(AuditStore(file, read_only=True))
    proof = Proof(keys=KeyStore(tmp_path / "keys"))
    launches = reader.launches(CONVERSATION, parents={}, proof=proof)
    assert launches.children == {launch: set(children)}
    assert launch in launches.messages


def test_messages_are_found_by_what_is_known_of_them(
    streams: RedisStreams, writer: Callable[..., AuditWriter], orchestra: Orchestra
) -> None:
    """Text, type, sender and time narrow a search; the newest comes first."""
    for number in range(3):
        streams.publish(MESSAGES, xml(sender=f"agent-{number}", text=f"needle {number}"))
    streams.publish(DELEGATIONS, xml(task="t1"))
    writer().run_once()

    def senders(*arguments: str) -> list[str]:
        found = json.loads(orchestra("audit", "search", *arguments, "--json").output)
        return [record["sender"] for record in found["messages"]]

    assert senders("needle") == ["agent-2", "agent-1", "agent-0"]
    assert senders("needle 1", "--since", "1h") == ["agent-1"]
    assert senders("--type", "task-delegation") == ["lead"]
    assert senders("--sender", "agent-0", "--limit", "1") == ["agent-0"]
    assert senders("--until", "2020-01-01T00:00:00Z") == []
    assert sorted(senders("--since", "1h")) == ["agent-0", "agent-1", "agent-2", "lead"]


def test_an_absent_database_is_named(orchestra: Orchestra) -> None:
    """One line says where it was looked for and what to do."""
    result = orchestra("audit", "search")
    assert result.exit_code == 2
    assert "audit.sqlite" in result.output
    assert "orchestra service audit" in result.output


def test_a_chain_that_leads_back_to_itself_is_shown_too(file: Path | str) -> None:
    """External programs may write anything; nothing is left out."""
    store = AuditStore(file)
    one, two = new_message_id(), new_message_id()
    pairs = [(one, two), (two, one)]
    records = [
        read_entry(Entry(MESSAGES, f"{number}-0", xml(message_id=mine, parent=above), {}), received_ms=number)
        for number, (mine, above) in enumerate(pairs)
    ]
    store.add(records)
    roots = trees(list(store.messages()))
    assert [(root.record.message_id, len(root.replies)) for root in roots] == [(two, 1)]


def test_a_report_counts_what_was_said(
    redis: redis_py.Redis,
    streams: RedisStreams,
    writer: Callable[..., AuditWriter],
    orchestra: Orchestra,
) -> None:
    """By type and agent; dead letters by rule; how long tasks took; within a time if wanted."""
    streams.publish(DELEGATIONS, xml(sender="operator", task="t1"))
    for number in range(3):
        entry = streams.publish(MESSAGES, xml(sender=f"agent-{number % 2}"))
    redis.xadd(
        keys.dead(0),
        {"stream": str(MESSAGES), "entry": entry, "rule": "expired", "reason": "x", "attempts": 1},
    )
    done = xml(task="t1").replace(b"task-delegation", b"task-completion")
    streams.publish(StreamId(0, "task-completion", "high"), done)
    writer().run_once()
    facts = json.loads(orchestra("audit", "report", "--json").output)
    assert (facts["messages"], facts["by_type"]["message"]) == (5, 3)
    assert facts["failures"] == [{"rule": "expired", "checked_by": "router", "count": 1}]
    agents = {row["agent"]: row for row in facts["agents"]}
    assert (agents["agent-0"]["sent"], agents["reviewer"]["received"]) == (2, 5)
    assert agents["reviewer"]["tasks"]["count"] == 1
    nothing = orchestra("audit", "report", "--until", "2020-01-01T00:00:00Z", "--json")
    assert json.loads(nothing.output)["messages"] == 0
    said = orchestra("audit", "report").output
    assert "         5  messages in 1 conversation, " in said
    assert "    80.00 %  delivered: 1 dead, 0 tried again\n"[2:] in said


def test_a_group_that_was_removed_is_made_again_and_no_entry_is_lost(
    redis: redis_py.Redis, streams: RedisStreams, writer: Callable[..., AuditWriter], file: Path | str
) -> None:
    """Of messages and of dead letters; what was written already is not written twice."""
    one = writer()
    streams.publish(MESSAGES, xml())
    assert one.run_once() == 1
    for key in (stream_key(MESSAGES), keys.dead(0)):
        assert redis.xgroup_destroy(key, "audit")
    streams.publish(MESSAGES, xml())
    act_until(
        lambda: len(AuditReader(AuditStore(file)).search()) >= 2 and b"audit" in groups(redis, keys.dead(0)),
        one.run_once,
    )
    assert len(AuditReader(AuditStore(file)).search()) == 2
    assert b"audit" in groups(redis, stream_key(MESSAGES))


def groups(redis: redis_py.Redis, key: str) -> list[bytes]:
    return [row["name"] for row in redis.xinfo_groups(key)]


def test_writers_that_are_gone_are_forgotten_once_they_hold_nothing(
    redis: redis_py.Redis, streams: RedisStreams, writer: Callable[..., AuditWriter]
) -> None:
    streams.publish(MESSAGES, xml())
    one = writer(reclaim_idle_ms=1)
    holding = [Portion([MESSAGES], 10)]
    assert streams.read("audit", "holding", holding)
    redis.xgroup_createconsumer(keys.dead(0), "audit", "idle")

    def names(key: str) -> set[bytes]:
        return {row["name"] for row in redis.xinfo_consumers(key, "audit")}

    def tidy() -> None:
        one._consumer.tidy(gone_ms=1)

    def work() -> None:
        one.run_once()
        tidy()

    act_until(lambda: b"idle" not in names(keys.dead(0)), tidy)
    assert b"holding" in names(stream_key(MESSAGES))
    act_until(lambda: b"holding" not in names(stream_key(MESSAGES)), work)


def test_a_reader_refuses_what_is_older_or_newer_and_says_what_to_do(trail_database: TrailDatabase) -> None:
    AuditStore(trail_database.where).close()
    for revision, hint in (("0000", "`orchestra service audit`"), ("9999", "upgrade agent-orchestra")):
        with trail_database.tamper() as tampering:
            tampering.execute("UPDATE alembic_version SET version_num = ?", [revision])
        with pytest.raises(AuditError, match=hint):
            AuditStore(trail_database.where, read_only=True)


def test_a_reader_makes_nothing(tmp_path: Path, postgres_server: PostgresServer) -> None:
    """Neither a file nor a table."""
    url = postgres_server.make()
    for where in (tmp_path / "none.sqlite", url):
        with pytest.raises(AuditError, match="orchestra service audit"):
            AuditStore(where, read_only=True)
    assert list(tmp_path.iterdir()) == []
    postgres_server.drop(url)


def test_what_anybody_may_append_ends_no_writer(
    redis: redis_py.Redis, writer: Callable[..., AuditWriter], file: Path | str
) -> None:
    """An id later than any calendar, and octets that no database takes as text."""
    one = writer()
    late = f"{1 << 63}-0"
    redis.xadd(stream_key(MESSAGES), {"envelope": xml()}, id=late)
    redis.xadd(
        keys.dead(0), {"stream": "00/message/normal", "entry": late, "rule": "r\0", "reason": b"\xff\0"}
    )
    redis.xadd(keys.transitions(0), {"commit": "session ses_x - idle"}, id=late)
    assert one.run_once() == 3
    (found,) = AuditReader(AuditStore(file)).search(dead=True)
    assert (found.entry_id, found.published) == (late, "9999-12-31T23:59:59.999Z")
    assert found.dead == "r\ufffd: \ufffd\ufffd"


def test_only_its_owner_reads_the_database_and_what_was_exported(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        AuditStore(tmp_path / "audit.sqlite").close()
        export(AuditStore(tmp_path / "audit.sqlite", read_only=True), tmp_path / "trail.zst")
    finally:
        os.umask(before)
    assert {
        file.name: file.stat().st_mode & 0o077 for file in tmp_path.iterdir() if file.stat().st_mode & 0o077
    } == {}
