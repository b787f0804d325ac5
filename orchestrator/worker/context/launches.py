"""How a run launches children: each once, however often the run is tried, and many in one round trip."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from orchestrator.agents.registry import AgentRecord, AgentRegistry
from orchestrator.envelope.bodies import Task
from orchestrator.envelope.model_values import Priority
from orchestrator.envelope.structured import pack, prompt_of_task
from orchestrator.ids import child_session_id, shard_of
from orchestrator.ledger import Launch, Outgoing
from orchestrator.messages.factory import AS_ROUTED, Delivery
from orchestrator.messages.given import check_size
from orchestrator.policy.authorisation import refusal
from orchestrator.policy.budget import Budget
from orchestrator.policy.routing import RoutingTable
from orchestrator.streams import StreamId
from orchestrator.streams.pressure import Backpressure
from orchestrator.worker.context.arguments import OnFailure
from orchestrator.worker.context.effects import Effects

#: Launches in the first round trip, and in a later one at most: the first children are to begin soon.
FIRST_AT_ONCE: Final = 12
AT_ONCE: Final = 128


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """A child that an agent asks for."""

    agent: str
    title: str
    description: str
    priority: Priority | None
    callback: bool = True
    group: str = ""
    on_failure: OnFailure = "deliver"
    on_close: str = ""  #: as of `Launch`
    key: str | None = None  #: tells it from others that say the same in the same run
    after: Sequence[str] = ()  #: sessions that must be completed before
    budget: Budget | None = None
    task: Task | None = None  #: further parts of the task beside title and description
    delivery: Delivery = AS_ROUTED
    time_limit_s: float | None = None
    caller: str = ""  #: as of `Launch`
    caller_agent: str = ""
    kind: str = "delegate"  #: what the agent does, for the effect key
    effect: str = ""  #: the effect key; by default it is made of kind, agent, texts, priority and group
    #: Writes the envelope for a child of this id; by default it is a task-delegation.
    write: Callable[[str], Outgoing] | None = None


class Launches:
    """The launches of one run, in one try of it."""

    def __init__(
        self,
        effects: Effects,
        table: RoutingTable,
        agents: AgentRegistry,
        *,
        pressure: Backpressure,
    ) -> None:
        self._effects = effects
        #: Who may send what to whom.
        self.table = table
        self._agents = agents
        self._pressure = pressure

    def launch(self, request: LaunchRequest) -> str:
        """Launch a child; its session id.

        Raises:
            LimitExceeded: the session or its tree is as large as it may be.
            StreamFull: the routers are too far behind for new work.
            ServerUnavailable: Redis stayed away.
        """
        effects, launch = self._effects, self.prepare(request)
        self._admit(launch)
        carry_out = partial(effects.ledger.delegate, effects.held.claim, launch)
        return effects.attempt(request.kind, carry_out, effect=launch.effect).child

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
        """A launch under its effect key, with its envelope."""
        effects, task = self._effects, request.task
        check_size("title", request.title)
        check_size("group", request.group)
        prompt = request.description if task is None else prompt_of_task(task)
        effect = request.effect or effects.key(
            request.kind,
            request.agent,
            request.title,
            prompt,
            request.priority,
            request.callback,
            request.group,
            given=request.key,
        )
        child = child_session_id(effects.held.session.id, f"{effects.held.claim.run}:{effect}")
        write = request.write
        return Launch(
            effect=effect,
            child_id=child,
            agent=request.agent,
            description=prompt,
            envelope=effects.write(lambda: write(child) if write else self._delegation(child, request)),
            correlation=effects.held.session.correlation,
            chain=effects.work_thread.chain,
            title=request.title,
            callback=request.callback,
            group=request.group,
            on_failure=request.on_failure,
            on_close=request.on_close,
            caller=request.caller,
            caller_agent=request.caller_agent,
            budget=request.budget,
            task="" if task is None else pack(task),
            time_limit_ms=0 if request.time_limit_s is None else max(1, round(request.time_limit_s * 1000)),
            after=(*request.after, *(need.task_id for need in (task.dependencies if task else ()))),
        )

    def _delegation(self, child: str, request: LaunchRequest) -> Outgoing:
        return self._effects.message_factory.delegation(
            sender=self._effects.held.session.agent,
            recipient=request.agent,
            task_id=child,
            title=request.title,
            description=request.description,
            thread=self._effects.work_thread,
            priority=request.priority,
            after=request.after,
            task=request.task,
            delivery=request.delivery,
        )

    def _admit(self, launch: Launch) -> None:
        """Wait for room in the stream of a launch, or refuse it."""
        stream = StreamId(shard_of(launch.child_id), launch.envelope.type, launch.envelope.priority)
        self._effects.attempt("pressure", lambda: self._pressure.admit(stream))
        self._effects.launched = True

    def knows(self, agent: str) -> bool:
        """Whether an agent of that name is registered."""
        return self._effects.retrying("agents", lambda: self._agents.get(agent)) is not None

    def delegates(self) -> tuple[AgentRecord, ...]:
        """The agents that this session's agent may delegate to, by name."""
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
