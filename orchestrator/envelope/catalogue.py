"""Every rule of layers 1 and 2 by name: what it demands, and how much breaking it weighs.

The rules of layer 3, which need a stack, are the router's (``router/live_rules.py``) and the signature's
(``envelope/signature.py``). The tables in ``docs/protocol.md`` are made from these.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from orchestrator.envelope.findings import FindingSeverity


class Rule(NamedTuple):
    """Demand of a rule. ``by`` says who checks it: the parser, the schema, or the reading of content."""

    by: Literal["parser", "schema", "content"]
    demands: str
    severity: FindingSeverity = "error"


RULES: Final[dict[str, Rule]] = {
    "unreadable": Rule("parser", "The file that `orchestra message validate` is given can be read."),
    "empty": Rule("parser", "There is something besides white space."),
    "size": Rule(
        "parser",
        "The document is not larger than the limit, by default 8 MiB; no number, date or id is longer than 64 KiB.",
    ),
    "encoding": Rule(
        "parser",
        "The bytes are what the declaration says: UTF-8, UTF-16 or a common 8-bit or East Asian one.",
    ),
    "dtd": Rule("parser", "There is no document type declaration, so no entity either."),
    "malformed": Rule("parser", "The document is well-formed XML 1.0 with namespaces."),
    "depth": Rule("parser", "Elements nest no deeper than the limit, by default 64."),
    "attributes": Rule("parser", "No element has more attributes than the limit, by default 32."),
    "namespaces": Rule("parser", "No more namespaces are declared than the limit, by default 256."),
    "markup": Rule(
        "parser",
        "There are no more tags, attributes, comments and CDATA sections than the limit, by default 200,000.",
    ),
    "processing-instruction": Rule("parser", "There is no processing instruction."),
    "schema-instance": Rule("parser", "There is no attribute such as xsi:type or xsi:schemaLocation."),
    "root": Rule("schema", "The root is agent-message in the namespace of the protocol."),
    "version": Rule("schema", "The version is 1.0."),
    "missing-element": Rule("schema", "Every element that is required is there."),
    "unexpected-element": Rule("schema", "Every element is one that may stand there."),
    "repeated-element": Rule("schema", "An element that may stand once stands once."),
    "element-order": Rule("schema", "Elements stand in the order of the schema."),
    "missing-attribute": Rule("schema", "Every attribute that is required is there."),
    "unexpected-attribute": Rule("schema", "Every attribute is one that may stand there."),
    "unexpected-text": Rule("schema", "There is no text between elements."),
    "enumeration": Rule("schema", "A value from a closed list is one of that list."),
    "uuid-v4": Rule("schema", "Message, correlation and error ids are version 4 UUIDs, in either case."),
    "timestamp-zone": Rule("schema", "A moment carries a zone: Z or an offset."),
    "timestamp": Rule("schema", "A moment is ISO 8601 date and time, on a day that exists."),
    "number": Rule(
        "schema",
        "Counts, ranks and hours are not negative, attempts and timeouts are positive; no sign, no leading zeros.",
    ),
    "percentage": Rule("schema", "Progress is a whole number from 0 to 100, a share is from 0% to 100%."),
    "flag": Rule("schema", "Yes and no are written true and false."),
    "sha256": Rule("schema", "A SHA-256 digest is 64 hexadecimal digits."),
    "traceparent": Rule("schema", "A trace context is a traceparent of W3C Trace Context, version 00."),
    "schema": Rule(
        "schema",
        "What the schema says first; used for documents too large for a detailed report, and by the router for those that nobody signed: `orchestra message validate` says more.",
    ),
    "body-type": Rule("content", "The type of the body is known and names its content."),
    "status": Rule("content", "The status of a task is one of its body type."),
    "blank": Rule("content", "A name or id shows something: not empty, not only invisible characters."),
    "expiration-order": Rule("content", "The expiration is after the timestamp, as instants."),
    "chain-index": Rule("content", "The references of the chain are numbered from 0, each once, no gaps."),
    "chain-repeats": Rule(
        "content", "The chain names each earlier message once, and never the message itself."
    ),
    "base64": Rule(
        "content", "What is marked or typed as base64 is base64 with padding; of a text, in UTF-8."
    ),
    "encrypted-data": Rule(
        "content", "An encrypted body is one xenc:EncryptedData with its cipher value inside."
    ),
    "retry-excessive": Rule("content", "No more than 10 attempts are asked for.", "warning"),
    "timeout-excessive": Rule("content", "The timeout of an attempt is not longer than a day.", "warning"),
    "backoff-explodes": Rule(
        "content", "Exponential waits (1 s, doubling) do not add up to more than an hour.", "warning"
    ),
    "critical-window": Rule("content", "A critical message does not have hours to arrive.", "warning"),
    "specialist-to-specialist": Rule(
        "content", "Specialists give each other no work behind their coordinator's back.", "warning"
    ),
    "signature-missing": Rule("content", "A message is signed; whether it must be is up to layer 3.", "info"),
}
