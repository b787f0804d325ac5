"""Large bodies are kept whole in the trail, each once, for as long as the trail says; and their words are found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import zstandard
from sqlalchemy import text as sql

from orchestrator.audit import AuditStore
from orchestrator.envelope.codec import decode
from tests.integration.router.trail import (
    broken,
    forget_payloads,
    found,
    large,
    say,
    spoil,
    store_of,
    verify,
    write,
    writer,
)
from tests.kit import Kit
from tests.postgres import TrailDatabase, on_sqlite

pytestmark = pytest.mark.usefixtures("database")


def test_a_stored_body_outlives_the_payload_store(kit: Kit, database: TrailDatabase) -> None:
    """Kept whole and once for all messages that have it; shown when Redis has forgotten it; carried by an export."""
    text = large("ne1edle")
    first, second = say(kit, text), say(kit, text)
    write(kit)
    forget_payloads(kit)
    store = store_of(kit)
    assert len(store.query(sql("SELECT sha256 FROM bodies"))) == 1
    for message in (first, second):
        shown = kit.orchestra("audit", "show", message, "--body")
        assert shown.exit_code == 0
        assert text in shown.stdout
    assert verify(kit).exit_code == 0
    assert {row["message_id"] for row in found(kit, "NE1EDLE")} == {first, second}


FOUND = {
    "DELETE FROM bodies": "its stored body is missing",
    "UPDATE bodies SET content = ?": "its stored body was changed",
    "UPDATE messages SET body = ''": "its XML is not what was published",
    "UPDATE messages SET status = 'success'": "its XML is not what was published",
}


@on_sqlite("statement", FOUND, on_both=["UPDATE bodies SET content = ?"])
def test_a_body_that_is_changed_or_removed_is_found(
    kit: Kit, database: TrailDatabase, statement: str
) -> None:
    say(kit, large("x"))
    write(kit)
    with database.tamper() as db:
        db.execute(statement, [b"\0"] * statement.count("?"))
    assert f"messages row 1: {FOUND[statement]}" in broken(kit)


FIRST_WORDS = "WHERE rowid IN (SELECT rowid FROM message_words ORDER BY rowid LIMIT 1)"


@on_sqlite(
    "statement",
    [
        f"DELETE FROM message_words {FIRST_WORDS}",
        f"UPDATE message_words SET words = 'nothing' {FIRST_WORDS}",
        "UPDATE message_words_content SET c0 = 'nothing' WHERE id IN (SELECT id FROM message_words_content LIMIT 1)",
    ],
    on_both=[f"UPDATE message_words SET words = 'nothing' {FIRST_WORDS}"],
)
def test_words_that_are_removed_or_changed_are_found(
    kit: Kit, database: TrailDatabase, statement: str
) -> None:
    """Searches would miss the message. What is not indexed yet is read."""
    for text in ("needle", large("needle"), "another needle"):
        say(kit, text)
    write(kit)
    assert verify(kit).exit_code == 0
    spoil(database, statement)
    bad = broken(kit)
    assert "messages row 1: its words in the index of searches were changed" in bad
    with database.tamper() as db:  # as the page says
        db.execute("DELETE FROM message_words")
    assert len(found(kit, "needle")) == 3
    write(kit)
    assert (verify(kit).exit_code, len(found(kit, "needle"))) == (0, 3)


def _defined(index: str, old: str, new: str) -> str:
    """A statement that changes how SQLite understands an index, and nothing that is in it."""
    return f"UPDATE sqlite_master SET sql = replace(sql, '{old}', '{new}') WHERE name = '{index}'"


_CONTENT = "content='''',columnsize"
_REBUILD = "INSERT INTO message_words (message_words) VALUES ('rebuild')"
_TAKEN_OUT = (
    _defined("message_words", "columnsize", _CONTENT),
    "INSERT INTO message_words (message_words, rowid, words) SELECT 'delete', id, c0 FROM message_words_content ORDER BY id LIMIT 1",
    _defined("message_words", _CONTENT, "columnsize"),
)
_ROW_LEFT_OUT = (
    "UPDATE sqlite_master SET sql = sql || ' WHERE seq != 1' WHERE name = 'messages_by_sender'",
    "REINDEX messages_by_sender",
    _defined("messages_by_sender", " WHERE seq != 1", ""),
)


#: Statements of somebody who may write to the file, a search that misses messages then, what is said of it, what mends it.
SPOILT_INDEXES: list[tuple[Sequence[str], list[str], str, str]] = [
    (_TAKEN_OUT, ["needle"], "message_words row 0: the index of searches does not hold", _REBUILD),
    (
        ["UPDATE message_words_data SET block = x'00000000000000' WHERE id = 10"],  # it has no segments
        ["needle"],
        "message_words row 0: the index of searches does not hold",
        _REBUILD,
    ),
    (
        [_defined("message_words", "remove_diacritics 0", "remove_diacritics 0 separators e")],
        ["needle"],
        "message_words row 0: the index of searches is not the one that was made",
        _defined("message_words", " separators e", ""),
    ),
    (_ROW_LEFT_OUT, ["--sender", "lead"], "missing from index messages_by_sender", "REINDEX"),
]


@on_sqlite("spoilt", SPOILT_INDEXES)
def test_an_index_of_sqlite_that_misses_messages_is_found(
    kit: Kit, database: TrailDatabase, spoilt: tuple[list[str], list[str], str, str]
) -> None:
    """All rows are what was written, and a search does not find them. PostgreSQL lets nobody write into an index."""
    statements, asked, what, mended = spoilt
    for _ in range(3):
        say(kit, "needle")
    write(kit)
    assert (verify(kit).exit_code, len(found(kit, *asked))) == (0, 3)
    for statement in statements:
        change(database, statement)
    assert len(found(kit, *asked)) < 3
    assert what in broken(kit)
    change(database, mended)
    assert (verify(kit).exit_code, len(found(kit, *asked))) == (0, 3)


def change(database: TrailDatabase, statement: str) -> None:
    """By somebody who may write to the file: SQLite's own tables, too. The next connection reads the schema anew."""
    with database.tamper() as db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute(statement)


