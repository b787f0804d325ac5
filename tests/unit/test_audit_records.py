"""What the audit trail reads of an envelope: what the router reads, however it is spelt."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.audit.facts import NOTHING, FactsReader, task_id_of
from orchestrator.envelope.codec import encode
from orchestrator.envelope.validate import check

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = sorted((ROOT / "schemas").glob("**/*.xml"))
READER = FactsReader()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_trail_reads_what_the_router_reads(file: Path) -> None:
    """Every template and example, as it stands and as our encoder writes it."""
    data = file.read_bytes()
    message = check(data, advice=False).message
    if message is None:
        return
    header = message.header
    for octets in (data, encode(message)):
        facts = READER.read(octets)
        assert facts.message_id == header.message_id.lower()
        assert (facts.sender, facts.recipient) == (header.sender.agent_name, header.recipient.agent_name)
        assert facts.correlation_id == message.conversation_id
        assert facts.parent_id == (header.conversation_chain[0].lower() if header.conversation_chain else "")
        assert (facts.task_id, facts.sent) == (task_id_of(message), str(header.timestamp))


@pytest.mark.parametrize(
    "damage",
    [
        (b"<header>", b"<header><message-id>x</message-id>"),
        (b"</agent-message>", b"</agent-message"),
        (b"</agent-message>", b"</agent-message><a/>"),
        (b"<body", b"<task-id>T</task-id><body"),
    ],
)
def test_of_what_is_not_valid_nothing_is_known(damage: tuple[bytes, bytes]) -> None:
    """Its bytes are kept; nobody is named as its sender."""
    data = (ROOT / "schemas" / "templates" / "message.xml").read_bytes()
    assert READER.read(data) != NOTHING
    assert READER.read(data.replace(*damage, 1)) == NOTHING
