"""One schema, three engines: lxml, xmlschema and xmllint give the same verdict on everything.

They differ on what white space is, on digits and messages beyond ASCII, and on built-in types; the
schema avoids all of that. This holds it to it.
"""

from __future__ import annotations

import itertools
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import xmlschema
from lxml import etree

from orchestrator.envelope import schemas
from orchestrator.envelope.catalogue import RULES
from orchestrator.envelope.parse import Unparsable, parse
from orchestrator.envelope.validate import check

_XS = "{http://www.w3.org/2001/XMLSchema}"
XSD = schemas.read(schemas.AGENT_MESSAGE)

#: What some engine somewhere takes for white space, a digit, or nothing at all.
PADS = [*" \t\n", "&#13;", *"\x85\xa0\u1680\u180e\u2003\u2028\u200b\u202f\u3000\ufeff"]
ODD = [
    *[
        *("", "-1", "+5", "05", "1e3", "1.0", ".5", "5.", "NaN", "INF", "1_0", "0x1", "101", "100.0"),
        "100.0000001",
    ],
    *["٣", "３", "½", "TRUE", "true", "1", "HIGH", "high;", "2026-02-31T00:00:00Z", "2026-01-31T24:00:00Z"],
    *["2026-01-31", "2026-01-31T09:30:00", "2026-01-31T09:30:00z", "12026-01-31T09:30:00Z"],
    *[
        "-2026-01-31T09:30:00Z",
        "2026-01-31T09:30:00.1234567890Z",
        "2026-01-31T09:30:00+14:00",
        "2026-01-31T09:30:00+14:01",
    ],
    *[
        *("٢٠٢٦-01-31T09:30:00Z", "{b6f1a1de-6a0c-4d4e-9d5b-0f3f6a1c2e01}", "&amp;", "a b", "a  b"),
        *("%41", "é", "中", "🎻"),
    ],
]
#: Elements and attributes that have between them every simple type of the schema.
PROBED = {
    "status-update": [
        *("message-id", "timestamp", "agent-name", "agent-role", "tier", "priority", "max-attempts"),
        *("backoff-strategy", "status", "progress-percentage", "lines-of-code", "checksum"),
        *("algorithm", "signature-value", "message-ref/@index", "step/@order", "blocker/@severity"),
        *("metric/@name", "agent-message/@version", "body/@type"),
    ],
    "task-completion": [
        "total-hours-worked",
        "test-coverage",
        "met",
        "file/@status",
        "file/@path",
        "summary",
    ],
    "task-delegation": [
        "task-type",
        "dependency",
        "dependency/@type",
        "criterion/@measurable",
        "output/@type",
    ],
    "error": ["error-type", "severity", "recommended-action"],
    "query": ["query-type", "urgency", "required-by"],
    "escalation": ["reason"],
}
COMPRESSED = ["@size", "@sha256", "@encoding", "@algorithm"]
CLAIM_CHECK = ["@chunks", "@size", "@stored-size", "@expires", "@algorithm"]


@pytest.fixture(scope="module")
def by_lxml() -> etree.XMLSchema:
    """libxml2, as on the hot path."""
    return etree.XMLSchema(etree.fromstring(XSD))


@pytest.fixture(scope="module")
def by_xmlschema() -> xmlschema.XMLSchema10:
    """xmlschema, as in the detailed report; it refuses schemas that libxml2 takes."""
    return xmlschema.XMLSchema10(XSD.decode(), allow="none")


def _simple_types() -> Iterator[tuple[str, bytes]]:
    """Documents that differ from a valid one in one value."""
    for body_type, targets in PROBED.items():
        template = schemas.read(f"templates/{body_type}.xml").decode()
        for target in targets:
            yield from _probes(template, target)
    for name, targets in {
        "body-compressed": COMPRESSED,
        "body-as-a-claim-check-with-everything": CLAIM_CHECK,
    }.items():
        template = schemas.read(f"examples/valid/{name}.xml").decode()
        element = "compressed-payload" if targets is COMPRESSED else "claim-check"
        for target in targets:
            yield from _probes(template, element + "/" + target)


def _probes(template: str, target: str) -> Iterator[tuple[str, bytes]]:
    element, _, attribute = target.partition("/@")
    start = template.index(f"<{element}")
    if attribute:
        first = template.index(f'{attribute}="', start) + len(attribute) + 2
        last = template.index('"', first)
    else:
        first = template.index(">", start) + 1
        last = template.index("<", first)
    value = template[first:last]
    padded = itertools.chain.from_iterable(
        (pad + value, value + pad, pad, value[:3] + pad + value[3:]) for pad in PADS
    )
    for changed in (value, *padded, *ODD, value.upper(), value + value):
        yield f"{target} = {changed!r}", (template[:first] + changed + template[last:]).encode()


