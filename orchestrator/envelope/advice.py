"""Advice on what is allowed but seldom wise: the warnings and infos about an envelope by itself."""

from __future__ import annotations

from typing import Final

from lxml import etree

from orchestrator.envelope.findings import Finding, FindingSeverity, found
from orchestrator.envelope.message_types import MESSAGE_TYPES
from orchestrator.envelope.model import AgentMessage
from orchestrator.envelope.model_values import NAMESPACE

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
            text = f"asks for many attempts; more than {ATTEMPTS} seldom help"
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
