"""Durable parts of a run, which outlast a try: its steps, its sleeps, and its requests for approval."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar, cast, overload

from orchestrator.errors import RunSleeps
from orchestrator.log import get_logger
from orchestrator.machine import isoformat
from orchestrator.policy.approval import Decision, Default
from orchestrator.policy.moments import moment_ms, wait_ms
from orchestrator.worker.context.step_call import Call
from orchestrator.worker.context.view import View

T = TypeVar("T")

_log = get_logger()


class Durable(View):
    """The part of a run's context with what happens once, however often the run is tried."""

    def sleep(self, seconds: float) -> None:
        """Wait for so many seconds without keeping the slot; for as long as you like.

        The run parks: its function ends here with `RunSleeps`, which it has to let pass through, and is called again
        from its beginning when the time has come, at most `sweep_interval_s` later. Then this call returns at once, as
        a durable step does; put what is not to be done again into `step`. No attempt is used up. Callbacks and prompts
        that come meanwhile wait for the next run; to be resumed by them, use ``wait_for("any", deadline_s=…)``.

        Raises:
            InputError: it is no number of seconds from 0 to a century.
            RunSleeps: the time has not come; let it pass through.
            StepMismatch: an earlier try of this run asked for another step here.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        for_ms = wait_ms(seconds)
        self._sleep(lambda: [self.now_ms() + for_ms, for_ms])

    def sleep_until(self, when: datetime | float) -> None:
        """As :meth:`sleep`, until a moment by the clock of Redis; a moment that has passed returns at once.

        Args:
            when: a `datetime` with a time zone, or seconds since the epoch. Another try of the run keeps to the moment
                that the first try named.

        Raises:
            InputError: it is neither, or more than a century ahead.
            RunSleeps, StepMismatch, ClaimLost, SessionStopped, ServerUnavailable: as for :meth:`sleep`.
        """
        until_ms = moment_ms(when, now_ms=self.now_ms())
        self._sleep(lambda: [until_ms, -1])

    def _sleep(self, record: Callable[[], list[int]]) -> None:
        """Return once the run has slept; the record of the first try counts: until when, and for how long, or -1.

        A clock that goes back makes a sleep for a time no longer than twice that: the ledger wakes the run after that
        time at the latest, and a run whose moment is still further ahead than that has slept.
        """
        due_ms, longest_ms = self.step("sleep", record)
        left_ms = due_ms - self.now_ms()
        if left_ms <= 0 or (0 <= longest_ms < left_ms):
            return
        _log.info("run-sleeps", until=isoformat(due_ms))
        raise RunSleeps(isoformat(due_ms), f"{left_ms / 1000:.3f}")

    def now_ms(self) -> int:
        """Return the time by the clock of Redis, in milliseconds since the epoch.

        Raises:
            ServerUnavailable: Redis is away.
        """
        return self._effects.retrying("time", self._ledger.server_ms)

    def step(
        self,
        name: str,
        function: Callable[..., T],
        *args: Any,
        retries: int = 0,
        timeout_s: float | None = None,
        backoff_s: float = 0.5,
        type: Any = None,
        **kwargs: Any,
    ) -> T:
        """Call ``function(*args, **kwargs)`` once for this run, however often the run is tried.

        What it returns or raises is recorded; a run that is tried again gets that, and the function is not called.
        A crash between the function and the record calls it again: give `step_key` to what it calls, to have that
        happen once. Effects that it has (`delegate`, …) are made once in any case. Steps may run side by side.

        Args:
            name: with how often this run asked for it, the step's key. It outlives a deploy: keep it.
            function: what is to be done. It may ask for steps of its own.
            args: its arguments.
            retries: how often it is called again after it raised.
            timeout_s: seconds that one call may take. The function goes on in its thread then, and what it gives is
                dropped.
            backoff_s: seconds before the first retry; each later one waits twice as long, a minute at most.
            type: the type of the value, for what is neither JSON nor bytes nor a pydantic model. By default the
                annotation of the function says it.
            kwargs: more arguments of the function.

        Returns:
            What the function returned, as it is read from the record: tuples are lists.

        Raises:
            StepFailed: the function raised, and no retries are left.
            StepMismatch: an earlier try of this run asked for another step here, see `@agent(steps=…)`.
            LimitExceeded: this run has as many steps, or as large ones, as it may have.
            InputError: the name is none, or the value has no form in which it can be recorded.
            DamagedRecord: what an earlier try recorded cannot be read.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        call = Call(
            name=name,
            function=function,
            args=args,
            kwargs=kwargs,
            retries=retries,
            timeout_s=timeout_s,
            backoff_s=backoff_s,
            type=type,
        )
        return cast("T", self.steps.run(call))

    @overload
    async def astep(
        self,
        name: str,
        function: Callable[..., Awaitable[T]],
        *args: Any,
        retries: int = ...,
        timeout_s: float | None = ...,
        backoff_s: float = ...,
        type: Any = ...,
        **kwargs: Any,
    ) -> T: ...

    @overload
    async def astep(
        self,
        name: str,
        function: Callable[..., T],
        *args: Any,
        retries: int = ...,
        timeout_s: float | None = ...,
        backoff_s: float = ...,
        type: Any = ...,
        **kwargs: Any,
    ) -> T: ...

    async def astep(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        retries: int = 0,
        timeout_s: float | None = None,
        backoff_s: float = 0.5,
        type: Any = None,
        **kwargs: Any,
    ) -> Any:
        """:meth:`step` for agents that are async; the event loop goes on meanwhile.

        The function may be async. A plain function is called in a thread. An async function that takes longer than
        ``timeout_s`` is cancelled. A step whose task is cancelled records nothing.
        """
        call = Call(
            name=name,
            function=function,
            args=args,
            kwargs=kwargs,
            retries=retries,
            timeout_s=timeout_s,
            backoff_s=backoff_s,
            type=type,
        )
        return await self.steps.arun(call)

    @property
    def step_key(self) -> str:
        """In the function of a step: a key that is the same in every try, and that no other step of any run has.

        Raises:
            InputError: no step is executed here.
        """
        return self.steps.key

    def request_approval(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        reason: str = "",
        timeout_s: float | None = None,
        default: Default = "deny",
        key: str | None = None,
    ) -> Decision:
        """Ask a person for a yes or no, and return the answer. The run frees its slot until it is there.

        Until then this raises `AwaitsApproval`: let it pass through. The run is tried again with the answer, its recorded
        steps are not executed again, and its effects are not had again. Only a person answers: `orchestra approve`,
        `orchestra deny`, `Client.approve`.

        Args:
            tool: what is to be done, in a word.
            arguments: with what, as JSON values. The answer is for these alone.
            reason: why, for the person who decides.
            timeout_s: seconds after which ``default`` counts; by default the setting `approval_time_limit_s`.
            default: `deny`, or `approve` where nobody has to be asked who does not object in time.
            key: as for `delegate`.

        Raises:
            AwaitsApproval: nobody has answered yet.
            LimitExceeded: this session has as many open questions as it may (`max_open_questions`).
            InputError: a value is wrong, or the arguments have no form as JSON or are too long.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        return self.decision(
            self.post_approval(tool, arguments, reason=reason, timeout_s=timeout_s, default=default, key=key)
        )

    def post_approval(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        reason: str = "",
        timeout_s: float | None = None,
        default: Default = "deny",
        key: str | None = None,
    ) -> str:
        """As `request_approval`, and go on: the approval's id, for `decision`. So several are asked for at once.

        Raises:
            LimitExceeded: this session has as many open questions as it may (`max_open_questions`).
            InputError: a value is wrong, or the arguments have no form as JSON or are too long.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        approval, _ = self.approvals.post(
            tool, arguments, reason=reason, timeout_s=timeout_s, default=default, key=key
        )
        return approval

    def decision(self, approval: str) -> Decision:
        """Return the answer to an approval that this session has asked for. The run frees its slot until it is there.

        Raises:
            AwaitsApproval: nobody has answered yet; let it pass through.
            InputError: this session has asked for no such approval.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        return self.approvals.decision(approval)
