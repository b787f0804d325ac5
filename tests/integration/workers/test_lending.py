"""What a waiting slot is lent to: what the awaited session needs, then what has waited for long, and no more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from orchestrator.errors import WouldDeadlock
from orchestrator.ledger import RunRef
from orchestrator.worker.context.context import Context
from orchestrator.worker.execution.slot_sharing import (
    MAX_DEPTH,
    SHARE_WITH_OTHERS_AFTER_S,
    Queued,
    SharedSlot,
    SlotSharing,
    serves,
)

from .conftest import StackHarness
from .test_talking import stage

__all__ = ["stage"]


def needed(stage: StackHarness, session: str, queues: frozenset[str] = frozenset()) -> RunRef | None:
    return Queued(stage.ledger, serves(stage.catalogue, queues)).needed_by(session)


def tree(stage: StackHarness) -> tuple[str, list[str]]:
    """An idle coordinator and its two children, which are still to be started."""

    @stage.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        for number in range(2):
            ctx.delegate("worker", str(number))
        return "waiting"

    stage.agent("worker", queue="far")(lambda _: "done")
    root = stage.begin("lead", ends="idle")
    return root, [child.id for child in stage.children(root)]


def test_a_session_needs_its_own_run_first(stage: StackHarness) -> None:
    stage.agent("lead", role="coordinator")(lambda _: "")
    root = stage.submit("lead")
    assert needed(stage, root) is None
    dispatch = stage.start(root)
    assert needed(stage, root) == dispatch
    stage.execute(dispatch)
    assert needed(stage, root) is None


def test_an_idle_session_needs_the_runs_of_its_children(stage: StackHarness) -> None:
    """Those of this worker's queues; what runs somewhere needs nothing of us."""
    root, children = tree(stage)
    assert needed(stage, root) is None
    dispatch = stage.start(children[1])
    assert needed(stage, root) == dispatch
    assert needed(stage, root, frozenset({"far", "near"})) == dispatch
    assert needed(stage, root, frozenset({"near"})) is None
    stage.ledger.claim(dispatch.run, "c" * 32, session_id=children[1], worker="w")
    assert needed(stage, root) is None


def test_what_this_worker_does_not_serve_is_not_its_to_take(stage: StackHarness) -> None:
    root, children = tree(stage)
    stage.start(children[0])
    del stage.catalogue["worker"]
    assert needed(stage, root) is None


def test_another_tree_may_have_the_slot_when_it_has_waited_for_long(stage: StackHarness) -> None:
    """So that workers that wait for each other's agents do not stand still."""
    stage.agent("lead", role="coordinator")(lambda _: "")
    queued = Queued(stage.ledger, serves(stage.catalogue, frozenset()))
    dispatch = stage.start(stage.submit("lead"))
    assert queued.any(0) is None
    stage.ledger.set_time(stage.ledger.server_ms() + round(SHARE_WITH_OTHERS_AFTER_S * 1000) + 1)
    assert queued.any(0) == dispatch


class Started(SlotSharing):
    """Threads that only the test knows of."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.error: RuntimeError | None = None

    def start(self, work: Callable[[SlotSharing], None]) -> threading.Thread:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return threading.current_thread()  # which is alive


def nothing(run: RunRef, slot_sharing: SlotSharing) -> None:
    """Execute no run."""


def look_for(shared_slot: SharedSlot, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        shared_slot.look()
        time.sleep(min(0.02, shared_slot.next_look_s + 0.001))


def test_a_slot_is_lent_once_what_it_waits_for_has_stayed_queued(stage: StackHarness) -> None:
    """Not before: a free slot is faster. One thread for one wait."""
    stage.agent("lead", role="coordinator")(lambda _: "")
    root = stage.submit("lead")
    slot_sharing = Started()
    queued = Queued(stage.ledger, serves(stage.catalogue, frozenset()))
    with SharedSlot(slot_sharing, queued, nothing, awaited=root) as shared_slot:
        look_for(shared_slot, 0.3)
        assert slot_sharing.asked == 0
        stage.start(root)
        look_for(shared_slot, 1.2)
        assert slot_sharing.asked == 1


def test_a_system_that_gives_no_thread_is_asked_again(stage: StackHarness) -> None:
    stage.agent("lead", role="coordinator")(lambda _: "")
    root = stage.submit("lead")
    stage.start(root)
    slot_sharing = Started()
    slot_sharing.error = RuntimeError("no more threads")
    queued = Queued(stage.ledger, serves(stage.catalogue, frozenset()))
    with SharedSlot(slot_sharing, queued, nothing, awaited=root) as shared_slot:
        look_for(shared_slot, 1.5)
    assert slot_sharing.asked > 1


def test_no_more_runs_wait_for_one_another_than_a_slot_can_bear(stage: StackHarness) -> None:
    """Whoever would be one too many is told at once and has launched nothing."""
    slot_sharing = SlotSharing(depth=MAX_DEPTH)
    with pytest.raises(WouldDeadlock, match=f"{MAX_DEPTH} runs wait for one another in this slot"):
        slot_sharing.check_depth("a call")
    object.__setattr__(stage.runtime, "slot_sharing", slot_sharing)

    @stage.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        with pytest.raises(WouldDeadlock, match="a call of 'lead' would wait for ever"):
            ctx.call("lead", "deeper")
        return "on its own"

    root = stage.begin("lead", ends="finished")
    assert stage.children(root) == []
