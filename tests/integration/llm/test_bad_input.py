"""A provider that is away and instructions that are too long: one sentence, nothing paid twice."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from orchestrator import AgentsFileError, ConfigurationError, model_agent
from orchestrator.agents.loader import load_agents
from orchestrator.agents.options.llm import MAX_INSTRUCTIONS_CHARS
from orchestrator.testing import Call, Hang, Say, Script
from orchestrator.worker.context.context import Context

from ..workers.conftest import StackHarness
from .conftest import Model, Serve


def test_a_provider_that_refuses_connections_for_too_long_costs_the_attempts_and_then_the_run(
    stage: StackHarness, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for in the slot first: ten seconds are no reason to free it."""
    stage.parts.settings = stage.settings.model_copy(update={"provider_away_s": 2, "provider_wait_s": 10})
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
        monkeypatch.setenv("ANTHROPIC_API_KEY", "test-key")
        model("lonely", instructions="You try.", attempts=2)
        dispatch = stage.start(session := stage.submit("lonely"))
        assert (stage.execute(dispatch), stage.again(dispatch)) == ("retry", "failed")
    reason = stage.ledger.session(session).reason
    assert "the model of agent 'lonely' is not available: " in reason
    assert "\n" not in reason
    assert stage.ledger.session(session).used.requests == 0


def test_a_provider_that_hangs_is_given_up_and_asked_by_the_next_attempt(
    stage: StackHarness, model: Model, serve: Serve
) -> None:
    """`timeout` of the model's settings; the call before, and its tool, are not paid again."""
    rolled = []

    def roll(ctx: Context) -> int:
        """Roll a die."""
        rolled.append(ctx.attempt)
        return 4

    server = serve(Script(Say(calls=[Call("roll")]), Hang(60), Say("a four")))
    model("patient", instructions="You roll.", tools=[roll], settings={"timeout": 0.5})
    dispatch = stage.start(session := stage.submit("patient"))
    assert stage.execute(dispatch) == "retry"
    assert "timed out" in stage.ledger.runs(session)[0].tries[-1].reason.lower()
    assert stage.again(dispatch) == "finished"
    assert stage.ledger.result(session)[1] == "a four"
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
