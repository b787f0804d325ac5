"""The one element of XML Encryption that an envelope may hold: its shape, not its secrets."""

from __future__ import annotations

from copy import deepcopy
from typing import Final

from lxml import etree

from orchestrator.envelope.model_values import NAMESPACE, is_base64, unspaced

#: The namespace of XML Encryption 1.0 and of the elements of 1.1 that it shares.
XENC: Final = "http://www.w3.org/2001/04/xmlenc#"

_DATA: Final = f"{{{XENC}}}EncryptedData"
_VALUES: Final = f"{{{XENC}}}CipherData/{{{XENC}}}CipherValue"

_PARSER: Final = etree.XMLParser(resolve_entities=False, no_network=True, remove_comments=True)


def flaw(element: etree._Element) -> str | None:
    """Return why ``element`` is not an EncryptedData with its cipher value inside; None if it is."""
    if element.tag != _DATA:
        return "is not the encrypted content of a body; use one xenc:EncryptedData element"
    values = element.findall(_VALUES)
    if len(values) != 1:
        return "must hold one CipherData with one CipherValue; a reference is not followed"
    if not is_base64(unspaced(values[0].text or "")):
        return "has a CipherValue that is not base64 with padding; encrypt the body again"
    return None


def canonical(element: etree._Element) -> str:
    """``element`` in exclusive canonical form, without comments, as it reads inside a body.

    Raises:
        ValueError: it has none.
    """
    outer = etree.fromstring(f'<body xmlns="{NAMESPACE}"></body>')
    outer.append(deepcopy(element))
    outer[0].tail = None
    try:
        text = etree.tostring(outer, method="c14n", exclusive=True, with_comments=False).decode()
    except etree.C14NError as error:
        why = "has no canonical form, as it declares a namespace that is no absolute URI; leave it out"
        raise ValueError(why) from error
    return text[text.index(">") + 1 : text.rindex("</")]


def canonical_encrypted_data(xml: str) -> str:
    """``xml``, one EncryptedData element, in canonical form.

    Raises:
        ValueError: it is not one.
    """
    if "<!" in xml or "<?" in xml:
        raise ValueError("an EncryptedData holds elements and text only")
    try:
        element = etree.fromstring(xml, _PARSER)
    except etree.XMLSyntaxError as error:
        raise ValueError(f"not well-formed: {error}") from error
    reason = flaw(element)
    if reason is not None:
        raise ValueError(f"the EncryptedData {reason}")
    return canonical(element)
