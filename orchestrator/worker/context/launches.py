"""Launches of children by a run: each once, however often the run is tried, and many in one round trip."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, cast

from orchestrator.agents.registry import AgentRecord, AgentRegistry
from orchestrator.envelope.bodies import Task
from orchestrator.envelope.prompt_text import pack, prompt_of_task, task_of
from orchestrator.errors import InputError, KeyInUse, PlanError
from orchestrator.ids import child_session_id, shard_of
from orchestrator.ledger import Launch, Outgoing, SessionState
from orchestrator.ledger.large_text import check_size
from orchestrator.messages.factory import Terms, summary
from orchestrator.operations.requests import Call, Delegate, DelegateAll, DelegateOptions
from orchestrator.operations.table import DELEGATE
from orchestrator.policy.plan import Assignment, Plan
from orchestrator.policy.routing import RoutingTable, refusal
from orchestrator.streams import StreamId
from orchestrator.streams.pressure import Backpressure
from orchestrator.worker.context.effects import Effects

#: Launches in the first round trip, and in a later one at most: the first children are to begin soon.
FIRST_AT_ONCE: Final = 12
AT_ONCE: Final = 128


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """A child that a run asks for."""

    agent: str
    title: str
    description: str
    task: Task | None = None  #: further parts of the task beside title and description
    options: DelegateOptions = field(default_factory=DelegateOptions)
    kept: str = ""  #: the options that the session keeps, see `Operation.options`
    caller: str = ""  #: as of `Launch`
    caller_agent: str = ""
    kind: str = "delegate"  #: what the agent does, for the effect key
    effect: str = ""  #: the effect key; by default it is made of kind, agent, texts, priority and group
    #: Writes the envelope for a child of this id; by default it is a task-delegation.
    write: Callable[[str], Outgoing] | None = None


class Launches:
    """The launches of one run, in one try of it."""

    def __init__(
        self, effects: Effects, table: RoutingTable, agents: AgentRegistry, *, pressure: Backpressure
    ) -> None:
        self._effects = effects
        #: Who may send what to whom.
        self.table = table
        self._agents = agents
        self._pressure = pressure

    def launch(self, request: LaunchRequest) -> str:
        """Launch a child; its session id.

        Raises:
            KeyInUse: the key was used before in this run, for another agent or with other options.
            LimitExceeded: the session or its tree is as large as it may be.
            StreamFull: the routers are too far behind for new work.
            ServerUnavailable: Redis stayed away.
        """
        effects, launch = self._effects, self.prepare(request)
        self._admit(launch)
        carry_out = partial(effects.ledger.delegate, effects.held.claim, launch)
        done = effects.attempt(request.kind, carry_out, effect=launch.effect)
        if not done.created and (key := request.options.get("key")):
            self._check_same(key, done.child, launch)
        return done.child

    def _check_same(self, key: str, child: str, launch: Launch) -> None:
        """Return if the session of a key is the one that is asked for; a run that is tried again asks for the same.

        Raises:
            KeyInUse: it has another agent or other options.
        """
        (there,) = self._effects.retrying("find", lambda: self._effects.ledger.find([child])) or (None,)
        if there is None:
            return
        if there.agent != launch.agent:
            raise KeyInUse(key, child, there.agent, "agent")
        if there.state is not SessionState.DELETED and there.options != launch.options:
            raise KeyInUse(key, child, there.agent, "set of options")

    def launch_all(self, launches: Iterable[Launch]) -> list[str]:
        """Carry out prepared launches, many in a round trip; the children's ids in their order.

        Raises:
            LimitExceeded, StreamFull: as :meth:`launch`; those before the first that was refused are launched.
        """
        effects, children = self._effects, list[str]()
        waiting, at_once = iter(launches), FIRST_AT_ONCE
        while batch := list(itertools.islice(waiting, at_once)):
            self._admit(batch[0])
            carry_out = partial(effects.ledger.delegate_all, effects.held.claim, batch)
            children += [
                done.child for done in effects.attempt("delegate", carry_out, effect=batch[-1].effect)
            ]
            at_once = min(at_once * 2, AT_ONCE)
        return children

    def prepare(self, request: LaunchRequest) -> Launch:
        """Return a launch under its effect key, with its envelope."""
        effects, task, options = self._effects, request.task, request.options
        group, callback = options.get("group") or "", options.get("callback", True) is not False
        check_size("title", request.title)
        check_size("group", group)
        prompt = request.description if task is None else prompt_of_task(task)
        effect = request.effect or effects.key(
            request.kind,
            request.agent,
            request.title,
            prompt,
            options.get("priority"),
            callback,
            group,
            given=options.get("key"),
        )
        child = child_session_id(effects.held.session.id, f"{effects.held.claim.run}:{effect}")
        write, terms = request.write, Terms.of(options)
        return Launch(
            effect=effect,
            child_id=child,
            agent=request.agent,
            description=prompt,
            envelope=effects.write(lambda: write(child) if write else self._delegation(child, request)),
            correlation=effects.held.session.correlation,
            chain=effects.work_thread.chain,
            title=request.title,
            callback=callback,
            group=group,
            on_failure=options.get("on_failure") or "deliver",
            on_close=options.get("on_close") or "",
            caller=request.caller,
            caller_agent=request.caller_agent,
            budget=terms.budget,
            task="" if task is None else pack(task),
            time_limit_ms=terms.time_limit_ms,
            after=(
                *(options.get("after") or ()),
                *(need.task_id for need in (task.dependencies if task else ())),
            ),
            options=request.kept,
        )

    def _delegation(self, child: str, request: LaunchRequest) -> Outgoing:
        task = request.task or Task()
        return self._effects.message_factory.delegation(
            **self._effects.launch_parties(request.agent),
            task_id=child,
            task=task.model_copy(update={"title": request.title, "description": request.description}),
            terms=Terms.of(request.options),
        )

    def _admit(self, launch: Launch) -> None:
        """Wait for room in the stream of a launch, or refuse it."""
        stream = StreamId(shard_of(launch.child_id), launch.envelope.type, launch.envelope.priority)
        self._effects.attempt("pressure", lambda: self._pressure.admit(stream))
        self._effects.launched = True

    def knows(self, agent: str) -> bool:
        """Return True if an agent of that name is registered."""
        return self._effects.retrying("agents", lambda: self._agents.get(agent)) is not None

    def names(self) -> list[str]:
        """Return the names of the registered agents."""
        return self._effects.retrying("agents", self._agents.names)

    def delegates(self) -> tuple[AgentRecord, ...]:
        """Return the agents that this session's agent may delegate to, by name."""
        records = {record.name: record for record in self._effects.retrying("agents", self._agents.all)}
        own = records.get(self._effects.held.session.agent)
        if own is None:
            return ()
        return tuple(
            record
            for name, record in sorted(records.items())
            if name != own.name
            and refusal("task-delegation", own.principal, record.principal, self.table) is None
        )


