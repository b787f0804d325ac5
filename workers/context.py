"""What an agent sees: why it runs, what was said to it, and what it can do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal

from orchestrator.envelope.model_values import Priority
from orchestrator.errors import InputError
from orchestrator.ledger import Claimed, Item, ItemState, Ledger
from orchestrator.policy.callback_text import Callback, render_callbacks
from workers.effects import Effects, OnFailure
from workers.heartbeat import Standing
from workers.patience import persist

#: Bytes of one child's answer that stand in a prompt; `callbacks` has the whole.
MAX_PROMPT_BYTES_PER_CALLBACK = 256 * 1024


class Context:
    """One run of a session, from its agent's point of view.

    Every effect (`delegate`, `status`) raises `ClaimLost` when another worker has the run by now and
    `SessionStopped` when it was asked to stop; let both pass through, and nothing is done twice.
    """

    def __init__(self, held: Claimed, *, ledger: Ledger, effects: Effects, standing: Standing) -> None:
        self._held = held
        self._ledger = ledger
        self._effects = effects
        self._standing = standing
        self._waiting: dict[str, dict[str, Any]] = {}
        self._all: tuple[Callback, ...] | None = None
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
        #: Why the agent runs: `start`, `callbacks` or `user`.
        self.cause: Literal["start", "callbacks", "user"] = held.run.cause
        #: What this run delivers: a child's end, or something it asks or says on the way.
        self.callbacks: tuple[Callback, ...] = tuple(
            _callback(item, held.texts.get(item.id, "")) for item in held.items if item.kind != "prompt"
        )
        #: JSON values, saved when the run commits, there again in the next run.
        self.state: dict[str, Any] = held.state if isinstance(held.state, dict) else {}
        self._state_before = copy.deepcopy(self.state)
        #: The task on a start; the callbacks or the user's words on a resume.
        self.prompt: str = self._prompt()

    def _prompt(self) -> str:
        if self.cause == "start":
            return self._held.prompt
        said = [self._held.texts.get(item.id, "") for item in self._held.items if item.kind == "prompt"]
        return render_callbacks(self.callbacks, prompts=said, max_bytes=MAX_PROMPT_BYTES_PER_CALLBACK)

    @property
    def all_results(self) -> tuple[Callback, ...]:
        """Every terminal callback of this session so far, in the order in which they came."""
        if self._all is None:
            self._all = persist(self._read_results, what="all_results")
        return self._all

    def _read_results(self) -> tuple[Callback, ...]:
        items = [item for item in self._ledger.items(self.session) if self._is_delivered(item)]
        texts = self._ledger.texts(self.session, [item.id for item in items])
        return tuple(_callback(item, texts.get(item.id, "")) for item in items)

    def _is_delivered(self, item: Item) -> bool:
        if item.kind != "completion":
            return False
        return item.state is ItemState.DELIVERED or (item.state is ItemState.CLAIMED and item.run == self.run)

    def delegate(
        self,
        agent: str,
        description: str,
        *,
        title: str = "",
        priority: Priority = "high",
        callback: bool = True,
        group: str = "",
        on_failure: OnFailure = "deliver",
        key: str | None = None,
    ) -> str:
        """Launch a session of ``agent`` and go on; its end comes back as a callback.

        Args:
            agent: the name of a registered agent.
            description: its task; its `ctx.prompt`.
            title: what people call the task; by default the beginning of the description.
            priority: `critical`, `high`, `normal` or `low`.
            callback: False: nothing is owed, and nothing comes back.
            group: delegations of one group can be waited for together, see `wait_for`.
            on_failure: what becomes of a failure: it is delivered, or counted as dead.
            key: tells this delegation from others of the same text in the same run; by default they are counted.

        Returns:
            The child's session id.

        Raises:
            LimitExceeded: this session or its tree is as large as it may be.
            InputError: there is no agent's name, or nothing to do.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        if not agent or not description.strip():
            raise InputError(f"a delegation to {agent!r} needs an agent and a description of the task")
        return self._effects.delegate(
            agent,
            title=title or _heading(description),
            description=description,
            priority=priority,
            callback=callback,
            group=group,
            on_failure=on_failure,
            key=key,
        )

    def wait_for(
        self,
        mode: Literal["any", "all", "quorum"] = "any",
        *,
        k: int | None = None,
        group: str = "",
        deadline_s: float | None = None,
        window_s: float | None = None,
    ) -> None:
        """Say when this session is to be resumed, from the end of this run on until it is said anew.

        Args:
            mode: `any`: as soon as one callback is there; `all`: when all are; `quorum`: when ``k`` are.
                Questions resume at once in every mode.
            k: how many make the quorum.
            group: the group of delegations it holds for; empty: those of no group.
            deadline_s: seconds from now after which it is resumed with what is there.
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
            now_ms = persist(self._ledger.server_ms, what="wait_for")
            rule["deadline_ms"] = now_ms + round(deadline_s * 1000)
        if window_s is not None:
            rule["window_ms"] = round(window_s * 1000)
        self._waiting[group] = rule

    def status(self, progress: int | None = None, activity: str = "") -> None:
        """Show how far this session is: ``progress`` in percent, and what it is doing now.

        Raises:
            InputError: the progress is not between 0 and 100.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        if progress is not None and not 0 <= progress <= 100:
            raise InputError(f"status({progress}): progress is a whole percentage, 0 to 100")
        self._effects.status(progress, activity)

    @property
    def stopping(self) -> str:
        """Why this run is to end now; empty while it may go on. For agents that work long between effects."""
        return self._standing.stop_reason

    def check(self) -> None:
        """Return if this run may go on.

        Raises:
            ClaimLost, SessionStopped: it may not.
        """
        self._standing.check()

    # --- for the runner ----------------------------------------------------------------------

    @property
    def new_state(self) -> dict[str, Any] | None:
        """The state to save, or None if the agent left it as it was."""
        return self.state if self.state != self._state_before else None

    @property
    def new_waiting(self) -> dict[str, Any] | None:
        """The waiting policies to save, or None if the agent said nothing of them."""
        if not self._waiting:
            return None
        before = self._held.session.waiting
        return {**(before if isinstance(before, dict) else {}), **self._waiting}


#: What the `python` executor calls.
AgentFunction = Callable[[Context], Any]


def _callback(item: Item, text: str) -> Callback:
    return Callback(
        id=item.id,
        kind=item.kind,
        session=item.child,
        agent=item.agent,
        status=item.status if item.kind == "completion" else "",
        title=item.title,
        text=text,
        priority=item.priority if item.kind != "completion" else "",
    )


def _heading(description: str) -> str:
    first = description.strip().splitlines()[0].strip()
    return first if len(first) <= 80 else f"{first[:79]}…"