def _examples() -> Iterator[tuple[str, bytes]]:
    for folder in ("examples/valid", "examples/invalid", "templates"):
        for entry in schemas.path(folder).iterdir():
            octets = entry.read_bytes()
            try:
                parse(octets)
            except Unparsable:
                continue  # layer 1 refused it; no schema has a say
            yield entry.name, octets


def _disagreements(
    documents: list[tuple[str, bytes]], lxml_says: etree.XMLSchema, xmlschema_says: xmlschema.XMLSchema10
) -> list[str]:
    different = []
    for name, octets in documents:
        root = etree.fromstring(octets, etree.XMLParser(resolve_entities=False))
        one = lxml_says.validate(root)
        two = xmlschema_says.is_valid(ET.fromstring(etree.tostring(root)))
        if one != two:
            different.append(f"{name}: lxml {one}, xmlschema {two}")
    return different


def _xmllint(xmllint: str, documents: list[tuple[str, bytes]], folder: Path) -> set[str]:
    """The names of the documents that xmllint takes, asked in one go."""
    schema = folder / "schema.xsd"
    schema.write_bytes(XSD)
    for number, (_, octets) in enumerate(documents):
        (folder / f"{number}.xml").write_bytes(octets)
    files = [f"{number}.xml" for number in range(len(documents))]
    said = ""
    for start in range(0, len(files), 500):
        command = [xmllint, "--noout", "--nonet", "--schema", "schema.xsd", *files[start : start + 500]]
        said += subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stderr
    valid = {line.removesuffix(".xml validates") for line in said.splitlines() if line.endswith(" validates")}
    return {name for number, (name, _) in enumerate(documents) if str(number) in valid}


def test_both_libraries_take_the_schema(
    by_lxml: etree.XMLSchema, by_xmlschema: xmlschema.XMLSchema10
) -> None:
    """It compiles, and its own root is the one element that is declared."""
    assert list(by_xmlschema.elements) == ["agent-message"]
    assert by_lxml.validate(etree.fromstring(schemas.read("templates/error.xml")))


def test_lxml_and_xmlschema_agree_on_every_example(
    by_lxml: etree.XMLSchema, by_xmlschema: xmlschema.XMLSchema10
) -> None:
    """The verdict and the report never contradict each other."""
    documents = list(_examples())
    assert len(documents) > 200
    assert _disagreements(documents, by_lxml, by_xmlschema) == []


def test_lxml_and_xmlschema_agree_on_generated_values(
    by_lxml: etree.XMLSchema, by_xmlschema: xmlschema.XMLSchema10
) -> None:
    """Every simple type, with every kind of padding and every odd spelling."""
    documents = list(_simple_types())
    assert len(documents) > 3000
    assert _disagreements(documents, by_lxml, by_xmlschema) == []


def test_xmllint_agrees_on_examples_and_generated_values(
    program: Callable[[str], str], tmp_path: Path, by_lxml: etree.XMLSchema
) -> None:
    """Everyone else gets the verdict that we get."""
    documents = [*_examples(), *_simple_types()]
    by_name = dict(documents)
    expected = {name for name, octets in by_name.items() if by_lxml.validate(etree.fromstring(octets))}
    assert expected ^ _xmllint(program("xmllint"), list(by_name.items()), tmp_path) == set()


def test_no_engine_takes_what_a_rule_of_the_schema_refuses(by_lxml: etree.XMLSchema) -> None:
    """Where we say that the schema refuses, it does: only rules about content go beyond it."""
    for name, octets in _examples():
        finding = next(iter(check(octets).findings), None)
        if finding is not None and finding.severity == "error" and by_lxml.validate(etree.fromstring(octets)):
            assert RULES[finding.rule].by == "content" or finding.rule in {
                "timestamp",
                "missing-element",
                "depth",
            }, name


def test_every_declaration_is_documented() -> None:
    """Each element, attribute and type says what it means, in a sentence."""
    root = etree.fromstring(XSD)
    declared = root.iter(
        f"{_XS}element", f"{_XS}attribute", f"{_XS}simpleType", f"{_XS}complexType", f"{_XS}any"
    )
    for node in declared:
        text = node.findtext(f"{_XS}annotation/{_XS}documentation") or ""
        assert text.endswith("."), node.get("name")


def test_the_schema_is_xsd_1_0_with_ascii_patterns() -> None:
    """No assertion, no alternative; no class whose meaning depends on the engine."""
    root = etree.fromstring(XSD)
    assert not list(
        root.iter(f"{_XS}assert", f"{_XS}alternative", f"{_XS}override", f"{_XS}import", f"{_XS}include")
    )
    for pattern in root.iter(f"{_XS}pattern"):
        value = pattern.get("value") or ""
        assert value.isascii()
        assert not any(escape in value for escape in (r"\d", r"\w", r"\s", r"\S", r"\i", r"\c", r"\p"))
    assert {t.get("base") for t in root.iter(f"{_XS}restriction")} == {"xs:string"}
