"""A model server that is away for a while: the run waits without its slot, and uses up no attempt."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from orchestrator import AgentsFileError, ConfigurationError, model_agent
from orchestrator.agents.loader import load_agents
from orchestrator.agents.options.llm import MAX_INSTRUCTIONS_CHARS
from orchestrator.ledger import RunRef
from orchestrator.testing import Call, Fail, Hang, Reply, Say, Script, WireServer
from orchestrator.worker.context.context import Context
from orchestrator.worker.executors.llm.turn import run_coroutine
from tests.kit import Kit
from tests.waiting import wait_until

from .conftest import Model, Serve

NOW = 1_800_000_000_000
ANTHROPIC, CHAT = "anthropic:claude-sonnet-5-5", "openai-chat:gpt-5"


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A port on which no server listens yet; the clients of the providers are sent to it."""
    server = WireServer(Script())
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    server.stop()
    return int(server.url.rpartition(":")[2])


def wait_outside(kit: Kit, **changed: Any) -> None:
    kit.parts.settings = kit.settings.model_copy(update={"provider_wait_s": 0, **changed})
    kit.ledger.set_time(NOW)


@pytest.mark.parametrize("name", [ANTHROPIC, CHAT])
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "cannot be reached"),
        (Fail(502), "answers 502"),
        (Fail(503), "answers 503"),
        (Fail(504), "answers 504"),
    ],
    ids=str,
)
def test_a_run_waits_for_it_without_an_attempt(
    kit: Kit, model: Model, port: int, name: str, answer: Reply | None, why: str
) -> None:
    """So does another one with this server, which does not ask it. Nothing is counted for what was not done."""
    wait_outside(kit)
    model("patient", model=name, attempts=1)
    model("other", model=name, attempts=1)
    first, second = kit.start(kit.submit("patient")), kit.start(kit.submit("other"))
    said = [answer or Say("here")]
    with ExitStack() as there:
        if answer is not None:
            server = there.enter_context(WireServer(lambda _: said[0], port=port))
        assert (kit.execute(first), kit.execute(second)) == ("parked", "parked")
        assert answer is None or len(server.requests) == 1
        check_waits(kit, first, second, why=why)
        kit.ledger.set_time(NOW + 25_000)
        said[0] = Say("here")
        if answer is None:
            there.enter_context(WireServer(lambda _: said[0], port=port))
        assert (kit.execute(first), kit.execute(second)) == ("finished", "finished")
    for run in (first, second):
        assert kit.ledger.session(run.session).used.requests == 1


def check_waits(kit: Kit, *runs: RunRef, why: str) -> None:
    for run in runs:
        found = kit.ledger.run(run.run)
        assert (found.failures, found.claimable_ms) == (0, NOW + 1_000)
        trouble = kit.ledger.session(run.session).trouble
        assert f"{why}; the run waits without its slot and asks again in 1 s" in trouble


def test_it_waits_as_long_as_the_setting_says(kit: Kit, model: Model, port: int) -> None:
    """Ever longer, then each attempt asks once."""
    wait_outside(kit, provider_away_s=600)
    model("patient", model=CHAT, attempts=2)
    dispatch = kit.start(session := kit.submit("patient"))
    waits, now, verdict = [], NOW, kit.execute(dispatch)
    while verdict == "parked":
        run = kit.ledger.run(dispatch.run)
        waits.append(run.claimable_ms - now)
        now = run.claimable_ms
        kit.ledger.set_time(now)
        verdict = kit.execute(dispatch)
    assert (waits[0], max(waits)) == (1_000, 15_000)
    assert 600_000 <= sum(waits) <= 615_000
    assert verdict == "retry"
    kit.ledger.set_time(now + 60_000)
    assert kit.execute(dispatch) == "failed"
    assert "is not available" in kit.ledger.session(session).reason


