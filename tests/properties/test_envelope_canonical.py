"""The short way to header and signature reads what the tree says, or leaves it to the tree."""

from __future__ import annotations

import random
import re

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.envelope import canonical, codec
from orchestrator.envelope.document import read_message
from orchestrator.envelope.findings import Finding
from orchestrator.envelope.model import (
    AgentMessage,
    Header,
    Party,
    RetryPolicy,
    Signature,
    StatusUpdate,
    Timestamp,
)
from orchestrator.envelope.parse import DEFAULT_LIMITS, Unparsable, parse
from orchestrator.envelope.reading import Reading
from orchestrator.envelope.report import schema_findings
from tests.properties.envelopes import messages

QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
FIRST = "0b2a8f2e-4c1d-4f7a-9a59-0123456789ab"
#: Ways to write the same, or nearly, that are none of the encoder's.
RESPELLINGS = [
    b" ",
    b"\n",
    b"<!-- -->",
    b"<!--</header><body>-->",
    b"<![CDATA[]]>",
    b"<![CDATA[</signature></agent-message>]]>",
    b"&#65;",
    b"&amp;",
    b" xmlns:x='urn:x'",
    b"\xc3\xa9",
    b"0",
    b"/",
]


def signed(**header: object) -> AgentMessage:
    """A message as the system writes it."""
    values = {
        "message_id": "5f0a3cde-1111-4222-8333-aabbccddeeff",
        "timestamp": Timestamp("2026-01-31T09:30:00.250Z"),
        "sender": Party(agent_name="reviewer", agent_role="specialist", tier="haiku"),
        "recipient": Party(agent_name="lead", agent_role="coordinator"),
        "correlation_id": FIRST,
        "conversation_chain": ("1c2a8f2e-4c1d-4f7a-9a59-0123456789ab", FIRST),
        "priority": "high",
        "expiration": Timestamp("2026-02-01T09:30:00+01:00"),
        "retry_policy": RetryPolicy(max_attempts=3, backoff_strategy="linear", timeout_seconds=60),
    }
    return AgentMessage(
        header=Header(**(values | header)),  # type: ignore[arg-type]
        body=StatusUpdate(
            task_id="t", status="blocked", progress_percentage=5, current_activity="<signature>"
        ),
        signature=Signature(
            algorithm="Ed25519",
            signer="reviewer",
            timestamp=Timestamp("2026-01-31T09:30:00Z"),
            public_key_id="key_0123",
            signature_value="aGVsbG8=",
        ),
    )


def both_ways(octets: bytes) -> list[tuple[AgentMessage | None, list[Finding]]]:
    """What the tree alone says, and what is said with the octets at hand; nothing if the schema refuses them."""
    try:
        root, octets = parse(octets)
        if schema_findings(root, octets, DEFAULT_LIMITS):
            return []
    except Unparsable:
        return []
    said: list[tuple[AgentMessage | None, list[Finding]]] = []
    for given_octets in (b"", octets):
        reading = Reading(encoded=True)
        message = read_message(root, reading, given_octets)
        said.append((None if reading.findings else message, reading.findings))
    return said


def test_what_the_system_writes_is_read_the_short_way() -> None:
    """Every field of the header, and the signature, without the tree."""
    message = signed()
    octets = codec.encode(message)
    assert canonical.read_header(octets) == message.header
    assert canonical.read_signature(octets) == message.signature


def test_a_day_that_does_not_exist_is_left_to_the_tree() -> None:
    """Which says where it stands."""
    octets = codec.encode(signed(expiration=None)).replace(
        b"2026-01-31T09:30:00.250Z", b"2026-02-30T09:30:00Z"
    )
    assert canonical.read_header(octets) is None
    by_tree, by_octets = both_ways(octets)
    assert by_tree == by_octets
    assert [finding.rule for finding in by_octets[1]] == ["timestamp"]


def test_text_that_looks_like_a_signature_is_text() -> None:
    """Neither a character section nor a comment at the end of a document passes for its signature."""
    octets = codec.encode(signed())
    block = octets[octets.rindex(b"<signature><algorithm>") :]
    forged = block.replace(b"reviewer", b"operator")
    start = octets.index(b"&lt;signature")
    for text in (b"<![CDATA[" + forged + b"]]>", b"<!--" + forged + b"-->"):
        found = both_ways(octets[:start] + text + octets[start:])
        assert found[0] == found[1]
        message = found[1][0]
        assert message is not None
        assert message.signature is not None
        assert message.signature.signer == "reviewer"
        assert canonical.read_signature(octets + text) is None


@QUICK
@given(messages)
def test_any_message_is_the_same_both_ways(message: AgentMessage) -> None:
    """With names of any script, chains and parts that may be missing."""
    by_tree, by_octets = both_ways(codec.encode(message))
    assert by_tree == by_octets == (message, [])


@QUICK
@given(st.one_of(messages, st.builds(signed)), st.integers(0, 2**32))
def test_any_spelling_is_the_same_both_ways(message: AgentMessage, seed: int) -> None:
    """However it is written, what the octets say is what the tree says."""
    octets = codec.encode(message)
    dice = random.Random(seed)
    borders = [match.start() for match in re.finditer(rb"[<>]", octets)]
    for _ in range(dice.randint(1, 3)):
        at = dice.choice(borders) + dice.randint(0, 2)
        octets = octets[:at] + dice.choice(RESPELLINGS) + octets[at:]
    said = both_ways(octets)
    assert said[:1] == said[1:]
