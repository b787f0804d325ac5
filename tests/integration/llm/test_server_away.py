"""A model server that is away for a while: the run waits without its slot, and uses up no attempt."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from orchestrator.ledger import RunRef
from orchestrator.testing import Fail, Reply, Say, Script, WireServer

from ..workers.conftest import StackHarness
from .conftest import Model

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


def wait_outside(stage: StackHarness, **changed: Any) -> None:
    stage.parts.settings = stage.settings.model_copy(update={"provider_wait_s": 0, **changed})
    stage.ledger.set_time(NOW)


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
    stage: StackHarness, model: Model, port: int, name: str, answer: Reply | None, why: str
) -> None:
    """So does another one with this server, which does not ask it. Nothing is counted for what was not done."""
    wait_outside(stage)
    model("patient", model=name, attempts=1)
    model("other", model=name, attempts=1)
    first, second = stage.start(stage.submit("patient")), stage.start(stage.submit("other"))
    said = [answer or Say("here")]
    with ExitStack() as there:
        if answer is not None:
            server = there.enter_context(WireServer(lambda _: said[0], port=port))
        assert (stage.execute(first), stage.execute(second)) == ("parked", "parked")
        assert answer is None or len(server.requests) == 1
        check_waits(stage, first, second, why=why)
        stage.ledger.set_time(NOW + 25_000)
        said[0] = Say("here")
        if answer is None:
            there.enter_context(WireServer(lambda _: said[0], port=port))
        assert (stage.execute(first), stage.execute(second)) == ("finished", "finished")
    for run in (first, second):
        assert stage.ledger.session(run.session).used.requests == 1


def check_waits(stage: StackHarness, *runs: RunRef, why: str) -> None:
    for run in runs:
        found = stage.ledger.run(run.run)
        assert (found.failures, found.claimable_ms) == (0, NOW + 1_000)
        trouble = stage.ledger.session(run.session).trouble
        assert f"{why}; the run waits without its slot and asks again in 1 s" in trouble


def test_it_waits_as_long_as_the_setting_says(stage: StackHarness, model: Model, port: int) -> None:
    """Ever longer, then each attempt asks once."""
    wait_outside(stage, provider_away_s=600)
    model("patient", model=CHAT, attempts=2)
    dispatch = stage.start(session := stage.submit("patient"))
    waits, now, verdict = [], NOW, stage.execute(dispatch)
    while verdict == "parked":
        run = stage.ledger.run(dispatch.run)
        waits.append(run.claimable_ms - now)
        now = run.claimable_ms
        stage.ledger.set_time(now)
        verdict = stage.execute(dispatch)
    assert (waits[0], max(waits)) == (1_000, 15_000)
    assert 600_000 <= sum(waits) <= 615_000
    assert verdict == "retry"
    stage.ledger.set_time(now + 60_000)
    assert stage.execute(dispatch) == "failed"
    assert "is not available" in stage.ledger.session(session).reason


def test_another_model_stands_in_for_one_that_is_away(
    stage: StackHarness, model: Model, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_outside(stage)
    model("two", model=CHAT, fallbacks=[ANTHROPIC])
    with WireServer(lambda request: Say("from the other")) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        for _ in range(2):
            assert stage.play(session := stage.submit("two")) == "finished"
            assert stage.ledger.result(session)[1] == "from the other"
