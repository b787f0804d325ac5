"""Agents that behave badly, in a real worker: each ends in one clear way, and the stack goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from orchestrator import Client, SessionFailed, SessionState, SessionStopped
from orchestrator.dispatch import build_celery
from orchestrator.errors import OrchestraError
from tests.acceptance.conftest import Terminal, open_stack, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(480)]

AGENTS = '''
import os
import time

from orchestrator import agent


@agent("echo")
def echo(ctx):
    return ctx.prompt


@agent("deaf")
def deaf(ctx):
    time.sleep(1000)


@agent("slow", time_limit_s=0.5)
def slow(ctx):
    time.sleep(1000)


@agent("fragile")
def fragile(ctx):
    """Its process dies when it is first tried."""
    if ctx.attempt == 1:
        os.kill(os.getpid(), 9)
    return f"attempt {ctx.attempt}"


@agent("exits")
def exits(ctx):
    raise SystemExit("enough")


@agent("large")
def large(ctx):
    return "é" * int(ctx.prompt)


@agent("hopeful", role="coordinator")
def hopeful(ctx):
    if ctx.cause == "start":
        for name in ctx.prompt.split():
            ctx.delegate(name, "1500000" if name == "large" else "x")
        ctx.wait_for("all")
        return "waiting"
    return "; ".join(sorted(f"{c.agent} {c.status} {len(c.result) or c.error}" for c in ctx.all_results))
'''


@pytest.fixture(scope="module")
def stack() -> Iterator[Terminal]:
    """A stack with short times that serves the agents above."""
    with open_stack(
        AGENTS,
        ORCHESTRA_STOP_GRACE_S="0.5",
        ORCHESTRA_LEASE_S="2",
        ORCHESTRA_HEARTBEAT_S="0.5",
        ORCHESTRA_SWEEP_INTERVAL_S="0.3",
        ORCHESTRA_REGISTRATION_PATIENCE_S="0.5",
    ) as terminal:
        yield terminal


@pytest.fixture
def client(stack: Terminal) -> Iterator[Client]:
    with stack.client() as opened:
        yield opened


def test_an_agent_that_does_not_heed_a_stop_is_killed_and_the_command_says_so(
    stack: Terminal, client: Client
) -> None:
    session = client.submit("deaf", "x").id
    wait_until(lambda: client.session(session).state is SessionState.RUNNING, "the deaf agent to run")
    done = stack.run(f"orchestra stop {session}")
    assert done.stdout == (
        f"{session} is running; its agent was asked to stop, and is ended by force if it does not\n"
        f"{session} is stopped: its agent did not stop in time and was killed\n"
    )
    with pytest.raises(SessionStopped, match="stopped by a user"):
        client.result(session, timeout_s=120)
    assert client.submit("echo", "still here").result(timeout_s=120) == "still here"


def test_an_agent_past_its_time_limit_fails(client: Client) -> None:
    with pytest.raises(SessionFailed, match="it ran longer than its time limit"):
        client.submit("slow", "x").result(timeout_s=120)


def test_an_agent_whose_process_dies_is_tried_again(client: Client) -> None:
    assert client.submit("fragile", "x").result(timeout_s=150) == "attempt 2"


def test_an_agent_that_exits_fails_and_its_worker_stays(client: Client) -> None:
    with pytest.raises(SessionFailed, match="SystemExit: enough"):
        client.submit("exits", "x").result(timeout_s=120)


def test_every_child_comes_back_whatever_became_of_it(client: Client) -> None:
    handle = client.submit("hopeful", "echo nobody slow exits fragile large")
    answer = handle.result(timeout_s=120)
    ends = dict(part.split(" ", 1) for part in answer.split("; "))
    assert ends["echo"] == "completed 1"
    assert ends["fragile"] == "completed 9"
    assert ends["large"] == "completed 1500000"
    assert ends["exits"].startswith("failed SystemExit: enough")
    assert ends["slow"].startswith("failed it ran longer than its time limit of 0.5 s, and its agent, which")
    assert ends["nobody"].startswith("failed ")
    assert "'nobody'" in ends["nobody"]
    found = handle.session()
    assert (found.launched, found.delivered, found.pending, found.dead) == (6, 6, 0, 0)


def test_a_bare_task_that_comes_twice_is_one_session(stack: Terminal, client: Client) -> None:
    script = (
        "from workers import app\n"
        "for _ in range(2):\n"
        "    task = app.send_task('orchestrator.start_session', kwargs={'agent': 'echo', 'prompt': 'twice'}, task_id='the-same')\n"
        "print(task.get(timeout=60))\n"
    )
    (stack.folder / "twice.py").write_text(script, encoding="utf-8")
    assert stack.must("python twice.py") == "twice\n"
    assert [session.title for session in client.sessions()].count("twice") == 1


def refusal(client: Client, task: str, **kwargs: object) -> str:
    """What the caller of a task hears that is sent with these arguments."""
    sent = build_celery(client.settings).send_task(f"orchestrator.{task}", kwargs=kwargs)
    with pytest.raises(OrchestraError) as said:
        sent.get(timeout=60)
    return f"{said.type.__name__}: {said.value}"


def test_a_bare_task_that_cannot_be_submitted_fails_for_its_caller(client: Client) -> None:
    unknown = refusal(client, "start_session", agent="nobody", prompt="x")
    assert unknown.startswith("UnknownAgent: no agent named 'nobody' is registered (registered: deaf, echo, ")
    empty, missing = (refusal(client, "start_session", agent="echo", **p) for p in ({"prompt": " "}, {}))
    assert empty == missing == "EmptyPrompt: the prompt for agent 'echo' is empty; say what it should do"
    number = refusal(client, "start_session", agent="echo", prompt=7)
    assert number == "InputError: orchestrator.start_session takes agent and prompt as text"
    misspelt = refusal(client, "start_session", agnet="echo")
    assert misspelt.startswith(
        "InputError: orchestrator.start_session takes no argument 'agnet'; send agent and prompt"
    )


def test_a_resume_that_is_sent_by_hand_says_how_it_is_done(client: Client) -> None:
    """Nobody waits for ever for a task that runs what the ledger has not queued."""
    prompt = refusal(client, "resume_session", session="ses_x", prompt="go on")
    assert prompt.startswith("InputError: orchestrator.resume_session is not sent by hand")
    assert prompt.endswith("use Client.resume or `orchestra resume SESSION PROMPT`")
    assert refusal(client, "resume_session") == refusal(client, "resume_session", sesion="ses_x") == prompt


def test_a_worker_that_is_killed_with_its_pool_loses_no_run(stack: Terminal, client: Client) -> None:
    handles = [client.submit("echo", str(number)) for number in range(30)]
    workers = stack.workers()
    os.kill(workers[0], signal.SIGKILL)
    assert [handle.result(timeout_s=120) for handle in handles] == [str(number) for number in range(30)]
