"""What the operator takes out of the audit trail, and the trail as a file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from sqlalchemy import select

from orchestrator.audit import AuditReader, AuditStore, Break, verification
from orchestrator.audit import database as audit_database
from orchestrator.audit.amendments import Amended
from orchestrator.audit.database import DEAD_LETTERS
from orchestrator.envelope.bodies import Message
from orchestrator.keyring import claims
from orchestrator.machine import isoformat
from orchestrator.streams import all_streams
from tests.claims import forged
from tests.integration.router.conftest import forge
from tests.integration.router.trail import broken, found, intact, said, spoil, store_of, told, verify, write
from tests.kit import Kit
from tests.postgres import TrailDatabase, on_sqlite
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("database")


def test_what_is_redacted_is_gone_and_the_trail_stays_whole(kit: Kit, database: TrailDatabase) -> None:
    """The text is in no file any more; the row says nothing without the operator's word for it."""
    told(kit, 3)
    (row,) = found(kit, "number 1")
    message = str(row["message_id"])
    with database.tamper() as db:
        (packed,) = db.execute("SELECT xml FROM messages WHERE message_id = ?", [message]).fetchone()
    done = kit.orchestra("audit", "redact", message, "--reason", "a person asked", "--json")
    assert (done.exit_code, json.loads(done.stdout)["rows"]) == (0, 1)
    assert found(kit, "number 1") == []
    for option in ("--xml", "--body"):
        shown = kit.orchestra("audit", "show", message, option)
        assert (shown.exit_code, shown.stdout) == (2, "")
        assert "the operator has removed the text of" in shown.stderr
    assert "the operator has removed its text" in kit.orchestra("audit", "show", message).stdout
    intact(kit)
    assert len(store_of(kit).messages()) == 3
    if isinstance(database.where, Path):
        files = database.where.parent.glob("audit.sqlite*")
        assert not any(gone in file.read_bytes() for file in files for gone in (b"number 1", packed))
    told(kit, 1)
    assert verify(kit).exit_code == 0
    again = kit.orchestra("audit", "redact", message, "--reason", "twice")
    assert (again.exit_code, "no message" in again.stderr) == (2, True)
    spoil(database, "DELETE FROM amendments")
    assert f"row {row['seq']}: its XML" in broken(kit)


