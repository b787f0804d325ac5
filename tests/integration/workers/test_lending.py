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
from tests.kit import Kit


def queued(kit: Kit, *queues: str) -> Queued:
    """What is queued for a worker of these queues; of none: of all."""
    return Queued(kit.ledger, serves(kit.catalogue, frozenset(queues)))


def needed(kit: Kit, session: str, *queues: str) -> RunRef | None:
    return queued(kit, *queues).needed_by(session)


@pytest.fixture
def root(kit: Kit) -> str:
    """A submitted session of a coordinator, which is still to be started."""
    kit.agent("lead", role="coordinator")(lambda _: "")
    return kit.submit("lead")


def tree(kit: Kit) -> tuple[str, list[str]]:
    """An idle coordinator and its two children, which are still to be started."""

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        for number in range(2):
            ctx.delegate("worker", str(number))
        return "waiting"

    kit.agent("worker", queue="far")(lambda _: "done")
    root = kit.begin("lead", ends="idle")
    return root, [child.id for child in kit.children(root)]


def test_a_session_needs_its_own_run_first(kit: Kit, root: str) -> None:
    assert needed(kit, root) is None
    dispatch = kit.start(root)
    assert needed(kit, root) == dispatch
    kit.execute(dispatch)
    assert needed(kit, root) is None


def test_an_idle_session_needs_the_runs_of_its_children(kit: Kit) -> None:
    """Those of this worker's queues; what runs somewhere needs nothing of us."""
    root, children = tree(kit)
    assert needed(kit, root) is None
    dispatch = kit.start(children[1])
    assert needed(kit, root) == dispatch
    assert needed(kit, root, "far", "near") == dispatch
    assert needed(kit, root, "near") is None
    kit.ledger.claim(dispatch.run, "c" * 32, session_id=children[1], worker="w")
    assert needed(kit, root) is None


def test_what_this_worker_does_not_serve_is_not_its_to_take(kit: Kit) -> None:
    root, children = tree(kit)
    kit.start(children[0])
    del kit.catalogue["worker"]
    assert needed(kit, root) is None


def test_another_tree_may_have_the_slot_when_it_has_waited_for_long(kit: Kit, root: str) -> None:
    """So that workers that wait for each other's agents do not stand still."""
    dispatch = kit.start(root)
    assert queued(kit).any(0) is None
    kit.ledger.set_time(kit.ledger.server_ms() + round(SHARE_WITH_OTHERS_AFTER_S * 1000) + 1)
    assert queued(kit).any(0) == dispatch


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


def test_a_slot_is_lent_once_what_it_waits_for_has_stayed_queued(kit: Kit, root: str) -> None:
    """Not before: a free slot is faster. One thread for one wait."""
    slot_sharing = Started()
    with SharedSlot(slot_sharing, queued(kit), nothing, awaited=root) as shared_slot:
        look_for(shared_slot, 0.3)
        assert slot_sharing.asked == 0
        kit.start(root)
        look_for(shared_slot, 1.2)
        assert slot_sharing.asked == 1


def test_a_system_that_gives_no_thread_is_asked_again(kit: Kit, root: str) -> None:
    kit.start(root)
    slot_sharing = Started()
    slot_sharing.error = RuntimeError("no more threads")
    with SharedSlot(slot_sharing, queued(kit), nothing, awaited=root) as shared_slot:
        look_for(shared_slot, 1.5)
    assert slot_sharing.asked > 1


def test_no_more_runs_wait_for_one_another_than_a_slot_can_bear(kit: Kit) -> None:
    """Whoever would be one too many is told at once and has launched nothing."""
    slot_sharing = SlotSharing(depth=MAX_DEPTH)
    with pytest.raises(WouldDeadlock, match=f"{MAX_DEPTH} runs wait for one another in this slot"):
        slot_sharing.check_depth("a call")
    object.__setattr__(kit.runtime, "slot_sharing", slot_sharing)

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        with pytest.raises(WouldDeadlock, match="a call of 'lead' would wait for ever"):
            ctx.call("lead", "deeper")
        return "on its own"

    root = kit.begin("lead", ends="finished")
    assert kit.children(root) == []
