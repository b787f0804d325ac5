"""Layer 1: what is refused before anything reads it, and what is read whatever its encoding."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.envelope import schemas
from orchestrator.envelope.parse import ParseLimits, Unparsable, check_depth, excess, parse
from orchestrator.envelope.validate import check

TEMPLATE = schemas.read("templates/task-completion.xml")


def _refusal(octets: bytes, limits: ParseLimits | None = None) -> str:
    with pytest.raises(Unparsable) as refused:
        parse(octets, limits or ParseLimits())
    return refused.value.finding.rule


def test_a_document_above_the_size_limit_is_refused_unread() -> None:
    """One octet too many is too many; the limit itself is not."""
    assert parse(TEMPLATE, ParseLimits(size=len(TEMPLATE))).root is not None
    assert _refusal(TEMPLATE, ParseLimits(size=len(TEMPLATE) - 1)) == "size"


def test_a_file_that_an_entity_points_to_is_never_opened(tmp_path: Path) -> None:
    """The declaration is refused as such; the secret shows nowhere."""
    secret = tmp_path / "secret"
    secret.write_text("swordfish")
    octets = f'<!DOCTYPE a [<!ENTITY s SYSTEM "{secret.as_uri()}">]><a>&s;</a>'.encode()
    report = check(octets)
    assert [f.rule for f in report.findings] == ["dtd"]
    assert "swordfish" not in str(report)


@pytest.mark.parametrize("prolog", ["", "\ufeff", "<!-- x -->", "\n\n", '<?xml version="1.0"?>', "<?pi x?>"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-32"])
def test_a_doctype_is_found_behind_any_prolog_and_encoding(prolog: str, encoding: str) -> None:
    """No way of writing it gets past: it is refused, as a DTD or as something worse."""
    octets = f"{prolog}<!DOCTYPE a><a/>".encode(encoding)
    assert _refusal(octets) in {"dtd", "encoding", "malformed"}


@pytest.mark.parametrize("prolog", ["", "<!-- x -->\n", "\n"])
def test_a_doctype_in_text_is_text(prolog: str) -> None:
    """A document about HTML may quote a DOCTYPE."""
    octets = f"{prolog}<a><![CDATA[<!DOCTYPE html>]]></a>".encode()
    assert parse(octets).root.text == "<!DOCTYPE html>"


def test_comments_leave_the_text_around_them_whole() -> None:
    """A comment inside a name does not hide what follows it."""
    assert parse(b"<a>admin<!-- -->istrator</a>").root.text == "administrator"


def test_the_line_numbers_are_those_of_the_document() -> None:
    """Also when its declaration spans lines or it had to be transcoded."""
    octets = '<?xml version="1.0"\n encoding="iso-8859-1"?>\n<a>\n<b>é</b></a>'.encode("latin-1")
    root = parse(octets).root
    assert (root.sourceline, root[0].sourceline, root[0].text) == (3, 4, "é")


def test_a_finding_in_a_malformed_document_names_the_line() -> None:
    """The reader is sent to the place."""
    with pytest.raises(Unparsable) as refused:
        parse(b"<a>\n<b>\n</a>")
    assert refused.value.finding.line == 3
    assert refused.value.finding.rule == "malformed"


def test_depth_counts_nested_elements() -> None:
    """The limit itself is allowed."""
    root = parse(b"<a>" * 5 + b"</a>" * 5).root
    check_depth(root, 5)
    with pytest.raises(Unparsable) as refused:
        check_depth(root, 4)
    assert refused.value.finding.rule == "depth"


@pytest.mark.parametrize("depth", [65, 257, 5_000])
def test_the_sentence_about_depth_is_the_same_however_deep_it_is(depth: int) -> None:
    """Below the parser's own limit and above it: no word of options that a sender cannot set."""
    (finding,) = check(b"<a>" * depth + b"</a>" * depth).findings
    assert (finding.rule, finding.message) == (
        "depth",
        "the document nests deeper than 64 elements; flatten it",
    )


def test_the_reason_of_the_parser_is_put_on_one_line() -> None:
    (finding,) = check(b"<a>\0</a>").findings
    assert finding.rule == "malformed"
    assert "\n" not in finding.message


