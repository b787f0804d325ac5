"""Calls that wait: for a child's end, for a parent's reply. The answer goes into the run that waits for it.

Waiting is driven by the ledger's events. Meanwhile the heartbeat keeps the lease, and the slot executes
what is waited for.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Final, Literal

from orchestrator import machine
from orchestrator.crashpoints import failpoint
from orchestrator.errors import ClaimLost, RunParked, ServerUnavailable, SessionStopped, WouldDeadlock
from orchestrator.ids import callback_id
from orchestrator.ledger import Item, ItemState
from orchestrator.log import get_logger
from orchestrator.worker.context.effects import Effects
from orchestrator.worker.context.messages import MessageSender
from orchestrator.worker.context.verification import Decrypter, Verifier
from orchestrator.worker.execution.slot_sharing import Execute, Queued, SharedSlot, SlotSharing

#: Seconds that an event may go unnoticed when the callback service was faster, and a request to stop at most.
LOOK_AGAIN_S: Final = 0.5

#: Answers a child's question while its parent waits for it; what it returns is the reply.
Answer = Callable[[Item, str], str]
#: What was waited for, with its text.
Taken = tuple[Item, str]


_log = get_logger()

_thread = threading.local()


def share_this_thread() -> None:
    """Let several runs work in the present thread, by turns: none of them may wait for another one in it."""
    _thread.is_shared = True


class Blocking:
    """The waiting of one run, in one try of it. Without ``slot_sharing`` the slot is kept while it waits."""

    def __init__(
        self,
        effects: Effects,
        message_sender: MessageSender,
        *,
        decrypter: Decrypter,
        verifier: Verifier,
        slot_sharing: SlotSharing | None,
        queued: Queued | None = None,
        execute: Execute | None = None,
    ) -> None:
        self._effects = effects
        self._message_sender = message_sender
        self._decrypter = decrypter
        self._verifier = verifier
        self._slot_sharing = slot_sharing
        self._queued = queued
        self._execute = execute

    def check_depth(self, what: str) -> None:
        """Return if this run may wait here.

        Raises:
            WouldDeadlock: too many runs wait for one another in this slot already, or other runs work in this thread.
        """
        if getattr(_thread, "is_shared", False):
            raise WouldDeadlock(
                what,
                "it holds up the event loop of all model agents here; use asyncio.to_thread in an async tool",
            )
        if self._slot_sharing is not None:
            self._slot_sharing.check_depth(what)

    def child(self, child: str, *, timeout_s: float | None, answer: Answer | None) -> Taken | None:
        """Return the end of a child; None if it has not come after ``timeout_s`` seconds.

        What the child asks meanwhile can only be answered here: with ``answer``, or by saying at once that
        there will be no reply.
        """
        return self._wait(
            callback_id(child),
            awaited=child,
            timeout_s=timeout_s,
            tend=lambda: self._tend(child, answer),
        )

    def answer(self, item: str, question: str, *, awaited: str, timeout_s: float | None) -> Taken | None:
        """Return the item that answers a question or an approval; None if it has not come in ``timeout_s`` seconds,
        or never will.

        ``awaited`` is the session that is to answer.
        """
        session = self._effects.held.session.id

        def is_open() -> bool:
            return any(question in found.questions for found in self._effects.ledger.find([session]))

        return self._wait(
            item,
            awaited=awaited,
            timeout_s=timeout_s,
            tend=lambda: self._effects.retrying("wait", is_open),
        )

    def look(self, children: Sequence[str], *, timeout_s: float, known: Collection[str]) -> list[Taken]:
        """Return the ends of children and their open questions; waits until there is one that is not ``known``, or
        all have ended.

        Empty when nothing came within ``timeout_s`` seconds.
        """
        if not children:
            return []

        def ready() -> bool:
            found = self._ended_or_asked(children, "wait")
            ended = sum(item.kind == "completion" for item, _ in found)
            return ended == len(children) or any(item.id not in known for item, _ in found)

        if timeout_s > 0:
            self._wait_until(ready, awaited=children[0], timeout_s=timeout_s)
        return self._ended_or_asked(children, "give up")

    def _ended_or_asked(self, children: Sequence[str], waits: Literal["wait", "give up"]) -> list[Taken]:
        found = [self.take(callback_id(child), waits) for child in children]
        found += [self.take(question) for question in self._asked_by(children)]
        return [taken for taken in found if taken is not None]

    def take(self, item: str, waits: Literal["wait", "give up", ""] = "") -> Taken | None:
        """Return an item of this session's queue, if it is there; with ``wait`` the run stands still for it from now
        on.
        """
        effects = self._effects
        claim_item = partial(effects.ledger.claim_item, effects.held.claim, item, waits=waits)
        taken = effects.retrying("take", lambda: claim_item(last_effect=effects.last))
        if taken is None:
            return None
        effects.last_taken = item
        failpoint("worker.taken")
        ((checked, text),) = self._verifier.items([taken])
        effects.note_received(checked)
        return checked, self._decrypter.text(checked, text)

    def _wait(
        self, item: str, *, awaited: str, timeout_s: float | None, tend: Callable[[], bool]
    ) -> Taken | None:
        """Wait for an item; ``tend`` does the work meanwhile and returns whether waiting makes sense."""
        taken: list[Taken] = []

        def ready() -> bool:
            found = self.take(item, "wait")
            taken.extend([] if found is None else [found])
            return bool(taken) or not tend()

        self._wait_until(ready, awaited=awaited, timeout_s=timeout_s)
        # What has ended the wait may have brought the item, too.
        return taken[0] if taken else self.take(item, "give up")

    def _wait_until(self, ready: Callable[[], bool], *, awaited: str, timeout_s: float | None) -> None:
        """Return when something is ready, or after ``timeout_s`` seconds; meanwhile the slot executes what is ``awaited``."""
        deadline = math.inf if timeout_s is None else machine.monotonic() + timeout_s
        effects = self._effects
        events = effects.retrying(
            "wait", lambda: effects.ledger.events(effects.held.session.id, with_children=True)
        )
        with self._shared_slot(awaited) as shared_slot:
            while not ready() and (left_s := deadline - machine.monotonic()) > 0:
                if shared_slot is not None:
                    effects.retrying("lend", shared_slot.look)
                    left_s = min(left_s, max(shared_slot.next_look_s, 0.02))
                for_s = min(left_s, LOOK_AGAIN_S)
                effects.retrying("wait", partial(events.wait, for_s))

    def _shared_slot(self, awaited: str) -> SharedSlot | nullcontext[None]:
        if self._slot_sharing is None or self._queued is None or self._execute is None:
            return nullcontext()
        return SharedSlot(self._slot_sharing, self._queued, self._execute, awaited=awaited)

    def _tend(self, child: str, answer: Answer | None) -> bool:
        """Deal with the questions of a child that this very run waits for."""
        effects = self._effects
        for question in self._asked_by([child]):
            taken = self.take(question)
            if taken is None:
                continue
            agent = effects.held.session.agent
            if answer is None:
                text = f"no reply will come: agent {agent!r} waits for this session to end"
                self._message_sender.reply(taken[0], text, refused=True)
                continue
            try:
                self._message_sender.reply(taken[0], answer(*taken))
            except (ClaimLost, SessionStopped, ServerUnavailable, RunParked):
                raise
            except Exception as error:  # noqa: BLE001  (it costs the asker its answer, and nobody the child)
                hidden = effects.held.session.encrypted
                _log.error(
                    "answer-failed", question=question, session=child, exc_info=None if hidden else error
                )
                why = f"{type(error).__name__}: {error}"
                text = f"no reply will come: agent {agent!r} failed at the question: {why}"
                self._message_sender.reply(taken[0], text, refused=True)
        return True

    def _asked_by(self, children: Sequence[str]) -> list[str]:
        """Return the open questions of children that wait in the queue of this session, or in this very run."""
        ledger, own = self._effects.ledger, self._effects.held.session.id

        def find() -> list[str]:
            asked = [question for child in ledger.find(children) for question in child.questions]
            items = {question: ledger.item(own, question) for question in asked}
            open_states = (ItemState.QUEUED, ItemState.CLAIMED)
            return [name for name, item in items.items() if item is not None and item.state in open_states]

        return self._effects.retrying("wait", find)
