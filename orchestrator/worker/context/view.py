"""State of one run: what its agent sees of the session, and the parts that are made when the agent first uses them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from orchestrator.agents.definition import AgentDefinition
from orchestrator.bootstrap import Container
from orchestrator.envelope.bodies import Task
from orchestrator.envelope.prompt_text import unpack
from orchestrator.ledger import ClaimedRun, Item, ItemState, Session
from orchestrator.ledger.launches import seed_of
from orchestrator.policy.callback import Callback, same_callback
from orchestrator.policy.callback_text import parse_callbacks, render_callbacks
from orchestrator.policy.guarded_tags import defuse
from orchestrator.worker.context.approvals import ApprovalRequests
from orchestrator.worker.context.effects import Effects
from orchestrator.worker.context.launches import Launches
from orchestrator.worker.context.messages import MessageSender
from orchestrator.worker.context.sending import WrittenMessages
from orchestrator.worker.context.spending import ProviderLimits, RunSpending
from orchestrator.worker.context.steps import Steps
from orchestrator.worker.context.verification import Decrypter, Verifier, callback_of
from orchestrator.worker.context.waits import Blocking

#: Bytes of one child's answer that stand in a prompt; `callbacks` has all of it.
MAX_PROMPT_BYTES_PER_CALLBACK = 256 * 1024
#: Children that a prompt names as missing; it says how many more there are.
MAX_MISSING_NAMED = 20


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A child that had not ended when a deadline had passed."""

    session: str
    agent: str
    title: str
    group: str


@dataclass(frozen=True, kw_only=True)
class RunParts:
    """The parts of one run, in one try of it: each is made when it is first used.

    Threads of the agent that use one for the first time at once may make it twice, which does no harm: these keep nothing.
    """

    definition: AgentDefinition
    effects: Effects
    steps: Steps
    verifier: Verifier
    container: Container
    #: Makes what the run waits with.
    make_blocking: Callable[[RunParts], Blocking]
    #: The environment of programs that take part in the run.
    environment: Callable[[], dict[str, str]]

    @cached_property
    def decrypter(self) -> Decrypter:
        """Opens what the run is given."""
        return Decrypter(self.effects, self.container.opener)

    @cached_property
    def message_sender(self) -> MessageSender:
        """Sends what the agent says to others."""
        return MessageSender(self.effects, self.container.settings.data)

    @cached_property
    def blocking(self) -> Blocking:
        """Waits for what others answer."""
        return self.make_blocking(self)

    @cached_property
    def launches(self) -> Launches:
        """Launches children."""
        container = self.container
        return Launches(self.effects, container.routing, container.agents, pressure=container.pressure)


