"""Reports whose effect the ledger has already: they are routed together, and hold up nobody."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from orchestrator.envelope.model import StatusUpdate
from orchestrator.envelope.model_values import Timestamp
from orchestrator.ids import new_claim_id
from orchestrator.ledger import Committed, Outcome
from orchestrator.letters import Thread
from orchestrator.streams import all_streams, stream_key
from tests.integration.router.conftest import Stack

NOTED = {"noted": "1"}


def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


class AtWork:
    """A session whose run a worker holds."""

    def __init__(self, stack: Stack, seed: str) -> None:
        self._stack = stack
        session = stack.submit(seed)
        stack.router().run_once()
        (run,) = stack.parts.ledger.runs(session)
        held = stack.parts.ledger.claim(run.id, new_claim_id(), session_id=session, worker="w")
        assert held is not None
        self._held = held

    def finish(self) -> None:
        """Its worker reports that it is done."""
        session = self._held.session
        letters, thread = self._stack.parts.letters, Thread.of(session)
        done = self._stack.parts.ledger.commit(
            self._held.claim,
            Outcome(status="completed", text="42"),
            make_envelope=lambda: letters.completion(
                sender=session.agent, recipient="operator", task_id=session.id, result="42", thread=thread
            ),
        )
        assert isinstance(done, Committed)
        assert done.over


def test_the_ledger_says_of_a_report_that_it_has_its_effect(stack: Stack) -> None:
    """The report of a session's end does; the launch of one does not, as the router has to start it."""
    AtWork(stack, "a").finish()
    said = {
        stream.type: [b"noted" in fields for _, fields in stack.redis.xrange(stream_key(stream))]
        for stream in all_streams()
        if stack.redis.xlen(stream_key(stream))
    }
    assert said == {"task-delegation": [False], "task-completion": [True]}


def test_they_let_others_of_their_kind_come_and_what_is_urgent_pass(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch that comes later is carried out first; a second report goes in the round of the first one."""
    monkeypatch.setattr("orchestrator.router.service._NOTED_S", 1.5)
    first, second = AtWork(stack, "first"), AtWork(stack, "second")
    router = stack.router()
    stack.sent.runs.clear()
    with ThreadPoolExecutor(1) as pool:
        round_ = pool.submit(router.run_once, block_ms=5000)
        first.finish()
        until(lambda: stack.pending() == 1)
        urgent = stack.submit("urgent")
        until(lambda: bool(stack.sent.runs))
        assert stack.pending() == 1
        second.finish()
        handled = round_.result(10)
    assert [dispatch.session for dispatch, _ in stack.sent.runs] == [urgent]
    assert (handled.done, stack.pending(), stack.dead()) == (3, 0, [])


def test_a_report_that_is_alone_is_routed_soon(stack: Stack) -> None:
    """It does not wait for the end of the time that a router waits for news."""
    AtWork(stack, "a").finish()
    begun = time.monotonic()
    assert stack.router().run_once(block_ms=9000).done == 1
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("block_ms", [0, 50])
def test_who_says_so_of_a_message_gains_nothing(stack: Stack, block_ms: int) -> None:
    """Anybody who may append can write the field: the message is judged like any other."""
    update = StatusUpdate(task_id="task-1", status="in-progress", progress_percentage=40)
    old = stack.envelope(update, timestamp=Timestamp("2020-01-01T00:00:00Z"))
    forged = stack.envelope(update, signer="partner")
    for data in (old, forged, stack.envelope(update)):
        stack.publish(data, "status-update", extra=NOTED)
    handled = stack.router().run_once(block_ms=block_ms)
    assert sorted(letter.rule for letter in stack.dead()) == ["signer-sender", "too-old"]
    assert (handled.done, handled.dead, stack.pending()) == (1, 2, 0)
