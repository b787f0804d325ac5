"""What the audit trail reads of an envelope: the same without a parser as with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.audit import records
from orchestrator.envelope.codec import encode
from orchestrator.envelope.validate import check

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = sorted((ROOT / "schemas").glob("**/*.xml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_reading_without_a_parser_finds_what_a_parser_finds(file: Path) -> None:
    """For every template and example, valid or not, as it stands and as our encoder writes it."""
    data = file.read_bytes()
    message = check(data, advice=False).message
    for octets in [data] + ([encode(message)] if message is not None else []):
        quick = records._canonical_facts(octets)
        if quick:
            parsed = records._parsed_facts(octets)
            names = ("message-id", "timestamp", "sender", "recipient", "correlation-id", "parent", "task")
            assert quick == {name: parsed.get(name, "") for name in names}


def test_what_our_encoder_writes_needs_no_parser() -> None:
    """Every template but one whose names hold an entity goes the quick way."""
    templates = sorted((ROOT / "schemas" / "templates").glob("*.xml"))
    messages = [check(file.read_bytes(), advice=False).message for file in templates]
    assert all(records._canonical_facts(encode(message)) for message in messages if message is not None)
    assert len(messages) >= 9


@pytest.mark.parametrize(
    "trick",
    [
        (b"<header>", b"<header><!-- <message-id>x</message-id> -->"),
        (b"<message-id>", b"<message-id><![CDATA["),
        (b"<agent-name>", b"<agent-name>&#97;"),
        (b"<body", b"<body xmlns:x='y'"),
    ],
)
def test_nothing_unusual_goes_the_quick_way(trick: tuple[bytes, bytes]) -> None:
    """Comments, CDATA, entities and further attributes are for the parser."""
    message = check((ROOT / "schemas" / "templates" / "message.xml").read_bytes(), advice=False).message
    assert message is not None
    assert records._canonical_facts(encode(message).replace(*trick, 1)) == {}
