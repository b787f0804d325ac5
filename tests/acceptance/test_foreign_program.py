"""A program that has redis-cli, xmllint and openssl takes part: every step of docs/external-programs.md as printed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from orchestrator import SessionState
from tests.acceptance.conftest import Terminal, open_terminal, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(480)]

AGENTS = '''
from orchestrator import agent


@agent("echo", role="specialist")
def echo(ctx):
    """Says back what it was told."""
    return f"echo of {ctx.prompt}"


@agent("asker", role="coordinator")
def asker(ctx):
    """Asks a program outside of the stack."""
    if ctx.cause == "start":
        ctx.delegate("partner", ctx.prompt, title="Answer")
        return "waiting"
    for callback in ctx.callbacks:
        if callback.kind == "query":
            ctx.reply(callback, f"{callback.text} seven")
            return "answered"
    return ctx.all_results[0].result
'''


def blocks(document: Path) -> str:
    """The shell blocks of a document as one script that stops at the first failure."""
    found = re.findall(r"```sh\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
    return "set -eu\n" + "\n".join(found)


@pytest.fixture
def terminal(program: Callable[[str], str]) -> Iterator[Terminal]:
    """A terminal beside a running stack with the agents `echo` and `asker`."""
    for name in ("redis-cli", "xmllint", "openssl", "base64"):
        program(name)
    with open_terminal() as opened:
        opened.serve(AGENTS)
        yield opened


def test_a_program_in_any_language_takes_full_part(terminal: Terminal, root: Path) -> None:
    """It is answered, answers, and what both sides said is verified with `openssl` and kept in the audit trail."""
    stack = json.loads(next((terminal.folder / ".orchestra" / "up").glob("*.json")).read_text())
    socket = unquote(urlsplit(stack["redis_url"]).path)
    script = terminal.folder / "steps.sh"
    script.write_text(blocks(root / "docs" / "external-programs.md"))
    said = terminal.must("/bin/sh steps.sh", SOCKET=socket)
    assert "answer: echo of hello from outside" in said
    assert "Signature Verified Successfully" in said
    assert "reply: six times what? seven" in said
    session = json.loads((terminal.folder / "submitted.json").read_text())["session"]
    with terminal.client() as client:
        wait_until(lambda: client.session(session).state is SessionState.FINISHED, "the asker's answer")
        assert client.result(session) == "42, says the outside"
        child = next(s for s in client.tree(session) if s.agent == "partner")
        assert (child.state, child.progress) == (SessionState.FINISHED, 50)
    assert terminal.document("orchestra dlq list") == {"dead_letters": []}
    wait_until(
        lambda: "task-completion partner → asker" in terminal.run(f"orchestra audit show {session}").stdout,
        "the audit writer",
    )
    looked = terminal.document("orchestra doctor --quick")
    assert [f for f in looked["findings"] if f["rule"] in ("message-taken", "messages-not-compared")] == []
    assert (looked["holds"], looked["audited"]) == (True, True), looked["findings"]