def heading_of(description: str) -> str:
    """Return the heading of a task without a title: the first line of its description, at most 80 characters."""
    first, *_ = description.strip().splitlines() or [""]
    first = first.strip()
    return first if len(first) <= 80 else f"{first[:79]}…"


def _task_of(given: object, options: DelegateOptions) -> tuple[str, Task | None]:
    """Return the description of a task, and the task itself if it is more than that."""
    named = {
        "objectives": options.get("objectives"),
        "acceptance_criteria": options.get("acceptance_criteria"),
    }
    parts = {name: tuple(texts) for name, texts in named.items() if texts}
    if isinstance(given, str):
        if not parts:
            return given, None
        task = task_of({"description": given, **parts}, title=options.get("title") or "")
    else:
        given = task_of(cast("Task | Mapping[str, Any]", given))
        if twice := [name for name in parts if getattr(given, name)]:
            raise InputError(f"the task has {twice[0]}, and others are given beside it; give one of the two")
        task = task_of(given, title=options.get("title") or "")
        task = task_of({**task.model_dump(exclude_defaults=True), **parts}) if parts else task
    return task.description, task


def child_of(
    request: Delegate | DelegateAll | Call, given: object, *, kept: str, group: str = ""
) -> LaunchRequest:
    """Return the child that a request asks for, with the task that is ``given``; ``kept`` as of `LaunchRequest`.

    Raises:
        InputError: there is no agent's name or nothing to do.
    """
    agent, options = (
        request["agent"],
        cast("DelegateOptions", {"priority": "high", "group": group, **request}),
    )
    text, task = _task_of(given, options)
    if not agent or not text.strip():
        raise InputError(f"a delegation to {agent!r} needs an agent and a description of the task")
    title = options.get("title") or (task.title if task else "") or heading_of(text)
    return LaunchRequest(agent=agent, title=title, description=text, task=task, options=options, kept=kept)


