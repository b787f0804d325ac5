"""Every rule of layers 1 and 2 by name: what it demands, and how much breaking it weighs.

The rules of layer 3, which need a stack, are the router's (``router/live_rules.py``) and the signature's
(``envelope/signature.py``). The tables in ``docs/protocol.md`` are made from these.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from orchestrator.envelope.findings import FindingSeverity


class Rule(NamedTuple):
    """What a rule demands. ``by`` is who checks it: the parser, the schema, or the reading of content."""

    by: Literal["parser", "schema", "content"]
    severity: FindingSeverity
    demands: str


RULES: Final[dict[str, Rule]] = {
    "unreadable": Rule("parser", "error", "The file that `orchestra validate` is given can be read."),
    "empty": Rule("parser", "error", "There is something besides white space."),
    "size": Rule(
        "parser",
        "error",
        "The document is not larger than the limit, by default 8 MiB; no number, date or id is longer than 64 KiB.",
    ),
    "encoding": Rule(
        "parser",
        "error",
        "The octets are what the declaration says: UTF-8, UTF-16 or a common 8-bit or East Asian one.",
    ),
    "dtd": Rule("parser", "error", "There is no document type declaration, so no entity either."),
    "malformed": Rule("parser", "error", "The document is well-formed XML 1.0 with namespaces."),
    "depth": Rule("parser", "error", "Elements nest no deeper than the limit, by default 64."),
    "attributes": Rule("parser", "error", "No element has more attributes than the limit, by default 32."),
    "namespaces": Rule("parser", "error", "No more namespaces are declared than the limit, by default 256."),
    "markup": Rule(
        "parser",
        "error",
        "There are no more tags, attributes, comments and CDATA sections than the limit, by default 200,000.",
    ),
    "processing-instruction": Rule("parser", "error", "There is no processing instruction."),
    "schema-instance": Rule(
        "parser", "error", "There is no attribute such as xsi:type or xsi:schemaLocation."
    ),
    "root": Rule("schema", "error", "The root is agent-message in the namespace of the protocol."),
    "version": Rule("schema", "error", "The version is 1.0."),
    "missing-element": Rule("schema", "error", "Every element that is required is there."),
    "unexpected-element": Rule("schema", "error", "Every element is one that may stand there."),
    "repeated-element": Rule("schema", "error", "An element that may stand once stands once."),
    "element-order": Rule("schema", "error", "Elements stand in the order of the schema."),
    "missing-attribute": Rule("schema", "error", "Every attribute that is required is there."),
    "unexpected-attribute": Rule("schema", "error", "Every attribute is one that may stand there."),
    "unexpected-text": Rule("schema", "error", "There is no text between elements."),
    "enumeration": Rule("schema", "error", "A value from a closed list is one of that list."),
    "uuid-v4": Rule(
        "schema", "error", "Message, correlation and error ids are version 4 UUIDs, in either case."
    ),
    "timestamp-zone": Rule("schema", "error", "A moment carries a zone: Z or an offset."),
    "timestamp": Rule("schema", "error", "A moment is ISO 8601 date and time, on a day that exists."),
    "number": Rule(
        "schema",
        "error",
        "Counts, ranks and hours are not negative, attempts and timeouts are positive; no sign, no leading zeros.",
    ),
    "percentage": Rule(
        "schema", "error", "Progress is a whole number from 0 to 100, a share is from 0% to 100%."
    ),
    "flag": Rule("schema", "error", "Yes and no are written true and false."),
    "sha256": Rule("schema", "error", "A SHA-256 digest is 64 hexadecimal digits."),
    "schema": Rule(
        "schema",
        "error",
        "What the schema says first; used for documents too large for a detailed report, and by the router for "
        "those that nobody signed: `orchestra validate` says more.",
    ),
    "body-type": Rule("content", "error", "The type of the body is known and names its content."),
    "status": Rule("content", "error", "The status of a task is one of its body type."),
    "blank": Rule(
        "content", "error", "A name or id shows something: not empty, not only invisible characters."
    ),
    "expiration-order": Rule("content", "error", "The expiration is after the timestamp, as instants."),
    "chain-index": Rule(
        "content", "error", "The references of the chain are numbered from 0, each once, no gaps."
    ),
    "chain-repeats": Rule(
        "content", "error", "The chain names each earlier message once, and never the message itself."
    ),
    "base64": Rule(
        "content", "error", "What is marked or typed as base64 is base64 with padding; of a text, in UTF-8."
    ),
    "encrypted-data": Rule(
        "content", "error", "An encrypted body is one xenc:EncryptedData with its cipher value inside."
    ),
    "retry-excessive": Rule("content", "warning", "No more than 10 attempts are asked for."),
    "timeout-excessive": Rule("content", "warning", "The timeout of an attempt is not longer than a day."),
    "backoff-explodes": Rule(
        "content", "warning", "Exponential waits (1 s, doubling) do not add up to more than an hour."
    ),
    "critical-window": Rule("content", "warning", "A critical message does not have hours to arrive."),
    "specialist-to-specialist": Rule(
        "content", "warning", "Specialists give each other no work behind their coordinator's back."
    ),
    "signature-missing": Rule("content", "info", "A message is signed; whether it must be is up to layer 3."),
}
