"""Layers 1 and 2 of validation: bytes in, a report out. Needs no server.

The schema's verdict is libxml2's; the words of a refusal come from the detailed report.
"""

from __future__ import annotations

from dataclasses import dataclass

from lxml import etree

from orchestrator.envelope import canonical
from orchestrator.envelope.document import read_message
from orchestrator.envelope.findings import Finding
from orchestrator.envelope.model import AgentMessage
from orchestrator.envelope.opaque import EncryptedBody
from orchestrator.envelope.parse import DEFAULT_LIMITS, ParseLimits, Unparsable, check_depth, parse
from orchestrator.envelope.reading import Reading
from orchestrator.envelope.report import advise, schema_findings


@dataclass(frozen=True, slots=True)
class Report:
    """Result of validation. ``message`` is there exactly if the envelope is valid."""

    findings: tuple[Finding, ...]
    message: AgentMessage | None
    root: etree._Element | None = None
    #: The document, if it was read without a tree: then it is in canonical form.
    octets: bytes = b""

    @property
    def tree(self) -> etree._Element | None:
        """The root of the document, without comments; None if layer 1 refused it."""
        return parse(self.octets).root if self.octets else self.root

    def require_tree(self) -> etree._Element:
        """Return the same, of a document that layer 1 has not refused."""
        tree = self.tree
        assert tree is not None
        return tree

    @property
    def valid(self) -> bool:
        """True if there is no error; warnings and infos do not count."""
        return self.message is not None


def check(
    octets: bytes, *, limits: ParseLimits = DEFAULT_LIMITS, advice: bool = True, detailed: bool = True
) -> Report:
    """Validate one envelope. Never raises, whatever the bytes are.

    ``advice`` adds the warnings and infos to an envelope that is valid. Without ``detailed``, one that breaks the
    schema gets the first reason of libxml2 instead of the detailed report, which takes a stranger's time for ours.
    """
    if not advice and (known := canonical.read(octets, limits)) is not None:
        return Report((), known, octets=octets)
    try:
        root, octets = parse(octets, limits)
        violations = schema_findings(root, octets, limits, detailed=detailed)
        if violations:
            return Report(violations, None, root)
        reading = Reading(encoded=b"encoding" in octets, limit=limits.findings)
        message = read_message(root, reading)
        if isinstance(message.body, EncryptedBody):
            check_depth(root, limits.depth)  # inside it alone the schema does not say how deep
    except Unparsable as refused:
        return Report((refused.finding,), None)
    if reading.findings:
        return Report(tuple(reading.findings), None, root)
    return Report(advise(message, root) if advice else (), message, root)
