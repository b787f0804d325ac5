"""What agents, programs and strangers write does not act on the terminal of whoever reads it, in any command."""

from __future__ import annotations

import io
import os
import unicodedata
from contextlib import suppress

import pytest
from click.testing import Result
from rich.console import Console

from orchestrator.audit import build_writer
from orchestrator.cli.watch import _picture
from orchestrator.client.client import Client
from orchestrator.envelope.bodies import Message
from orchestrator.ids import new_message_id
from orchestrator.worker.context.context import Context
from tests.commands import Orchestra
from tests.integration.client.conftest import on_terminal
from tests.kit import Kit

#: A title for the window, colours, a cursor move, the same by C1, the other direction, a hidden mark, Rich's markup.
ACTS = "\x1b]0;owned\x07\x1b[31m\x1b[2J\x9b1A\x9d0;x\x9c\u202egnp\u2066\u200b"
HOSTILE = f"{ACTS}[red]bold[/red]"
#: What of it XML may carry.
IN_XML = "\x9b1A\x9d0;x\x9c\u202egnp\u2066\u200b[red]bold[/red]"


def assert_harmless(done: Result, *words: str) -> None:
    for output in (done.stdout_bytes.decode(), done.stderr_bytes.decode()):
        acting = {
            c for c in output if c != "\n" and unicodedata.category(c) in {"Cc", "Cf", "Zl", "Zp", "Cs"}
        }
        assert not acting, (acting, output)
    for word in words:
        assert word in done.output, done.output


def test_what_agents_write(kit: Kit, client: Client, orchestra: Orchestra) -> None:
    """Titles, prompts, activities, answers, failures, questions and descriptions."""

    @kit.agent("bad", description=HOSTILE)
    def bad(ctx: Context) -> None:
        ctx.status(50, HOSTILE)
        raise ValueError(HOSTILE)

    @kit.agent("asker", role="coordinator")
    def asker(ctx: Context) -> str:
        ctx.delegate("bad", f"{HOSTILE} a task\nand a second line")
        return HOSTILE

    root = client.submit("asker", HOSTILE, title=HOSTILE).id
    for command in (("tree", root), ("sessions",), ("logs", root), ("why", root), ("doctor", "--quick")):
        assert_harmless(orchestra(*command))
    kit.play(root)
    (child,) = kit.children(root)
    failed = kit.start(child.id)
    with suppress(ValueError):
        kit.execute(failed)
    for command in (
        ("tree", root),
        ("sessions",),
        ("logs", root),
        ("logs", child.id),
        ("why", child.id),
        ("result", child.id),
        ("watch", child.id),
        ("agents",),
        ("doctor", "--quick"),
        ("stop", root, "--reason", HOSTILE),
        ("submit", HOSTILE, "x"),
        ("tree", HOSTILE),
        ("reply", HOSTILE, "x"),
    ):
        assert_harmless(orchestra(*command))
        if command[0] not in ("agents", "sessions"):
            assert_harmless(orchestra(*command, "--json"))
    assert_harmless(orchestra("tree", root), r"\x1b]0;owned\x07", r"\u202egnp", "[red]bold[/red]")
    dated = [line for line in orchestra("logs", child.id).stdout.splitlines() if line.startswith("20")]
    assert len(dated) == len(client.history(child.id)), "no text makes a line that looks like an event"


def test_the_live_tree(kit: Kit, client: Client) -> None:
    """Neither controls nor the markup of the library that draws it."""
    kit.agent("solo")(lambda ctx: "x")
    root = client.submit("solo", "x", title=HOSTILE).id
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, color_system=None, width=300)
    console.print(_picture(console, client.tree(root), []))
    assert r"\x1b]0;owned\x07" in screen.getvalue()
    assert "[red]bold[/red]" in screen.getvalue()
    assert not {c for c in screen.getvalue() if c != "\n" and unicodedata.category(c) in {"Cc", "Cf"}}


def test_what_is_published_and_what_died(kit: Kit) -> None:
    """Dead letters that are no XML, messages, their conversation, and what the audit trail finds."""
    for name in ("lead", "tech-lead"):
        kit.agent(name, role="coordinator")(lambda _: "")
    message_id = new_message_id()
    kit.publish(f"no xml {HOSTILE}".encode(), "message")
    kit.post(Message(content=IN_XML), message_id=message_id)
    kit.route()
    writer = build_writer(kit.parts, consumer="a")
    while writer.run_once():
        pass
    dead = kit.dead()[0].id
    for command in (
        ("dlq", "list"),
        ("dlq", "show", dead),
        ("dlq", "replay", dead),
        ("dlq", "show", HOSTILE),
        ("audit", "show", message_id),
        ("audit", "search"),
        ("audit", "search", IN_XML),
        ("audit", "show", HOSTILE),
        ("audit", "report"),
    ):
        assert_harmless(kit.orchestra(*command))
        if command[:2] != ("dlq", "replay"):
            assert_harmless(kit.orchestra(*command, "--json"))
    assert_harmless(kit.orchestra("dlq", "show", dead), r"no xml \x1b]0;owned\x07")
    exact = kit.orchestra("audit", "show", message_id, "--xml")
    assert IN_XML in exact.stdout_bytes.decode(), "a file gets every octet"


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal to write to")
def test_a_result_is_exact_in_a_pipe_and_harmless_on_a_terminal(kit: Kit, orchestra: Orchestra) -> None:
    answer = f"{HOSTILE}\nsecond\tline"
    kit.agent("solo")(lambda ctx: answer)
    root = kit.begin("solo", "x")
    assert orchestra("result", root).stdout_bytes.decode() == f"{answer}\n"
    text = on_terminal(kit, "result", root)
    assert r"\x1b]0;owned\x07" in text
    assert text.count("\n") == 2
    assert not {c for c in text if c not in "\n\t" and unicodedata.category(c) in {"Cc", "Cf"}}
