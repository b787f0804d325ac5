"""No budget is overspent by a call: an answer is as long as what was reserved, and whatever was sent counts."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from orchestrator.policy.budget import Budget
from orchestrator.testing import Call, Cut, Fail, Reply, Request, Say, Script
from tests.kit import Kit
from tests.workers import Workers

from .conftest import Model, Serve

ANTHROPIC, CHAT = PROVIDERS = ["anthropic:claude-sonnet-5-5", "openai-chat:gpt-5"]
#: What a word of a text takes: more than tokenizers need for prose.
WORDS = "Many words of plain prose stand here, and some of them are longer than others. " * 20


class Greedy:
    """Answers as long as it may, by the words for its limit that it knows, and says what that took.

    Without a limit an answer has 128,000 tokens.
    """

    def __init__(self, *knows: str, **answer: Any) -> None:
        self._knows = knows or ("max_tokens", "max_completion_tokens")
        self._answer = answer
        self._lock = threading.Lock()
        self.tokens = 0
        self.longest = 0

    def __call__(self, request: Request) -> Say:
        limits = [request.body[word] for word in self._knows if request.body.get(word)]
        output = min(limits, default=128_000)
        sent = len(str(request.body.get("system", "")) + str(request.body["messages"])) // 4
        with self._lock:
            self.tokens += sent + output
            self.longest = max(self.longest, output)
        again = [Call("go_on")] if request.turn < 30 else []
        return Say("word " * (output if self._answer else 1), again, sent, output, **self._answer)


def go_on() -> str:
    """Go on."""
    return "go on"


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    "budget", [{"tokens": 30_000}, {"usd": 0.30}, {"tokens": 100_000, "usd": 0.30}], ids=str
)
def test_a_provider_that_answers_as_long_as_it_may_takes_what_is_left(
    kit: Kit, workers: Workers, model: Model, serve: Serve, provider: str, budget: dict[str, Any]
) -> None:
    server = serve(greedy := Greedy())
    model("spender", model=provider, instructions="You spend.", tools=[go_on])
    session = workers.finish(kit.submit("spender", WORDS, budget=Budget(**budget)))
    state = kit.ledger.spending.budget(session.id)
    assert state is not None
    assert (session.state.value, len(server.answered) > 1) == ("failed", True)
    assert f"the budget of tree {session.id} does not allow this call" in session.reason
    assert session.used.tokens == greedy.tokens
    for what, limit in state.limits.items():
        assert state.spent[what] <= limit
    assert max(state.spent[what] / limit for what, limit in state.limits.items()) > 0.8
    assert set(state.reserved.values()) == {0}


def test_a_limit_of_its_own_that_is_lower_stays(kit: Kit, model: Model, serve: Serve) -> None:
    serve(greedy := Greedy())
    model("brief", model=ANTHROPIC, settings={"max_tokens": 90})
    kit.play(kit.submit("brief", "go", budget=Budget(tokens=9_000)))
    assert greedy.longest == 90


def test_without_a_budget_the_provider_decides(kit: Kit, model: Model, serve: Serve) -> None:
    server = serve(Script(Say("so")))
    model("free", model=CHAT)
    kit.begin("free")
    assert not {"max_tokens", "max_completion_tokens"} & set(server.requests[0].body)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_what_is_reserved_is_what_the_call_can_cost(
    kit: Kit, model: Model, serve: Serve, provider: str
) -> None:
    """A call of 480 tokens fits into a budget of 900, prompt, protocol and limit of the answer included."""
    seen: list[int] = []

    def script(request: Request) -> Say:
        state = kit.ledger.spending.budget(session)
        seen.append(state.reserved["tokens"])
        return Say("so", input_tokens=400, output_tokens=80)

    serve(script)
    model(
        "brief",
        model=provider,
        instructions=WORDS[:1_100],
        settings={"max_tokens": 80},
        protocol=False,
        tree_tools=[],
    )
    session = kit.submit("brief", WORDS[:500], budget=Budget(tokens=900))
    assert kit.play(session) == "finished"
    assert 480 <= seen[0] <= 900


@pytest.mark.parametrize("failure", [Fail(500), Cut("half of"), Cut("half of", in_order=True)], ids=repr)
def test_calls_that_failed_count(kit: Kit, model: Model, serve: Serve, failure: Reply) -> None:
    server = serve(lambda request: failure)
    model("unlucky", model=ANTHROPIC, attempts=5)
    session = kit.submit("unlucky", "go", budget=Budget(requests=2))
    verdict = kit.play(session)
    while verdict == "retry":
        verdict = kit.again(session)
    assert verdict == "failed"
    assert (len(server.requests), kit.ledger.session(session).used.requests) == (2, 2)


@pytest.mark.parametrize("knows", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("answer", [{}, {"usage": False}], ids=["usage", "no usage"])
def test_a_server_of_ones_own_keeps_to_its_limit_and_counts(
    kit: Kit, workers: Workers, model: Model, serve: Serve, knows: str, answer: dict[str, Any]
) -> None:
    """Whichever word for the limit it knows, and whether or not it says what a stream took."""
    serve(greedy := Greedy(knows, **answer))
    model("spender", model=CHAT, instructions="You spend.", tools=[go_on])
    session = workers.finish(kit.submit("spender", WORDS, budget=Budget(tokens=6_000)))
    state = kit.ledger.spending.budget(session.id)
    assert greedy.tokens <= state.spent["tokens"] <= 6_000
    assert session.used.estimated == (session.used.tokens if answer else 0)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_stream_that_breaks_off_counts_with_what_was_sent_and_received(
    kit: Kit, model: Model, serve: Serve, provider: str
) -> None:
    serve(Script(Cut("word " * 2_000), Say("so", input_tokens=10, output_tokens=1)))
    model("unlucky", model=provider)
    session = kit.begin("unlucky", WORDS, ends="retry")
    assert kit.again(session) == "finished"
    used = kit.ledger.session(session).used
    assert used.requests == 2
    # A half of the pieces comes through.
    assert 900 <= used.output_tokens <= 4_000
    assert used.input_tokens >= 100
    assert 900 <= used.estimated <= used.tokens - 11
