"""The ledger's transitions are in the audit trail: all of them, each once, chained as messages are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from orchestrator.audit import AuditStore, AuditWriter
from orchestrator.audit.store import Changes
from orchestrator.audit.transfer import load
from orchestrator.audit.transitions import Step, pack
from orchestrator.audit.verification import broken_chain
from orchestrator.ids import root_session_id
from orchestrator.redisdb import keys
from orchestrator.streams import TRANSITIONS, Portion, ledger_streams
from tests.kit import Kit, carried
from tests.postgres import TrailDatabase
from tests.transitions import disagreements


def a_tree(kit: Kit, seed: str = "root") -> str:
    """A root with a child that answers, one that fails, and one that is stopped; done when the root has answered."""
    root, *children = kit.parent_of("a", "b", "c", seed=seed)
    kit.finish(children[0])
    kit.finish(children[1], status="failed")
    kit.ledger.stop(children[2], "enough")
    kit.commit(kit.resume(root).claim)
    return root


def published(redis: redis_py.Redis) -> int:
    return int(redis.hget(keys.totals(0), "published:ledger:transitions") or 0)


def test_the_trail_leads_to_what_the_ledger_has(
    redis: redis_py.Redis, kit: Kit, writer: Callable[..., AuditWriter], trail_database: TrailDatabase
) -> None:
    """Sessions, runs and callbacks, step by step; as many steps as were published, and none twice."""
    root = a_tree(kit)
    writer().run_once()
    store = AuditStore(trail_database.where, read_only=True)
    assert disagreements(kit.ledger, store, [root]) == []
    changes = Changes(store)
    said = [(c.kind, c.state) for c in changes.of(root) if c.kind in ("session", "run")]
    start = [("session", "pending"), ("run", "queued"), ("run", "running"), ("session", "running")]
    again = [("run", "queued"), ("run", "running"), ("session", "running")]
    ends = [("run", "completed"), ("session", "idle"), ("run", "completed"), ("session", "finished")]
    assert said == [*start, *ends[:2], *again, *ends[2:]]
    assert {c.by for c in changes.of(root)} >= {"launch", "start", "claim", "commit", "flush"}
    steps = {c.entry_id for c in changes.page(limit=10_000)[0]}
    assert len(steps) == published(redis) == store.ends().transitions.entries
    assert store.counts()["00/ledger/transitions"] == published(redis)
    assert list(broken_chain(store)) == []


def test_the_trail_says_that_a_scheduled_session_has_begun(
    kit: Kit, writer: Callable[..., AuditWriter], trail_database: TrailDatabase
) -> None:
    ledger, root = kit.ledger, root_session_id("later")
    ledger.set_time(1_000)
    ledger.submit(root, agent="lead", prompt="p", envelope=carried(), correlation="c", at_ms=2_000)
    ledger.set_time(2_000)
    assert ledger.sweep.submit_due(root, sender="operator") == "submitted"
    writer().run_once()
    assert disagreements(ledger, AuditStore(trail_database.where, read_only=True), [root]) == []


def test_what_is_read_again_is_kept_once(
    redis: redis_py.Redis, kit: Kit, writer: Callable[..., AuditWriter], trail_database: TrailDatabase
) -> None:
    """A writer that died after its commit, a group that was removed, and two writers that each had a part."""
    one = writer()
    root = a_tree(kit)
    entries = one._consumer.read([_portion()])
    one._consumer.acknowledge = lambda *_, **__: None  # type: ignore[method-assign]
    one._held = entries[::2]
    one._write([])
    two = writer("a2", reclaim_idle_ms=0)
    assert two.run_once() == len(entries) - len(entries[::2]) + _messages(redis)
    redis.xgroup_destroy(keys.transitions(0), "audit")
    more = a_tree(kit, "another")
    while two.run_once() or _unread(redis):
        pass
    store = AuditStore(trail_database.where, read_only=True)
    assert store.ends().transitions.entries == published(redis)
    assert disagreements(kit.ledger, store, [root, more]) == []
    assert list(broken_chain(store)) == []


def _portion() -> Portion:
    return Portion(ledger_streams(TRANSITIONS), 1000)


def _messages(redis: redis_py.Redis) -> int:
    totals = redis.hgetall(keys.totals(0))
    return sum(
        int(n) for name, n in totals.items() if name.startswith(b"published:") and b"ledger" not in name
    )


def _unread(redis: redis_py.Redis) -> bool:
    groups = {row["name"]: row for row in redis.xinfo_groups(keys.transitions(0))}
    return (
        b"audit" not in groups
        or groups[b"audit"]["last-delivered-id"]
        != redis.xinfo_stream(keys.transitions(0))["last-generated-id"]
    )


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("UPDATE transitions SET document = ? WHERE seq = 2", "entries"),
        ("DELETE FROM transition_sessions WHERE seq = 2", "index"),
    ],
)
def test_tampering_shows(
    kit: Kit,
    writer: Callable[..., AuditWriter],
    trail_database: TrailDatabase,
    statement: str,
    what: str,
) -> None:
    """A document, or its index of sessions, that is changed is named; before, the trail is intact."""
    one = writer()
    for seed in ("one", "two", "three"):
        kit.given(seed)
        one.run_once()
    # The envelopes of the play are signed by nobody: only what is said of transitions counts here.
    good = kit.orchestra("audit", "verify")
    assert "transitions row" not in good.output
    assert "steps of the ledger: published 3, written 3" in good.output
    with trail_database.tamper() as db:
        db.execute(statement, [b"\0"] * statement.count("?"))
    bad = kit.orchestra("audit", "verify")
    lines = [line for line in bad.output.splitlines() if "transitions row" in line]
    assert lines
    assert what in lines[0]


#: A zstd frame that declares 2 ** 50 octets.
BOMB = b"\x28\xb5\x2f\xfd\xc0\x58" + (1 << 50).to_bytes(8, "little") + b"\x01\x00\x00"


@pytest.mark.parametrize("document", [b"\0", BOMB, pack([Step("x", "by", "run")])])
def test_a_changed_document_ends_no_writer_and_no_reader(
    kit: Kit,
    writer: Callable[..., AuditWriter],
    trail_database: TrailDatabase,
    document: bytes,
) -> None:
    """What it held is not known any more; what follows is written and shown, and `verify` names the row."""
    one = writer()
    kit.given("one")
    one.run_once()
    with trail_database.tamper() as db:
        db.execute("UPDATE transitions SET last_ms = 253402300799999, document = ?", [document])
    root = kit.given("two")
    assert one.run_once() > 0
    shown = kit.orchestra("audit", "transitions")
    assert (shown.exit_code, shown.stdout.count("pending"), root in shown.stdout) == (0, 1, True), (
        shown.output
    )
    assert kit.orchestra("audit", "report", "--format", "text").exit_code == 0
    bad = kit.orchestra("audit", "verify")
    assert "transitions row 1: its entries are not what was published" in bad.stdout


def test_they_are_pruned_and_carried_with_the_messages(
    redis: redis_py.Redis,
    kit: Kit,
    writer: Callable[..., AuditWriter],
    trail_database: TrailDatabase,
    tmp_path: Path,
) -> None:
    """An exported trail has them; what is pruned is counted as written still."""
    a_tree(kit)
    writer().run_once()
    file = tmp_path / "trail.zst"
    assert kit.orchestra("audit", "export", str(file)).exit_code == 0
    copy = AuditStore(tmp_path / "copy.sqlite")
    load(file, copy)
    original = AuditStore(trail_database.where, read_only=True)
    assert Changes(copy).page(limit=10_000) == Changes(original).page(limit=10_000)
    kit.orchestra("audit", "prune", "--older-than", "0s", "--json")
    assert Changes(original).page() == ([], None)
    assert original.counts()["00/ledger/transitions"] == published(redis)
    kit.given("after")
    writer("a2").run_once()
    assert original.ends().transitions.entries == published(redis)
    assert "transitions row" not in kit.orchestra("audit", "verify").output


def test_they_are_listed_a_page_at_a_time(
    kit: Kit, writer: Callable[..., AuditWriter], trail_database: TrailDatabase
) -> None:
    """Of a session, of a kind, of a time; every page goes on where the one before ended."""
    root = a_tree(kit)
    writer().run_once()

    def page(*arguments: str) -> Any:
        return json.loads(kit.orchestra("audit", "transitions", *arguments, "--json").output)

    whole = page(root)["transitions"]
    assert {change["session"] for change in whole} == {root}
    assert whole[0]["state"] == "finished"
    parts, before = [], None
    while True:
        part = page(root, "--limit", "3", *(["--before", str(before)] if before else []))
        parts += part["transitions"]
        before = part["next"]
        if before is None:
            break
    assert parts == whole
    callbacks = page("--kind", "callback")["transitions"]
    assert {change["kind"] for change in callbacks} == {"callback"}
    assert {change["state"] for change in callbacks} >= {"owed", "queued", "claimed", "delivered"}
    assert page("--until", "2020-01-01T00:00:00Z")["transitions"] == []
    text = kit.orchestra("audit", "transitions", root).output
    assert "session: finished  by commit\n" in text
    for before in ("x", "9" * 20 + ".1", "9" * 5000 + ".1"):
        bad = kit.orchestra("audit", "transitions", "--before", before, "--json")
        assert (bad.exit_code, "12.34" in bad.output) == (2, True)
    if isinstance(trail_database.where, Path):
        large = kit.orchestra("audit", "search", "--before", "9" * 20, "--json")
        assert (large.exit_code, "larger than the audit database can hold" in large.output) == (2, True)
