"""`orchestra session plan` and `orchestra program mcp` at their edges: what is printed of a plan, and what is refused before anything starts."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from orchestrator.client.client import Client
from orchestrator.mcp import serving
from orchestrator.runtime.service import SignsOfLife
from orchestrator.worker.announce import queues_of, versions_of
from tests.commands import Orchestra
from tests.integration.client.conftest import echo
from tests.kit import Kit

PLAN = [
    {"role": "reviewer", "task": "read\n the code", "caller": "lead"},
    {"role": "tester", "task": "run it", "sequence": 2},
]


def test_a_dry_run_prints_the_waves_and_starts_nothing(
    kit: Kit, orchestra: Orchestra, client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(PLAN))
    said = orchestra("session", "plan", str(file), "--dry-run")
    assert said.exit_code == 0, said.stderr
    assert said.stdout.splitlines() == [
        "wave 1 (sequence 1): 1 assignment",
        "  reviewer  read the code  (callbacks to lead)",
        "wave 2 (sequence 2): 1 assignment",
        "  tester  run it",
    ]
    read = kit.document("session", "plan", "-", "--dry-run", stdin=json.dumps(PLAN))
    assert [wave["sequence"] for wave in read["waves"]] == [1, 2]
    assert client.sessions() == []


def test_an_empty_plan_is_nothing_to_do(orchestra: Orchestra, client: Client) -> None:
    assert (
        orchestra("session", "plan", "-", "--dry-run", stdin="[]").stdout == "no waves: the plan is empty\n"
    )
    done = orchestra("session", "plan", "-", stdin="[]")
    assert (done.exit_code, done.stdout, done.stderr) == (
        0,
        "",
        "the plan is empty: there is nothing to do\n",
    )
    assert client.sessions() == []


def test_a_plan_that_is_no_text_is_refused(orchestra: Orchestra, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_bytes(b'[{"role": "\xff"}]')
    done = orchestra("session", "plan", str(file))
    assert done.exit_code == 2
    assert f"{file} is not text in UTF-8 (byte 11); convert it" in done.stderr
    assert orchestra("session", "plan", str(tmp_path / "missing.json")).exit_code in {1, 2}


def test_a_plan_is_a_session_of_its_caller(orchestra: Orchestra, kit: Kit, client: Client) -> None:
    """Its id is printed; the same key is the same session."""
    for name in ("lead", "reviewer", "tester"):
        kit.agent(name, role="coordinator" if name == "lead" else "specialist")(lambda ctx: "")
    first = orchestra("session", "plan", "-", "--key", "k", stdin=json.dumps(PLAN))
    assert first.exit_code == 0, first.stderr
    again = kit.document("session", "plan", "-", "--key", "k", stdin=json.dumps(PLAN))
    assert again == {"session": first.stdout.strip(), "agent": "lead", "new": False}
    assert [session.id for session in client.sessions()] == [first.stdout.strip()]


def test_a_server_for_assistants_says_what_it_lacks(
    orchestra: Orchestra, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = orchestra("program", "mcp", "--may-approve")
    assert (refused.exit_code, "add --operator" in refused.stderr) == (2, True)
    monkeypatch.setenv("ORCHESTRA_MCP_TOKEN", "short")
    short = orchestra("program", "mcp", "--operator", "--http")
    assert (short.exit_code, "give at least 16 characters" in short.stderr) == (2, True)
    nobody = orchestra("program", "mcp")
    assert nobody.exit_code == 2, nobody.stdout
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("orchestrator.cli.mcp.find_spec", lambda name: None)
    missing = orchestra("program", "mcp", "--operator")
    assert (missing.exit_code, "pip install 'agent-orchestra[mcp]'" in missing.stderr) == (2, True)


def test_an_operators_server_over_http_makes_and_prints_its_token(
    orchestra: Orchestra, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or takes the one that it is given, which it does not print."""
    served: list[tuple[int, str]] = []
    monkeypatch.setattr(serving, "serve_http", lambda server, *, port, token: served.append((port, token)))
    monkeypatch.setattr(serving, "serve_stdio", lambda server: served.append((0, "")))
    made = orchestra("program", "mcp", "--operator", "--http", "--port", "8123")
    assert made.exit_code == 0, made.stderr
    monkeypatch.setenv("ORCHESTRA_MCP_TOKEN", "0123456789abcdef")
    given = orchestra("program", "mcp", "--operator", "--http")
    orchestra("program", "mcp", "--operator")
    (port, token), (_, own), stdio = served
    assert (port, own, stdio) == (8123, "0123456789abcdef", (0, ""))
    assert len(token) >= 16
    assert f"token: {token}\n" in made.stderr
    assert "serving http://127.0.0.1:8123" in made.stderr
    assert "0123456789abcdef" not in given.stderr + given.stdout


# --- `orchestra session fork`, and what `agents` and `sessions` say of versions.


def test_fork_prints_the_new_session(kit: Kit, client: Client, orchestra: Orchestra, solo: None) -> None:
    """A second time with the same key it says that it is not new."""
    session = kit.begin("solo", "hello")
    done = orchestra("session", "fork", session, "--at", "1", "--key", "k")
    assert (done.exit_code, done.stderr) == (0, "")
    fork = done.stdout.strip()
    kit.play(fork)
    assert client.answer(fork) == "hello"
    again = kit.document("session", "fork", session, "--at", "1", "--key", "k")
    assert again == {"session": fork, "agent": "solo", "new": False}
    listed = kit.document("sessions")["sessions"]
    assert {one["session"]: one["forked_from"] for one in listed} == {session: "", fork: session}
    other = orchestra("session", "fork", session, "-", "--at", "1", stdin="good bye").stdout.strip()
    kit.play(other)
    assert client.answer(other) == "good bye"


def test_fork_says_in_one_line_what_cannot_be_forked(kit: Kit, orchestra: Orchestra, solo: None) -> None:
    session = kit.begin("solo")
    refused = orchestra("session", "fork", session, "--at", "run_nobody")
    assert refused.exit_code == 2
    assert refused.stderr.startswith(f"Error: session {session} has no run 'run_nobody'; its last runs: run_")
    assert orchestra("session", "fork", session).exit_code == 2


def test_versions_show_in_agents_and_sessions(kit: Kit, orchestra: Orchestra) -> None:
    kit.agent("solo", on_deploy="refuse", version="v1")(echo)
    kit.begin("solo")
    life = SignsOfLife(
        "worker",
        kit.redis,
        kit.steady,
        serves=queues_of(kit.catalogue),
        versions=versions_of(kit.catalogue),
    )
    life.begin()
    listed = kit.document("agents")["agents"][0]
    assert (listed["version"], listed["on_deploy"], listed["versions"]) == ("v1", "refuse", {"v1": 1})
    assert "on deploy refuse, version v1 (1 worker)" in orchestra("agents").stdout
    shown = kit.document("sessions")["sessions"][0]
    assert (shown["version"], shown["on_deploy"]) == ("v1", "refuse")
    life.end()