#: The group of the delegations of a plan, for `wait_for`.
PLAN_GROUP: Final = "plan"


class Planning:
    """The plans of one run."""

    def __init__(self, effects: Effects, launches: Launches) -> None:
        self._effects = effects
        self._launches = launches

    def launch(self, plan: Plan) -> list[str]:
        """Launch every assignment of a plan; their sessions, by sequence.

        Raises:
            PlanError: an agent or a caller is unknown, or the plan is too large; nothing was launched.
            LimitExceeded, StreamFull: as `Launches.launch`.
        """
        if not plan.assignments:
            return []
        callers = self._callers()
        plan.check(agents=self._launches.names(), callers=callers)
        self._check_room(plan)
        return self._launches.launch_all(self._prepare(plan, callers))

    def _callers(self) -> dict[str, str]:
        """Return the agents of this session and of those above it, each with its nearest session."""
        effects = self._effects
        found = {effects.held.session.agent: ""}
        above = effects.held.session.parent
        while above:
            sessions = effects.retrying("callers", partial(effects.ledger.find, [above]))
            if not sessions:
                break
            found.setdefault(sessions[0].agent, sessions[0].id)
            above = sessions[0].parent
        return found

    def _check_room(self, plan: Plan) -> None:
        if self._effects.held.run.attempt > 1:
            return  # the children of an earlier try are counted already
        most = self._effects.ledger.limits.max_children
        left = most - self._effects.held.session.children
        if len(plan.assignments) > left:
            raise PlanError(
                f"it has {len(plan.assignments)} assignments, and this session may have {left} more children "
                f"(max_children = {most})"
            )

    def _prepare(self, plan: Plan, callers: dict[str, str]) -> Iterator[Launch]:
        callers, before = dict(callers), list[str]()
        for wave in plan.waves:
            launches = [
                self._launches.prepare(self._request(assignment, callers, before))
                for assignment in wave.assignments
            ]
            yield from launches
            before = [launch.child_id for launch in launches]
            # The nearest caller counts: a later sequence before an earlier one, and that before a session above.
            first = {launch.agent: launch.child_id for launch in reversed(launches)}
            first.pop(self._effects.held.session.agent, None)
            callers |= first

    def _request(
        self, assignment: Assignment, callers: dict[str, str], before: Sequence[str]
    ) -> LaunchRequest:
        caller, task = "none" if assignment.caller is None else callers[assignment.caller], assignment.task
        own: Any = {"priority": "high", "group": PLAN_GROUP, "callback": caller == "", "after": before}
        # Whatever else an assignment has is an option of its launch.
        given: Any = assignment.model_dump(exclude={"role", "task", "sequence", "caller"}, exclude_none=True)
        return LaunchRequest(
            agent=assignment.role,
            title=summary(task),
            description=task,
            options=own | given,
            kept=DELEGATE.options(given),
            caller=caller,
            caller_agent=assignment.caller or "",
            effect=self._effects.key(
                "plan", assignment.role, task, assignment.sequence, caller == "", caller
            ),
        )
