"""What the audit trail reads of an envelope: what the router reads, however it is spelt."""

from __future__ import annotations

import random
import re
from contextlib import nullcontext
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

import pytest
import redis

from orchestrator.audit import MessageRecord, trees
from orchestrator.audit.records import NOTHING, Facts, FactsReader, facts_of
from orchestrator.audit.text import parsed_text
from orchestrator.envelope import canonical
from orchestrator.envelope.codec import encode
from orchestrator.envelope.message_types import task_id_of
from orchestrator.envelope.parse import DEFAULT_LIMITS
from orchestrator.envelope.validate import check
from tests.cpu import least_cpu_s

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = sorted((ROOT / "schemas").glob("**/*.xml"))
READER = FactsReader()


def test_the_markup_that_rows_were_packed_with_never_changes() -> None:
    markup = files("orchestrator.audit").joinpath("markup-1.txt").read_bytes()
    assert sha256(markup).hexdigest() == "64ce6163c58894f741b203996ff77efca98cc0f5af782b4a99e8b510b5504ee4"


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
        assert (facts.task_id, facts.sent) == (task_id_of(message.body), str(header.timestamp))


@pytest.mark.parametrize(
    "damage",
    [
        (b"<header>", b"<header><message-id>x</message-id>"),
        (b"</agent-message>", b"</agent-message"),
        (b"</agent-message>", b"</agent-message><a/>"),
        (b'xmlns="http://', b"xmlns=\"http://a='b'/"),
        (b"<content>", b"<content>" + b"<x>" * 70 + b"</x>" * 70),
        (b"<body", b"<task-id>T</task-id><body"),
    ],
)
def test_of_what_is_not_valid_nothing_is_known(damage: tuple[bytes, bytes]) -> None:
    """Its bytes are kept; nobody is named as its sender."""
    data = (ROOT / "schemas" / "templates" / "message.xml").read_bytes()
    assert READER.read(data) != NOTHING
    assert READER.read(data.replace(*damage, 1)) == READER.parsed(data.replace(*damage, 1)) == NOTHING


def read_ordinary(octets: bytes) -> Facts | None:
    """What is read without a tree."""
    message = canonical.read(octets, DEFAULT_LIMITS)
    return None if message is None else facts_of(message)


SIGNATURE = (
    "<signature><algorithm>Ed25519</algorithm><signer>lead</signer><timestamp>2026-02-28T23:59:59.123Z</timestamp>"
    "<public-key-id>key_1</public-key-id><signature-value>AAAA</signature-value></signature>"
)
ASSIGNMENT = (
    "<assignment><assigned-to>scout</assigned-to><assigned-by>lead</assigned-by>"
    "<assigned-timestamp>2026-02-28T23:59:59Z</assigned-timestamp></assignment>"
)
BODIES = {
    "task-delegation": "<task><task-id>T-1</task-id><title>A &lt;b&gt;</title><description>l\u00e9\n&amp;c "
    + "do it " * 80
    + "</description></task>"
    + ASSIGNMENT,
    "status-update": "<task-id>T-1</task-id><status>in-progress</status><progress-percentage>50</progress-percentage>"
    "<current-activity>reading</current-activity>",
    "task-completion": "<task-id>T-1</task-id><status>success</status><summary>s</summary>"
    "<completion-timestamp>2026-02-28T23:59:59Z</completion-timestamp><result>"
    + "said so " * 60
    + "</result>",
}
#: What is put into ordinary documents: what a pattern may take for something that a parser does not, or the reverse.
DAMAGE = [
    b" ", b"\n", b"\r", b"\t", b"\x00", b"\x0b", b"\x7f", b"\xff", b"\xc3\xa9", b"\xc2\x85", b"\xef\xbf\xbe",
    b"\xed\xa0\x80", b"\xe2\x80\xa8", b"<", b">", b"&", b"]]>", b"&lt;", b"&#9;", b"&#x3c;", b"&#xD;", b"<!-- -->",
    b"<![CDATA[x]]>", b"<?p?>", b"<task-id>X</task-id>", b"<title>t</title>", b"<status>failed</status>", b"/", b'"',
    b"=", b"a", b"ok", b"; ", b"1", b" a='b'", b' index="1"', b' encoding="base64"', b"0", b"9", b"-", b"31", b"<tier>opus</tier>", b"</task>",
    b"<priority>low</priority>", b"<result></result>", b"</summary><summary>", b"</agent-message>", b"<body/>",
]  # fmt: skip


