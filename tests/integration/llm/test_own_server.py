"""A model on a server of one's own: its address, its key, the form of its answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pytest
from pydantic import BaseModel

from orchestrator.client.client import Client
from orchestrator.errors import ConfigurationError
from orchestrator.policy.budget import Budget
from orchestrator.testing import Call, Fail, Request, Say, WireServer
from tests.kit import Kit
from tests.waiting import wait_until
from tests.workers import Workers

from .conftest import Model


class City(BaseModel):
    name: str


class Place(City):
    size: int


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[WireServer]:
    """A server that no variable of the environment names; keys that it has are for others."""
    for provider in ("OPENAI", "OLLAMA", "VLLM", "ANTHROPIC"):
        monkeypatch.setenv(f"{provider}_API_KEY", "of-the-provider")
        monkeypatch.delenv(f"{provider}_BASE_URL", raising=False)
    with WireServer(lambda request: Say('{"name": "Bern"}')) as server:
        yield server


@pytest.fixture
def local(model: Model, own: WireServer) -> Model:
    """Define the agent `local`, whose model is on that server, with these options."""
    address = {"model": "openai-chat:small", "base_url": f"{own.url}/v1"}
    return partial(model, "local", instructions="You answer.", **address)


@pytest.mark.parametrize("provider", ["openai-chat", "ollama", "vllm", "anthropic"])
def test_a_model_is_asked_at_its_own_address_without_the_key_of_a_provider(
    kit: Kit, workers: Workers, local: Model, own: WireServer, provider: str
) -> None:
    address = own.url if provider == "anthropic" else f"{own.url}/v1"
    local(model=f"{provider}:small", base_url=address)
    assert workers.answer(kit.submit("local")) == '{"name": "Bern"}'
    assert [request.model for request in own.requests] == ["small"]
    assert own.keys == ["no-key-needed"]


@pytest.mark.parametrize("mode", ["tool", "native"])
def test_an_answer_of_a_wrong_form_says_which_rule_and_what_was_said(
    kit: Kit, workers: Workers, client: Client, model: Model, mode: str
) -> None:
    def wrong(request: Request) -> Say:
        answer = {"name": "Bern", "size": "large"}
        return Say(calls=[Call(request.tools[0], **answer)]) if request.tools else Say(json.dumps(answer))

    with WireServer(wrong) as server:
        model(
            "local",
            model="ollama:small",
            base_url=f"{server.url}/v1",
            output=Place,
            output_mode=mode,
            tree_tools=[],
            instructions="You name a city.",
        )
        reason = workers.finish(session := kit.submit("local")).reason
    assert reason.startswith(
        "the model of agent 'local' gave no usable answer: size: Input should be a valid integer"
    )
    assert "and it said 'large'; Exceeded maximum output retries (2)" in reason
    [said] = [one.detail for one in client.history(session, texts=True) if one.what == "printed"]
    assert said.count('"size"') == 3


def test_a_server_that_wants_a_key_gets_that_of_its_variable(
    kit: Kit, workers: Workers, model: Model, own: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"model": "openai-chat:small", "base_url": f"{own.url}/v1", "key_env": "LAB_KEY"}
    model("local", **settings, instructions="You answer.")
    failed = workers.finish(kit.submit("local"))
    assert "set LAB_KEY, the variable with its model's key" in failed.reason
    monkeypatch.setenv("LAB_KEY", "of-the-lab")
    model("again", **settings, instructions="You answer.")
    workers.answer(kit.submit("again"))
    assert own.keys == ["of-the-lab"]


@pytest.mark.parametrize(
    ("mode", "asked"), [("tool", "tools"), ("native", "response_format"), ("prompted", "JSON")]
)
def test_an_answer_is_forced_into_its_form_as_the_options_say(
    kit: Kit, workers: Workers, local: Model, own: WireServer, mode: str, asked: str
) -> None:
    local(model="ollama:small", output=City, output_mode=mode, tree_tools=[], limits={"retries": 0})
    workers.finish(kit.submit("local"))
    (request,) = own.requests
    assert bool(request.tools) == (mode == "tool")
    assert (request.body.get("response_format", {}).get("type") == "json_schema") == (mode == "native")
    assert asked in str(request.body)


def test_an_answer_in_one_piece_is_asked_for_and_shown_all_the_same(
    kit: Kit, workers: Workers, client: Client, local: Model, own: WireServer
) -> None:
    local(stream=False)
    session = kit.submit("local")
    shown = [event.text for event in client.stream(session, timeout_s=30) if event.kind == "text"]
    assert "".join(shown) == workers.answer(session)
    assert [request.stream for request in own.requests] == [False]


@pytest.mark.parametrize(
    ("prices", "usd"),
    [
        ({"input": 2, "output": 10}, 100 * 2 + 20 * 10),
        ({"input": 0, "output": 0}, 0),
        ({"input": 0.001, "output": 0}, 0.1),
    ],
)
def test_a_budget_in_money_holds_with_prices_of_ones_own(
    kit: Kit, workers: Workers, local: Model, own: WireServer, prices: dict[str, float], usd: float
) -> None:
    local(prices=prices)
    session = kit.submit("local", "go", budget=Budget(usd=1))
    workers.answer(session)
    assert kit.ledger.session(session).used.nano_usd == usd * 1000


def test_no_more_is_reserved_than_the_context_holds(
    kit: Kit, workers: Workers, local: Model, own: WireServer
) -> None:
    """Without it the most that an answer may have is reserved, which no such budget allows."""
    local(context=512)
    session = kit.submit("local", "go " * 1000, budget=Budget(tokens=1024))
    workers.answer(session)
    assert own.requests[0].body["max_completion_tokens"] == 512


def test_the_memory_of_a_session_is_half_of_the_context_at_most(
    kit: Kit, workers: Workers, local: Model, own: WireServer
) -> None:
    local(context=4000)
    session = kit.submit("local")
    workers.answer(session)
    for runs in range(2, 10):
        kit.ledger.enqueue(session, "word " * 200, item_id=f"itm_{runs}")
        wait_until(lambda runs=runs: len(kit.ledger.runs(session)) == runs and workers.answer(session))
    assert len(kit.ledger.memory(session)) / 4 < 2500
    assert "were left out here" in kit.ledger.memory(session)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"base_url": "127.0.0.1:8080", "model": "ollama:x"}, "such as http://127.0.0.1:8080/v1"),
        ({"base_url": "http://me:secret@lab/v1", "model": "ollama:x"}, "leave user and password out"),
        ({"base_url": "http://lab/v1"}, "base_url needs the model that the server has"),
        ({"key_env": "LAB_KEY"}, "key_env is for the server of base_url"),
        ({"output_mode": "native"}, "needs output, the form that is asked for"),
        ({"agent": object(), "base_url": "http://lab/v1", "model": "ollama:x"}, "has its own"),
    ],
)
def test_options_that_do_not_fit_are_refused(model: Model, options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as error:
        model("local", **options)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "litellm:small", "base_url": "http://lab/v1"}, 'write "openai-chat:NAME"'),
        ({"model": "anthropc:claude-x"}, "there is no provider 'anthropc'; did you mean 'anthropic'?"),
        ({"model": "claude-x"}, "write provider:name"),
        ({"model": "groq:x"}, "pip install 'pydantic-ai-slim[groq]'"),
    ],
)
def test_a_model_that_cannot_be_asked_says_what_to_write(
    kit: Kit, workers: Workers, model: Model, options: dict[str, str], words: str
) -> None:
    model("local", **options)
    assert words in workers.finish(kit.submit("local")).reason


@pytest.mark.parametrize(
    "words",
    [
        "request (631 tokens) exceeds the available context size (512 tokens), try increasing it",
        "This model's maximum context length is 512 tokens",
        "prompt is too long: 631 tokens > 512 maximum",
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_a_conversation_that_is_too_large_goes_on_without_its_oldest_part(
    kit: Kit, workers: Workers, model: Model, words: str, stream: bool
) -> None:
    """The server says so in its own words; the call is made once more, and the session goes on."""

    def small(request: Request) -> Say | Fail:
        return Fail(400, words) if request.size > 3000 else Say("here")

    with WireServer(small) as server:
        model(
            "local",
            model="openai-chat:small",
            base_url=f"{server.url}/v1",
            stream=stream,
            protocol="compact",
            tree_tools=[],
            instructions="You answer.",
        )
        session = kit.submit("local", "first " + "word " * 150)
        workers.answer(session)
        for runs in range(2, 5):
            kit.ledger.enqueue(session, f"{runs} " + "word " * 150, item_id=f"itm_{runs}")
            wait_until(lambda runs=runs: len(kit.ledger.runs(session)) == runs and workers.answer(session))
        assert len(server.answered) == 4
        assert server.answered[-1].last.startswith("4 ")
        assert len(server.requests) > 4
        kit.ledger.enqueue(session, "word " * 900, item_id="itm_large")
        wait_until(lambda: "larger than the model's context" in kit.ledger.session(session).reason)