def test_a_reader_of_what_was_there_is_named(
    kit: Kit, database: TrailDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it reads, the files of SQLite have the text; the next attempt removes it from there."""
    if not isinstance(database.where, Path):
        pytest.skip("PostgreSQL keeps it until it vacuums the table")
    monkeypatch.setattr(audit_database, "_BUSY_S", 0.2)
    told(kit, 2)
    (row,) = found(kit, "number 1")
    words = ["audit", "redact", str(row["message_id"]), "--reason", "a person asked"]
    files = sorted(database.where.parent.glob("audit.sqlite*"))
    store = store_of(kit)
    with store.database.snapshot():
        assert store.total() == 2
        busy = kit.orchestra(*words)
        assert (busy.exit_code, "its files keep it" in busy.stderr) == (2, True), busy.output
        assert any(b"number 1" in file.read_bytes() for file in files)
    kit.orchestra(*words)
    assert not any(b"number 1" in file.read_bytes() for file in files)
    assert verify(kit).exit_code == 0


def test_text_that_is_removed_without_the_operator_is_found(kit: Kit, database: TrailDatabase) -> None:
    """Neither an amendment that nobody signed nor one of another row covers it."""
    told(kit, 3)
    (row,) = found(kit, "number 1")
    kit.orchestra("audit", "redact", str(row["message_id"]), "--reason", "x")
    with database.tamper() as db:
        db.execute("UPDATE messages SET xml = ?, sha256 = '', salt = '' WHERE seq = 1", [b""])
        (document,) = db.execute("SELECT document FROM amendments").fetchone()
        db.execute("INSERT INTO amendments VALUES ('redaction', '1', ?)", [forged(document, seq=1)])
    bad = broken(kit)
    assert "the redaction of messages row 1 does not count" in bad
    assert "messages row 1: its XML" in bad


def test_a_tombstone_stands_for_what_was_pruned(kit: Kit, database: TrailDatabase) -> None:
    """The rest is whole, nothing counts as missing, and the writer goes on; without the tombstone the cut shows."""
    said(kit, 2)
    forge(kit, Message(content="junk"))
    kit.route()
    write(kit)
    with_all = store_of(kit).total()
    # The dead letter came after its message.
    newest = store_of(kit).query(select(DEAD_LETTERS.c.at_ms))[0][0] + 1
    told(kit, 2)
    assert kit.document("audit", "prune", "--older-than", isoformat(newest), "--dry-run") == {
        "messages": with_all,
        "dead_letters": 1,
        "transitions": 0,
        "removed": False,
    }
    assert kit.orchestra("audit", "prune", "--older-than", isoformat(newest)).exit_code == 0
    assert "2 messages" in intact(kit)
    told(kit, 1)
    assert verify(kit).exit_code == 0
    # All of it, one after the other, and it goes on.
    assert kit.orchestra("audit", "prune", "--older-than", "2100-01-01T00:00:00Z").exit_code == 0
    assert (verify(kit).exit_code, store_of(kit).total()) == (0, 0)
    told(kit, 1)
    assert verify(kit).exit_code == 0
    coverage = AuditReader(store_of(kit)).coverage(kit.streams, all_streams())
    assert sum(row.missing for row in coverage) == 0
    spoil(database, "DELETE FROM amendments")
    assert "are missing" in broken(kit)


def test_what_was_changed_is_not_pruned(kit: Kit, database: TrailDatabase) -> None:
    """The operator's word does not take the place of rows that somebody else wrote, nor does a forged tombstone count."""
    told(kit, 3)
    now = "2100-01-01T00:00:00Z"
    forgery = claims.unsigned(
        {
            "kind": "tombstone",
            "table": "transitions",
            "seq": 0,
            "chain": "",
            "counts": {"00/ledger/transitions": 9},
        }
    )
    changes = {
        "messages row 2: its facts": "UPDATE messages SET sender = 'mallory' WHERE seq = 2",
        "the end was cut off": "DELETE FROM messages WHERE seq = 3",
        "it is of another database": f"INSERT INTO amendments VALUES ('tombstone', 'transitions', '{forgery}')",
    }
    before = database.copy()
    for what, statement in changes.items():
        spoil(database, statement)
        rows = store_of(kit).total()
        for words in ([], ["--dry-run"]):
            refused = kit.orchestra("audit", "prune", "--older-than", now, *words)
            assert (refused.exit_code, what in refused.stderr) == (2, True), refused.output
        assert store_of(kit).total() == rows
        database.put_back(before)
    assert kit.orchestra("audit", "prune", "--older-than", now).exit_code == 0
    assert (verify(kit).exit_code, store_of(kit).total()) == (0, 0)


def test_a_trail_that_grows_is_not_taken_for_one_that_was_put_back(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither while it is verified or pruned, nor by a file of it that was exported before."""
    told(kit, 2)
    file = tmp_path / "trail.jsonl.zst"
    assert kit.orchestra("audit", "export", str(file)).exit_code == 0
    walk = verification.broken_chain

    def grow(store: AuditStore, amended: Amended) -> Iterator[Break]:
        told(kit, 1)
        return walk(store, amended)

    monkeypatch.setattr(verification, "broken_chain", grow)
    assert "the trail is intact" in intact(kit)
    pruned = kit.orchestra("audit", "prune", "--older-than", "1h")
    assert pruned.exit_code == 0, pruned.output
    copy = kit.orchestra("audit", "verify", "--file", str(file))
    assert (copy.exit_code, "2 messages, the trail is intact" in copy.stdout) == (0, True), copy.output


def test_an_exported_trail_is_verified_and_imported(
    kit: Kit, tmp_path: Path, database: TrailDatabase
) -> None:
    """Without any server; what was changed in the file shows, and a part of a file is refused."""
    told(kit, 3)
    file = tmp_path / "trail.jsonl.zst"
    assert kit.document("audit", "export", str(file))["messages"] == 3
    good = kit.orchestra("audit", "verify", "--file", str(file))
    assert (good.exit_code, "3 messages, the trail is intact" in good.stdout) == (0, True), good.output
    lines = (
        zstandard.ZstdDecompressor().decompressobj().decompress(file.read_bytes()).splitlines(keepends=True)
    )
    rows = [number for number, line in enumerate(lines) if b'"table":"messages"' in line]
    damaged = {
        "edited": [*lines[: rows[1]], lines[rows[1]].replace(b'"lead"', b'"mallory"'), *lines[rows[2] :]],
        "deleted": [*lines[: rows[1]], *lines[rows[2] :]],
        "cut off": [line for number, line in enumerate(lines) if number != rows[2]],
    }
    for how, changed in damaged.items():
        other = tmp_path / "changed.zst"
        other.write_bytes(zstandard.ZstdCompressor().compress(b"".join(changed)))
        bad = kit.orchestra("audit", "verify", "--file", str(other))
        assert (bad.exit_code, "broken: messages row" in bad.stdout) == (1, True), (how, bad.output)
    row = json.loads(lines[rows[0]])
    for damage in (
        b"[]\n",
        b"5\n",
        b"[" * 100_000 + b"\n",
        b'{"table":["messages"]}\n',
        json.dumps({**row, "xml": "="}).encode() + b"\n",
        json.dumps({**row, "xml": 5}).encode() + b"\n",
        json.dumps({**row, "seq": 1 << 70}).encode() + b"\n",
        json.dumps({**row, "stream": None}).encode() + b"\n",
        lines[rows[0]] * 2,
    ):
        other.write_bytes(zstandard.ZstdCompressor().compress(b"".join([lines[0], damage, *lines[1:]])))
        bad = kit.orchestra("audit", "verify", "--file", str(other))
        assert (bad.exit_code, bad.stderr.startswith("Error: the audit database")) == (2, True), damage
    other.write_bytes(zstandard.ZstdCompressor().compress(b"".join(lines[:-1])))
    half = kit.orchestra("audit", "verify", "--file", str(other))
    assert (half.exit_code, "its end is missing" in half.stderr) == (2, True), half.output


def test_a_search_has_pages_and_more_filters(kit: Kit) -> None:
    """Every filter narrows it; `next` leads through all of it."""
    said(kit, 5)
    forge(kit, Message(content="junk"))
    kit.route()
    write(kit)
    page = kit.document("audit", "search", "--limit", "4")
    rest = kit.document("audit", "search", "--before", str(page["next"]))
    assert (len(page["messages"]), len(rest["messages"]), rest["next"]) == (4, 2, None)
    newest = page["messages"][0]
    assert len(found(kit, "--rule", "signature-missing")) == 1
    assert found(kit, "--rule", "expired") == found(kit, "--attempt", "2") == []
    assert len(found(kit, "--priority", "normal")) == 6
    one = found(kit, "--correlation", newest["correlation_id"])
    assert {row["correlation_id"] for row in one} == {newest["correlation_id"]}
    diagram = kit.orchestra("audit", "show", newest["correlation_id"], "--mermaid").stdout
    assert diagram.startswith("sequenceDiagram\n    participant p0 as ")
    assert "--xp" in diagram or "->>p" in diagram


@on_sqlite("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_verification_that_is_ended_leaves_no_copy_of_the_trail(
    tmp_path: Path, number: signal.Signals
) -> None:
    """It waits for what is never written, with its copy begun."""
    file, scratch = tmp_path / "trail", tmp_path / "scratch"
    os.mkfifo(file)
    scratch.mkdir()
    command = [sys.executable, "-m", "orchestrator", "audit", "verify", "--data", str(tmp_path / "data")]
    env = {**os.environ, "TMPDIR": str(scratch)}
    process = subprocess.Popen([*command, "--file", str(file)], env=env)
    try:
        wait_until(lambda: list(scratch.glob("*/audit.sqlite")))
        process.send_signal(number)
        process.wait()
        wait_until(lambda: not list(scratch.glob("orchestra-audit-*")))
    finally:
        process.kill()
        process.wait()
