"""What is read without a tree is what the tree says, or is left to the tree."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.envelope import canonical, codec
from orchestrator.envelope.bodies import StatusUpdate
from orchestrator.envelope.document import read_message
from orchestrator.envelope.model import AgentMessage, Header, Party, RetryPolicy, Signature
from orchestrator.envelope.model_values import Timestamp
from orchestrator.envelope.opaque import OpaqueBody
from orchestrator.envelope.parse import DEFAULT_LIMITS, ParseLimits, Unparsable, parse
from orchestrator.envelope.reading import Reading
from orchestrator.envelope.report import schema_findings
from orchestrator.envelope.signature import canonical as canonical_form
from orchestrator.envelope.validate import check
from tests.properties.envelopes import messages

QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
FILES = sorted((Path(__file__).resolve().parent.parent.parent / "schemas").glob("**/*.xml"))
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


def by_tree(octets: bytes) -> AgentMessage | None:
    """What parser, schema and rules read; None: one of them refuses it."""
    try:
        root, octets = parse(octets)
        if schema_findings(root, octets, DEFAULT_LIMITS):
            return None
    except Unparsable:
        return None
    reading = Reading(encoded=True)
    message = read_message(root, reading)
    return None if reading.findings else message


def test_what_the_system_writes_is_read_without_a_tree() -> None:
    """Every field of the header, and the signature."""
    message = signed()
    octets = codec.encode(message)
    assert canonical.read(octets, DEFAULT_LIMITS) == message == by_tree(octets)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_example_that_the_encoder_has_written_is_read_without_a_tree(file: Path) -> None:
    """Lists, attributes and parts of each type of body, and each type."""
    message = check(file.read_bytes()).message
    if message is None or isinstance(message.body, OpaqueBody):
        return
    octets = codec.encode(message)
    ordinary = octets.isascii() and not re.search(rb' encoding=|="[^"]*&', octets)
    found = canonical.read(octets, DEFAULT_LIMITS)
    assert found == message if ordinary else found in (None, message)


@pytest.mark.parametrize(
    "damage",
    [
        (b"2026-01-31T09:30:00.250Z", b"2026-02-30T09:30:00Z"),
        (b"2026-02-01T09:30:00+01:00", b"2026-01-31T09:30:00Z"),
        (b'index="1"', b'index="2"'),
        (b"1c2a8f2e-4c1d-4f7a-9a59-0123456789ab", FIRST.upper().encode()),
        (b"aGVsbG8=", b"aGVsbG8"),
        (b"<progress-percentage>5<", b"<progress-percentage>101<"),
        (b"<max-attempts>3<", b"<max-attempts>0<"),
        (b">blocked<", b">success<"),
        (b"&lt;signature&gt;", b"&lt;signature>"),
        (b"&lt;signature&gt;", b"&#60;signature"),
        (b"&lt;signature&gt;", b"a\rb"),
        (b"&lt;signature&gt;", b"\xef\xbf\xbf"),
        (b"&lt;signature&gt;", b"\xed\xa0\x80"),
        (b"<current-activity>", b'<current-activity encoding="base64">'),
    ],
)
def test_what_is_in_doubt_is_left_to_the_tree(damage: tuple[bytes, bytes]) -> None:
    """Which refuses it and says where, or accepts it."""
    octets = codec.encode(signed()).replace(*damage)
    assert octets != codec.encode(signed())
    assert canonical.read(octets, DEFAULT_LIMITS) is None


@pytest.mark.parametrize(
    "limits", [{"size": 900}, {"scalar": 900}, {"attributes": 1}, {"namespaces": 0}, {"markup": 10}]
)
def test_narrow_limits_are_left_to_the_parser(limits: dict[str, int]) -> None:
    assert canonical.read(codec.encode(signed()), ParseLimits(**limits)) is None


def test_text_that_looks_like_a_signature_is_text() -> None:
    """Neither a character section nor a comment at the end of a document passes for its signature."""
    octets = codec.encode(signed())
    block = octets[octets.rindex(b"<signature><algorithm>") :]
    forged = block.replace(b"reviewer", b"operator")
    start = octets.index(b"&lt;signature")
    for text in (b"<![CDATA[" + forged + b"]]>", b"<!--" + forged + b"-->"):
        message = check(octets[:start] + text + octets[start:], advice=False).message
        assert message.signature is not None
        assert message.signature.signer == "reviewer"
        assert canonical.read(octets + text, DEFAULT_LIMITS) is None


def test_a_hostile_document_is_given_up_in_time() -> None:
    """However near it comes to a pattern, or how often a part of it begins."""
    octets = codec.encode(signed())
    head, tail = octets.split(b"</body>")
    item = b"<blocker>" + b"<" * 50
    for much in (
        b"<blockers>" + b"<blocker></blocker>" * 3000,
        b"<blockers>" + item * 1000,
        b"<metrics>" + b'<metric name="x">y</metric>' * 2000 + b"</metrics><x>",
        b"&lt;" * 16000,
        b"<" * 64000,
        b"a" * 64000,
    ):
        for document in (head + much + b"</body>" + tail, head + much):
            begun = time.thread_time()
            assert canonical.read(document, DEFAULT_LIMITS) is None
            assert time.thread_time() - begun < 0.1


@QUICK
@given(messages)
def test_any_message_is_the_same_both_ways(message: AgentMessage) -> None:
    """With names of any script, chains and parts that may be missing."""
    octets = codec.encode(message)
    assert by_tree(octets) == message
    assert canonical.read(octets, DEFAULT_LIMITS) in (None, message)


@QUICK
@given(st.one_of(messages, st.builds(signed)), st.integers(0, 2**32))
def test_any_spelling_is_the_same_both_ways(message: AgentMessage, seed: int) -> None:
    """However it is written, what the octets say is what the tree says; and signatures count on their form."""
    octets = codec.encode(message)
    dice = random.Random(seed)
    borders = [match.start() for match in re.finditer(rb"[<>]", octets)]
    for _ in range(dice.randint(1, 3)):
        at = dice.choice(borders) + dice.randint(0, 2)
        octets = octets[:at] + dice.choice(RESPELLINGS) + octets[at:]
    found = canonical.read(octets, DEFAULT_LIMITS)
    assert found in (None, by_tree(octets))
    assert found is None or canonical_form(parse(octets).root) == octets
