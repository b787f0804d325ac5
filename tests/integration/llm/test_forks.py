"""A fork of a model agent's session has the memory of that time, and its tool calls have the results that had come."""

from __future__ import annotations

import pytest

from orchestrator.client.client import Client
from orchestrator.errors import InputError
from orchestrator.ledger import SessionState
from orchestrator.redisdb import ledger_keys
from orchestrator.testing import Call, Request, Say, Script
from tests.kit import Kit
from tests.workers import Workers

from .conftest import Cast, Model, Serve


def test_a_fork_goes_on_with_the_memory_of_that_time(
    kit: Kit, workers: Workers, client: Client, cast: Cast
) -> None:
    """Nothing that was paid before is paid again: no child is launched, and one request answers."""
    answers = iter(["first", "second", "third"])

    def answer(request: Request) -> Say:
        assert "red as ever" in request.last
        return Say(next(answers))

    lead = Script(Say(calls=[Call("delegate", agent="painter", task="paint", wait=True)]), answer)
    server = cast(lead=lead, painter=Script(Say("<response>red as ever</response>")))
    session = kit.submit("lead", "decorate")
    assert workers.answer(session) == "first"
    paid = len(server.answered)
    runs = client.runs(session)
    fork = client.fork(session, runs[-1].id)
    assert workers.answer(fork.id) == "second"
    assert len(server.answered) == paid + 1
    assert [one.agent for one in client.tree(fork.id)] == ["lead"]
    assert "decorate" in str(server.requests[-1].messages)
    assert client.result(session) == "first"


def test_memories_of_the_last_runs_are_kept_and_no_others(
    kit: Kit, workers: Workers, client: Client, model: Model, serve: Serve
) -> None:
    object.__setattr__(kit.ledger.limits, "fork_runs", 2)
    server = serve(lambda request: Say(f"heard {request.last.strip()[-20:]}"))
    model("parrot", instructions="You repeat.", protocol=False)
    session = kit.submit("parrot", "one")
    workers.answer(session)
    for word in ("two", "three", "four"):
        item = client.resume(session, word)
        client.wait(session, timeout_s=60, item=item)
    # What the last two runs found, what is there now, and what was said in each of the four.
    assert kit.redis.scard(ledger_keys.large_texts(session)) == 3 + 4
    assert len(list(kit.redis.scan_iter(f"ao:*:session:{session}:whole:*"))) == 3 + 4
    with pytest.raises(InputError, match="is no longer kept"):
        client.fork(session, "2")
    fork = client.fork(session, "3")
    assert client.wait(fork.id, timeout_s=60).state is SessionState.FINISHED
    said = str(server.requests[-1].messages)
    assert "two" in said
    assert "three" in said
    assert "four" not in said
