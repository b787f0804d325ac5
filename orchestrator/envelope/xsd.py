"""The schema in libxml2, for the verdict."""

from __future__ import annotations

from functools import cache

from lxml import etree

import schemas


@cache
def schema() -> etree.XMLSchema:
    """The compiled schema; it may be used from several threads."""
    return etree.XMLSchema(etree.fromstring(schemas.read(schemas.AGENT_MESSAGE)))
