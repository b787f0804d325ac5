"""The schema in libxml2, for the verdict, and the rules it is told by."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Final

from lxml import etree

from orchestrator.envelope import schemas
from orchestrator.envelope.message_types import MESSAGE_TYPES
from orchestrator.envelope.model import Header
from orchestrator.envelope.model_values import NAMESPACE, WHITE_SPACE
from orchestrator.envelope.reading import Reading

#: Bytes that no element can do without: ``<b/>``.
_SMALLEST_ELEMENT = 4
_CHUNK = 65_536


@cache
def schema() -> etree.XMLSchema:
    """Return the compiled schema; it may be used from several threads."""
    return etree.XMLSchema(etree.fromstring(schemas.read(schemas.AGENT_MESSAGE)))


def has_more_elements(root: etree._Element, octets: bytes, than: int) -> bool:
    """Return True if the document has more than ``than`` elements; small documents are not even counted."""
    return len(octets) > than * _SMALLEST_ELEMENT and next(islice(root.iter(), than, None), None) is not None


def first_violations(octets: bytes) -> Iterator[str]:
    """Yield the first violations of the schema in a document in UTF-8; nothing if it is valid.

    For documents with many elements: over a tree, libxml2 gives each violation a path, which takes time with the
    square of their number. Here the document streams by, and nothing is looked at behind the first ones.
    """
    parser = etree.XMLParser(
        schema=schema(), encoding="utf-8", resolve_entities=False, remove_comments=True, huge_tree=True
    )
    for start in range(0, len(octets), _CHUNK):
        parser.feed(octets[start : start + _CHUNK])
        log: etree._ListErrorLog = parser.feed_error_log
        if len(log):
            for entry in log:
                yield entry.message
            return
    try:
        parser.close()
    except etree.XMLSyntaxError as error:
        yield error.msg or "the document breaks the schema"


_Q: Final = f"{{{NAMESPACE}}}"
_TASK_ID: Final = f"{_Q}task-id"
_SUMMARY: Final = f"{_Q}summary"

#: Which types of bodies begin with which element; a task-id begins several, which their status tells apart.
_TYPES_OF_FIRST: Final = {
    f"{_Q}{element}": [name for name, row in MESSAGE_TYPES.items() if element in row.first_elements]
    for element in {one for row in MESSAGE_TYPES.values() for one in row.first_elements}
}


def body_fits(body: etree._Element, body_type: str, reading: Reading) -> bool:
    """Tell whether the content of ``body`` is that of its type; if not, the reading says why."""
    first = body[0].tag
    if first != _TASK_ID:
        content = _TYPES_OF_FIRST[str(first)][0]
        if content == body_type:
            return True
    else:
        reports_end = len(body) > 2 and body[2].tag == _SUMMARY
        content = "task-completion" if reports_end else "status-update"
        if body_type == "task-completion" and len(body) == 2:
            message = "lacks <summary>, which a task-completion needs after <status>; add it"
            reading.fail("missing-element", message, body, value="summary")
            return False
        if content == body_type:
            return _status_fits(body, body_type, reading)
    article = "an" if content[0] in "aeiou" else "a"
    message = f"says {body_type}, but the body holds {article} {content}; make them agree"
    reading.fail("body-type", message, body, value=body_type, attribute="type")
    return False


def _status_fits(body: etree._Element, body_type: str, reading: Reading) -> bool:
    status = (body[1].text or "").strip(WHITE_SPACE)
    allowed = MESSAGE_TYPES[body_type].statuses
    if status in allowed:
        return True
    reading.fail(
        "status", f"is not a status of a {body_type}; use {', '.join(allowed)}", body[1], value=status
    )
    return False


def check_header(header: Header, element: etree._Element, reading: Reading) -> None:
    """The header's expiration is after its timestamp, and its chain names each message once."""
    end = header.expiration
    if end is not None and end.instant_ns <= header.timestamp.instant_ns:
        message = f"is not after the timestamp {header.timestamp}; give a later moment, or none"
        where = element.find(f"{_Q}expiration")
        reading.fail("expiration-order", message, element if where is None else where, value=end)
    if header.conversation_chain:
        _check_chain(header, element, reading)


def _check_chain(header: Header, element: etree._Element, reading: Reading) -> None:
    seen = {header.message_id.lower()}
    for number, ref in enumerate(header.conversation_chain):
        if ref.lower() in seen:
            message = (
                "names the message itself, or one that the chain names already; name each earlier one once"
            )
            where = element.findall(f"{_Q}conversation-chain/{_Q}message-ref[@index='{number}']")
            reading.fail("chain-repeats", message, where[0] if where else element, value=ref)
            return
        seen.add(ref.lower())
