"""Programs that an agent starts have effects under the token of its run, and under no other."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from orchestrator import current_session
from orchestrator.client.current import SOCKET_VARIABLE, TOKEN_VARIABLE, RemoteSession
from orchestrator.errors import ConfigurationError, InputError, NoReply, ServerUnavailable
from orchestrator.worker import announce
from orchestrator.worker.context.context import Context
from orchestrator.worker.gateway import FOLDER_PREFIX
from orchestrator.worker.worktrees import Worktrees
from tests.examined import broken_by_the_trail
from tests.kit import Kit
from tests.workers import Workers


def orchestra(ctx: Context, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a program of an agent does."""
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *arguments],
        env={**os.environ, **ctx.environment()},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def remote(ctx: Context) -> RemoteSession:
    env = ctx.environment()
    return RemoteSession(env[SOCKET_VARIABLE], env[TOKEN_VARIABLE])


def test_the_commands_reach_the_run_of_the_agent_that_started_them(kit: Kit, workers: Workers) -> None:
    """A program delegates and waits, asks and raises; each is an effect of the session and counted as one."""
    said: dict[str, tuple[int, str]] = {}
    told = kit.lead("tool: use your tools", reply=lambda asked: f"about {asked.text}: yes")

    @kit.agent("tool", role="coordinator")
    def tool(ctx: Context) -> str:
        for name, arguments in {
            "delegate": ("delegate", "helper", "help me", "--wait"),
            "ask": ("ask", "may I?", "--timeout", "60"),
            "raise": ("raise", "no config", "--kind", "blocker", "--wait", "--json"),
        }.items():
            done = orchestra(ctx, *arguments)
            said[name] = (done.returncode, done.stdout.strip() or done.stderr)
        return "used"

    kit.agent("helper")(lambda ctx: ctx.prompt.upper())
    workers.answer(kit.submit("lead"))
    assert said["delegate"] == (0, "HELP ME")
    assert said["ask"] == (0, "about may I?: yes")
    assert (said["raise"][0], json.loads(said["raise"][1])) == (0, {"reply": "about no config: yes"})
    heard = sorted(f"{callback.kind}: {callback.text}" for callback in told)
    assert heard == ["blocker: no config", "completion: used", "query: may I?"]
    assert broken_by_the_trail(kit) == []


def test_a_run_that_is_tried_again_gets_the_children_of_its_programs_back(kit: Kit) -> None:
    children: list[str] = []

    @kit.agent("tool", role="coordinator", attempts=2)
    def tool(ctx: Context) -> str:
        children.append(remote(ctx).delegate("helper", "help me"))
        children.append(remote(ctx).delegate("helper", "help me"))
        if ctx.attempt == 1:
            raise RuntimeError("broken")
        return ""

    kit.agent("helper")(lambda _: "")
    root = kit.begin("tool", ends="retry")
    assert kit.again(root) == "idle"
    assert children[:2] == children[2:]
    assert len(kit.children(root)) == 2


def test_a_token_is_refused_after_its_run_and_by_other_runs(kit: Kit) -> None:
    kept: list[RemoteSession] = []
    folders: list[Path] = []

    @kit.agent("tool")
    def tool(ctx: Context) -> str:
        env = ctx.environment()
        assert ctx.environment() == env
        kept.append(remote(ctx))
        path = Path(env[SOCKET_VARIABLE])
        folders.append(path.parent)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        for token in ("", "other", env[TOKEN_VARIABLE] + "x", *(["x" * 43])):
            with pytest.raises(InputError, match="not of this run"):
                RemoteSession(env[SOCKET_VARIABLE], token).status(10)
        if len(kept) == 2:
            with pytest.raises(InputError, match="not of this run"):
                RemoteSession(env[SOCKET_VARIABLE], kept[0]._token).status(10)
        kept[-1].status(50, "working")
        return ""

    first = kit.begin("tool")
    assert kit.ledger.session(first).progress == 50
    with pytest.raises(ServerUnavailable, match="has ended"):
        kept[0].status(60)
    kit.begin("tool", "again", ends="finished")
    assert [folder.exists() for folder in folders] == [False, False]


def test_the_folder_of_a_killed_worker_is_removed_and_that_of_a_run_is_not(
    kit: Kit, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder := tmp_path_factory.mktemp("short")))
    monkeypatch.setattr(announce, "YOUNG_S", -1)
    left = folder / f"{FOLDER_PREFIX}left"
    left.mkdir()
    (left / "run.sock").touch()

    @kit.agent("tool")
    def tool(ctx: Context) -> str:
        ctx.environment()
        announce.Janitor(kit.ledger, Worktrees(folder)).clean()
        remote(ctx).status(50, "working")
        return ""

    session = kit.begin("tool")
    assert (kit.ledger.session(session).progress, left.exists()) == (50, False)


