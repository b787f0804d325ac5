"""Requests of model agents are counted, bounded by budgets, and wait for their provider."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel

from orchestrator.policy.budget import Budget
from orchestrator.testing import Call, Fail, Reply, Say, Script
from orchestrator.worker.context.context import Context
from orchestrator.worker.context.spending import cost_of
from tests.kit import Kit
from tests.workers import Workers

from .conftest import Model, Serve

NOW = 1_800_000_000_000
PROVIDERS = ["anthropic:claude-sonnet-5-5", "openai-chat:gpt-5"]


def submit(kit: Kit, agent: str, budget: Budget) -> str:
    return kit.submit(agent, "go", budget=budget)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_what_a_model_took_is_counted_with_its_price(
    kit: Kit, workers: Workers, model: Model, serve: Serve, provider: str
) -> None:
    serve(Script(Say(calls=[Call("roll")]), Say("a four")))

    def roll() -> int:
        """Roll a die."""
        return 4

    model("dice", model=provider, instructions="You roll.", tools=[roll])
    session = submit(kit, "dice", Budget(usd=5, requests=2, tokens=1_000_000))
    assert workers.answer(session) == "a four"
    used = kit.ledger.session(session).used
    assert (used.requests, used.input_tokens, used.output_tokens) == (2, 200, 40)
    assert used.nano_usd > 0
    state = kit.ledger.spending.budget(session)
    assert state.spent == {"requests": 2, "tokens": 240, "nano": used.nano_usd}
    assert set(state.reserved.values()) == {0}


def test_a_number_of_tokens_that_cannot_be_counts_as_the_most_that_was_reserved(
    kit: Kit, model: Model, serve: Serve
) -> None:
    """It would go beyond what the ledger counts to, and the run would be tried again for ever."""
    serve(Script(Say("here", input_tokens=10**18)))
    model("spender", instructions="You spend.", settings={"max_tokens": 1000})
    session = kit.begin("spender", ends="finished")
    used = kit.ledger.session(session).used
    assert used.output_tokens == 1000
    assert 100 < used.input_tokens < 100_000


def test_tokens_of_a_cache_beyond_those_of_the_input_count_as_input() -> None:
    """Some providers count them apart."""
    cost = cost_of("gpt-5", provider="openai", input_tokens=10, cache_read_tokens=100, must_be_known=True)
    assert cost == cost_of("gpt-5", provider="openai", input_tokens=100, cache_read_tokens=100)


@pytest.mark.parametrize(
    ("budget", "resource"),
    [(Budget(tokens=60), "tokens"), (Budget(usd=0.0001), "USD"), (Budget(requests=0), "requests")],
)
def test_a_request_that_does_not_fit_is_not_made(
    kit: Kit, workers: Workers, model: Model, serve: Serve, budget: Budget, resource: str
) -> None:
    server = serve(Script(Say("never")))
    model("spender", model=PROVIDERS[0], instructions="You spend.", settings={"max_tokens": 1000})
    session = workers.finish(submit(kit, "spender", budget))
    assert session.state.value == "failed"
    assert f"the budget of tree {session.id} does not allow this call" in session.reason
    assert resource in session.reason
    assert server.requests == []


def test_a_budget_in_money_needs_a_price(kit: Kit, workers: Workers, model: Model, serve: Serve) -> None:
    server = serve(Script(Say("never")))
    model("spender", model="openai-chat:of-our-own", instructions="You spend.")
    session = workers.finish(submit(kit, "spender", Budget(usd=1)))
    assert "the price of model 'of-our-own' is not known" in session.reason
    assert server.requests == []


@pytest.mark.parametrize("failure", [Fail(429, retry_after_s=0.01), Fail(529)], ids=repr)
def test_a_busy_provider_costs_no_attempt(kit: Kit, model: Model, serve: Serve, failure: Reply) -> None:
    server = serve(Script(failure, Say("here")))
    model("patient", instructions="You wait.")
    session = kit.begin("patient", ends="finished")
    assert kit.answer(session) == "here"
    assert (len(server.requests), len(server.answered)) == (2, 1)
    assert kit.ledger.session(session).used.requests == 1


@pytest.mark.parametrize("how", ["openai-chat:gpt-5", "ollama:llama3", "vllm:qwen", "object", "agent"])
def test_no_client_tries_again_by_itself(
    kit: Kit, model: Model, serve: Serve, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    server = serve(lambda request: Fail(500))
    monkeypatch.setenv("OLLAMA_BASE_URL", f"{server.url}/v1")
    monkeypatch.setenv("VLLM_BASE_URL", f"{server.url}/v1")
    given: dict[str, Any] = {"model": how}
    if how == "object":
        given = {"model": OpenAIChatModel("gpt-5")}
    elif how == "agent":
        given = {"agent": Agent(OpenAIChatModel("gpt-5"))}
    model("patient", attempts=1, **given)
    kit.begin("patient", ends="failed")
    assert len(server.requests) == 1


def test_a_run_parks_until_the_provider_takes_requests_again(kit: Kit, model: Model, serve: Serve) -> None:
    """So does the run of another agent with the same key, which does not ask the provider; nothing is paid twice."""
    server = serve(
        Script(Say(calls=[Call("roll")]), Fail(429, retry_after_s=20), Say("a four"), Say("a four"))
    )
    rolled = []

    def roll(ctx: Context) -> int:
        """Roll a die."""
        rolled.append(ctx.attempt)
        return 4

    kit.ledger.set_time(NOW)
    model("first", instructions="You roll.", tools=[roll])
    model("second", instructions="You wait.")
    first = kit.start(kit.submit("first"))
    second = kit.start(kit.submit("second"))
    assert kit.execute(first) == "parked"
    assert len(server.requests) == 2
    assert kit.execute(second) == "parked"
    assert len(server.requests) == 2
    kit.ledger.set_time(NOW + 20_000)
    assert kit.execute(first) == "finished"
    assert kit.execute(second) == "finished"
    asked = [request.last for request in server.requests if request.instructions.startswith("You roll.")]
    assert (asked, rolled) == (["go", "4", "4"], [1])


def test_another_model_stands_in_for_a_busy_one(
    kit: Kit, workers: Workers, model: Model, serve: Serve
) -> None:
    server = serve(Script(Fail(429, retry_after_s=60), Say("from the other")))
    model("two", model=PROVIDERS[0], fallbacks=[PROVIDERS[1]], instructions="You answer.")
    assert workers.answer(kit.submit("two")) == "from the other"
    assert len(server.requests) == 2


def test_an_agent_object_is_counted_too(kit: Kit, workers: Workers, model: Model, serve: Serve) -> None:
    serve(Script(Say("done")))
    given: Agent[None, str] = Agent(PROVIDERS[0], defer_model_check=True)
    model("given", agent=given)
    session = kit.submit("given")
    assert workers.answer(session) == "done"
    assert kit.ledger.session(session).used.tokens == 120


def test_fallbacks_are_asked_in_order(kit: Kit, workers: Workers, model: Model, serve: Serve) -> None:
    names = ["claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5"]
    away: list[Reply] = [Fail(500), Fail(529)]
    server = serve(lambda request: away.pop(0) if away else Say("from the third"))
    model("three", model=f"anthropic:{names[0]}", fallbacks=[f"anthropic:{name}" for name in names[1:]])
    assert workers.answer(session := kit.submit("three")) == "from the third"
    assert [request.model for request in server.requests] == names
    assert kit.ledger.session(session).used.requests == 2, "529 did nothing; 500 may have"
