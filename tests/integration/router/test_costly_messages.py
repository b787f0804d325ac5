"""What a message may cost that is refused: little, whoever sends it, and nobody behind it waits for long."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.envelope import report
from orchestrator.envelope.bodies import Message
from orchestrator.envelope.model_values import NAMESPACE
from orchestrator.envelope.parse import DEFAULT_LIMITS, parse
from orchestrator.envelope.signature import sign
from tests.cpu import least_cpu_s
from tests.kit import Kit

LARGE = DEFAULT_LIMITS.size - 20_000
ROOT = f'<agent-message xmlns="{NAMESPACE}" version="1.0"'.encode()
#: Seconds of processor time that one refused message may take of a router.
MOST_S = 0.5


def fill(start: bytes, unit: bytes, end: bytes) -> bytes:
    """As many units between the two as a large message holds."""
    return start + unit * ((LARGE - len(start) - len(end)) // len(unit)) + end


def number(start: bytes, unit: bytes, end: bytes, times: int) -> bytes:
    """So many units between the two, each with a number of its own."""
    return start + b"".join(unit % i for i in range(times)) + end


def inside(kit: Kit, old: bytes, new: bytes) -> bytes:
    """An honest message in which something is replaced once."""
    honest = kit.envelope(Message(content="x"))
    assert old in honest
    return honest.replace(old, new, 1)


COSTLY: dict[str, Callable[[Kit], bytes]] = {
    "2,000 attributes": lambda _: number(ROOT, b' a%d=""', b"/>", 2_000),
    "500,000 attributes": lambda _: number(ROOT, b' a%d=""', b"/>", 500_000),
    "31 attributes each": lambda s: inside(
        s, b"<body", number(b"<x", b' a%d=""', b"/>", 31) * 20_000 + b"<body"
    ),
    "300,000 namespaces": lambda _: number(ROOT, b' xmlns:n%d="u"', b"/>", 300_000),
    "namespaces in the depth": lambda _: number(ROOT + b">", b'<a xmlns:n%d="u">', b"", 300_000),
    "deep nesting": lambda _: fill(ROOT + b">", b"<a>", b""),
    "deep but closed": lambda s: inside(s, b"<body", b"<a>" * 250 + b"</a>" * 250 + b"<body"),
    "elements": lambda _: fill(ROOT + b">", b"<a/>", b"</agent-message>"),
    "99,000 elements": lambda s: inside(s, b"<body", b"<a/>" * 99_000 + b"<body"),
    "4,900 violations": lambda s: inside(s, b"<body", b'<a b="c"/>' * 4_900 + b"<body"),
    "undeclared prefixes": lambda _: fill(ROOT + b">", b"<a:b/>", b"</agent-message>"),
    "a huge text": lambda _: fill(ROOT + b">", b"a", b"</agent-message>"),
    "a huge id": lambda s: inside(s, b"<message-id>", fill(b"<message-id>", b" ", b"")),
    "a huge name": lambda s: inside(s, b"<agent-name>lead", fill(b"<agent-name>", b"lead ", b"")),
    "references": lambda _: fill(ROOT + b">", b"&#65;&lt;", b"</agent-message>"),
    "references in an attribute": lambda _: fill(ROOT + b' a="', b"&lt;", b'"/>'),
    "an entity": lambda _: (
        b'<!DOCTYPE a [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>' + fill(b"<a>", b"&b;", b"</a>")
    ),
    "unknown entities": lambda _: fill(ROOT + b">", b"&a;", b"</agent-message>"),
    "comments": lambda _: fill(ROOT + b">", b"a<!---->", b"</agent-message>"),
    "comments in front": lambda _: fill(b"", b"<!---->", ROOT + b"/>"),
    "an open comment in front": lambda _: fill(b"", b"<!--", b""),
    "instructions": lambda _: fill(ROOT + b">", b"<?a?>", b"</agent-message>"),
    "character data": lambda _: fill(ROOT + b">", b"<![CDATA[a]]>", b"</agent-message>"),
    "nothing but brackets": lambda _: fill(ROOT + b">", b"<", b""),
    "an unclosed quote": lambda _: fill(ROOT, b' a="', b""),
    "another encoding": lambda _: (
        b'<?xml version="1.0" encoding="cp1252"?>' + fill(ROOT + b">", b"\x80", b"</agent-message>")
    ),
    "much behind a flaw": lambda _: number(ROOT + b"><a ", b' a%d=""', b"/>", 500_000).replace(
        b"<a ", b"<<a ", 1
    ),
    "bad items": lambda s: inside(
        s,
        b"<body",
        b"<signature>" * 60 + b"<algorithm>x</algorithm>" * 1000 + b"</signature>" * 60 + b"<body",
    ),
}


@pytest.mark.parametrize("what", COSTLY)
def test_a_refused_message_takes_little_time_of_a_router(kit: Kit, what: str) -> None:
    """It is a dead letter and the one behind it is routed, all in half a second of processor time."""
    router = kit.router()
    costly = COSTLY[what](kit)
    routed = []

    def route() -> None:
        handled = router.run_once()
        routed.append((handled.dead, handled.done))
        publish()

    def publish() -> None:
        kit.publish(costly, "message")
        kit.post(Message(content="honest"))

    publish()
    assert least_cpu_s(route, below_s=MOST_S) < MOST_S
    assert set(routed) == {(1, 1)}
    assert {dead.data == costly for dead in kit.dead()} == {True}


def test_no_report_is_made_for_a_message_that_nobody_signed(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The detailed report costs a hundred times what the refusal does: a stranger gets the first reason only."""
    made: list[object] = []
    monkeypatch.setattr(report, "_detailed", lambda *given: made.append(given) or iter(()))
    forged = inside(kit, b"<content>", b"<title>t</title><content>")
    kit.publish(forged, "message")
    kit.route()
    (dead,) = kit.dead()
    assert (made, dead.rule) == ([], "schema")
    assert "title" in dead.reason


def test_who_signs_a_refused_message_is_told_which_rule_it_breaks(kit: Kit) -> None:
    """The same flaw under a signature that holds gets its rule, its line and what to do."""
    forged = inside(kit, b"<content>", b"<title>t</title><content>")
    kit.publish(sign(forged, kit.parts.keyring.signer("lead"), now_ms=kit.now_ms), "message")
    kit.route()
    (dead,) = kit.dead()
    assert (dead.rule, dead.reason) == (
        "unexpected-element",
        "line 1: <title> cannot stand in <body>; leave it out",
    )


def test_the_report_for_a_signed_message_ends_in_time(kit: Kit) -> None:
    """With as many violations as fit below the limits, too: what is not found in that time is left out."""
    report.schema_findings(*parse(ROOT + b"/>"), DEFAULT_LIMITS)  # the report's own schema is loaded once
    many = inside(kit, b"<body", b'<a b="c"/>' * 4_900 + b"<body")
    signed = sign(many, kit.parts.keyring.signer("lead"), now_ms=kit.now_ms)
    kit.publish(signed, "message")
    router = kit.router()
    routed = []

    def route() -> None:
        routed.append(router.run_once().dead)
        kit.publish(signed, "message")

    assert least_cpu_s(route, below_s=MOST_S) < MOST_S
    assert set(routed) == {1}
