"""Mutated envelopes: what we accept, expat accepts and reads alike, and so do all of our own ways to read."""

from __future__ import annotations

import codecs
import random
from xml.parsers import expat

from lxml import etree

from orchestrator.audit.records import FactsReader, facts_of
from orchestrator.envelope import canonical, schemas
from orchestrator.envelope.codec import encode
from orchestrator.envelope.document import read_message
from orchestrator.envelope.parse import DEFAULT_LIMITS, ParseLimits, Unparsable, excess, parse
from orchestrator.envelope.reading import Reading
from orchestrator.envelope.report import _detailed_schema
from orchestrator.envelope.signature import canonical as canonical_form
from orchestrator.envelope.validate import check
from orchestrator.envelope.xsd import first_violations, schema
from tests.properties.test_envelope_canonical import RESPELLINGS
from tests.properties.test_envelope_fuzz import PIECES

SEEDS = sorted(
    entry.read_bytes()
    for folder in ("templates", "examples/valid", "examples/invalid")
    for entry in schemas.path(folder).iterdir()
    if entry.name.endswith(".xml") and len(entry.read_bytes()) < 20_000
)
#: The valid ones as our encoder writes them, with and without all that may be left out.
ENCODED = [encode(message) for seed in SEEDS if (message := check(seed, advice=False).message) is not None]
#: What is read without a tree.
ORDINARY = [octets for octets in ENCODED if canonical.read(octets, DEFAULT_LIMITS) is not None]
_FACTS = FactsReader()
MORE = [
    *[
        b"\xc2\xa0",
        b"\xe2\x80\xa8",
        b"&#160;",
        b"<?xml version='1.0'?>",
        b'<?xml version="1.0" encoding="utf-16"?>',
    ],
    *[
        b"xml:space='preserve'",
        b"xmlns=''",
        b"<![CDATA[<a b='c'>]]>",
        b"<!--<a b='c'>-->",
        b" a='>'",
        b" a='='",
    ],
]
ENCODINGS = ["utf-16", "utf-16-le", "utf-32", "utf-8-sig", "iso-8859-1", "cp1252", "ascii", "shift_jis"]
#: Encodings that expat does not know; nor does it know UTF-32.
UNKNOWN_ENCODING = 18
Event = tuple[str, ...]


def mutant(chance: random.Random) -> bytes:
    """An example with a few things inserted, removed, doubled or put elsewhere, perhaps in another encoding."""
    octets = chance.choice(chance.choice([SEEDS, SEEDS, ENCODED, ORDINARY]))
    for _ in range(chance.randrange(4)):
        at, length = chance.randrange(len(octets) + 1), chance.choice([0, 0, 1, 3, 30])
        put = chance.choice([*PIECES, *RESPELLINGS, *MORE, octets[at : at + chance.randrange(60)]])
        if chance.random() < 0.7:  # between two pieces of markup, where most of it can stand
            at = max(octets.find(chance.choice([b"<", b">", b" "]), at), 0) + chance.randrange(2)
        octets = octets[:at] + put + octets[at + length :]
    if chance.random() < 0.1:
        encoding = chance.choice(ENCODINGS)
        text = octets.decode("utf-8", "replace")
        if chance.random() < 0.7:
            text = f'<?xml version="1.0" encoding="{encoding}"?>{text}'
        octets = text.encode(encoding, "replace")
    return octets


def by_expat(octets: bytes) -> tuple[list[Event], int, int]:
    """Elements, attributes and texts as expat reads them; the most attributes of one, and all declarations."""
    events: list[Event] = []
    counts = {"attributes": 0, "declared": 0}
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.namespace_prefixes = False
    parser.ordered_attributes = True
    here = [0]

    def declares(*_: object) -> None:
        here[0] += 1

    def start(name: str, attributes: list[str]) -> None:
        own = here[0] + len(attributes) // 2
        counts["attributes"] = max(counts["attributes"], own)
        counts["declared"] += here[0]
        here[0] = 0
        pairs = sorted(zip(attributes[::2], attributes[1::2], strict=True))
        events.append(("start", name, *[part for pair in pairs for part in pair]))

    def text(data: str) -> None:
        if events and events[-1][0] == "text":
            events[-1] = ("text", events[-1][1] + data)
        else:
            events.append(("text", data))

    parser.StartNamespaceDeclHandler = declares
    parser.StartElementHandler = start
    parser.EndElementHandler = lambda name: events.append(("end", name))
    parser.CharacterDataHandler = text
    parser.Parse(octets, True)
    return events, counts["attributes"], counts["declared"]


