"""`orchestra session fork`, and what `agents` and `sessions` say of versions."""

from __future__ import annotations

import json

from orchestrator.client.client import Client
from orchestrator.runtime.service import SignsOfLife
from orchestrator.worker.announce import queues_of, versions_of
from tests.integration.client.conftest import Orchestra
from tests.integration.client.test_client import echo
from tests.integration.workers.conftest import StackHarness


def test_fork_prints_the_new_session(stage: StackHarness, client: Client, orchestra: Orchestra) -> None:
    """A second time with the same key it says that it is not new."""
    stage.agent("solo")(echo)
    session = client.submit("solo", "hello").id
    stage.play(session)
    done = orchestra("session", "fork", session, "--at", "1", "--key", "k")
    assert (done.exit_code, done.stderr) == (0, "")
    fork = done.stdout.strip()
    stage.play(fork)
    assert client.answer(fork) == "hello"
    again = json.loads(orchestra("session", "fork", session, "--at", "1", "--key", "k", "--json").stdout)
    assert again == {"session": fork, "agent": "solo", "new": False}
    listed = json.loads(orchestra("sessions", "--json").stdout)["sessions"]
    assert {one["session"]: one["forked_from"] for one in listed} == {session: "", fork: session}
    other = orchestra("session", "fork", session, "-", "--at", "1", text="good bye").stdout.strip()
    stage.play(other)
    assert client.answer(other) == "good bye"


def test_fork_says_in_one_line_what_cannot_be_forked(stage: StackHarness, orchestra: Orchestra) -> None:
    stage.agent("solo")(echo)
    session = stage.begin("solo")
    refused = orchestra("session", "fork", session, "--at", "run_nobody")
    assert refused.exit_code == 2
    assert refused.stderr.startswith(f"Error: session {session} has no run 'run_nobody'; its last runs: run_")
    assert orchestra("session", "fork", session).exit_code == 2


def test_versions_show_in_agents_and_sessions(stage: StackHarness, orchestra: Orchestra) -> None:
    stage.agent("solo", on_deploy="refuse", version="v1")(echo)
    stage.begin("solo")
    life = SignsOfLife(
        "worker",
        stage.redis,
        stage.steady,
        serves=queues_of(stage.catalogue),
        versions=versions_of(stage.catalogue),
    )
    life.begin()
    listed = json.loads(orchestra("agents", "--json").stdout)["agents"][0]
    assert (listed["version"], listed["on_deploy"], listed["versions"]) == ("v1", "refuse", {"v1": 1})
    assert "on deploy refuse, version v1 (1 worker)" in orchestra("agents").stdout
    shown = json.loads(orchestra("sessions", "--json").stdout)["sessions"][0]
    assert (shown["version"], shown["on_deploy"]) == ("v1", "refuse")
    life.end()
