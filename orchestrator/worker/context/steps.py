"""Durable steps: a function's result is recorded, and another try of the run gets it without calling the function.

A crash between the function and the record calls the function again. Its key, the same in each try, lets the
function tell others that it was here before; effects of the context that it has are keyed by it.
"""

from __future__ import annotations

import asyncio
import json
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from orchestrator import machine
from orchestrator.agents.definition import StepPolicy
from orchestrator.crashpoints import failpoint
from orchestrator.errors import (
    BudgetExceeded,
    ClaimLost,
    DamagedRecord,
    InputError,
    Retry,
    RunParked,
    ServerUnavailable,
    SessionStopped,
    StepFailed,
    StepMismatch,
)
from orchestrator.ledger import StepHeader, StepRecord
from orchestrator.ledger.decode import Statement
from orchestrator.log import get_logger
from orchestrator.policy.sealed_text import ENCRYPTED
from orchestrator.policy.steps import Sequence, is_within, step_key, unasked_steps
from orchestrator.worker.context.effects import Effects
from orchestrator.worker.context.step_call import LOOK_S, Call, StepScope, executing, present_step

#: Characters of an error that are recorded.
ERROR_CHARS: Final = 2000
NOTE_CHARS: Final = 120
#: Steps that a log line names at most.
SHOWN: Final = 20

#: What says nothing about the step: the run cannot go on, asks to be tried later, or may not pay for the call.
_PASSING = (
    ClaimLost,
    SessionStopped,
    ServerUnavailable,
    Retry,
    StepMismatch,
    DamagedRecord,
    BudgetExceeded,
    RunParked,
)

_log = get_logger()


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """A step that this try asks for."""

    key: str
    order: int
    record: StepRecord | None


