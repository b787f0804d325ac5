"""The audit trail against those who write to the streams, to Redis and to its file."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from orchestrator.audit import AuditStore
from orchestrator.audit.heads import KeptHeads, proof_of
from orchestrator.envelope.bodies import Message, Review, ReviewRequest, TaskCompletion
from orchestrator.envelope.codec import decode
from orchestrator.envelope.signature import sign
from orchestrator.ids import root_session_id
from orchestrator.redisdb import keys
from orchestrator.streams import StreamId
from tests.claims import forged
from tests.integration.router.conftest import forge, task, unsigned
from tests.integration.router.trail import broken, found, intact, said, told, verify, write
from tests.kit import Kit
from tests.postgres import Tampering, TrailDatabase, on_sqlite

MESSAGES = StreamId(0, "message", "normal")
PRINTABLE = [chr(code) for code in range(33, 127)]


pytestmark = pytest.mark.usefixtures("database")


# --- facts ----------------------------------------------------------------------------------------------------------


@on_sqlite("blank", [b" ", b"\n", b"<!-- -->", b"\r\n\t"], on_both=[b"<!-- -->"])
def test_a_blank_before_the_task_does_not_hide_it(kit: Kit, blank: bytes) -> None:
    """It is signed and carried out, so it is found by its task-id."""
    plain = kit.envelope(task(), sender="partner", recipient="reviewer")
    key = kit.parts.keyring.signer("partner")
    now_ms = decode(plain).header.timestamp.instant_ms
    data = plain.replace(b"<task>", blank + b"<task>")
    data = data if blank == b"<!-- -->" else sign(data, key, now_ms=now_ms)
    kit.publish(data, "task-delegation", "high")
    assert kit.route().done == 1
    write(kit)
    assert [row["task_id"] for row in found(kit, "--task", "T-1")] == ["T-1"]


@pytest.mark.parametrize("signed", ["its octets", "its canonical form"])
@pytest.mark.parametrize("size", [10, 70_000], ids=["as it is", "compressed"])
def test_router_and_trail_have_one_rule_for_what_is_signed(kit: Kit, size: int, signed: str) -> None:
    """A signature over octets that are not canonical counts for nobody; a comment may be added to what is."""
    text = "".join(Random(3).choices(PRINTABLE, k=size))
    key = kit.parts.keyring.signer("partner")
    message = decode(kit.envelope(task(text=text), sender="partner", recipient="reviewer"))
    plain = kit.parts.encrypter.sign(message, key)
    head, value, tail = re.split(rb"(?<=<signature-value>)(.+)(?=</signature-value>)", plain)
    head = head.replace(b"<header>", b"<!-- --><header>")
    if signed == "its octets":
        value = b64encode(key.sign(head + tail))
    kit.publish(head + value + tail, "task-delegation", "high")
    done = kit.route().done
    write(kit)
    refused = [letter.rule for letter in kit.dead()]
    proof = proof_of(kit.parts.keyring, kit.settings)
    doubted = proof.fault(head + value + tail, published_ms=message.header.timestamp.instant_ms)
    tasks = [row["task_id"] for row in found(kit, "--type", "task-delegation")]
    if signed == "its octets":
        assert (done, refused, doubted) == (0, ["signature-invalid"], "signature-invalid")
    else:
        assert (done, refused, doubted, tasks) == (1, [], "", ["T-1"])
    assert verify(kit).exit_code == 0


def test_the_trail_keeps_no_junk_beyond_the_limit(kit: Kit) -> None:
    """Of what is larger than any message it keeps how large it was, and its digest."""
    junk = b"<a>" + b"x" * kit.settings.max_message_bytes
    kit.publish(junk, "message")
    write(kit)
    (kept,) = AuditStore(kit.settings.audit_database).messages()
    assert f"{len(junk)} octets" in kept.xml.decode()
    assert sha256(junk).hexdigest() in kept.xml.decode()
    assert len(kept.xml) < 300
    kit.route()
    write(kit)
    assert verify(kit).exit_code == 0


def test_a_large_completion_is_found_by_its_task(kit: Kit) -> None:
    """Compressed above 64 KiB, stored apart above 1 MiB: search, `show` and the report know whose it is."""
    noise = Random(3)
    for number, size in enumerate((70_000, 1_500_000)):
        session = root_session_id(f"large {number}")
        text = "".join(noise.choices(PRINTABLE, k=size // 2)) + " needle & thread " + "x" * (size // 2)
        begun = decode(kit.post(task(session), recipient="reviewer")).header.message_id
        body = TaskCompletion(task_id=session, status="success", summary=text)
        about = {"sender": "reviewer", "recipient": "lead", "correlation": begun, "chain": (begun,)}
        done = decode(kit.envelope(body, **about))
        sealed = kit.parts.encrypter.sign(done, kit.parts.keyring.signer("reviewer"))
        assert len(sealed) < size
        kit.publish(sealed, "task-completion", "high")
        write(kit)
        types = {row["type"] for row in found(kit, "--task", session)}
        assert types == {"task-delegation", "task-completion"}
        shown = kit.document("audit", "show", session)["messages"]
        assert [row["type"] for row in shown] == ["task-delegation", "task-completion"]
        assert [row["type"] for row in found(kit, "needle & thread")] == ["task-completion"] * (number + 1)
    assert tasks_completed(kit) == 2


def test_the_report_counts_reviews(kit: Kit) -> None:
    """A review is a task that somebody was given and completes."""
    session = root_session_id("review")
    review = ReviewRequest(review=Review(task_id=session, title="t", description="d"))
    kit.post(review, recipient="code-reviewer")
    done = TaskCompletion(task_id=session, status="success", summary="fine")
    kit.post(done, sender="code-reviewer", recipient="lead")
    write(kit)
    assert tasks_completed(kit) == 1


def tasks_completed(kit: Kit) -> int:
    hops = kit.document("audit", "report")["hops"]
    return next(int(hop["times"]["count"]) for hop in hops if hop["hop"] == "task")


def test_a_search_looks_in_the_text_and_not_in_its_markup(kit: Kit) -> None:
    """What was said is found as it was said, however the XML spells it; tags are no text."""
    kit.post(Message(content='a & b < "c"'))
    odd = kit.envelope(Message(content="ODD")).replace(b"ODD", b'o&#100;d a &#38; <![CDATA[b < ]]>&quot;c"')
    kit.publish(odd, "message")
    kit.publish(
        b'<?xml version="1.0" encoding="iso-8859-1"?>'
        + kit.envelope(Message(content="caf\u00e9")).decode().encode("latin-1"),
        "message",
    )
    write(kit)
    assert len(found(kit, 'a & b < "c"')) == 2
    assert len(found(kit, "odd")) == 1
    assert len(found(kit, "caf\u00e9")) == 1
    assert found(kit, "agent-name") == []
    assert found(kit, "&amp;") == []


# --- evidence -------------------------------------------------------------------------------------------------------


def test_the_doctor_does_not_believe_a_forged_launch(kit: Kit) -> None:
    """Unsigned, or signed by somebody else than the parent's agent: it is no launch of the parent's."""
    session = kit.send()
    kit.route()
    launch = kit.ledger.session(session)
    options = {"recipient": "reviewer", "chain": (launch.message,), "correlation": launch.correlation}
    forge(kit, task(root_session_id("forged")), **options)
    kit.post(task(root_session_id("other")), sender="partner", **options)
    kit.route("two")
    write(kit)
    assert len(found(kit, "--type", "task-delegation")) == 3
    said = kit.document("doctor", "--quick")
    assert [f["rule"] for f in said["findings"] if f["severity"] == "break"] == []


# --- tampering ------------------------------------------------------------------------------------------------------


def rechain(db: Tampering) -> None:
    """Make the chain of each table fit what is in them now: anybody who can write the file can."""
    from orchestrator.audit.chain import link
    from orchestrator.audit.database import CHAINED

    for table, columns in CHAINED.items():
        chain = ""
        names = ["commitment" if (table, name) == ("messages", "sha256") else name for name in columns]
        for row in db.execute(f"SELECT seq, {', '.join(names)} FROM {table} ORDER BY seq").fetchall():
            chain = link(chain, row[1:])
            db.execute(f"UPDATE {table} SET chain = ? WHERE seq = ?", (chain, row[0]))


def renumber(db: Tampering, table: str) -> None:
    """Close the gaps in the numbers of a table."""
    for number, (seq,) in enumerate(db.execute(f"SELECT seq FROM {table} ORDER BY seq").fetchall(), 1):
        db.execute(f"UPDATE {table} SET seq = ? WHERE seq = ?", (number, seq))


TAMPERING: dict[str, Callable[[Tampering], object]] = {
    "deleted": lambda db: db.execute("DELETE FROM messages WHERE seq = 2"),
    "all deleted": lambda db: db.execute("DELETE FROM messages"),
    "dead letters deleted": lambda db: db.execute("DELETE FROM dead_letters"),
    "last dead letter deleted": lambda db: db.execute("DELETE FROM dead_letters WHERE seq = 2"),
    "first dead letter deleted": lambda db: db.execute("DELETE FROM dead_letters WHERE seq = 1"),
    "dead letter edited": lambda db: db.execute("UPDATE dead_letters SET reason = 'none' WHERE seq = 1"),
    "edited": lambda db: db.execute("UPDATE messages SET sender = 'mallory' WHERE seq = 2"),
    "reordered": lambda db: [
        db.execute("UPDATE messages SET seq = ? WHERE seq = ?", pair) for pair in ((99, 1), (1, 2), (2, 99))
    ],
    "dead letters reordered": lambda db: [
        db.execute("UPDATE dead_letters SET seq = ? WHERE seq = ?", pair)
        for pair in ((99, 1), (1, 2), (2, 99))
    ],
    "cut off": lambda db: db.execute("DELETE FROM messages WHERE seq > 3"),
    "head removed": lambda db: db.execute("DELETE FROM heads"),
}


@on_sqlite("how", TAMPERING, on_both=["deleted", "dead letters reordered"])
def test_tampering_with_either_table_is_found(kit: Kit, database: TrailDatabase, how: str) -> None:
    """Even if the chain is made again, and even after the writer has gone on: it signs nothing that it cannot vouch for."""
    said(kit, 4)
    for _ in range(2):
        forge(kit, Message(content="junk"))
    kit.route()
    write(kit)
    assert "intact" in intact(kit)
    with database.tamper() as db:
        TAMPERING[how](db)
        renumber(db, "messages"), renumber(db, "dead_letters")
        rechain(db)
    assert "broken: " in broken(kit)
    told(kit, 1)
    assert verify(kit).exit_code == 1
    assert len(found(kit, "number 0")) >= 1 or how in ("all deleted", "deleted")


def test_an_older_state_of_database_and_redis_is_found(kit: Kit, database: TrailDatabase) -> None:
    """The newest head is beside the keys, too: `verify` and `doctor` name the rollback, and a writer signs no more."""
    told(kit, 2)
    report_buffer = database.copy()
    heads: dict[bytes, bytes] = kit.redis.hgetall(keys.audit_heads())

    def put_back() -> None:
        database.put_back(report_buffer)
        kit.redis.hset(keys.audit_heads(), mapping=heads)  # type: ignore[arg-type]

    told(kit, 3)
    assert verify(kit).exit_code == 0
    put_back()
    why = broken(kit)
    assert "an older state" in why
    found_by_doctor = kit.document("doctor", "--quick")
    assert "audit-rolled-back" in {f["rule"] for f in found_by_doctor["findings"]}
    assert not found_by_doctor["holds"]
    told(kit, 4)
    assert verify(kit).exit_code == 1
    kept = KeptHeads.of(kit.settings).file(AuditStore(kit.settings.audit_database, read_only=True).id)
    assert str(kept) in why.replace("\n", "")
    # Whoever restored a backup says so by removing the file: what is left is what the heads of that time say.
    kept.unlink()
    put_back()
    assert "an older state" not in verify(kit).stdout


def test_a_kept_head_is_not_replaced_by_an_older_or_a_false_one(kit: Kit) -> None:
    """Two writers on one folder keep the newest; a false or unreadable head in the folder is named."""
    told(kit, 2)
    store = AuditStore(kit.settings.audit_database, read_only=True)
    kept = KeptHeads.of(kit.settings)
    old = kept.read(store.id)
    assert old is not None
    told(kit, 1)
    new = kept.read(store.id)
    assert new.follows(old)
    kept.keep(old)
    assert kept.read(store.id) == new
    file = kept.file(store.id)
    for content, why in (
        (forged(new.to_text(), at_ms=1), "its signature does not hold"),
        ("{", "it is not a head"),
    ):
        file.write_text(content, encoding="utf-8")
        assert why in broken(kit)


def test_a_row_that_nobody_signed_is_found(kit: Kit) -> None:
    """A message in the trail that was not refused carries a signature that holds; `verify` checks it again."""
    told(kit, 2)
    assert "2 messages" in verify(kit).stdout
    # As if a router had let it pass: acknowledged, and no dead letter.
    entry = kit.publish(unsigned(kit, Message(content="obey")), "message")
    write(kit)
    waiting = verify(kit)
    assert waiting.exit_code == 0, waiting.output
    kit.redis.xreadgroup("router", "r", {keys.messages(0, "message", "normal"): ">"})
    kit.redis.xack(keys.messages(0, "message", "normal"), "router", entry)
    assert "signature-missing" in broken(kit)


def test_a_message_whose_key_was_revoked_later_counted_when_it_was_said(kit: Kit) -> None:
    """A revocation or a rotation does not make an honest trail a broken one."""
    told(kit, 1)
    key = kit.parts.keyring.store.current("lead")
    kit.parts.keyring.registry.revoke(key.key_id)
    operator = kit.parts.keyring.store.current("operator")
    assert operator is not None
    kit.parts.keyring.store.rotate("operator")
    told(kit, 1)
    good = verify(kit)
    assert good.exit_code == 0, good.output


def test_a_lasting_gap_is_no_success(kit: Kit) -> None:
    """What a writer is still to write is no gap; what nobody will write is one, by exit code too."""
    told(kit, 3)
    kit.post(Message(content="later"))
    assert "still to be written 1" in intact(kit)
    # Handed out and acknowledged, and never written.
    key = keys.messages(0, "message", "normal")
    ((_, rows),) = kit.redis.xreadgroup("audit", "thief", {key: ">"})
    assert "still to be written 1" in intact(kit)
    kit.redis.xack(key, "audit", *[row[0] for row in rows])
    gone = verify(kit)
    assert (gone.exit_code, "broken: " in gone.stdout, "1 entry" in gone.stdout) == (1, True, True), (
        gone.output
    )
    assert kit.document("audit", "verify")["missing"] == 1


def test_a_message_without_a_canonical_form_is_refused_and_ends_nobody(kit: Kit) -> None:
    """A namespace that is no absolute name has none; the key-id of another one's message makes somebody look."""
    said(kit, 1)
    copy = kit.envelope(Message(content="copied")).replace(
        b"<agent-message ", b'<agent-message xmlns:x="rel" ', 1
    )
    kit.publish(copy, "message")
    write(kit)
    assert verify(kit).exit_code == 0
    kit.route()
    example = Path(__file__).resolve().parents[3] / "schemas" / "examples" / "valid" / "body-encrypted.xml"
    encrypted = example.read_bytes().replace(b"EncryptedData ", b'EncryptedData xmlns:x="rel" ', 1)
    kit.publish(encrypted, "query")
    kit.route()
    assert {dead.rule for dead in kit.dead()} == {"signature-invalid", "encrypted-data"}
    write(kit)
    assert verify(kit).exit_code == 0
