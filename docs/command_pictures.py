"""The pictures of what commands show, at 80 and 160 columns: a real stack with trees in every state.

`make picture` writes them to `images/commands/`; `screens.md` shows them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from picture import IMAGES, draw, record, screens

from orchestrator.client.client import Client
from orchestrator.config.settings import Settings, load_settings
from orchestrator.config.stack import resolve_redis_url
from orchestrator.deployment.local_stack import LocalStack
from orchestrator.redisdb import keys
from orchestrator.redisdb.client import connect

FOLDER: Final = IMAGES / "commands"
WIDTHS: Final = (80, 160)
#: Lines of a picture; of more the beginning is shown.
LINES: Final = 24
#: Seconds that anything may take.
PATIENCE_S: Final = 60.0

AGENTS = '''
"""A newsroom: agents that delegate, fail, ask and wait."""

import time

from orchestrator import Context, agent


@agent("editor", role="coordinator", tier="opus", tags=["desk"])
def editor(ctx: Context) -> str:
    """Leads an issue: has each article written and checked."""
    if ctx.cause == "start":
        for topic in ctx.prompt.split(", "):
            ctx.delegate("writer", f"Write about {topic}.", title=f"Article on {topic}")
        ctx.wait_for("all")
        return "waiting for the writers"
    return f"{len([one for one in ctx.all_results if one.status == 'completed'])} articles"


@agent("writer", role="coordinator", tier="sonnet", attempts=2, backoff_s=600, tags=["desk"])
def writer(ctx: Context) -> str:
    """Writes one article, and has it checked."""
    if "tides" in ctx.prompt:
        return ctx.call("checker", "Are there two tides a day?", title="Check the tides").result
    if "volcanoes" in ctx.prompt:
        raise ConnectionError("the library does not answer")
    if "comets" in ctx.prompt:
        ctx.status(60, "second draft")
        while not ctx.stopping:
            time.sleep(0.1)
    if "eclipses" in ctx.prompt:
        ctx.request_approval("buy_photo", {"agency": "Orbit", "usd": 40}, reason="the only one of the corona")
    ctx.step("outline", len, ctx.prompt)
    return f"An article of {len(ctx.prompt)} words."


@agent("checker", tier="haiku", tags=["desk", "facts"])
def checker(ctx: Context) -> str:
    """Checks one fact."""
    print("looking it up in the almanac")
    return "Yes, in most places."


@agent("publisher", role="coordinator", runs_at_once=1)
def publisher(ctx: Context) -> str:
    """Publishes an issue when you allow it."""
    return ctx.ask("Publish issue 12 with the cover as it is?", context={"cover": "moon.png"})


@agent("archivist")
def archivist(ctx: Context) -> str:
    """Files what was published."""
    return "filed"
'''
#: Name of the picture → command.
COMMANDS: Final = {
    "sessions": "orchestra sessions",
    "tree": "orchestra tree {issue}",
    "watch": "orchestra watch {issue}",
    "agents": "orchestra agents",
    "logs": "orchestra logs {tides}",
    "logs-text": "orchestra logs {tides} --text",
    "logs-attempts": "orchestra logs {volcanoes}",
    "why": "orchestra why {issue}",
    "why-paused": "orchestra why {filed}",
    "questions": "orchestra questions",
    "approvals": "orchestra questions",
    "limit": "orchestra agents limit",
    "budget": "orchestra session budget {issue}",
    "result": "orchestra result {done}",
    "dlq-list": "orchestra dlq list",
    "dlq-show": "orchestra dlq show {letter}",
    "doctor": "orchestra doctor",
    "audit-search": "orchestra audit search --limit 12",
    "audit-show": "orchestra audit show {tides}",
    "audit-transitions": "orchestra audit transitions {tides}",
    "audit-verify": "orchestra audit verify",
    "audit-report": "orchestra audit report",
    "keys-list": "orchestra keys list",
    "did-you-mean": "orchestra sesions",
}
#: Characters of an id that are enough here.
_BEGINNING: Final = 12
#: Those that go on until somebody ends them, or look at a stack in which all is said.
_ENDLESS: Final = {"watch"}


def main() -> None:
    """Take all pictures, or those that are named."""
    wanted = sys.argv[1:] or list(COMMANDS)
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name) / "newsroom"
        folder.mkdir()
        (folder / "newsroom.py").write_text(AGENTS, encoding="utf-8")
        settings = load_settings(
            data=folder / ".orchestra", agents=(str(folder / "newsroom.py"),), concurrency=4
        )
        with LocalStack(settings) as stack:
            stack.wait_ready()
            env = {
                **os.environ,
                **stack.settings.to_env(),
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            }
            with Client(stack.settings) as client:
                named = _trees(client, folder, env)
                for picture in wanted:
                    command = COMMANDS[picture].format_map(named)
                    for columns in WIDTHS:
                        _take(picture, command, columns, folder, env)
                for session in client.sessions():
                    client.stop(session.id)


def _trees(client: Client, folder: Path, env: dict[str, str]) -> dict[str, str]:
    """Trees in every state; the ids that commands name."""

    def orchestra(*arguments: str) -> str:
        done = subprocess.run(
            ["orchestra", *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False
        )
        return done.stdout

    def letters() -> list[dict[str, str]]:
        found: list[dict[str, str]] = json.loads(orchestra("dlq", "list", "--json"))["dead_letters"]
        return found

    done = client.submit("editor", "tides, maps", title="Issue 11").id
    client.result(done, timeout_s=PATIENCE_S)
    failed = client.submit("checker", "Is it so?", title="A fact nobody needs any more").id
    client.result(failed, timeout_s=PATIENCE_S)
    orchestra("agents", "pause", "archivist")
    filed = client.submit("archivist", "File issue 11.").id
    stopped = client.submit("archivist", "File issue 10.").id
    client.stop(stopped, "the issue was withdrawn")
    orchestra("submit", "editor", "stars", "--title", "Issue 13", "--in", "2h")
    asked = client.submit("publisher", "Issue 12").id
    issue = client.submit(
        "editor", "tides, volcanoes, comets, eclipses", title="Issue 12: the sky", budget="usd=5,requests=200"
    ).id
    orchestra("agents", "limit", "writer", "3")
    _dead_letter(client.settings)
    _until("a dead letter", letters)
    _until("a question and an approval", lambda: client.session(asked).questions and client.approvals())
    _until(
        "the tree", lambda: len(client.tree(issue)) >= 6 and any(one.trouble for one in client.tree(issue))
    )
    children = {one.title: one.id for one in client.tree(issue)}
    _until("the article", lambda: client.session(children["Article on tides"]).ended_ms)
    _until("the audit trail", lambda: "writer" in orchestra("audit", "search", "--limit", "50"))
    return {
        "issue": issue[:_BEGINNING],
        "done": done[:_BEGINNING],
        "filed": filed[:_BEGINNING],
        "tides": children["Article on tides"][:_BEGINNING],
        "volcanoes": children["Article on volcanoes"][:_BEGINNING],
        "letter": letters()[0]["dead_letter"],
    }


def _dead_letter(settings: Settings) -> None:
    """Something on a stream that is no message."""
    server = connect(resolve_redis_url(settings), name="pictures")
    server.xadd(keys.messages(0, "query", "normal"), {"envelope": "<agent-message>half of it"})
    server.close()


def _take(name: str, command: str, columns: int, folder: Path, env: dict[str, str]) -> None:
    written = record(
        ["/bin/sh", "-c", f"exec {command}"],
        columns=columns,
        rows=LINES + 6,
        env=env,
        folder=folder,
        until=b"dead" if name in _ENDLESS else b"",
    )
    shown = list(screens(written.replace(str(folder.parent), "/home/me")))
    lines = max(shown, key=len) if name in _ENDLESS else shown[-1]
    while lines and not re.sub(r"\x1b\[[\d;]*m", "", lines[-1]).strip():
        lines.pop()
    if len(lines) > LINES:
        lines = [*lines[: LINES - 1], "…"]
    draw(FOLDER / f"{name}-{columns}.svg", f"$ {command}", lines, columns, folded=True)


def _until(what: str, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {PATIENCE_S:g} s for {what}")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