def test_a_long_folder_for_temporary_files_does_not_hinder_a_run(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("long" * 30)))

    @kit.agent("tool")
    def tool(ctx: Context) -> str:
        remote(ctx).status(50, "working")
        return ""

    assert kit.ledger.session(kit.begin("tool", ends="finished")).progress == 50


def test_what_is_wrong_with_a_request_is_said(kit: Kit) -> None:
    said: list[str] = []

    @kit.agent("tool")
    def tool(ctx: Context) -> str:
        session = remote(ctx)
        for call in (
            lambda: session.call("destroy"),
            lambda: session.call("delegate", agent="helper"),
            lambda: session.call("wait", timeout_s=1e9),
            lambda: session.wait(["ses_00000000000000000000000000"], timeout_s=0),
            lambda: session.delegate("", "nothing"),
            lambda: session.ask(" "),
        ):
            with pytest.raises(InputError) as caught:
                call()
            said.append(str(caught.value))
        assert session.raise_callback("anybody?") is None
        return ""

    kit.begin("tool", ends="finished")
    assert "there is no operation 'destroy'" in said[0]
    assert said[1] == "delegate: task is missing"
    assert "less than or equal to 50" in said[2]
    assert "not a child of" in said[3]
    assert "without a message" in said[5]


def test_junk_on_the_socket_ends_nothing(kit: Kit) -> None:
    @kit.agent("tool")
    def tool(ctx: Context) -> str:
        for junk in (b"", b"\n", b"{}\n", b"[1]\n", b"\xff\xfe\n", b"[" * 100_000 + b"\n", b"no end"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.connect(ctx.environment()[SOCKET_VARIABLE])
                connection.sendall(junk)
                connection.shutdown(socket.SHUT_WR)
                answer = connection.makefile("rb").readline()
                assert answer == b"" or "error" in json.loads(answer)
        remote(ctx).status(99)
        return ""

    root = kit.begin("tool", ends="finished")
    assert kit.ledger.session(root).progress == 99


def test_a_request_that_is_too_large_is_answered_and_the_connection_goes_on(kit: Kit) -> None:
    """Programs are told so, and not that the run has ended."""

    @kit.agent("tool")
    def tool(ctx: Context) -> str:
        with pytest.raises(InputError, match="at most 16777216 bytes"):
            remote(ctx).message("parent", "x" * 20_000_000)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(ctx.environment()[SOCKET_VARIABLE])
            connection.sendall(b"x" * 40_000_000 + b"\n{}\n")
            answers = connection.makefile("rb")
            assert b"at most" in answers.readline()
            assert b"JSON object" in answers.readline()
        return ""

    kit.begin("tool", ends="finished")


def test_a_program_sees_and_answers_the_questions_of_its_children(kit: Kit, workers: Workers) -> None:
    seen: list[list[str]] = []

    @kit.agent("tool", role="coordinator")
    def tool(ctx: Context) -> str:
        session = remote(ctx)
        child = session.delegate("helper", "help me")
        while True:
            found = session.wait([child])
            seen.append([q["text"] for q in found["questions"]])
            for question in found["questions"]:
                session.reply(question["question"], "because")
            if found["ended"]:
                return str(found["ended"][0]["text"])

    kit.agent("helper")(lambda ctx: ctx.ask("why?"))
    assert workers.answer(kit.submit("tool")) == "because"
    assert seen[0] == ["why?"]


def test_functions_that_an_agent_calls_find_its_session(kit: Kit) -> None:
    def tool_function() -> str:
        return current_session().delegate("helper", "help me")

    kit.agent("helper")(lambda _: "")
    kit.agent("tool", role="coordinator")(lambda _: tool_function())
    root = kit.begin("tool")
    assert [s.agent for s in kit.children(root)] == ["helper"]
    with pytest.raises(ConfigurationError, match="works for no session"):
        current_session()


def test_a_question_that_nobody_answers_ends_the_wait_and_stays_open(kit: Kit) -> None:
    kit.agent("boss", role="coordinator")(lambda ctx: ctx.delegate("tool", "go"))

    @kit.agent("tool")
    def tool(ctx: Context) -> str:
        with pytest.raises(NoReply):
            remote(ctx).ask("hello?", timeout_s=0.2)
        return "went on"

    root = kit.begin("boss")
    (child,) = kit.children(root)
    assert kit.play(child.id) == "idle"
    assert len(kit.ledger.session(child.id).questions) == 1