def by_lxml(root: etree._Element) -> list[Event]:
    """The same of a tree."""
    events: list[Event] = []

    def name(tag: object) -> str:
        return str(tag).removeprefix("{").replace("}", " ")

    def text(data: str | None) -> None:
        if data and events and events[-1][0] == "text":
            events[-1] = ("text", events[-1][1] + data)
        elif data:
            events.append(("text", data))

    for event, element in etree.iterwalk(root, events=("start", "end")):
        if event == "start":
            pairs = sorted((name(key), str(value)) for key, value in element.attrib.items())
            events.append(("start", name(element.tag), *[part for pair in pairs for part in pair]))
            text(element.text)
        else:
            events.append(("end", name(element.tag)))
            if element is not root:
                text(element.tail)
    return events


def _expat_takes(octets: bytes) -> None:
    """Also as they came, if it knows their encoding."""
    try:
        if not octets.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
            expat.ParserCreate(namespace_separator=" ").Parse(octets, True)
    except expat.ExpatError as error:
        if error.code != UNKNOWN_ENCODING:
            raise AssertionError(f"expat refuses it: {error}") from error
    except ValueError as error:
        if "multi-byte" not in str(error):
            raise AssertionError(f"expat refuses it: {error}") from error


def _counts(utf8: bytes, attributes: int, declared: int) -> None:
    """The counting of markup is exact: a limit is exceeded by one more, and not by as many as it allows."""
    for limit, most, name in (
        (attributes, "attributes", "attributes"),
        (declared, "namespaces", "namespaces"),
    ):
        exact = ParseLimits(**{most: limit})  # type: ignore[arg-type]
        assert excess(utf8, exact) is None, f"{name} are counted too high"
        if limit:
            below = ParseLimits(**{most: limit - 1})  # type: ignore[arg-type]
            assert excess(utf8, below) is not None, f"{name} are counted too low"


def _blank_to_python(root: etree._Element) -> bool:
    """Whether there is text between elements that Python strips and XML does not: xmlschema takes it for nothing.

    The verdict is libxml2's, which refuses it; xmlschema only says in detail what is wrong.
    """
    between = (text for element in root.iter() for text in (element.text, element.tail) if text)
    return any(text.strip(" \t\r\n") and not text.strip() for text in between)


def compare(octets: bytes, chance: random.Random) -> str:
    """Assert that all read alike; what came of it: refused, invalid or valid."""
    short = canonical.read(octets, DEFAULT_LIMITS)
    assert short is None or facts_of(short) == _FACTS.parsed(octets), "the trail reads something else"
    try:
        root, utf8 = parse(octets)
    except Unparsable:
        assert not check(octets).valid
        assert short is None, "what no parser takes is read without a tree"
        return "refused"
    assert short is None or canonical_form(root) == octets, "what is read without a tree is not canonical"
    try:
        events, attributes, declared = by_expat(utf8)
    except expat.ExpatError:
        # Names may have more characters since the fifth edition of XML 1.0, which expat does not know; none of ours has.
        if check(octets).valid:
            raise
        return "refused by expat alone"
    assert by_lxml(root) == events, "expat reads something else"
    _expat_takes(octets)
    _counts(utf8, attributes, declared)
    verdict = schema().validate(root)
    assert verdict == (next(first_violations(utf8), None) is None), "stream and tree differ"
    if chance.random() < 0.02 and not _blank_to_python(root):
        assert verdict == (next(_detailed_schema().iter_errors(root), None) is None), "the two schemas differ"
    report = check(octets, advice=False)
    assert verdict or not report.valid
    slow = Reading(encoded=True)
    by_tree = read_message(root, slow) if verdict else None
    if by_tree is None or slow.findings:
        assert short is None, "what schema or rules refuse is read without a tree"
        return "invalid"
    assert short in (None, by_tree), "what is read without a tree is something else"
    return "valid" if short is None else "valid without a tree"
