"""The audit trail of a kit in the hands of a test: written, searched, verified."""

from __future__ import annotations

from random import Random

from click.testing import Result

from orchestrator.audit import AuditStore, AuditWriter, build_writer
from orchestrator.envelope.bodies import Message
from orchestrator.envelope.codec import decode
from orchestrator.envelope.payload import BlobStore
from orchestrator.envelope.sealing import Encrypter
from tests.kit import Kit
from tests.postgres import TrailDatabase

#: A sender's limit far below that of the product, which makes every step of a test as much shorter.
STORED_ABOVE = 50_000


def writer(kit: Kit) -> AuditWriter:
    """The audit writer of the stack's data folder."""
    return build_writer(kit.parts, consumer="w")


def write(kit: Kit) -> None:
    """Let the audit writer write everything that was published."""
    one = writer(kit)
    while one.run_once():
        pass


def store_of(kit: Kit) -> AuditStore:
    """The audit database, for reading."""
    return AuditStore(kit.settings.audit_database, read_only=True)


def found(kit: Kit, *arguments: str) -> list[dict[str, object]]:
    """What a search of the trail finds."""
    rows: list[dict[str, object]] = kit.document("audit", "search", *arguments)["messages"]
    return rows


def verify(kit: Kit) -> Result:
    """`orchestra audit verify`."""
    return kit.orchestra("audit", "verify")


def intact(kit: Kit) -> str:
    """Verify the trail, and expect it to be whole; what is said of it."""
    good = verify(kit)
    assert good.exit_code == 0, good.output
    return good.stdout


def broken(kit: Kit) -> str:
    """Verify the trail, and expect it not to be whole; what is said of it."""
    bad = verify(kit)
    assert bad.exit_code == 1, bad.output
    return bad.stdout


def said(kit: Kit, number: int) -> list[str]:
    """Messages of an honest agent, routed."""
    texts = [f"number {n}" for n in range(number)]
    for text in texts:
        kit.post(Message(content=text))
    kit.route("honest")
    return texts


def told(kit: Kit, number: int) -> list[str]:
    """Messages of an honest agent, routed and written."""
    texts = said(kit, number)
    write(kit)
    return texts


def spoil(database: TrailDatabase, statement: str, *values: object) -> None:
    """Somebody who may write to the database does."""
    with database.tamper() as db:
        db.execute(statement, list(values))


def large(word: str, size: int = 3 * STORED_ABOVE) -> str:
    """A text that is stored apart from its envelope, with a word in the middle and words of every kind."""
    noise = Random(7).randbytes(5 * (size // 11)).hex()
    words = [noise[at : at + 10] for at in range(0, len(noise), 10)]
    words[len(words) // 2] = word
    return " ".join(words)


def say(kit: Kit, text: str, *, recipient: str = "reviewer") -> str:
    """Publish a message of the lead as it travels; its id."""
    plain = decode(kit.envelope(Message(content=text), recipient=recipient))
    encrypter = Encrypter(
        BlobStore(kit.redis), blob_ttl_s=kit.settings.blob_ttl_s, claim_check_above=STORED_ABOVE
    )
    sealed = encrypter.sign(plain, kit.parts.keyring.signer("lead"))
    kit.publish(sealed, "message")
    return plain.header.message_id


def forget_payloads(kit: Kit) -> None:
    """As time does."""
    for key in kit.redis.scan_iter("*:blob:*"):
        kit.redis.delete(key)
