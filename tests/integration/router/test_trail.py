"""The audit trail against those who write to the streams, to Redis and to its file."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest
from click.testing import Result

from orchestrator.audit import AuditStore, AuditWriter, build_writer
from orchestrator.audit.heads import KeptHeads, proof_of
from orchestrator.envelope.bodies import Message, Review, ReviewRequest, Task, TaskCompletion, TaskDelegation
from orchestrator.envelope.codec import decode, encode_unsigned
from orchestrator.envelope.model import Body
from orchestrator.envelope.signature import sign
from orchestrator.ids import root_session_id
from orchestrator.redisdb import keys
from orchestrator.streams import StreamId
from tests.claims import forged
from tests.integration.router.conftest import Stack
from tests.postgres import Tampering, TrailDatabase, on_sqlite

MESSAGES = StreamId(0, "message", "normal")
PRINTABLE = [chr(code) for code in range(33, 127)]


pytestmark = pytest.mark.usefixtures("database")


def found(stack: Stack, *arguments: str) -> list[dict[str, object]]:
    """What a search of the trail finds."""
    said = json.loads(stack.run("audit", "search", *arguments, "--json").stdout)
    rows: list[dict[str, object]] = said["messages"]
    return rows


def writer(stack: Stack) -> AuditWriter:
    """The audit writer of the stack's data folder."""
    return build_writer(stack.parts, consumer="w")


def write(stack: Stack) -> None:
    """Let the audit writer write everything that was published."""
    one = writer(stack)
    while one.run_once():
        pass


def verify(stack: Stack) -> Result:
    """`orchestra audit verify`."""
    return stack.run("audit", "verify")


def unsigned(stack: Stack, body: Body, **options: object) -> bytes:
    """What a stranger who may append to the streams can write in anybody's name."""
    return encode_unsigned(decode(stack.envelope(body, **options)))  # type: ignore[arg-type]


def said(stack: Stack, number: int) -> list[str]:
    """Messages of an honest agent, routed."""
    texts = [f"number {n}" for n in range(number)]
    for text in texts:
        stack.publish(stack.envelope(Message(content=text)), "message")
    stack.router("honest").run_once()
    return texts


# --- facts ----------------------------------------------------------------------------------------------------------


@on_sqlite("blank", [b" ", b"\n", b"<!-- -->", b"\r\n\t"], on_both=[b"<!-- -->"])
def test_a_blank_before_the_task_does_not_hide_it(stack: Stack, blank: bytes) -> None:
    """It is signed and carried out, so it is found by its task-id."""
    body = TaskDelegation(task=Task(task_id="T-1", title="t", description="d"))
    plain = stack.envelope(body, sender="partner", recipient="reviewer")
    key = stack.parts.keyring.signer("partner")
    now_ms = decode(plain).header.timestamp.instant_ms
    data = plain.replace(b"<task>", blank + b"<task>")
    data = data if blank == b"<!-- -->" else sign(data, key, now_ms=now_ms)
    stack.publish(data, "task-delegation", "high")
    assert stack.router().run_once().done == 1
    write(stack)
    assert [row["task_id"] for row in found(stack, "--task", "T-1")] == ["T-1"]


@pytest.mark.parametrize("signed", ["its octets", "its canonical form"])
@pytest.mark.parametrize("size", [10, 70_000], ids=["as it is", "compressed"])
def test_router_and_trail_have_one_rule_for_what_is_signed(stack: Stack, size: int, signed: str) -> None:
    """A signature over octets that are not canonical counts for nobody; a comment may be added to what is."""
    text = "".join(Random(3).choices(PRINTABLE, k=size))
    body = TaskDelegation(task=Task(task_id="T-1", title="t", description=text))
    key = stack.parts.keyring.signer("partner")
    message = decode(stack.envelope(body, sender="partner", recipient="reviewer"))
    plain = stack.parts.encrypter.sign(message, key)
    head, value, tail = re.split(rb"(?<=<signature-value>)(.+)(?=</signature-value>)", plain)
    head = head.replace(b"<header>", b"<!-- --><header>")
    if signed == "its octets":
        value = b64encode(key.sign(head + tail))
    stack.publish(head + value + tail, "task-delegation", "high")
    done = stack.router().run_once().done
    write(stack)
    refused = [letter.rule for letter in stack.dead()]
    proof = proof_of(stack.parts.keyring, stack.settings)
    doubted = proof.fault(head + value + tail, published_ms=message.header.timestamp.instant_ms)
    tasks = [row["task_id"] for row in found(stack, "--type", "task-delegation")]
    if signed == "its octets":
        assert (done, refused, doubted) == (0, ["signature-invalid"], "signature-invalid")
    else:
        assert (done, refused, doubted, tasks) == (1, [], "", ["T-1"])
    assert verify(stack).exit_code == 0


