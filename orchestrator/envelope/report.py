"""Detailed report of layer 2: why the schema refuses a document, in sentences, with advice.

``xmlschema`` finds each place; what it says about the schema is put here into a rule name and a
sentence about the envelope. Documents too large for that get what libxml2 says.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from functools import cache
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, cast

from lxml import etree

from orchestrator.envelope import schemas
from orchestrator.envelope.document import BODIES
from orchestrator.envelope.findings import Finding, FindingSeverity, found
from orchestrator.envelope.message_types import MESSAGE_TYPES
from orchestrator.envelope.model import AgentMessage
from orchestrator.envelope.model_values import NAMESPACE, bindings, demands
from orchestrator.envelope.parse import ParseLimits, check_depth
from orchestrator.envelope.scalars import check_scalars
from orchestrator.envelope.xsd import first_violations, has_more_elements, schema

if TYPE_CHECKING:
    import xmlschema
    from xmlschema.validators.exceptions import XMLSchemaChildrenValidationError, XMLSchemaValidationError
    from xmlschema.validators.groups import XsdGroup


_ATTRIBUTE_REASON: Final = re.compile(r"attribute (?P<name>[^=]+)=")
_QUOTED: Final = re.compile(r"'([^']*)'")
_ALTERNATIVES: Final = re.compile(r"\(([a-z|0-9A-Z-]+)\)")
_NO_ZONE: Final = re.compile(r"\s*[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?\s*")
_ELEMENT_SAID: Final = re.compile(r"Element '([^']+)'")
_LOG_LOCK: Final = Lock()

#: What libxml2 says is repetitive; so many findings of it are enough.
FEW: Final = 10

#: For each simple type of the schema that is not a closed list: the rule, and what is wrong and to do.
_TYPE_RULES: Final = {
    "version": ("version", "is a version that is not understood here; write 1.0"),
    "uuid-v4": ("uuid-v4", "is not a version 4 UUID; make one, for example with: uuidgen -r"),
    "timestamp": ("timestamp", "is not an ISO 8601 date and time such as 2026-01-31T09:30:00Z; write one"),
    "name": ("blank", "is blank; give a name that can be seen"),
    "count": ("number", "is not a whole number from 0 on; write one without sign or leading zeros"),
    "amount": (
        "number",
        "is not a whole number from 0 on of 16 digits at most; write one without sign or leading zeros",
    ),
    "positive-count": ("number", "is not a whole number from 1 on; write one without sign or leading zeros"),
    "index": ("number", "is not a whole number from 0 on; write one without sign or leading zeros"),
    "rank": ("number", "is not a whole number from 0 on; write one without sign or leading zeros"),
    "size": ("number", "is not a number of bytes; write a whole number without sign or leading zeros"),
    "chunk-count": ("number", "is not a whole number from 1 on; write one without sign or leading zeros"),
    "hours": ("number", "is not a number of hours from 0 on; write it like 2 or 2.5"),
    "progress": ("percentage", "is not a whole number from 0 to 100; write one without a percent sign"),
    "percentage": ("percentage", "is not a share from 0% to 100%; write it like 82.5%"),
    "flag": ("flag", "is neither true nor false; write one of them"),
    "sha256": ("sha256", "is not a SHA-256 digest; write its 64 hexadecimal digits"),
    "traceparent": ("traceparent", "is not a traceparent of W3C Trace Context, version 00; leave it out"),
    "base64": ("base64", "is empty; put the base64 of the bytes here"),
    "body-type": ("body-type", "is not a type of body; use one of "),
}


@cache
def _detailed_schema() -> xmlschema.XMLSchema10:
    import xmlschema  # takes as long as the rest of this project's imports; refusals are rare

    return xmlschema.XMLSchema10(schemas.read(schemas.AGENT_MESSAGE).decode(), allow="none")


def schema_findings(
    root: etree._Element, octets: bytes, limits: ParseLimits, *, detailed: bool = True
) -> tuple[Finding, ...]:
    """Return the violations of the schema in a document, given as a tree and as its bytes in UTF-8; empty if it is
    valid.

    Without ``detailed`` it is the first violation that libxml2 names.

    Raises:
        Unparsable: the document nests too deep for a report to be made, or a value is longer than any that fits.
    """
    if len(octets) > limits.scalar:
        check_scalars(root, limits.scalar)
    if has_more_elements(root, octets, limits.detail):
        few = min(limits.findings, FEW) if detailed else 1
        return tuple(_located(root, message) for message in islice(first_violations(octets), few))
    if schema().validate(root):
        return ()
    check_depth(root, limits.depth)
    if not detailed:
        return tuple(_located(root, message) for message in islice(first_violations(octets), 1))
    findings = tuple(islice(_detailed(root, limits.detail_s), limits.findings))
    if findings:
        return findings
    with _LOG_LOCK:  # the log belongs to the schema, not to the call
        schema().validate(root)
        log: list[etree._LogEntry] = [*cast("Any", schema().error_log)]
    return tuple(_located(root, entry.message) for entry in log[:FEW])


def _located(root: etree._Element, message: str) -> Finding:
    """Return a finding for an error of libxml2, with its place if only one element can be meant."""
    quoted = _ELEMENT_SAID.match(message)
    try:
        meant = [] if quoted is None else list(islice(root.iter(quoted[1]), 2))
    except ValueError:  # a namespace with a quotation mark in it cannot be told from the end of the name
        meant = []
    text = f"breaks the schema: {message.replace(f'{{{NAMESPACE}}}', '')}"
    if len(meant) == 1:
        return found("schema", text, meant[0])
    return found("schema", text)


def _detailed(root: etree._Element, seconds: float) -> Iterator[Finding]:
    """Yield the findings; what is not found within ``seconds`` is left out."""
    from xmlschema.validators.exceptions import XMLSchemaChildrenValidationError

    detailed_schema = _detailed_schema()
    ends_at = time.monotonic() + seconds
    errors = detailed_schema.iter_errors(root, validation_hook=lambda *_: time.monotonic() > ends_at)
    for error in errors:
        element: etree._Element = cast("Any", error.elem)
        if isinstance(error, XMLSchemaChildrenValidationError):
            yield _children(error, element)
        else:
            yield _value(error, element)


def _value(error: XMLSchemaValidationError, element: etree._Element) -> Finding:
    """Return a finding about one value, attribute or piece of text."""
    reason = error.reason or ""
    quoted = _QUOTED.search(reason)
    if reason.startswith("missing required attribute") and quoted:
        return found(
            "missing-attribute", f"lacks the attribute {quoted[1]}; add it", element, value=quoted[1]
        )
    if "attribute not allowed" in reason and quoted:
        name = quoted[1].rpartition("}")[2]
        message = f"has an attribute {name} that it cannot have; leave it out"
        return found("unexpected-attribute", message, element, value=name)
    if reason.startswith("character data"):
        message = "has text between its elements; leave it out or put it into an element"
        return found("unexpected-text", message, element, value=_stray_text(element))
    if "is not an element of the schema" in reason:
        message = f"is not the root of an envelope; use agent-message in the namespace {NAMESPACE}"
        return found("root", message, element, value=str(element.tag))
    if "can't have child" in reason:
        message = "holds an element where only text may be; write < as &lt; or leave it out"
        return found("unexpected-element", message, element, value=_local(element[0]))
    attribute = _ATTRIBUTE_REASON.match(reason)
    value = error.obj if isinstance(error.obj, str) else element.text or ""
    name = attribute["name"] if attribute else None
    type_name = getattr(getattr(error.validator, "parent", None), "local_name", None) or ""
    type_name = type_name.removesuffix("-attribute")
    if type_name == "timestamp" and _NO_ZONE.fullmatch(value):
        message = "has no zone; add Z, or an offset such as +01:00"
        return found("timestamp-zone", message, element, attribute=name, value=value)
    if type_name in _TYPE_RULES:
        rule, message = _TYPE_RULES[type_name]
        if type_name == "body-type":
            message += ", ".join(BODIES)
        return found(rule, message, element, attribute=name, value=value)
    allowed = _allowed(error)
    message = (
        f"is not one of the values allowed here; use {allowed}" if allowed else f"breaks the schema: {reason}"
    )
    return found("enumeration" if allowed else "schema", message, element, attribute=name, value=value)


def _allowed(error: XMLSchemaValidationError) -> str:
    """Return the closed list that a value is not in."""
    if _local(error.elem) == "status":
        return "in-progress, blocked, completed, failed, success or partial-success"
    enumeration = getattr(error.validator, "enumeration", None)
    if enumeration:
        return ", ".join(map(str, enumeration))
    patterns = getattr(error.validator, "regexps", None) or [error.reason or ""]
    match = _ALTERNATIVES.search(patterns[0])
    return match[1].replace("|", ", ") if match else ""


def _children(error: XMLSchemaChildrenValidationError, parent: etree._Element) -> Finding:
    """Return a finding about which elements stand in ``parent``, and in what order."""
    declared, required = _children_of(parent, error)
    present = [_local(child) for child in parent]
    missing = [name for name in required if name not in present]
    strangers = [child for child in parent if _local(child) not in declared or not _ours(child)]
    culprit = None if error.invalid_tag is None else strangers[0] if strangers else parent[error.index]
    if culprit is None:
        name = missing[0] if missing else _expected(error)
        return found("missing-element", f"lacks <{name}>; add it", parent, value=name)
    name = _local(culprit)
    if strangers:
        message = f"cannot stand in <{_local(parent)}>; leave it out"
        return found("unexpected-element", message, culprit, value=name)
    earlier = [m for m in missing if declared.index(m) < declared.index(name)]
    if earlier:
        message = f"lacks <{earlier[0]}>; add it before <{name}>"
        return found("missing-element", message, parent, value=earlier[0])
    if present.count(name) > 1:
        message = "stands twice where it can stand once; keep one"
        return found("repeated-element", message, culprit, value=name)
    message = f"is in the wrong place; the order in <{_local(parent)}> is {', '.join(declared)}"
    return found("element-order", message, culprit, value=name)


def _children_of(
    parent: etree._Element, error: XMLSchemaChildrenValidationError
) -> tuple[list[str], list[str]]:
    """Return the names that may and the names that must stand in ``parent``; in a body, by its type."""
    model = BODIES.get(parent.get("type", "")) if _local(parent) == "body" else None
    if model is not None:
        fields = bindings(model)
        required = [field.tag for field in fields if demands(model, field.name)]
        return [field.tag for field in fields], required
    declared, required = [], []
    for particle in cast("XsdGroup", error.validator).iter_elements():
        name = str(particle.local_name)
        declared.append(name)
        if particle.min_occurs and _local(parent) != "body":
            required.append(name)
    return declared, required


def _expected(error: XMLSchemaChildrenValidationError) -> str:
    expected = error.expected or []
    return " or ".join(str(getattr(particle, "local_name", particle)) for particle in expected) or "content"


def _stray_text(element: etree._Element) -> str:
    texts = [element.text or "", *(child.tail or "" for child in element)]
    return next((text.strip() for text in texts if text.strip()), "")


def _ours(element: etree._Element) -> bool:
    return etree.QName(element).namespace == NAMESPACE


def _local(element: Any) -> str:
    return etree.QName(element).localname


#: More attempts than this are excessive.
ATTEMPTS: Final = 10
#: A longer timeout than this, in seconds, is excessive: the longest of the routing table is a day.
TIMEOUT_S: Final = 86_400
#: An exponential backoff (1 s, doubling) whose waits add up to more seconds than this explodes.
BACKOFF_S: Final = 3_600
#: A critical message that may take longer than this, in milliseconds, is not treated as critical.
CRITICAL_MS: Final = 3_600_000


def advise(message: AgentMessage, root: etree._Element) -> tuple[Finding, ...]:
    """Return the warnings and infos about a valid envelope."""
    findings: list[Finding] = []
    header = message.header

    def say(rule: str, text: str, path: str, value: object, severity: FindingSeverity = "warning") -> None:
        steps = "/".join(f"{{{NAMESPACE}}}{step}" for step in path.split("/"))
        element = root.find(steps)
        findings.append(found(rule, text, element, severity=severity, value=str(value)))

    policy = header.retry_policy
    if policy is not None:
        attempts, timeout_s = policy.max_attempts, policy.timeout_seconds
        if attempts > ATTEMPTS:
            text = f"asks for many attempts; more than {ATTEMPTS} rarely help"
            say("retry-excessive", text, "header/retry-policy/max-attempts", attempts)
        if timeout_s > TIMEOUT_S:
            text = "is longer than a day; a stall would not be noticed in time"
            say("timeout-excessive", text, "header/retry-policy/timeout-seconds", timeout_s)
        if policy.backoff_strategy == "exponential" and 2 ** min(attempts - 1, 64) - 1 > BACKOFF_S:
            text = f"with {attempts} attempts waits for more than an hour in all; use fewer, or linear"
            say("backoff-explodes", text, "header/retry-policy/backoff-strategy", policy.backoff_strategy)
        if header.priority == "critical" and timeout_s * 1000 > CRITICAL_MS:
            text = "gives a critical message hours to be accepted; shorten it or lower the priority"
            say("critical-window", text, "header/retry-policy/timeout-seconds", timeout_s)
    end = header.expiration
    lasts_ms = 0 if end is None else end.instant_ms - header.timestamp.instant_ms
    if header.priority == "critical" and lasts_ms > CRITICAL_MS:
        text = "gives a critical message hours; shorten it or lower the priority"
        say("critical-window", text, "header/expiration", end)
    among_specialists = header.sender.agent_role == header.recipient.agent_role == "specialist"
    if among_specialists and not MESSAGE_TYPES[message.body.type].between_specialists:
        text = "is written to by another specialist; let their coordinator know, or ask it"
        say("specialist-to-specialist", text, "header/recipient", header.recipient.agent_name)
    if message.signature is None:
        text = "carries no signature; sign it before it is sent"
        findings.append(found("signature-missing", text, root, severity="info"))
    return tuple(findings)
