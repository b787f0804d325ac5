"""How an agent gives work to others: delegations, and calls that wait."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.agents.registry import AgentRecord
from orchestrator.envelope.bodies import Task
from orchestrator.envelope.model import RetryPolicy
from orchestrator.envelope.model_values import Priority
from orchestrator.envelope.structured import task_of
from orchestrator.errors import InputError
from orchestrator.ledger import ItemState, Launch
from orchestrator.messages.factory import Delivery
from orchestrator.messages.given import check_text
from orchestrator.policy.budget import Budget
from orchestrator.policy.callback import Callback
from orchestrator.worker.context.arguments import (
    ON_CLOSE,
    ON_FAILURE,
    PRIORITIES,
    OnClose,
    OnFailure,
    check_choice,
    check_list,
    check_seconds,
    check_timeout,
    policy_of,
)
from orchestrator.worker.context.launches import LaunchRequest
from orchestrator.worker.context.view import View, callback_of

#: Delegations that are waited for at once; no policy for other groups concerns them.
CALL_GROUP: Final = "call:"


@dataclass(frozen=True)
class Collected:
    """What children have brought to a run that looked after them."""

    callbacks: tuple[Callback, ...]  #: in the order in which they came
    outstanding: tuple[str, ...]  #: the sessions that have not ended


@dataclass(frozen=True)
class Piece:
    """A part of a text."""

    text: str  #: the part that was asked for
    status: str  #: of the child: `completed`, `partial-success` or `failed`
    size: int  #: characters of all of it
    following: int | None  #: where it goes on; None: it does not


class Delegating(View):
    """One run of a session, with the work that its agent may give."""

    def agents(self, tag: str = "") -> tuple[AgentRecord, ...]:
        """The registered agents that this one may delegate to, by name.

        Args:
            tag: only those that have this tag.

        Raises:
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        return tuple(record for record in self._launches.delegates() if not tag or tag in record.tags)

    @property
    def outstanding(self) -> int:
        """How many callbacks are still to come for this session, those of children of this run included.

        Raises:
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        pending = self._find(self.session).pending
        return pending - sum(callback.kind == "completion" for callback in self.callbacks)

    def delegate(
        self,
        agent: str,
        description: str = "",
        *,
        title: str = "",
        task: Task | Mapping[str, Any] | None = None,
        priority: Priority = "high",
        callback: bool = True,
        group: str = "",
        on_failure: OnFailure = "deliver",
        on_close: OnClose | None = None,
        key: str | None = None,
        after: Sequence[str] = (),
        budget: Budget | Mapping[str, Any] | str | None = None,
        expires_s: float | None = None,
        retry_policy: RetryPolicy | Mapping[str, Any] | None = None,
        time_limit_s: float | None = None,
    ) -> str:
        """Launch a session of ``agent`` and go on; its end comes back as a callback.

        Args:
            agent: the name of a registered agent.
            description: its task; its `ctx.prompt`.
            task: further parts of the task: objectives, criteria, expected outputs, context. The child has it as
                `ctx.task`, and its prompt has a section for each list. It may have the description and the title, too.
            title: what people call the task; by default the beginning of the description.
            priority: `critical`, `high`, `normal` or `low`.
            callback: False: nothing comes back.
            group: delegations of one group can be waited for together, see `wait_for`.
            on_failure: what its failure means: it is delivered, it fails this session, or it is ignored
                (counted as dead, with that reason).
            on_close: what becomes of it when this session is stopped, fails or is deleted before it ends; by
                default what `when_closed` says.
            key: tells this delegation from others of the same text in the same run; by default they are counted.
            after: sessions of this tree that must be completed before this one is begun; it fails if one of them fails,
                or is of another tree.
            budget: what it and everything below it may spend, such as `{"tokens": 50_000}` or `"usd=0.5"`. The budgets of
                this session and of those above it count as well.
            expires_s: seconds from now after which the task is not begun any more; it has failed then.
            retry_policy: how often and how fast the delivery of the task is tried; by default the routing table says.
            time_limit_s: seconds from now within which the child must have ended; it has failed then.

        Returns:
            The child's session id.

        Raises:
            LimitExceeded: this session or its tree is as large as it may be.
            InputError: there is no agent's name or nothing to do, or a value is invalid.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        check_list("after", after)
        given = None if task is None else task_of(task, description=description, title=title)
        words = _task(agent, given.description if given is not None else description)
        check_choice("priority", priority, PRIORITIES)
        check_choice("on_failure", on_failure, ON_FAILURE, optional=False)
        check_choice("on_close", on_close, ON_CLOSE)
        check_seconds("expires_s", expires_s)
        check_seconds("time_limit_s", time_limit_s)
        return self._launches.launch(
            LaunchRequest(
                agent=agent,
                title=title or (given.title if given is not None else "") or heading_of(words),
                description=words,
                task=given,
                delivery=Delivery(expires_s=expires_s, retry_policy=policy_of(retry_policy)),
                time_limit_s=time_limit_s,
                priority=priority,
                callback=callback,
                group=group,
                on_failure=on_failure,
                on_close=on_close or "",
                key=key,
                after=after,
                budget=Budget.of(budget),
            )
        )

    def delegate_all(
        self,
        agent: str,
        tasks: Iterable[str | Task | Mapping[str, Any]],
        *,
        priority: Priority = "high",
        callback: bool = True,
        group: str = "",
        on_failure: OnFailure = "deliver",
        on_close: OnClose | None = None,
        budget: Budget | Mapping[str, Any] | str | None = None,
    ) -> list[str]:
        """:meth:`delegate` for each of many tasks, in much less time than one after the other.

        Each is a launch of its own, and the very one that `delegate` would make: a run that is tried again
        gets the same children. When one is refused, those before it are launched.

        Args:
            agent: the name of a registered agent.
            tasks: the task of each child: its description, or a `Task`.
            priority: as for `delegate`, like the others.

        Returns:
            The children's session ids, in the order of the tasks.

        Raises:
            LimitExceeded: this session or its tree is as large as it may be.
            InputError: there is no agent's name or nothing to do, or a value is invalid.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        check_choice("priority", priority, PRIORITIES)
        check_choice("on_failure", on_failure, ON_FAILURE, optional=False)
        check_choice("on_close", on_close, ON_CLOSE)
        most = Budget.of(budget)

        def prepare(task: str | Task | Mapping[str, Any]) -> Launch:
            given = task_of(task) if isinstance(task, Task | Mapping) else None
            words = _task(agent, task if given is None else given.description)
            return self._launches.prepare(
                LaunchRequest(
                    agent=agent,
                    title=(given.title if given is not None else "") or heading_of(words),
                    description=words,
                    task=given,
                    priority=priority,
                    callback=callback,
                    group=group,
                    on_failure=on_failure,
                    on_close=on_close or "",
                    budget=most,
                )
            )

        return self._launches.launch_all(map(prepare, tasks))

    def call(
        self,
        agent: str,
        description: str,
        *,
        title: str = "",
        priority: Priority = "high",
        timeout_s: float | None = None,
        answer: Callable[[Callback], str] | None = None,
        key: str | None = None,
    ) -> Callback:
        """Launch a session of ``agent`` and wait for its end, which is delivered by this very run.

        It never holds up what it waits for: meanwhile this worker's slot runs what the child needs.

        Args:
            agent: the name of a registered agent.
            description: its task.
            title: what people call the task; by default the beginning of the description.
            priority: `critical`, `high`, `normal` or `low`.
            timeout_s: seconds to wait at most; by default as long as this run may take.
            answer: answers a question that the child asks meanwhile. Without it, the child hears at once
                that there will be no reply, as its parent cannot be resumed before it ends.
            key: as for `delegate`.

        Returns:
            The child's callback; its `status` says whether it completed.

        Raises:
            TimeoutError: it is not over yet. It goes on, and its end comes as a callback.
            WouldDeadlock: too many runs wait for one another in this worker's slot.
            LimitExceeded, InputError, ClaimLost, SessionStopped, ServerUnavailable: as for `delegate`.
        """
        check_timeout(timeout_s)
        self._blocking.check_depth(f"a call of {agent!r}")
        child = self.delegate(agent, description, title=title, priority=priority, group=CALL_GROUP, key=key)
        reply = None if answer is None else lambda item, text: answer(callback_of(item, text, self._effects))
        taken = self._blocking.child(child, timeout_s=timeout_s, answer=reply)
        if taken is None:
            raise TimeoutError(
                f"session {child} of {agent!r} is not over after {timeout_s:g} s; its end comes as a callback"
            )
        self._all = None
        return callback_of(*taken, self._effects)

    def collect(
        self, sessions: Sequence[str] = (), *, timeout_s: float = 0.0, known: Collection[str] = ()
    ) -> Collected:
        """What children have brought: their ends, which are delivered by this very run, and their open questions.

        It waits until there is something whose id is not ``known``, for ``timeout_s`` seconds at most. Answer a question with
        `reply`: as long as this run goes on, nobody else does.

        Args:
            sessions: the children; by default all whose callbacks are outstanding.

        Raises:
            InputError: a session is no child of this one with a callback.
            WouldDeadlock: too many runs wait for one another in this worker's slot.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        check_list("sessions", sessions)
        check_timeout(timeout_s)
        if timeout_s > 0:
            self._blocking.check_depth("a wait for children")
        items = self._effects.retrying("children", lambda: self._ledger.items(self.session))
        children = {i.child: i for i in items if i.kind == "completion" and i.callback}
        unknown = [session for session in sessions if session not in children]
        if unknown:
            raise InputError(f"session {unknown[0]} is no child of {self.session} that owes it a callback")
        awaited = list(sessions) or [
            child for child, item in children.items() if item.state in (ItemState.OWED, ItemState.QUEUED)
        ]
        taken = self._blocking.look(awaited, timeout_s=timeout_s, known=known)
        self._all = None
        callbacks = tuple(callback_of(*one, self._effects) for one in taken)
        ended = {callback.session for callback in callbacks if callback.kind == "completion"}
        return Collected(
            callbacks=callbacks, outstanding=tuple(child for child in awaited if child not in ended)
        )

    def read_result(self, session: str, attachment: str = "", *, offset: int = 0, length: int) -> Piece:
        """A part of what a child answered, or of what it attached to its answer.

        Args:
            session: the child, which has ended.
            attachment: the name of the attachment; empty: the answer, or the error, itself.
            offset: where the part begins, in characters.
            length: how many characters it has at most.

        Raises:
            InputError: the session is no child of this one that has ended, or has no such attachment.
            PayloadError: the text is not kept any more, or was altered.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        found = [callback for callback in self.all_results if callback.session == session]
        if not found:
            raise InputError(f"session {session} is no task of yours that has ended")
        text = found[-1].attachment(attachment) if attachment else found[-1].full()
        if text is None:
            names = ", ".join(found[-1].attachments) or "none"
            raise InputError(f"session {session} has attached nothing as {attachment!r} (there are: {names})")
        end = offset + length
        return Piece(
            text[offset:end],
            status=found[-1].status,
            size=len(text),
            following=end if end < len(text) else None,
        )


def _task(agent: object, description: object) -> str:
    """The description, if there is somebody and something to do."""
    check_text("agent", agent)
    text = check_text("description", description)
    if not agent or not text.strip():
        raise InputError(f"a delegation to {agent!r} needs an agent and a description of the task")
    return text


def heading_of(description: str) -> str:
    """What people call a task that has no title."""
    first = description.strip().splitlines()[0].strip()
    return first if len(first) <= 80 else f"{first[:79]}…"