class Steps:
    """The steps of one run, in one try of it. Threads and tasks may ask for steps at the same time.

    ``pause`` says how many seconds a wait between two calls of a function takes in fact; by default what it is.
    ``verify`` refuses a record that does not verify.
    """

    def __init__(
        self,
        effects: Effects,
        *,
        policy: StepPolicy = "strict",
        pause: Callable[[float], float] | None = None,
        verify: Callable[[str, Statement, str], None],
    ) -> None:
        self._effects = effects
        self._verify = verify
        self._pause = pause or (lambda seconds: seconds)
        self._claim = effects.held.claim
        self._journal = effects.ledger.journal
        self._policy = policy
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._asked: set[str] = set()
        #: Steps that another try executes again: what they gave was rejected, or their errors may be recorded and did not
        #: reach their tasks, which were cancelled.
        self._again_next: set[str] = set()
        self._order = 0
        self._last = self._answer = ""
        # The first try of a run finds nothing.
        self._recorded: dict[str, StepRecord] | None = None if effects.held.run.attempt > 1 else {}
        self._sequence: Sequence | None = None
        #: The steps that this try recorded, in words.
        self.finished: list[str] = []
        self._agent_thread = threading.get_ident()
        self._agent_task: asyncio.Task[Any] | None = None

    # --- for the executors -------------------------------------------------------------------

    def follow_task(self) -> None:
        """The present asyncio task is the agent itself; the steps that it asks for have an order."""
        self._agent_task = asyncio.current_task()

    @property
    def left_out(self) -> tuple[str, ...]:
        """The steps that an earlier try recorded and that this one did not ask for."""
        with self._lock:
            return tuple(unasked_steps(list(self._recorded or ()), self._asked))

    def end(self) -> None:
        """The agent has returned: see that it asked for every step of an earlier try that comes in order.

        Raises:
            StepMismatch: it did not, and the agent does not allow that.
        """
        with self._lock:
            expected = self._expected()
        if expected is not None and self._policy == "strict":
            raise StepMismatch(self._claim.run, "its end", expected)
        if self.left_out:
            _log.info("steps-left-out", steps=self.left_out[:SHOWN])

    def mark_answer(self) -> None:
        """Take the result of the last step as the agent's answer."""
        self._answer = self._last

    def reject_answer(self) -> None:
        """The agent's answer is not accepted: where a step gave it, another try of the run asks for it anew."""
        if self._answer:
            self._again_next.add(self._answer)

    def failed_with(self, error: BaseException | None) -> tuple[str, ...]:
        """Return the steps whose errors led to this one, or that were rejected; another try of the run executes them
        again.
        """
        found: dict[str, None] = dict.fromkeys(self._again_next)
        seen: set[int] = set()
        errors = [error]
        while errors:
            error = errors.pop()
            if error is None or id(error) in seen:
                continue
            seen.add(id(error))
            if isinstance(error, StepFailed):
                found[error.key] = None
            if isinstance(error, BaseExceptionGroup):
                errors += error.exceptions
            errors.append(error.__cause__ or error.__context__)
        with self._lock:
            within = [
                key for key in (*(self._recorded or ()), *self._asked) for one in found if is_within(key, one)
            ]
        return tuple(dict.fromkeys([*found, *within]))

    # --- for the context ---------------------------------------------------------------------

    def run(self, call: Call) -> Any:
        """Carry out a step in this thread; return its result, from now or from an earlier try."""
        call.check()
        call.check_plain(None)
        self._read()
        asked = self._ask(call.name)
        if asked.record is not None and asked.record.header.how != "retry":
            return self._again(asked.record, call)
        tries, left = _so_far(asked, call)
        while True:
            began = machine.monotonic()
            try:
                with executing(StepScope(self._claim.run, asked.key)):
                    value = call.run(self._effects.claim_status.check)
                    call.check_plain(value)
            except Exception as error:  # noqa: BLE001  (whatever a step raises is what it gave)
                tries, left = tries + 1, left - 1
                self._fail(asked, call, error, began, tries=tries, left=left)
                for nap_s in self._naps(call.wait_s(tries)):
                    machine.sleep(nap_s)
            else:
                return self._done(asked, call, value, began, tries=tries + 1)

    async def arun(self, call: Call) -> Any:
        """:meth:`run` in a task; the event loop goes on meanwhile."""
        call.check()
        order_counts = self._is_agent_itself()
        if self._recorded is None:
            await asyncio.to_thread(self._read)
        asked = self._ask(call.name, in_order=order_counts)
        if asked.record is not None and asked.record.header.how != "retry":
            return await asyncio.to_thread(self._again, asked.record, call)
        tries, left = _so_far(asked, call)
        while True:
            began = machine.monotonic()
            try:
                with executing(StepScope(self._claim.run, asked.key)):
                    value = await call.arun()
            except Exception as error:  # noqa: BLE001  (as above)
                tries, left = tries + 1, left - 1
                try:
                    await asyncio.to_thread(self._fail, asked, call, error, began, tries=tries, left=left)
                except asyncio.CancelledError:
                    self._again_next.add(asked.key)
                    raise
                for nap_s in self._naps(call.wait_s(tries)):
                    await asyncio.sleep(nap_s)
            else:
                return await asyncio.to_thread(self._done, asked, call, value, began, tries=tries + 1)

    def _naps(self, wait_s: float) -> Iterator[float]:
        """Yield the short sleeps of a wait; between two of them it may turn out that the run cannot go on."""
        until = machine.monotonic() + self._pause(wait_s)
        while (left_s := until - machine.monotonic()) > 0:
            yield min(LOOK_S, left_s)
            self._effects.claim_status.check()

    @property
    def key(self) -> str:
        """The key of the step that is executed here: the same in every try of the run, and no other step has it.

        Raises:
            InputError: none is.
        """
        scope = present_step(self._claim.run)
        if scope is None:
            raise InputError("ctx.step_key: no step is executed here; read it in the function of a step")
        return f"{scope.run}:{scope.key}"

    # --- asking --------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read what earlier tries recorded."""
        with self._lock:
            if self._recorded is None:
                read = self._journal.read
                try:
                    recorded = self._effects.retrying("steps", lambda: read(self._claim.run))
                    number = self._effects.held.run.steps
                    if len(recorded) != number:
                        raise DamagedRecord(
                            f"the steps of run {self._claim.run}",
                            f"{number} were recorded, and there are {len(recorded)}",
                        )
                    for record in recorded.values():
                        self._check(record)
                    self._recorded = recorded
                except DamagedRecord:
                    if self._policy != "replace":
                        raise
                    self._recorded = {}

    def _check(self, record: StepRecord) -> None:
        """Return if the agent of the run has recorded this.

        Raises:
            DamagedRecord: it does not verify.
        """
        said = record.statement(self._claim.run, self._claim.agent)
        self._verify(f"step {record.header.key!r} of run {self._claim.run}", said, record.header.proof)

    def _ask(self, name: str, *, in_order: bool | None = None) -> _Asked:
        self._effects.claim_status.check()
        around = present_step(self._claim.run)
        with self._lock:
            recorded = self._recorded if self._recorded is not None else {}
            within = around.key if around is not None else ""
            place = f"{within}/{name}"
            self._counts[place] += 1
            key = step_key(name, self._counts[place], within=within)
            record = recorded.get(key)
            ordered = around is None and (self._is_agent_itself() if in_order is None else in_order)
            if ordered and (record is None or record.header.order >= 0):
                expected = self._expected()
                if expected is not None and expected != key:
                    self._differ(key, expected)
                    record = None
            order = -1
            if ordered:
                order = self._order
                self._order += 1
            if around is None:
                self._last = key
            self._asked.add(key)
            return _Asked(key=key, order=order, record=record)

    def _expected(self) -> str | None:
        recorded = self._recorded or {}
        if self._sequence is None:
            self._sequence = Sequence((r.header.order, key) for key, r in recorded.items())
        return self._sequence.expected(self._asked)

    def _differ(self, asked: str, expected: str) -> None:
        """Handle a step other than the one of an earlier try: refuse it, or drop what is left of that one."""
        if self._policy == "strict":
            raise StepMismatch(self._claim.run, asked, expected)
        assert self._recorded is not None
        dropped = unasked_steps(list(self._recorded), self._asked)
        _log.warning("steps-replaced", asked=asked, recorded=expected, dropped=len(dropped))
        self._effects.retrying("steps", lambda: self._journal.forget(self._claim, dropped))
        for key in dropped:
            del self._recorded[key]
        self._sequence = None

    def _is_agent_itself(self) -> bool:
        """Return True in the agent's own thread and task, whose steps come in order."""
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        if task is not None:
            return task is self._agent_task
        return threading.get_ident() == self._agent_thread

    # --- recording -----------------------------------------------------------------------------

    def _done(self, asked: _Asked, call: Call, value: Any, began: float, *, tries: int) -> Any:
        tag, octets = call.encode(asked.key, value)
        header = StepHeader(
            key=asked.key, how="done", codec=tag, order=asked.order, tries=tries, took_ms=_took_ms(began)
        )
        record = self._record(header, octets)
        # Read back as a later try reads it, so that both go on with the same value.
        if record.header.claim == self._claim.claim:
            return call.decode(asked.key, tag, octets)
        return self._again(record, call)

    def _fail(
        self, asked: _Asked, call: Call, error: Exception, began: float, *, tries: int, left: int
    ) -> None:
        """Record an error; raise it where no retries are left. ``left`` is less than 0 then."""
        if isinstance(error, _PASSING) or self._effects.outage is not None:
            raise error
        self._effects.claim_status.check()
        kind, message = _named(error)
        header = StepHeader(
            key=asked.key,
            how="retry" if left >= 0 else "failed",
            codec="error",
            order=asked.order,
            tries=tries,
            left=max(left, 0),
            took_ms=_took_ms(began),
            note=f"{kind}: {message}"[:NOTE_CHARS],
        )
        note = ENCRYPTED if self._claim.seal is not None else header.note
        _log.warning("step-failed", step=asked.key, tries=tries, left=max(left, 0), error=note)
        self._record(header, json.dumps([kind, message]).encode())
        if left < 0:
            raise StepFailed(asked.key, kind, message) from error

    def _record(self, header: StepHeader, octets: bytes) -> StepRecord:
        failpoint("worker.stepped")
        record = self._effects.retrying("step", lambda: self._journal.record(self._claim, header, octets))
        if record.header.claim != self._claim.claim:
            self._check(record)
        failpoint("worker.recorded")
        if header.how != "retry":
            with self._lock:
                self.finished.append(f"{header.key} {header.how} after {header.took_ms / 1000:.3f} s")
        return record

    def _again(self, record: StepRecord, call: Call) -> Any:
        """Return the value, or raise the error, that an earlier try recorded."""
        header = record.header
        octets = self._effects.retrying("step", lambda: self._journal.value(self._claim, record))
        if header.how == "failed":
            _raise_recorded(header.key, octets)
        return call.decode(header.key, header.codec, octets)


def _so_far(asked: _Asked, call: Call) -> tuple[int, int]:
    """Calls of the function so far, and retries that remain; both go on where an earlier try of the run ended."""
    if asked.record is None:
        return 0, call.retries
    return asked.record.header.tries, asked.record.header.left


def _took_ms(began: float) -> int:
    return round((machine.monotonic() - began) * 1000)


def _named(error: BaseException) -> tuple[str, str]:
    """Return the class and the text of an error, bounded, in a form that JSON has."""
    message = str(error).encode(errors="replace").decode()
    if not message:
        frames = traceback.extract_tb(error.__traceback__)
        message = f"raised in {frames[-1].name}" if frames else ""
    return type(error).__name__, message[:ERROR_CHARS]


def _raise_recorded(key: str, octets: bytes) -> NoReturn:
    try:
        kind, message = json.loads(octets)
    except ValueError as error:
        raise DamagedRecord(f"step {key!r}", f"its error cannot be read: {error}") from None
    raise StepFailed(key, kind, message)
