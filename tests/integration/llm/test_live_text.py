"""The text of a model agent while it is written: in order, without gaps, and replaced by a new try."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict

from orchestrator.client.async_client import AsyncClient
from orchestrator.client.client import Client
from orchestrator.testing import Call, Cut, Say, Script
from tests.commands import Orchestra
from tests.kit import Kit
from tests.workers import Workers

from .conftest import Model, Serve

STORY = "Once upon a time there was a lease that nobody renewed, and a journal that knew everything."


def test_text_and_tool_calls_come_in_order(
    kit: Kit, workers: Workers, model: Model, serve: Serve, client: Client
) -> None:
    def look(place: str) -> str:
        return f"dark in the {place}"

    serve(Script(Say("Let me see.", calls=[Call("look", place="well")]), Say(STORY)))
    model("teller", instructions="You tell.", tools=[look])
    session = kit.submit("teller")
    events = list(client.stream(session, timeout_s=30))
    assert [e.kind for e in events if e.kind != "text"] == ["begin", "call", "result", "begin"]
    assert "".join(e.text for e in events if e.kind == "text") == f"Let me see.{STORY}"
    assert sorted(events, key=lambda e: tuple(map(int, e.position.split("-")))) == events
    middle = len(events) // 2
    assert list(client.stream(session, after=events[middle].position)) == events[middle + 1 :]

    async def read() -> list[str]:
        async with AsyncClient(kit.settings) as opened:
            return [event.position async for event in opened.stream(session)]

    assert asyncio.run(read()) == [event.position for event in events]


def test_text_arrives_while_the_provider_still_writes(
    kit: Kit, workers: Workers, model: Model, serve: Serve, client: Client
) -> None:
    serve(Script(Say(STORY, pace_s=0.05)))
    model("teller", instructions="You tell.")
    session = kit.submit("teller")
    stream = client.stream(session, timeout_s=30)
    first = next(event for event in stream if event.kind == "text")
    assert kit.ledger.session(session).busy
    assert first.text + "".join(event.text for event in stream if event.kind == "text") == STORY


def test_halves_of_surrogate_pairs_cost_no_run(kit: Kit, model: Model, serve: Serve, client: Client) -> None:
    """Some providers cut a pair in two, and some send one half alone."""
    serve(Script(Say("\ud83d\ude00 and \ud83d")))
    model("teller", instructions="You tell.")
    session = kit.begin("teller", ends="finished")
    assert kit.answer(session) == "\N{GRINNING FACE} and \ufffd"
    assert "".join(event.text for event in client.stream(session) if event.kind == "text").isprintable()


def test_a_new_try_says_from_where_its_text_is_replaced(
    kit: Kit, model: Model, serve: Serve, client: Client
) -> None:
    serve(Script(Cut("Once upon a time there was another story"), Say(STORY)))
    model("teller", instructions="You tell.")
    session = kit.begin("teller", ends="retry")
    assert kit.again(session) == "finished"
    events = list(client.stream(session))
    [replaced] = [event for event in events if event.kind == "replaced"]
    [since] = [n for n, event in enumerate(events) if event.position == replaced.since]
    kept = [*events[:since], *events[events.index(replaced) :]]
    assert "".join(event.text for event in kept if event.kind == "text") == STORY


def test_a_new_try_shows_no_tool_call_twice(kit: Kit, model: Model, serve: Serve, client: Client) -> None:
    """The tool was called by the first try, whose record the second one takes."""

    def look(place: str) -> str:
        return f"dark in the {place}"

    cut = Cut("Once upon a time there was another story")
    serve(Script(Say("Let me see.", calls=[Call("look", place="well")]), cut, Say(STORY)))
    model("teller", instructions="You tell.", tools=[look])
    session = kit.begin("teller", ends="retry")
    assert kit.again(session) == "finished"
    kinds = [event.kind for event in client.stream(session) if event.kind != "text"]
    assert kinds == ["begin", "call", "result", "begin", "replaced", "begin"]


def test_a_terminal_shows_the_pieces_as_json_and_reads_on_after_one(
    kit: Kit, model: Model, serve: Serve, client: Client, orchestra: Orchestra
) -> None:
    serve(Script(Cut("Once upon a time there was another story"), Say(STORY)))
    model("teller", instructions="You tell.")
    session = kit.begin("teller", ends="retry")
    assert kit.again(session) == "finished"
    lines = orchestra("watch", session, "--text", "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [asdict(event) for event in client.stream(session)]
    middle = json.loads(lines[2])["position"]
    rest = orchestra("watch", session, "--text", "--json", "--after", middle)
    assert rest.stdout.splitlines() == lines[3:]
    plain = orchestra("watch", session, "--text").stdout
    assert plain.endswith(f"\n[its run is tried again; what it wrote last is replaced]\n{STORY}")
    refused = orchestra("watch", session, "--text", "--after", "yesterday")
    assert refused.exit_code == 2
    assert "'yesterday' is no position of a live text" in " ".join(refused.stderr.split())
    assert orchestra("watch", session, "--after", middle).exit_code == 2