def ordinary_documents() -> list[bytes]:
    """Documents of each type that is read without a tree, with all that one may have."""
    ids = [f"{digit * 8}-0000-4000-8000-00000000000A" for digit in "123"]
    party = "<{0}><agent-name>{0}</agent-name><agent-role>specialist</agent-role><tier>opus</tier></{0}>"
    chain = "".join(f'<message-ref index="{n}">{ref}</message-ref>' for n, ref in enumerate(ids[1:]))
    return [
        (
            '<agent-message xmlns="http://agent-orchestra.local/protocol/1.0" version="1.0"><header>'
            f"<message-id>{ids[0]}</message-id><timestamp>2026-02-28T23:59:59.123456789Z</timestamp>"
            f"{party.format('sender')}{party.format('recipient')}<correlation-id>{ids[2]}</correlation-id>"
            f"<conversation-chain>{chain}</conversation-chain><priority>high</priority></header>"
            f'<body type="{body_type}">{body}</body>{SIGNATURE}</agent-message>'
        ).encode()
        for body_type, body in BODIES.items()
    ]


def test_what_is_read_without_a_tree_is_what_a_tree_says() -> None:
    """Over thousands of damaged documents: the short way is silent or agrees with parser, schema and rules."""
    chance = random.Random(20_261_122)
    documents = ordinary_documents()
    for octets in documents:
        assert read_ordinary(octets) == READER.parsed(octets) != NOTHING
        assert canonical.texts(octets, DEFAULT_LIMITS)
    agreed = 0
    for _ in range(6000):
        octets = chance.choice(documents)
        for _ in range(chance.choice([1, 1, 2, 3])):
            at, length = chance.randrange(len(octets) + 1), chance.choice([0, 0, 1, 1, 4, 40])
            if chance.random() < 0.4:  # a whole element, or what stands between two tags
                pieces = [m.span() for m in re.finditer(rb"<([a-z-]+)>[^<]*</\1>|>[^<]*<", octets)]
                at, end = chance.choice(pieces)
                length = end - at
            octets = octets[:at] + chance.choice([b"", *DAMAGE]) + octets[at + length :]
        texts = canonical.texts(octets, DEFAULT_LIMITS)
        assert texts is None or "\n".join(texts) == parsed_text(octets), octets
        short = read_ordinary(octets)
        if short is not None:
            assert short == READER.parsed(octets), octets
            agreed += 1
    assert agreed > 200, agreed


def test_a_day_that_does_not_exist_and_a_chain_that_repeats_are_left_to_the_rules() -> None:
    for octets in ordinary_documents():
        for good, bad in (
            (b"<header><message-id>1111", b"<header><message-id>2222"),
            (b"2026-02-28T23:59:59.123456789Z", b"2026-02-30T00:00:00Z"),
            (b'index="1"', b'index="0"'),
        ):
            damaged = octets.replace(good, bad).replace(b">22221111", b">22222222")
            assert read_ordinary(damaged) is None
            assert READER.read(damaged) == NOTHING


@pytest.mark.parametrize(
    ("error", "waits"),
    [
        (redis.TimeoutError("slow"), True),
        (redis.BusyLoadingError("loading"), True),
        (ValueError("odd"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_facts_are_read_later_if_redis_is_away_and_never_lost(error: Exception, waits: bool) -> None:
    """A body that is stored apart comes from Redis, and what comes too late is not taken for a message without facts."""

    class Away(FactsReader):
        def parsed(self, octets: bytes) -> Facts:
            raise error

    with pytest.raises(type(error)) if waits else nullcontext():
        assert Away().read(b"<stored-apart/>") == NOTHING


def test_a_long_chain_of_replies_is_a_tree_soon() -> None:
    """As long as two agents that talk for a day make it; the time does not grow with the square of its length."""
    count = 20_000
    facts = dict.fromkeys(
        ("stream", "type", "priority", "sender", "recipient", "correlation_id", "task_id"), ""
    )
    records = [
        MessageRecord(
            **facts,
            entry_id=f"{number}-0",
            message_id=str(number),
            parent_id=str(number - 1),
            sent="",
            published_ms=number,
            received_ms=number,
            attempt=1,
            xml=b"",
            sha256="",
        )
        for number in range(count)
    ]
    for order in (records, records[::-1]):
        (node,) = trees(order)
        assert least_cpu_s(lambda order=order: trees(order), below_s=1.0) < 1.0
        depth = 1
        while node.replies:
            (node,), depth = node.replies, depth + 1
        assert depth == count
