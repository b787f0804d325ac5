"""What an agent is called with: what it sees (`View`), says (`Messaging`) and delegates, and how its session goes on."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, TypeVar, cast, overload

import redis

from orchestrator.config.settings import Settings, load_settings
from orchestrator.display.text import counted
from orchestrator.envelope.bodies import (
    Artifact,
    Blocker,
    ErrorReport,
    Metric,
    StatusUpdate,
    TaskCompletion,
)
from orchestrator.envelope.structured import pack_body, part_of
from orchestrator.errors import InputError, TaskFailed
from orchestrator.ids import shard_of
from orchestrator.ledger import Claimed
from orchestrator.ledger.forks import FORKED
from orchestrator.ledger.large_text import beginning
from orchestrator.ledger.live_text import Kind, LiveText
from orchestrator.policy.approval import Decision, Default
from orchestrator.policy.budget import describe
from orchestrator.policy.moments import moment_ms, wait_ms
from orchestrator.policy.plan import Plan, parse_plan
from orchestrator.worker.context.approvals import ApprovalRequests
from orchestrator.worker.context.delegation import Delegating
from orchestrator.worker.context.effects import Effects, OnClose
from orchestrator.worker.context.launches import AgentLaunches
from orchestrator.worker.context.messages import MessageSender
from orchestrator.worker.context.planning import PLAN_GROUP, Planning
from orchestrator.worker.context.provider_limits import ProviderLimits
from orchestrator.worker.context.sending import WrittenMessages
from orchestrator.worker.context.sleeping import sleep
from orchestrator.worker.context.spending import RunSpending
from orchestrator.worker.context.steps import Call, Steps
from orchestrator.worker.context.verification import Verifier
from orchestrator.worker.context.waits import Blocking
from orchestrator.worker.execution.heartbeat import ClaimStatus

T = TypeVar("T")

#: Steps that the account of a run names.
SHOWN: Final = 20
#: Bytes that an attachment may have; of a longer one the beginning is kept.
MAX_ATTACHMENT_BYTES: Final = 4 * 1024 * 1024
#: Texts that one answer may have attached.
MAX_ATTACHMENTS: Final = 100
#: The name of an attachment: it stands in prompts and commands.
_ATTACHMENT: Final = re.compile(r"[A-Za-z0-9._/-]{1,100}")


class Context(Delegating):
    """One run of a session, from its agent's point of view.

    Every effect (`delegate`, `status`, …) raises `ClaimLost` when another worker has the run by now and
    `SessionStopped` when it was asked to stop; let both pass through, and nothing is done twice.

    Threads of the agent may have effects and wait in calls at the same time. They are to end before it returns:
    whatever comes after the end of the run raises `ClaimLost`.
    """

    def __init__(
        self,
        held: Claimed,
        *,
        effects: Effects,
        verifier: Verifier,
        claim_status: ClaimStatus,
        message_sender: MessageSender,
        blocking: Blocking,
        launches: AgentLaunches,
        planning: Planning,
        steps: Steps,
        environment: Callable[[Context], dict[str, str]],
        settings: Settings | None = None,
        spending: RunSpending,
        limits: ProviderLimits,
        approvals: ApprovalRequests,
    ) -> None:
        super().__init__(
            held,
            effects=effects,
            verifier=verifier,
            message_sender=message_sender,
            blocking=blocking,
            launches=launches,
            planning=planning,
        )
        self._claim_status = claim_status
        self._steps = steps
        self._environment = environment
        #: Why the answer that this run gave before was not accepted; empty when there was none.
        self.correction = ""
        #: What this run's calls of models cost: `spending.reserve` before a call, `settle` after it.
        self.spending = spending
        #: Limits of providers: `limits.acquire` before each call of a model, `hold_back` when it says not to call.
        self.limits = limits
        #: What this run asks a person to approve; `request_approval` is for agents.
        self.approvals = approvals
        self._waiting: dict[str, dict[str, Any]] = {}
        self._settings = settings
        self._written = WrittenMessages(effects, message_sender, launches.delegates)
        #: What the executor keeps of the conversation when this run commits; None leaves it as it is.
        self.new_memory: str | None = None
        #: Whether every effect of the agent belongs to a durable step, so that what an earlier try launched stays, and
        #: `waits` counts it.
        self.replays = False
        #: Whether the answer is a text agent's, which its parent is given once, also if it was sent as a message before.
        self.answers_in_text = False
        #: What is attached to the answer of this run, by name.
        self.attachments: dict[str, str] = {}

    # --- policies ----------------------------------------------------------------------------

    def when_closed(self, policy: OnClose | None = None, *, heir: str | None = None) -> None:
        """Say what becomes of the children that still run when this session is stopped, fails or is deleted.

        Args:
            policy: `stop`: they are stopped, too (the default of every session); `abandon`: they go on, and
                their callbacks are dead, with that reason.
            heir: a session that gets their callbacks instead. It may be one of the children; neither it nor
                what is above it is handed to it.

        Raises:
            InputError: neither or both were given, or the heir is this session or lives in another shard.
            UnknownSession: there is no such heir.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        if (policy is None) == (heir is None) or policy not in (None, "stop", "abandon"):
            raise InputError(f"when_closed({policy!r}, heir={heir!r}): give 'stop', 'abandon' or an heir")
        if heir is not None:
            found = self._find(heir)
            if shard_of(found.id) != shard_of(self.session):
                raise InputError(f"session {heir} lives in another shard and cannot be an heir of this one")
            if found.id == self.session:
                raise InputError(f"session {heir} cannot be its own heir: it is closed then")
            policy_text = f"heir:{heir}"
        else:
            policy_text = str(policy)
        self._effects.close_policy(policy_text)

    def wait_for(
        self,
        mode: Literal["any", "all", "quorum"] = "any",
        *,
        k: int | None = None,
        group: str = "",
        deadline_s: float | None = None,
        window_s: float | None = None,
    ) -> None:
        """Say when this session is to be resumed, from the end of this run on until it is said again.

        Args:
            mode: `any`: as soon as one callback is there; `all`: when all are; `quorum`: when ``k`` are.
                Questions resume at once in every mode.
            k: how many make the quorum: of those that no run has had yet, without failures that are ignored.
            group: the group of delegations it holds for; empty: those of no group.
            deadline_s: seconds from now after which it is resumed with what is there. With `any` and nothing
                outstanding the session waits for the deadline; nothing is what `all` waits for then.
            window_s: seconds in which callbacks that come close together are folded into one resume.

        Raises:
            InputError: the values do not fit together.
        """
        if mode not in ("any", "all", "quorum"):
            raise InputError(f"wait_for({mode!r}): wait for 'any', 'all' or 'quorum'")
        if (mode == "quorum") != (k is not None) or (k is not None and k < 1):
            raise InputError(f"wait_for({mode!r}, k={k}): a quorum, and only a quorum, needs k of at least 1")
        rule: dict[str, Any] = {"mode": mode}
        if k is not None:
            rule["k"] = k
        if deadline_s is not None:
            rule["deadline_ms"] = self.now_ms() + wait_ms(deadline_s, what="deadline_s")
            if mode == "any":
                rule["parks"] = True  # where the commit finds nothing outstanding
        if window_s is not None:
            rule["window_ms"] = wait_ms(window_s, what="window_s")
        self._waiting[group] = rule

    # --- time ----------------------------------------------------------------------------------

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
        sleep(self, wait_ms=wait_ms(seconds))

    def sleep_until(self, when: datetime | float) -> None:
        """As :meth:`sleep`, until a moment by the clock of Redis; one that has passed returns at once.

        Args:
            when: a `datetime` with a time zone, or seconds since the epoch. Another try of the run keeps to the moment
                that the first try named.

        Raises:
            InputError: it is neither, or more than a century ahead.
            RunSleeps, StepMismatch, ClaimLost, SessionStopped, ServerUnavailable: as for :meth:`sleep`.
        """
        sleep(self, until_ms=moment_ms(when, now_ms=self.now_ms()))

    def now_ms(self) -> int:
        """The time by the clock of Redis, in milliseconds since the epoch.

        Raises:
            ServerUnavailable: Redis is away.
        """
        return self._effects.retrying("time", self._ledger.server_ms)

    # --- durable steps -------------------------------------------------------------------------

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
        A crash between the function and the record calls it again: give `step_key` to whoever it calls, to have that
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
        return cast("T", self._steps.run(call))

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

        The function may be async. One that is not is called in a thread. An async one that takes longer than
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
        return await self._steps.arun(call)

    @property
    def step_key(self) -> str:
        """In the function of a step: a key that is the same in every try, and that no other step of any run has.

        Raises:
            InputError: no step is executed here.
        """
        return self._steps.key

    # --- approvals -----------------------------------------------------------------------------

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
            reason: why, for whoever decides.
            timeout_s: seconds after which ``default`` counts; by default the setting `approval_time_limit_s`.
            default: `deny`, or `approve` where nobody has to be asked who does not object in time.
            key: as for `delegate`.

        Raises:
            AwaitsApproval: nobody has answered yet.
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
            InputError: a value is wrong, or the arguments have no form as JSON or are too long.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        approval, _ = self.approvals.post(
            tool, arguments, reason=reason, timeout_s=timeout_s, default=default, key=key
        )
        return approval

    def decision(self, approval: str) -> Decision:
        """The answer to an approval that this session has asked for. The run frees its slot until it is there.

        Raises:
            AwaitsApproval: nobody has answered yet; let it pass through.
            InputError: this session has asked for no such approval.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        return self.approvals.decision(approval)

    # --- programs ------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """What a program needs in its environment to take part in this run, with a token that is good for this run only.

        `orchestra raise`, `delegate`, `ask` and `mcp` and `current_session()` find the run by it.
        """
        return self._environment(self)

    # --- plans -------------------------------------------------------------------------------

    def carry_out(self, plan: Plan | str) -> list[str]:
        """Launch every assignment of a plan; the assignments of a sequence wait for those of the one before.

        An assignment whose `caller` is this agent owes this session a callback, in the group `plan`. This session is
        resumed when all of them have come, unless `wait_for` says otherwise. A `caller` above this session in its
        tree, or an agent of an earlier sequence, gets the callback and the questions instead. Without a `caller`
        nobody does. When an assignment fails, those that wait for it fail, too.

        Args:
            plan: a plan, or its JSON text.

        Returns:
            The sessions of the assignments, by sequence and in the order of the plan.

        Raises:
            PlanError: the plan is not valid; nothing was launched.
            LimitExceeded, ClaimLost, SessionStopped, ServerUnavailable: as for `delegate`.
        """
        launched = self._planning.launch(parse_plan(plan) if isinstance(plan, str) else plan)
        if launched.awaited:
            self._waiting.setdefault(PLAN_GROUP, {"mode": "all"})
        return launched.sessions

    def end_with(self, end: TaskCompletion | ErrorReport) -> str:
        """Report the end of this run in full; its answer as text. An agent returns ``end`` instead of calling this.

        Raises:
            TaskFailed: it says that the task has failed.
        """
        if isinstance(end, ErrorReport):
            self._effects.failure = end
            raise TaskFailed(end.message)
        self._effects.completion = end
        answer = end.result if end.result is not None else end.summary
        if end.status == "failed":
            raise TaskFailed(answer)
        return answer

    def correct(self, problem: str) -> None:
        """Refuse the answer of this run: its agent is called once more, and `prompt` says what was wrong."""
        self.correction = problem
        self.prompt = (
            f"Your answer was not accepted: {problem}. Answer again, with the complete corrected answer."
        )

    # --- going on or not -----------------------------------------------------------------------

    def status(
        self,
        progress: int | None = None,
        activity: str = "",
        *,
        status: Literal["in-progress", "blocked"] | None = None,
        blockers: Sequence[Blocker | Mapping[str, Any] | str] = (),
        artifacts: Sequence[Artifact | Mapping[str, Any]] = (),
        metrics: Mapping[str, Any] | Sequence[Metric | Mapping[str, Any]] = (),
        next_steps: Sequence[str] = (),
    ) -> None:
        """Show how far this session is: ``progress`` in percent, and what it is doing now.

        A parent is resumed with the status of a child that is blocked, and need not reply; ask it with `ask` for a reply.

        Args:
            progress: percent that are done.
            activity: what it is doing now.
            status: by default `blocked` if a blocker is critical, else `in-progress`.
            blockers: what keeps it from going on: text, or a `Blocker` with the severity `critical`, `warning` or `info`.
            artifacts: what it has made.
            metrics: values by name.
            next_steps: what it does next, in order.

        Raises:
            InputError: a value is invalid, or the progress is not between 0 and 100.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        if progress is not None and not 0 <= progress <= 100:
            raise InputError(f"status({progress}): progress is a whole percentage, 0 to 100")
        if status not in (None, "in-progress", "blocked"):
            raise InputError(f"status = {status!r}: choose from 'in-progress', 'blocked'")
        if not (status or blockers or artifacts or metrics or next_steps):
            self._effects.status(progress, activity)
            return
        named = (
            [{"name": name, "text": str(value)} for name, value in metrics.items()]
            if isinstance(metrics, Mapping)
            else metrics
        )
        body = part_of(
            StatusUpdate,
            {
                "task_id": self._held.session.reported_as,
                "progress_percentage": progress,
                "current_activity": activity or None,
                "blockers": tuple(blockers),
                "artifacts_created": tuple(artifacts),
                "metrics": tuple(named),
                "next_steps": tuple({"order": n, "text": s} for n, s in enumerate(next_steps, 1)),
            },
            name="status",
        )
        blocked = any(blocker.severity == "critical" for blocker in body.blockers)
        self.report_status(
            body.model_copy(update={"status": status or ("blocked" if blocked else "in-progress")})
        )

    def report_status(self, body: StatusUpdate) -> None:
        """As `status`, with a status-update that was made before.

        Raises:
            InputError: it is too large.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        activity = body.current_activity or (body.status if body.status != "in-progress" else "")
        if body.status == "blocked" and self.has_caller:
            self._message_sender.blocked(body, activity)
        else:
            pack_body(body)  # not larger than what others may say
            self._effects.status(body.progress_percentage, activity, body=body)

    def report_error(self, error: ErrorReport | Mapping[str, Any]) -> None:
        """Tell the parent of an error, and go on; the parent is resumed with it and need not reply.

        An error that ends the task is returned instead: `return ErrorReport(…)`.

        Raises:
            InputError: this is a root, or it is no error report.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        report = part_of(ErrorReport, error, name="error")
        if not self.has_caller:
            raise InputError(f"session {self.session} has no parent to report an error to; return the report")
        self._message_sender.report(report)

    def attach(self, name: str, text: str) -> None:
        """Attach a text to the answer of this run; the parent reads it with `callback.attachment(name)`.

        A later one of the same name replaces it. Of a text above 4 MiB the beginning is kept. Only what the
        run attaches that ends the session is kept: what an earlier run attached, attach it again (decision 36).

        Args:
            name: up to 100 letters, digits, dots, dashes, underscores and slashes.
            text: what is attached.

        Raises:
            InputError: the name is not allowed, or this run has attached 100 texts.
            ClaimLost, SessionStopped: this run cannot go on.
        """
        if not _ATTACHMENT.fullmatch(name):
            raise InputError(
                f"attach({name!r}): a name has 1 to 100 letters, digits, dots, dashes, underscores and slashes"
            )
        self._claim_status.check()
        if name not in self.attachments and len(self.attachments) >= MAX_ATTACHMENTS:
            raise InputError(f"attach({name!r}): an answer has {MAX_ATTACHMENTS} attachments at most")
        # Stored by the commit, and only if this run ends the session with an answer (decision 36).
        self.attachments[name] = beginning(text, MAX_ATTACHMENT_BYTES)

    @property
    def claim_lost(self) -> bool:
        """Whether another worker has this run by now, so that whatever it has started must end at once."""
        return self._claim_status.lost

    @property
    def stopping(self) -> str:
        """Why this run is to end now; empty while it may go on. For agents that work long between effects."""
        return self._claim_status.stop_reason

    def check(self) -> None:
        """Return if this run may go on.

        Raises:
            ClaimLost, SessionStopped: it may not.
        """
        self._claim_status.check()

    @property
    def waits(self) -> bool:
        """Whether somebody is to answer this session after this run: a child, or whoever it asked.

        False in another try of the run: what an earlier try launched and this one did not is dropped at the commit.

        Raises:
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        if self.attempt > 1 and not self.replays:
            return False
        now = self._find(self.session)
        delivered_now = sum(
            item.kind == "completion" and not item.extra.get(FORKED) for item in self._held.items
        )
        return now.pending > delivered_now or bool(now.questions)

    @property
    def account(self) -> str:
        """What this try did in steps and spent on models, in words; empty where it did neither."""
        parts = []
        if done := self._steps.finished:
            more = f" and {len(done) - SHOWN} more" if len(done) > SHOWN else ""
            parts.append(f"{counted(len(done), 'step')}: {', '.join(done[:SHOWN])}{more}")
        if self.spending.total.requests:
            parts.append(describe(self.spending.total))
        return "; ".join(parts)

    @property
    def steps(self) -> Steps:
        """The durable steps of this try."""
        return self._steps

    # --- for executors -----------------------------------------------------------------------

    @property
    def written(self) -> WrittenMessages:
        """Checks and sends the messages that the agent wrote into its answer."""
        return self._written

    @property
    def settings(self) -> Settings:
        """The settings of the worker."""
        if self._settings is None:
            self._settings = load_settings()
        return self._settings

    @property
    def redis(self) -> redis.Redis:
        """The connection of the worker."""
        return self._ledger.redis

    def write_live(self, kind: Kind, **facts: str) -> None:
        """Add an event to the live text of the session.

        Raises:
            redis.RedisError: it could not be written.
        """
        live = LiveText(self._ledger.redis, self._ledger.seals)
        live.write(self.session, self.run, kind, seal=self._held.claim.seal, **facts)

    def read_memory(self) -> str:
        """What the executor kept of the conversation when the last run committed; empty if nothing.

        Raises:
            PayloadError: it is not kept any more, or was altered.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        return self._effects.retrying("memory", lambda: self._ledger.memory(self.session))

    # --- for the runner ----------------------------------------------------------------------

    @property
    def has_launched(self) -> bool:
        """Whether this try of the run has launched a child."""
        return self._effects.launched

    @property
    def new_waiting(self) -> dict[str, Any] | None:
        """The waiting policies to save, or None if the agent said nothing of them."""
        if not self._waiting:
            return None
        before = self._held.session.waiting
        return {**(before if isinstance(before, dict) else {}), **self._waiting}


#: What the `python` executor calls.
AgentFunction = Callable[[Context], Any]
