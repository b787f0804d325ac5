"""What an agent does to the world outside of its run: each thing once, however often the run is tried.

An effect is one transition of the ledger and one signed envelope, in one atomic step, under the claim of the
run and an effect key: the run, a fingerprint of the call, and how often the same call was made before in this
try. A run that is tried again makes the same calls under the same keys and gets the same children back. The
threads of an agent may have effects at the same time.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar

from orchestrator.agents.registry import OPERATOR
from orchestrator.crashpoints import failpoint
from orchestrator.envelope.bodies import ErrorReport, Task
from orchestrator.envelope.bodies.progress import StatusUpdate, TaskCompletion
from orchestrator.envelope.model_values import Priority
from orchestrator.envelope.structured import pack, prompt_of_task
from orchestrator.errors import ServerUnavailable
from orchestrator.ids import child_session_id, shard_of
from orchestrator.ledger import Claimed, Delegated, Item, Launch, Ledger, Outgoing
from orchestrator.messages.factory import AS_ROUTED, Delivery, MessageFactory, Thread
from orchestrator.policy.budget import Budget
from orchestrator.streams import StreamId
from orchestrator.streams.pressure import Backpressure
from orchestrator.worker.context.step_scope import present_step
from orchestrator.worker.execution.heartbeat import ClaimStatus
from orchestrator.worker.execution.retry import retry_outages

OnFailure = Literal["deliver", "fail", "ignore"]
#: What becomes of a child whose parent is closed; `heir:<session>` hands its callback on.
OnClose = Literal["stop", "abandon"]
T = TypeVar("T")
#: Launches in the first round trip, and in a later one at most: the first children are to begin soon.
FIRST_AT_ONCE = 8
AT_ONCE = 128
#: So few go together: a second round trip would cost more than the wait.
FEW = 12


class Effects:
    """The effects of one run, in one try of it."""

    def __init__(
        self,
        held: Claimed,
        *,
        ledger: Ledger,
        message_factory: MessageFactory,
        claim_status: ClaimStatus,
        pressure: Backpressure | None = None,
    ) -> None:
        self.held = held
        self.ledger = ledger
        self.message_factory = message_factory
        self.claim_status = claim_status
        self._pressure = pressure
        self._made: Counter[str] = Counter()
        self._counting = threading.Lock()
        #: Id of the message that the run heard last, and of what was said or heard last; None: not looked yet.
        self._heard: str | None = None
        self._last: str | None = None
        self._delegator: str | None = None
        #: Set when an effect failed because the ledger was out of reach: the agent is not to blame.
        self.outage: ServerUnavailable | None = None
        #: Whether this try launched anything.
        self.launched = False
        #: What the agent itself wrote of the end of its task: it reports the end of the session, if this run ends it.
        self.completion: TaskCompletion | None = None
        #: What the agent itself wrote of the failure of its task.
        self.failure: ErrorReport | None = None

    @property
    def thread(self) -> Thread:
        """Where what the run says to others stands: after what it said or heard last."""
        return self._after(self._last if self._last is not None else self._heard_before())

    @property
    def work_thread(self) -> Thread:
        """Where the work that the run gives others stands: after what it heard last, on which it builds."""
        return self._after(self._heard if self._heard is not None else self._heard_before())

    def heard(self, item: Item) -> None:
        """Note that the run was given something by another session."""
        if message := str(item.extra.get("message", "")):
            self._heard = self._last = message

    def said(self, message: str) -> None:
        """Note that the run has sent a message to its delegator."""
        self._last = message

    def _heard_before(self) -> str:
        """The latest of what the run was given when it began; else what an earlier run of the session said last."""
        named = [item for item in self.held.items if item.extra.get("message")]
        latest = max(named, key=lambda item: item.seq, default=None)
        return str(latest.extra["message"]) if latest is not None else self.held.session.last_said

    def _after(self, message: str) -> Thread:
        about = self.held.session
        return Thread.after(message, about.correlation, about.chain, encrypted=about.encrypted)

    def launch(
        self,
        agent: str,
        *,
        write: Callable[[str], Outgoing],
        kind: str = "delegate",
        title: str,
        description: str,
        priority: Priority | None,
        callback: bool = True,
        group: str = "",
        on_failure: OnFailure = "deliver",
        on_close: str = "",
        key: str | None = None,
        budget: Budget | None = None,
        task: str = "",
        time_limit_s: float | None = None,
        after: Sequence[str] = (),
    ) -> str:
        """Launch a child; its session id. ``write`` makes the envelope for a child of that id.

        ``task`` is what is said of its task beside the description, as JSON.

        Raises:
            ClaimLost, SessionStopped: this run may not go on.
            LimitExceeded: the session or its tree is as large as it may be.
            StreamFull: the routers are too far behind for new work.
            ServerUnavailable: Redis stayed away.
        """
        launch = self._launch(
            self.key(kind, agent, title, description, priority, callback, group, given=key),
            agent,
            write=write,
            title=title,
            description=description,
            callback=callback,
            group=group,
            on_failure=on_failure,
            on_close=on_close,
            budget=budget,
            task=task,
            time_limit_s=time_limit_s,
            after=after,
        )
        self._admit(launch)
        return self.attempt(kind, lambda: self.ledger.delegate(self.held.claim, launch)).child

    def _launch(
        self,
        effect: str,
        agent: str,
        *,
        write: Callable[[str], Outgoing],
        title: str,
        description: str,
        callback: bool,
        group: str,
        on_failure: OnFailure = "deliver",
        on_close: str = "",
        caller: str = "",
        caller_agent: str = "",
        budget: Budget | None = None,
        task: str = "",
        time_limit_s: float | None = None,
        after: Sequence[str] = (),
    ) -> Launch:
        """A launch under its effect key, with its envelope."""
        child = child_session_id(self.held.session.id, f"{self.held.claim.run}:{effect}")
        return Launch(
            effect=effect,
            child_id=child,
            agent=agent,
            description=description,
            envelope=self.write(lambda: write(child)),
            correlation=self.held.session.correlation,
            chain=self.work_thread.chain,
            title=title,
            callback=callback,
            group=group,
            on_failure=on_failure,
            on_close=on_close,
            caller=caller,
            caller_agent=caller_agent,
            budget=budget,
            task=task,
            time_limit_ms=0 if time_limit_s is None else max(1, round(time_limit_s * 1000)),
            after=after,
        )

    def assignment(
        self,
        agent: str,
        *,
        sequence: int,
        title: str,
        description: str,
        group: str,
        callback: bool,
        caller: str,
        caller_agent: str,
        after: Sequence[str],
    ) -> Launch:
        """The launch of a plan's assignment; :meth:`launch_all` carries it out.

        Args:
            caller: as of `Launch`.
            after: the sessions that must be completed before.
        """
        return self._launch(
            self.key("plan", agent, description, sequence, callback, caller),
            agent,
            write=lambda child: self._delegation(child, agent, title, description, "high", after=after),
            title=title,
            description=description,
            callback=callback,
            group=group,
            caller=caller,
            caller_agent=caller_agent,
            after=after,
        )

    def _admit(self, launch: Launch) -> None:
        """Wait for room in the stream of a launch, or refuse it."""
        if self._pressure is not None:
            envelope = launch.envelope
            stream = StreamId(shard_of(launch.child_id), envelope.type, envelope.priority)
            pressure = self._pressure
            self.attempt("pressure", lambda: pressure.admit(stream))
        self.launched = True

    def delegate_all(
        self,
        agent: str,
        tasks: Iterable[tuple[str, str, Task | None]],
        *,
        priority: Priority,
        callback: bool,
        group: str,
        on_failure: OnFailure,
        on_close: str,
        budget: Budget | None = None,
    ) -> list[str]:
        """:meth:`delegate` for many tasks, each a title, a description and what else is said, many in a round trip."""

        def launch(title: str, words: str, task: Task | None) -> Launch:
            prompt = words if task is None else prompt_of_task(task)
            return self._launch(
                self.key("delegate", agent, title, prompt, priority, callback, group),
                agent,
                write=lambda child: self._delegation(child, agent, title, words, priority, task=task),
                title=title,
                description=prompt,
                task="" if task is None else pack(task),
                after=() if task is None else tuple(need.task_id for need in task.dependencies),
                callback=callback,
                group=group,
                on_failure=on_failure,
                on_close=on_close,
                budget=budget,
            )

        return self.launch_all(launch(*task) for task in tasks)

    def launch_all(self, launches: Iterable[Launch]) -> list[str]:
        """Carry out launches, many in a round trip; the children's ids in their order.

        Raises:
            LimitExceeded, StreamFull, ClaimLost, SessionStopped, ServerUnavailable: as :meth:`launch`; those before
                the first that was refused are launched.
        """
        made: list[str] = []
        rest = iter(launches)
        first = list(itertools.islice(rest, FEW + 1))
        waiting, at_once = itertools.chain(first, rest), FEW if len(first) <= FEW else FIRST_AT_ONCE
        while batch := list(itertools.islice(waiting, at_once)):
            self._admit(batch[0])
            made += [done.child for done in self._launch_batch(batch)]
            at_once = min(at_once * 2, AT_ONCE)
        return made

    def _launch_batch(self, launches: Sequence[Launch]) -> Sequence[Delegated]:
        return self.attempt("delegate", lambda: self.ledger.delegate_all(self.held.claim, launches))

    def delegate(
        self,
        agent: str,
        *,
        title: str,
        description: str,
        priority: Priority,
        callback: bool = True,
        group: str = "",
        on_failure: OnFailure = "deliver",
        on_close: str = "",
        key: str | None = None,
        after: Sequence[str] = (),
        budget: Budget | None = None,
        task: Task | None = None,
        delivery: Delivery = AS_ROUTED,
        time_limit_s: float | None = None,
    ) -> str:
        """:meth:`launch` by a task-delegation, which is held until the tasks in ``after`` are completed.

        ``task`` has what is said of the task beside title and description.
        """
        return self.launch(
            agent,
            write=lambda child: self._delegation(
                child, agent, title, description, priority, after=after, task=task, delivery=delivery
            ),
            title=title,
            description=description if task is None else prompt_of_task(task),
            task="" if task is None else pack(task),
            time_limit_s=time_limit_s,
            priority=priority,
            callback=callback,
            group=group,
            on_failure=on_failure,
            on_close=on_close,
            key=key,
            budget=budget,
            after=(*after, *(need.task_id for need in task.dependencies)) if task is not None else after,
        )

    def _delegation(
        self,
        child: str,
        agent: str,
        title: str,
        description: str,
        priority: Priority,
        *,
        after: Sequence[str] = (),
        task: Task | None = None,
        delivery: Delivery = AS_ROUTED,
    ) -> Outgoing:
        return self.message_factory.delegation(
            sender=self.held.session.agent,
            recipient=agent,
            task_id=child,
            title=title,
            description=description,
            thread=self.work_thread,
            priority=priority,
            after=after,
            task=task,
            delivery=delivery,
        )

    def close_policy(self, policy: str) -> None:
        """Say what becomes of the children that still run when this session is closed.

        Raises:
            ClaimLost, SessionStopped, ServerUnavailable: as :meth:`launch`.
        """
        effect = self.key("close-policy", policy)
        facts = {"close_policy": policy}
        self.attempt("close_policy", lambda: self.ledger.effect(self.held.claim, effect=effect, facts=facts))

    def status(self, progress: int | None, activity: str, *, body: StatusUpdate | None = None) -> None:
        """Record how far the session is; ``body`` is what its envelope says where the agent wrote it itself.

        Raises:
            ClaimLost, SessionStopped, ServerUnavailable: as :meth:`launch`.
        """
        effect = self.key("status", progress, activity)
        outgoing = self.write(
            lambda: (
                self.message_factory.as_written(
                    body, sender=self.held.session.agent, recipient=self.delegator, thread=self.thread
                )
                if body is not None
                else self.message_factory.status(
                    sender=self.held.session.agent,
                    recipient=self.delegator,
                    task_id=self.held.session.reported_as,
                    progress=progress,
                    activity=activity,
                    thread=self.thread,
                )
            )
        )
        self.said(
            self.attempt(
                "status",
                lambda: self.ledger.status(
                    self.held.claim, effect=effect, progress=progress, activity=activity, envelope=outgoing
                ),
            )
        )

    def show(self, progress: int | None, activity: str) -> None:
        """Record how far the session is, where another envelope says so.

        Raises:
            ClaimLost, SessionStopped, ServerUnavailable: as :meth:`launch`.
        """
        effect = self.key("show", progress, activity)
        self.attempt(
            "status",
            lambda: self.ledger.status(
                self.held.claim, effect=effect, progress=progress, activity=activity, envelope=None
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
        found = retry_outages(lambda: self.ledger.find([parent]), what="delegator") if parent else []
        return found[0].agent if found else OPERATOR

    def key(self, kind: str, *call: Any, given: str | None = None) -> str:
        """The effect key of a call: by its arguments and how often it was made, or the one that was given.

        In a durable step it is the step's: by the kind of the call and how often the step made one.
        """
        scope = present_step(self.held.claim.run)
        if scope is not None:
            return scope.effect_key(kind, given)
        if given is not None:
            return f"{kind}:key:{given}"
        text = json.dumps(call, ensure_ascii=True, separators=(",", ":"))
        fingerprint = f"{kind}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        # Calls of several threads come in any order: equal ones may change places, and are the same effects all told.
        with self._counting:
            self._made[fingerprint] += 1
            return f"{fingerprint}:{self._made[fingerprint]}"

    def attempt(self, what: str, call: Callable[[], T]) -> T:
        """Carry out an effect.

        Raises:
            ClaimLost, SessionStopped, ServerUnavailable: as :meth:`launch`.
        """
        done = self.retrying(what, call)
        failpoint("worker.effect")
        return done

    def write(self, outgoing: Callable[[], Outgoing]) -> Outgoing:
        """Write an envelope: who signs it asks Redis for names and keys, and makes a large text known there.

        Raises:
            ClaimLost, SessionStopped, ServerUnavailable: as :meth:`launch`.
        """
        return self.retrying("envelope", outgoing)

    def retrying(self, what: str, call: Callable[[], T]) -> T:
        """Read from the ledger as an effect does: while the run may go on, and outlasting an outage.

        Raises:
            ClaimLost, SessionStopped, ServerUnavailable: as :meth:`launch`.
        """
        self.claim_status.check()
        try:
            return retry_outages(call, what=what)
        except ServerUnavailable as error:
            self.outage = error
            raise
