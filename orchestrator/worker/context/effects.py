"""Effects of an agent on the world outside its run: each happens once, however often the run is tried.

An effect is one transition of the ledger and one signed envelope, in one atomic step, under the claim of the
run and an effect key: the run, a fingerprint of the call, and how often the same call was made before in this
try. A run that is tried again makes the same calls under the same keys and gets the same children back. The
threads of an agent may have effects at the same time.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from orchestrator.agents.registry import OPERATOR
from orchestrator.crashpoints import failpoint
from orchestrator.envelope.bodies import ErrorReport, StatusUpdate, TaskCompletion
from orchestrator.envelope.message_types import DetailedBody
from orchestrator.errors import ServerUnavailable
from orchestrator.ids import traceparent
from orchestrator.ledger import ClaimedRun, Item, Ledger, Outgoing
from orchestrator.ledger.large_text import check_size
from orchestrator.messages.factory import MessageFactory, Parties, Thread, from_session
from orchestrator.policy.budget import Cost
from orchestrator.redisdb.client import retry_outages
from orchestrator.worker.context.step_call import present_step
from orchestrator.worker.execution.heartbeat import ClaimStatus

T = TypeVar("T")


class Effects:
    """The effects of one run, in one try of it.

    Each method that asks or changes the ledger raises `ClaimLost`, `SessionStopped` or `ServerUnavailable` when the run
    cannot go on; so do the methods of whatever is built on it.
    """

    def __init__(
        self,
        held: ClaimedRun,
        *,
        ledger: Ledger,
        message_factory: MessageFactory,
        claim_status: ClaimStatus,
    ) -> None:
        self.held = held
        self.ledger = ledger
        self.message_factory = message_factory
        self.claim_status = claim_status
        self._made: dict[str, int] = {}
        self._counting = threading.Lock()
        #: Ids of the message that the run received last, and of the last that it received or sent; None: not read yet.
        self._received: str | None = None
        self._last: str | None = None
        self._delegator: str | None = None
        #: Set when an effect failed because the ledger was out of reach: the agent is not to blame.
        self.outage: ServerUnavailable | None = None
        #: The key of the last effect that the ledger has acknowledged.
        self.last = ""
        #: The last item that this try has taken into its run.
        self.last_taken = ""
        #: Costs of this try's calls of models.
        self.spent = Cost()
        #: Whether this try launched anything.
        self.launched = False
        #: What the agent itself wrote of the end of its task: it reports the end of the session, if this run ends it.
        self.completion: TaskCompletion | None = None
        #: What the agent itself wrote of the failure of its task.
        self.failure: ErrorReport | None = None

    @property
    def thread(self) -> Thread:
        """The conversation's thread for what the run sends: after the last message that it sent or received."""
        return self._after(self._last)

    @property
    def work_thread(self) -> Thread:
        """The place of the work that the run gives others: after the last message that it received, on which it builds."""
        return self._after(self._received)

    def note_received(self, item: Item) -> None:
        """Note that the run was given something by another session."""
        if message := str(item.extra.get("message", "")):
            self._received = self._last = message

    def note_sent(self, message: str) -> None:
        """Note that the run has sent a message to its delegator."""
        self._last = message

    def _after(self, message: str | None) -> Thread:
        """Return the place after a message; None: after the newest that the run was given when it began, or the last one
        of an earlier run of the session.
        """
        if message is None:
            named = [item for item in self.held.items if item.extra.get("message")]
            latest = max(named, key=lambda item: item.seq, default=None)
            message = str(latest.extra["message"]) if latest is not None else self.held.session.last_said
        return Thread.of(self.held.session, after=message, traceparent=self.traceparent)

    def parties(self, recipient: str, to: str = "") -> Parties:
        """Return the parties of what the run sends; ``to`` is the recipient's session."""
        return {**from_session(self.held.session, recipient, self.thread), "recipient_session": to}

    def launch_parties(self, recipient: str) -> Parties:
        """Return the parties of a message that gives others work."""
        return {**self.parties(recipient), "thread": self.work_thread}

    @property
    def traceparent(self) -> str:
        """The trace context of this try."""
        held = self.held
        return traceparent(held.session.root or held.session.id, held.run.id, held.run.attempt)

    def status(self, progress: int | None, activity: str, *, body: StatusUpdate | None = None) -> None:
        """Record the progress of the session; ``body`` is the content of the envelope if the agent wrote it itself."""
        outgoing = self.write_status(progress, activity) if body is None else self.write_own(body)
        self.note_sent(self.show(progress, activity, envelope=outgoing))

    def show(self, progress: int | None, activity: str, *, envelope: Outgoing | None = None) -> str:
        """Record how far the session is, by default where another envelope says so; the id of the message that counts."""
        effect = self.key("show" if envelope is None else "status", progress, activity)
        return self.attempt(
            "status",
            lambda: self.ledger.status(
                self.held.claim, effect=effect, progress=progress, activity=activity, envelope=envelope
            ),
        )

    @property
    def delegator(self) -> str:
        """The agent that gave this session its task: the parent's, an external program, or `operator`."""
        if self._delegator is None:
            self._delegator = self.held.session.delegator or self._agent_of_parent()
        return self._delegator

    def _agent_of_parent(self) -> str:
        parent = self.held.session.parent
        found = self.read("delegator", lambda: self.ledger.find([parent])) if parent else []
        return found[0].agent if found else OPERATOR

    def key(self, kind: str, *call: Any, given: str | None = None) -> str:
        """Return the effect key of a call: by its arguments and how often it was made, or the one that was given,
        unless empty.

        In a durable step it is the step's: by the kind of the call and how often the step made one.
        """
        check_size("key", given or "")
        scope = present_step(self.held.claim.run)
        if scope is not None:
            return scope.effect_key(kind, given)
        if given:
            return f"{kind}:key:{given}"
        text = json.dumps(call, ensure_ascii=True, separators=(",", ":"))
        fingerprint = f"{kind}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        # Calls of several threads come in any order: equal ones may change places, and together they are the same effects.
        with self._counting:
            self._made[fingerprint] = self._made.get(fingerprint, 0) + 1
            return f"{fingerprint}:{self._made[fingerprint]}"

    def withdraw(self, question: str, reason: str, *, asked: str) -> bool:
        """Stop waiting for the session ``asked`` to answer; False when the question is not open any more."""
        held = self.held
        return self.attempt(
            "withdraw",
            lambda: self.ledger.withdraw(
                question, asker=held.session.id, asked=asked, reason=reason, claim=held.claim
            ),
        )

    def attempt(self, what: str, call: Callable[[], T], *, effect: str = "") -> T:
        """Carry out an effect; by its key, ``effect``, the commit sees that the server has not lost it."""
        done = self.retrying(what, call)
        self.last = effect or self.last
        failpoint("worker.effect")
        return done

    def write(self, outgoing: Callable[[], Outgoing]) -> Outgoing:
        """Write an envelope: who signs it asks Redis for names and keys, and makes a large text known there."""
        return self.retrying("envelope", outgoing)

    def write_status(self, progress: int | None, activity: str) -> Outgoing:
        """Write the status-update of the session for its delegator."""
        return self.write_own(
            StatusUpdate(
                task_id=self.held.session.reported_as,
                status="in-progress",
                progress_percentage=progress,
                current_activity=activity or None,
            )
        )

    def write_own(self, body: DetailedBody) -> Outgoing:
        """Write an envelope for the delegator with a body that the agent made."""
        return self.write(
            lambda: self.message_factory.as_written(
                body, **self.parties(self.delegator, self.held.session.parent)
            )
        )

    def retrying(self, what: str, call: Callable[[], T]) -> T:
        """Read from the ledger as an effect does: while the run may go on, and outlasting an outage."""
        self.claim_status.check()
        return self.read(what, call)

    def read(self, what: str, call: Callable[[], T]) -> T:
        """Read from the ledger, outlasting an outage; also when the run has been asked to stop, or has ended."""
        try:
            return retry_outages(call, what=what)
        except ServerUnavailable as error:
            self.outage = error
            raise