class View:
    """All state of a run's context, and what the agent reads.

    Parts that not every run has are made when they are first used. Of two threads that do so at once both get the one
    that is there first, where it keeps something.
    """

    def __init__(self, held: ClaimedRun, parts: RunParts) -> None:
        self._held = held
        self._parts = parts
        self._effects = parts.effects
        self._claim_status = parts.effects.claim_status
        self._ledger = parts.effects.ledger
        self._waiting: dict[str, dict[str, Any]] = {}
        self._all: tuple[Callback, ...] | None = None
        #: The settings of the worker.
        self.settings = parts.container.settings
        #: The durable steps of this try.
        self.steps = parts.steps
        #: This agent's name.
        self.agent: str = held.session.agent
        #: This session, its parent (empty for a root) and the root of its tree, by id.
        self.session: str = held.session.id
        self.parent: str = held.session.parent
        self.root: str = held.session.root
        #: This run's id, and how often it was tried, this time included.
        self.run: str = held.run.id
        self.attempt: int = held.run.attempt
        #: What the delegation was called.
        self.title: str = held.session.title
        #: The task with all its parts; its `description` is the prompt of the first run where it has no other.
        self.task: Task = self._task()
        #: Why the agent runs: `start`, `callbacks` or `user`.
        self.cause: Literal["start", "callbacks", "user"] = held.run.cause
        #: What this run delivers: a child's end, or something it asks or says on the way.
        self.callbacks: tuple[Callback, ...] = tuple(
            self._callback(item, held.texts.get(item.id, ""))
            for item in held.items
            # What a call took in an earlier try of this run, it takes again.
            if item.kind != "prompt" and not item.extra.get("taken")
        )
        #: The prompts of users that this run delivers, beside the callbacks; empty on a start.
        self.prompts: tuple[str, ...] = tuple(
            held.texts.get(item.id, "") for item in held.items if item.kind == "prompt"
        )
        #: The children that a deadline did not wait for any longer; empty unless one made this run.
        self.missing: tuple[Missing, ...] = self._find_missing()
        #: JSON values, saved when the run commits, there again in the next run.
        self.state: dict[str, Any] = held.state if isinstance(held.state, dict) else {}
        self._state_before = copy.deepcopy(self.state)
        #: The task on a start; the callbacks or the user's words on a resume.
        self.prompt: str = self._prompt()
        #: Why the answer that this run gave before was not accepted; empty when there was none.
        self.correction = ""
        #: What is attached to the answer of this run, by name.
        self.attachments: dict[str, str] = {}
        #: What the executor keeps of the conversation when this run commits; None leaves it as it is.
        self.new_memory: str | None = None
        #: The turns of this try, for the transcript.
        self.turns: list[Any] = []
        #: Whether every effect of the agent belongs to a durable step, so that what an earlier try launched stays, and
        #: `waits` counts it.
        self.replays = False
        #: Whether the answer is a text agent's, which its parent is given once, also if it was sent as a message before.
        self.answers_in_text = False

    @cached_property
    def spending(self) -> RunSpending:
        """Costs of this run's calls of models: `spending.reserve` before a call, `settle` after it."""
        budget = self._parts.definition.budget
        # Of what all sessions of the agent may spend each shard has its share.
        share = budget.share(self.settings.shards) if budget is not None else None
        made: RunSpending = vars(self).setdefault("spending", RunSpending(self._effects, agent_budget=share))
        return made

    @cached_property
    def limits(self) -> ProviderLimits:
        """Limits of providers: `limits.acquire` before each call of a model, `hold_back` when it says not to call."""
        made: ProviderLimits = vars(self).setdefault("limits", ProviderLimits(self._effects, self.settings))
        return made

    @cached_property
    def approvals(self) -> ApprovalRequests:
        """Approvals that this run asks a person for; `request_approval` is for agents."""
        limit_s = self.settings.approval_time_limit_s
        return ApprovalRequests(
            self._effects, self._parts.blocking, self._parts.verifier, time_limit_s=limit_s
        )

    @cached_property
    def written(self) -> WrittenMessages:
        """Check and sending of the messages that the agent wrote into its answer."""
        return WrittenMessages(self._effects, self._parts.message_sender, self._parts.launches)

    @property
    def traceparent(self) -> str:
        """The trace context of this try, for the header `traceparent` of what the agent asks for over HTTP."""
        return self._effects.traceparent

    def _callback(self, item: Item, text: str) -> Callback:
        return callback_of(item, text, self._effects)

    def _task(self) -> Task:
        about = self._held.session
        found = unpack(Task, self._held.task) or Task(description=self._held.prompt)
        return found.model_copy(update={"task_id": about.reported_as, "title": found.title or about.title})

    def _prompt(self) -> str:
        if self.cause == "start":
            return self._held.prompt
        text = render_callbacks(self.callbacks, prompts=self.prompts, max_bytes=MAX_PROMPT_BYTES_PER_CALLBACK)
        return "\n\n".join(filter(None, [text, describe_missing(self.missing)]))

    def _find_missing(self) -> tuple[Missing, ...]:
        overdue = frozenset(self._held.run.overdue)
        if not overdue:
            return ()
        policies = self._held.session.waiting
        ruled = frozenset(policies if isinstance(policies, dict) else ())
        found = []
        for item in self._effects.read("missing", lambda: self._ledger.items(self.session)):
            group = str(item.extra.get("group", ""))
            # A group without a policy of its own is under the default one.
            if item.state is ItemState.OWED and (group if group in ruled else "") in overdue:
                found.append(Missing(session=item.child, agent=item.agent, title=item.title, group=group))
        return tuple(found)

    def parse_callbacks(self, text: str) -> tuple[Callback, ...]:
        """Return the callbacks in a text, such as `prompt`; `genuine` are those that this run was given, word for
        word.

        One that is copied from another session or an earlier run, or altered, is not, whatever its id.
        """
        own = {callback.id: callback for callback in self.callbacks}
        return tuple(
            replace(found, genuine=found.id in own and same_callback(found, own[found.id]))
            for found in parse_callbacks(text)
        )

    @property
    def all_results(self) -> tuple[Callback, ...]:
        """Every terminal callback of this session so far, in the order in which they came."""
        if self._all is None:
            self._all = self._effects.read(
                "all_results", lambda: self._results_before_fork() + self._own_results()
            )
        return self._all

    def _results_before_fork(self) -> tuple[Callback, ...]:
        """Return the completions that the forked session had received by the time of the fork."""
        seed = seed_of(self._ledger, self.session) if self._held.session.forked_at else None
        given = () if seed is None else (*seed.earlier, *seed.given)
        return tuple(self._callback(item, text) for item, text in given if item.kind == "completion")

    def _own_results(self) -> tuple[Callback, ...]:
        items = [item for item in self._ledger.items(self.session) if self._is_delivered(item)]
        texts = self._ledger.texts(self.session, [item.id for item in items])
        checked = self._parts.verifier.items([(item, texts.get(item.id, "")) for item in items])
        return tuple(self._callback(item, text) for item, text in checked)

    def _is_delivered(self, item: Item) -> bool:
        if item.kind != "completion":
            return False
        if item.state is ItemState.DEAD:
            return bool(item.extra.get("rejected"))  # its refusal was delivered
        return item.state is ItemState.DELIVERED or (item.state is ItemState.CLAIMED and item.run == self.run)

    @property
    def has_caller(self) -> bool:
        """True if somebody receives what this session asks: its parent, or the caller that a plan names."""
        return bool(self.parent) and self._held.session.caller != "none"

    def _find(self, session: str) -> Session:
        return self._effects.retrying("find", lambda: self._ledger.session(session))

    @property
    def new_state(self) -> dict[str, Any] | None:
        """The state to save, or None if the agent left it as it was."""
        return self.state if self.state != self._state_before else None

    @property
    def new_waiting(self) -> dict[str, Any] | None:
        """The waiting policies to save, or None if the agent has set none."""
        if not self._waiting:
            return None
        before = self._held.session.waiting
        return {**(before if isinstance(before, dict) else {}), **self._waiting}

    @property
    def has_launched(self) -> bool:
        """True if this try of the run has launched a child."""
        return self._effects.launched


def describe_missing(missing: Sequence[Missing]) -> str:
    """Return whom a deadline did not wait for, as text for a prompt; empty if nobody."""
    if not missing:
        return ""
    named = [f"- {m.agent}: {m.title} ({m.session})" for m in missing[:MAX_MISSING_NAMED]]
    if len(missing) > MAX_MISSING_NAMED:
        named.append(f"- and {len(missing) - MAX_MISSING_NAMED} more")
    lines = "\n".join(map(defuse, named))
    return f"The deadline has passed. Still at work, and reported when they end:\n{lines}"