def test_text_of_more_than_ten_million_octets_is_read_when_the_limit_allows() -> None:
    """The parser's own limit on one text does not come in the way."""
    octets = b"<a>" + b"x" * 10_500_000 + b"</a>"
    assert _refusal(octets) == "size"
    assert len(parse(octets, ParseLimits(size=20_000_000)).root.text or "") == 10_500_000


@pytest.mark.parametrize("between", ["", "\n", "<!-- x -->"])
def test_a_second_declaration_is_refused(between: str) -> None:
    """Every other parser refuses it as well."""
    declaration = '<?xml version="1.0"?>'
    assert _refusal(f"{declaration}{between}{declaration}<a/>".encode()) == "malformed"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
def test_a_declaration_that_can_be_read_stands_before_no_wider_encoding(encoding: str) -> None:
    """Readers of UTF-16 see no declaration there, others no document."""
    octets = f'<?xml version="1.0" encoding="{encoding}"?>'.encode() + "<a/>".encode(encoding)
    assert _refusal(octets) == "encoding"


@pytest.mark.parametrize(("mark", "declared"), [("utf-8-sig", "iso-8859-1"), ("utf-16", "utf-8")])
def test_a_declaration_does_not_contradict_the_byte_order_mark(mark: str, declared: str) -> None:
    """One reader would follow the one, another the other."""
    octets = f'<?xml version="1.0" encoding="{declared}"?><a/>'.encode(mark)
    assert _refusal(octets) == "encoding"
    assert (
        parse(octets.decode(mark).replace(declared, mark.removesuffix("-sig")).encode(mark)).root.tag == "a"
    )


@pytest.mark.parametrize("blank", ["\u00a0", "\u2028", "\u3000", "\u0085"])
@pytest.mark.parametrize("element", ["content encoding='base64'", "signature-value"])
def test_base64_holds_no_white_space_but_that_of_xml(blank: str, element: str) -> None:
    """Strict readers refuse what Python would skip; so does every reader here."""
    octets = schemas.read("templates/message.xml").decode()
    name = element.split(maxsplit=1)[0]
    start, end = octets.index(f"<{name}"), octets.index(f"</{name}>")
    for inside, rules in (("\n", []), (blank, ["base64"])):
        changed = f"{octets[:start]}<{element}>aGVs{inside}bG8={octets[end:]}"
        assert [finding.rule for finding in check(changed.encode(), advice=False).findings] == rules


# --- Counting markup before anything is parsed: exact for well-formed XML, and at an end where a document is not.


FEW = ParseLimits(attributes=3, namespaces=2, markup=10)


@pytest.mark.parametrize(
    ("octets", "rule"),
    [
        (b"<a b='1' c='2' d='3'/>", None),
        (b"<a b='1' c='2' d='3' e='4'/>", "attributes"),
        (b'<a b=\' c="1" d="2" e="3" f="4" \'/>', None),
        (b"<a>b='1' c='2' d='3' e='4'</a>", None),
        (b"<a><!-- <x b='1' c='2' d='3' e='4'> --></a>", None),
        (b"<a><![CDATA[<x b='1' c='2' d='3' e='4'>]]></a>", None),
        (b"<a b='>' c='>' d='>' e='>'/>", "attributes"),
        (b"<a\nb\n=\n'1'\tc='2' d='3' e='4'/>", "attributes"),
        (b"<a xmlns='u' xmlns:b='u'/>", None),
        (b"<a xmlns='u'><b xmlns='u'><c xmlns='u'/></b></a>", "namespaces"),
        (b"<a b='xmlns=' c=' xmlns=' d='xmlns:x='>xmlns='u'</a>", None),
        (b"<a>" + b"<b/>" * 8 + b"</a>", None),
        (b"<a>" + b"<b/>" * 9 + b"</a>", "markup"),
        (b"<a>" + b"<b/>" * 3 + b"<" * 40, "malformed"),
        (b'<a b="1" ' + b"c=" * 20 + b'"' + b"<" * 20, "malformed"),
    ],
)
def test_what_is_over_a_limit_is_told(octets: bytes, rule: str | None) -> None:
    """And nothing that only looks like it, in a value, a text, a comment or a CDATA section."""
    found = excess(octets, FEW)
    assert (found and found[0]) == rule