@on_sqlite("changed", [b"\0", FORGED := zstandard.compress(b"forged")], on_both=[FORGED])
def test_a_body_that_is_changed_is_used_by_nobody(kit: Kit, database: TrailDatabase, changed: bytes) -> None:
    """Neither a search, nor the writer's index, nor a replay, which would act upon a body that nobody has signed."""
    message = say(kit, large("needle"))
    write(kit)
    sha256 = str(store_of(kit).query(sql("SELECT sha256 FROM bodies"))[0][0])
    with database.tamper() as db:
        db.execute("UPDATE bodies SET content = ?", [changed])
        db.execute("DELETE FROM message_words")
    assert found(kit, "needle") == []
    assert store_of(kit).body(sha256) is None
    assert AuditStore(kit.parts.settings.audit_database).index(10) == 1
    assert kit.orchestra("audit", "show", message, "--body").exit_code == 0


def test_what_is_redacted_and_pruned_takes_its_body_and_its_words_along(
    kit: Kit, database: TrailDatabase, tmp_path: Path
) -> None:
    """A body goes with the last message that has it; neither file nor index keeps a word of it."""
    text = large("personaldatum")
    first, second, third = say(kit, text), say(kit, text), say(kit, "another plainword")
    write(kit)
    assert len(found(kit, "personaldatum")) == 2
    kit.orchestra("audit", "redact", first, "--reason", "asked")
    store = store_of(kit)
    assert len(store.query(sql("SELECT sha256 FROM bodies"))) == 1
    assert [row["message_id"] for row in found(kit, "personaldatum")] == [second]
    kit.orchestra("audit", "redact", second, "--reason", "asked")
    assert store.query(sql("SELECT sha256 FROM bodies")) == []
    assert found(kit, "personaldatum") == []
    if isinstance(database.where, Path):
        files = list(database.where.parent.glob("audit.sqlite*"))
        assert not any(b"personaldatum" in file.read_bytes() for file in files)
    assert verify(kit).exit_code == 0
    assert [row["message_id"] for row in found(kit, "plainword")] == [third]
    kit.orchestra("audit", "prune", "--older-than", "0s")
    assert found(kit, "plainword") == []
    assert store.query(sql("SELECT rowid FROM message_words")) == []
    say(kit, "later plainword")
    write(kit)
    assert len(found(kit, "plainword")) == 1
    assert verify(kit).exit_code == 0