def test_the_trail_keeps_no_junk_beyond_the_limit(stack: Stack) -> None:
    """Of what is larger than any message it keeps how large it was, and its digest."""
    junk = b"<a>" + b"x" * stack.settings.max_message_bytes
    stack.publish(junk, "message")
    write(stack)
    (kept,) = AuditStore(stack.settings.audit_database).messages()
    assert f"{len(junk)} octets" in kept.xml.decode()
    assert sha256(junk).hexdigest() in kept.xml.decode()
    assert len(kept.xml) < 300
    stack.router().run_once()
    write(stack)
    assert verify(stack).exit_code == 0


def test_a_large_completion_is_found_by_its_task(stack: Stack) -> None:
    """Compressed above 64 KiB, stored apart above 1 MiB: search, `show` and the report know whose it is."""
    noise = Random(3)
    for number, size in enumerate((70_000, 1_500_000)):
        session = root_session_id(f"large {number}")
        text = "".join(noise.choices(PRINTABLE, k=size // 2)) + " needle & thread " + "x" * (size // 2)
        given = stack.envelope(
            TaskDelegation(task=Task(task_id=session, title="t", description="d")), recipient="reviewer"
        )
        header = decode(given).header
        done = decode(
            stack.envelope(
                TaskCompletion(task_id=session, status="success", summary=text),
                sender="reviewer",
                recipient="lead",
                correlation=header.message_id,
                chain=(header.message_id,),
            )
        )
        sealed = stack.parts.encrypter.sign(done, stack.parts.keyring.signer("reviewer"))
        assert len(sealed) < size
        stack.publish(given, "task-delegation", "high")
        stack.publish(sealed, "task-completion", "high")
        write(stack)
        types = {row["type"] for row in found(stack, "--task", session)}
        assert types == {"task-delegation", "task-completion"}
        shown = json.loads(stack.run("audit", "show", session, "--json").stdout)["messages"]
        assert [row["type"] for row in shown] == ["task-delegation", "task-completion"]
        assert [row["type"] for row in found(stack, "needle & thread")] == ["task-completion"] * (number + 1)
    assert tasks_completed(stack) == 2


def test_the_report_counts_reviews(stack: Stack) -> None:
    """A review is a task that somebody was given and completes."""
    session = root_session_id("review")
    review = ReviewRequest(review=Review(task_id=session, title="t", description="d"))
    stack.publish(stack.envelope(review, recipient="code-reviewer"), "review-request")
    done = TaskCompletion(task_id=session, status="success", summary="fine")
    stack.publish(stack.envelope(done, sender="code-reviewer", recipient="lead"), "task-completion", "high")
    write(stack)
    assert tasks_completed(stack) == 1


def tasks_completed(stack: Stack) -> int:
    hops = json.loads(stack.run("audit", "report", "--json").stdout)["hops"]
    return next(int(hop["times"]["count"]) for hop in hops if hop["hop"] == "task")


def test_a_search_looks_in_the_text_and_not_in_its_markup(stack: Stack) -> None:
    """What was said is found as it was said, however the XML spells it; tags are no text."""
    stack.publish(stack.envelope(Message(content='a & b < "c"')), "message")
    odd = stack.envelope(Message(content="ODD")).replace(b"ODD", b'o&#100;d a &#38; <![CDATA[b < ]]>&quot;c"')
    stack.publish(odd, "message")
    stack.publish(
        b'<?xml version="1.0" encoding="iso-8859-1"?>'
        + stack.envelope(Message(content="caf\u00e9")).decode().encode("latin-1"),
        "message",
    )
    write(stack)
    assert len(found(stack, 'a & b < "c"')) == 2
    assert len(found(stack, "odd")) == 1
    assert len(found(stack, "caf\u00e9")) == 1
    assert found(stack, "agent-name") == []
    assert found(stack, "&amp;") == []


# --- evidence -------------------------------------------------------------------------------------------------------


def test_the_doctor_does_not_believe_a_forged_launch(stack: Stack) -> None:
    """Unsigned, or signed by somebody else than the parent's agent: it is no launch of the parent's."""
    session = stack.submit()
    stack.router().run_once()
    launch = stack.parts.ledger.session(session).message
    chain = (launch,)
    correlation = stack.parts.ledger.session(session).correlation
    forged = TaskDelegation(task=Task(task_id=root_session_id("forged"), title="t", description="d"))
    options = {"recipient": "reviewer", "chain": chain, "correlation": correlation}
    stack.publish(unsigned(stack, forged, **options), "task-delegation", "high")
    forged = TaskDelegation(task=Task(task_id=root_session_id("other"), title="t", description="d"))
    stack.publish(stack.envelope(forged, sender="partner", **options), "task-delegation", "high")  # type: ignore[arg-type]
    stack.router("two").run_once()
    write(stack)
    assert len(found(stack, "--type", "task-delegation")) == 3
    said = json.loads(stack.run("doctor", "--quick", "--json").stdout)
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
def test_tampering_with_either_table_is_found(stack: Stack, database: TrailDatabase, how: str) -> None:
    """Even if the chain is made again, and even after the writer has gone on: it signs nothing that it cannot vouch for."""
    said(stack, 4)
    for _ in range(2):
        stack.publish(unsigned(stack, Message(content="junk")), "message")
    stack.router().run_once()
    write(stack)
    good = verify(stack)
    assert (good.exit_code, "intact" in good.stdout) == (0, True), good.output
    with database.tamper() as db:
        TAMPERING[how](db)
        renumber(db, "messages"), renumber(db, "dead_letters")
        rechain(db)
    bad = verify(stack)
    assert (bad.exit_code, "broken: " in bad.stdout) == (1, True), bad.output
    said(stack, 1)
    write(stack)
    assert verify(stack).exit_code == 1
    assert len(found(stack, "number 0")) >= 1 or how in ("all deleted", "deleted")


def test_an_older_state_of_database_and_redis_is_found(stack: Stack, database: TrailDatabase) -> None:
    """The newest head is beside the keys, too: `verify` and `doctor` name the rollback, and a writer signs no more."""
    said(stack, 2)
    write(stack)
    report_buffer = database.copy()
    heads: dict[bytes, bytes] = stack.redis.hgetall(keys.audit_heads())

    def put_back() -> None:
        database.put_back(report_buffer)
        stack.redis.hset(keys.audit_heads(), mapping=heads)  # type: ignore[arg-type]

    said(stack, 3)
    write(stack)
    assert verify(stack).exit_code == 0
    put_back()
    bad = verify(stack)
    assert (bad.exit_code, "an older state" in bad.stdout) == (1, True), bad.output
    found_by_doctor = json.loads(stack.run("doctor", "--quick", "--json").stdout)
    assert "audit-rolled-back" in {f["rule"] for f in found_by_doctor["findings"]}
    assert not found_by_doctor["holds"]
    said(stack, 4)
    write(stack)
    assert verify(stack).exit_code == 1
    kept = KeptHeads.of(stack.settings).file(AuditStore(stack.settings.audit_database, read_only=True).id)
    assert str(kept) in bad.stdout.replace("\n", "")
    # Whoever restored a backup says so by removing the file: what is left is what the heads of that time say.
    kept.unlink()
    put_back()
    assert "an older state" not in verify(stack).stdout


def test_a_kept_head_is_not_replaced_by_an_older_or_a_false_one(stack: Stack) -> None:
    """Two writers on one folder keep the newest; a false or unreadable head in the folder is named."""
    said(stack, 2)
    write(stack)
    store = AuditStore(stack.settings.audit_database, read_only=True)
    kept = KeptHeads.of(stack.settings)
    old = kept.read(store.id)
    assert old is not None
    said(stack, 1)
    write(stack)
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
        bad = verify(stack)
        assert (bad.exit_code, why in bad.stdout) == (1, True), bad.output


def test_a_row_that_nobody_signed_is_found(stack: Stack) -> None:
    """A message in the trail that was not refused carries a signature that holds; `verify` checks it again."""
    said(stack, 2)
    write(stack)
    assert "2 messages" in verify(stack).stdout
    # As if a router had let it pass: acknowledged, and no dead letter.
    entry = stack.publish(unsigned(stack, Message(content="obey")), "message")
    write(stack)
    waiting = verify(stack)
    assert waiting.exit_code == 0, waiting.output
    stack.redis.xreadgroup("router", "r", {keys.messages(0, "message", "normal"): ">"})
    stack.redis.xack(keys.messages(0, "message", "normal"), "router", entry)
    bad = verify(stack)
    assert (bad.exit_code, "signature-missing" in bad.stdout) == (1, True), bad.output


def test_a_message_whose_key_was_revoked_later_counted_when_it_was_said(stack: Stack) -> None:
    """A revocation or a rotation does not make an honest trail a broken one."""
    said(stack, 1)
    write(stack)
    key = stack.parts.keyring.store.current("lead")
    stack.parts.keyring.registry.revoke(key.key_id)
    operator = stack.parts.keyring.store.current("operator")
    assert operator is not None
    stack.parts.keyring.store.rotate("operator")
    said(stack, 1)
    write(stack)
    good = verify(stack)
    assert good.exit_code == 0, good.output


def test_a_lasting_gap_is_no_success(stack: Stack) -> None:
    """What a writer is still to write is no gap; what nobody will write is one, by exit code too."""
    said(stack, 3)
    write(stack)
    stack.publish(stack.envelope(Message(content="later")), "message")
    waits = verify(stack)
    assert (waits.exit_code, "still to be written 1" in waits.stdout) == (0, True), waits.output
    # Handed out and acknowledged, and never written.
    key = keys.messages(0, "message", "normal")
    ((_, rows),) = stack.redis.xreadgroup("audit", "thief", {key: ">"})
    held = verify(stack)
    assert (held.exit_code, "still to be written 1" in held.stdout) == (0, True), held.output
    stack.redis.xack(key, "audit", *[row[0] for row in rows])
    gone = verify(stack)
    assert (gone.exit_code, "broken: " in gone.stdout, "1 entry" in gone.stdout) == (1, True, True), (
        gone.output
    )
    assert json.loads(stack.run("audit", "verify", "--json").stdout)["missing"] == 1


def test_a_message_without_a_canonical_form_is_refused_and_ends_nobody(stack: Stack) -> None:
    """A namespace that is no absolute name has none; the key-id of another one's message makes somebody look."""
    said(stack, 1)
    copy = stack.envelope(Message(content="copied")).replace(
        b"<agent-message ", b'<agent-message xmlns:x="rel" ', 1
    )
    stack.publish(copy, "message")
    write(stack)
    assert verify(stack).exit_code == 0
    stack.router().run_once()
    example = Path(__file__).resolve().parents[3] / "schemas" / "examples" / "valid" / "body-encrypted.xml"
    encrypted = example.read_bytes().replace(b"EncryptedData ", b'EncryptedData xmlns:x="rel" ', 1)
    stack.publish(encrypted, "query")
    stack.router().run_once()
    assert {dead.rule for dead in stack.dead()} == {"signature-invalid", "encrypted-data"}
    write(stack)
    assert verify(stack).exit_code == 0