def test_another_model_stands_in_for_one_that_is_away(
    kit: Kit, model: Model, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_outside(kit)
    model("two", model=CHAT, fallbacks=[ANTHROPIC])
    with WireServer(lambda request: Say("from the other")) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        for _ in range(2):
            session = kit.begin("two", ends="finished")
            assert kit.answer(session) == "from the other"


# --- A provider that is away and instructions that are too long: one sentence, nothing paid twice.


def test_a_provider_that_refuses_connections_for_too_long_costs_the_attempts_and_then_the_run(
    kit: Kit, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for in the slot first: ten seconds are no reason to free it."""
    kit.parts.settings = kit.settings.model_copy(update={"provider_away_s": 2, "provider_wait_s": 10})
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
        monkeypatch.setenv("ANTHROPIC_API_KEY", "test-key")
        model("lonely", instructions="You try.", attempts=2)
        session = kit.begin("lonely", ends="retry")
        assert kit.again(session) == "failed"
    reason = kit.ledger.session(session).reason
    assert "the model of agent 'lonely' is not available: " in reason
    assert "\n" not in reason
    assert kit.ledger.session(session).used.requests == 0


def test_a_provider_that_hangs_is_given_up_and_asked_by_the_next_attempt(
    kit: Kit, model: Model, serve: Serve
) -> None:
    """`timeout` of the model's settings; the call before, and its tool, are not paid again."""
    rolled = []

    def roll(ctx: Context) -> int:
        """Roll a die."""
        rolled.append(ctx.attempt)
        return 4

    server = serve(Script(Say(calls=[Call("roll")]), Hang(60), Say("a four")))
    model("patient", instructions="You roll.", tools=[roll], settings={"timeout": 0.5})
    session = kit.begin("patient", ends="retry")
    assert "timed out" in kit.ledger.runs(session)[0].tries[-1].reason.lower()
    assert kit.again(session) == "finished"
    assert kit.answer(session) == "a four"
    assert (len(server.requests), len(server.answered), rolled) == (3, 2, [1])


def test_instructions_that_are_too_long_are_refused_where_they_are_given(tmp_path: Path) -> None:
    long = "x" * (MAX_INSTRUCTIONS_CHARS + 1)
    with pytest.raises(ConfigurationError, match="instructions") as refused:
        model_agent("wordy", instructions=long)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400
    (tmp_path / "long.md").write_text(long)
    agents = tmp_path / "agents.toml"
    agents.write_text('[agents.wordy]\nexecutor = "llm"\ninstructions_file = "long.md"\n')
    with pytest.raises(
        AgentsFileError, match=f"instructions have at most {MAX_INSTRUCTIONS_CHARS}"
    ) as refused:
        load_agents([str(agents)])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("server", [{"id": "s"}, {"id": "s", "url": "http://s", "command": "s"}])
def test_an_error_about_a_server_shows_no_key(server: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="needs either command or url") as refused:
        model_agent("m", mcp=[{**server, "headers": {"authorization": "Bearer very-secret"}}])
    assert "very-secret" not in str(refused.value)
    with pytest.raises(ConfigurationError) as refused:
        model_agent("m", mcp=[{"id": "s", "command": "s", "env": {"PIN": 271828}}])
    assert "271828" not in str(refused.value)


# --- The one event loop of all model agents of a process.


class Ends(Exception):
    """What a run is stopped with."""


def test_what_a_cancelled_run_raises_is_no_traceback_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """It was asked to stop, and raises its own error then, which nobody waits for any more."""
    raised = []

    async def stubborn() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raised.append("one")
            raise RuntimeError("on its way out") from None

    def check() -> None:
        raise Ends

    with pytest.raises(Ends):
        run_coroutine(stubborn(), check, grace_s=5)
    wait_until(lambda: raised == ["one"])
    time.sleep(0.05)  # for the task to be collected, which nobody can wait for
    gc.collect()
    assert "never retrieved" not in caplog.text
