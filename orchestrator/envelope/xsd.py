"""The schema in libxml2, for the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import islice

from lxml import etree

from orchestrator.envelope import schemas

#: Octets that no element can do without: ``<b/>``.
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