def test_an_exported_trail_has_its_bodies(kit: Kit, tmp_path: Path) -> None:
    message = say(kit, large("needle"))
    write(kit)
    file = tmp_path / "trail.zst"
    assert kit.orchestra("audit", "export", str(file)).exit_code == 0
    assert kit.orchestra("audit", "verify", "--file", str(file)).exit_code == 0
    from orchestrator.audit.transfer import load

    copy = AuditStore(tmp_path / "copy.sqlite")
    load(file, copy)
    (record,) = copy.messages()
    assert record.message_id == message
    assert b" needle " in (copy.body(record.body) or b"")


def test_a_body_that_was_gone_before_the_writer_came_is_no_damage(kit: Kit) -> None:
    """The trail has the envelope, with the digest of what it does not have."""
    say(kit, large("x"))
    forget_payloads(kit)
    write(kit)
    (record,) = store_of(kit).messages()
    assert record.body == ""
    assert verify(kit).exit_code == 0


def test_words_are_found_in_what_is_indexed_and_in_what_is_not_yet(kit: Kit) -> None:
    """Phrases, escapes, letters of any script; the newest first, a page at a time, with the other conditions."""
    texts = [
        "Tom & Jerry <eat> cheese",
        "jerry & tom",
        "Änderung am Straßenplan",
        "日本 語 text",
        "snake_case word",
    ]
    ids = [say(kit, text) for text in texts]
    one = writer(kit)
    one.run_once()

    def check() -> None:
        def ids_of(*arguments: str) -> list[object]:
            return [row["message_id"] for row in found(kit, *arguments)]

        assert ids_of("tom") == [ids[1], ids[0]]
        assert ids_of("Tom & Jerry") == [ids[0]]
        assert ids_of("Jerry <eat>") == [ids[0]]
        assert ids_of("STRASSENPLAN") == [ids[2]]
        assert ids_of("日本") == [ids[3]]
        assert ids_of("case word") == [ids[4]]
        assert ids_of("cheese Änderung") == []
        assert ids_of("tom", "--limit", "1") == [ids[1]]
        assert ids_of("tom", "--before", "2") == [ids[0]]
        assert ids_of("tom", "--recipient", "nobody") == []
        assert ids_of("&") == []
        assert ids_of("message") == []  # markup is no text

    check()
    assert store_of(kit).indexed() == 0
    while one.run_once():
        pass
    one.run_once()
    assert store_of(kit).indexed() == len(ids)
    check()


def test_what_is_encrypted_is_not_indexed(kit: Kit) -> None:
    """Nor is the base64 of it, or of a signature."""
    from orchestrator.audit.text import text_of

    xml = (
        b'<agent-message xmlns="http://agent-orchestra.local/protocol/1.0"><header/><body type="message">'
        b'<x:EncryptedData xmlns:x="http://www.w3.org/2001/04/xmlenc#"><x:CipherData><x:CipherValue>c2VjcmV0'
        b"</x:CipherValue></x:CipherData></x:EncryptedData></body><signature>c2ln</signature></agent-message>"
    )
    assert text_of(xml).strip() == ""


def test_messages_are_found_by_what_they_came_to(kit: Kit) -> None:
    """By the status of a completion, and as dead letters."""
    from orchestrator.envelope.bodies import TaskCompletion

    ids = {}
    for status in ("success", "failed"):
        body = TaskCompletion(task_id="T-1", status=status, summary="s")
        data = kit.envelope(body, sender="reviewer", recipient="lead")
        ids[status] = decode(data).header.message_id
        kit.publish(data, "task-completion", "high")
    kit.publish(b"junk", "message")
    while kit.route().done:
        pass
    write(kit)

    def ids_of(*arguments: str) -> list[object]:
        return [row["message_id"] for row in found(kit, *arguments)]

    dead = {row["message_id"] for row in found(kit, "--outcome", "dead")}
    assert "" in dead
    for status, message in ids.items():
        assert ids_of("--outcome", status) == [m for m in [message] if m not in dead]
        assert ids_of("--message", message.upper()) == [message]
    assert ids_of("--outcome", "blocked") == []
