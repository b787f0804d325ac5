"""What an agent is called with: what it sees (`View`), says (`Talking`) and delegates, and how its session goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from orchestrator.errors import InputError
from orchestrator.ids import shard_of
from orchestrator.ledger import Claimed
from orchestrator.worker.context.delegation import Delegating
from orchestrator.worker.context.effects import Effects, OnClose
from orchestrator.worker.context.launches import Launches
from orchestrator.worker.context.messages import Speech
from orchestrator.worker.context.waits import Blocking
from orchestrator.worker.execution.heartbeat import Standing


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
        standing: Standing,
        speech: Speech,
        blocking: Blocking,
        launches: Launches,
    ) -> None:
        super().__init__(held, effects=effects, speech=speech, blocking=blocking, launches=launches)
        self._standing = standing
        self._waiting: dict[str, dict[str, Any]] = {}

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
        """Say when this session is to be resumed, from the end of this run on until it is said anew.

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
            now_ms = self._effects.patiently("wait_for", self._ledger.server_ms)
            rule["deadline_ms"] = now_ms + round(deadline_s * 1000)
            if mode == "any":
                rule["parks"] = True  # where the commit finds nothing outstanding
        if window_s is not None:
            rule["window_ms"] = round(window_s * 1000)
        self._waiting[group] = rule

    # --- going on or not -----------------------------------------------------------------------

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

    # --- for executors and the runner --------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether somebody is to answer this session after this run: a child, or whoever it asked.

        False in a further try of the run: what an earlier try launched and this one did not is dropped at the commit.

        Raises:
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        if self.attempt > 1:
            return False
        now = self._find(self.session)
        delivered_now = sum(item.kind == "completion" for item in self._held.items)
        return now.pending > delivered_now or bool(now.questions)

    @property
    def new_waiting(self) -> dict[str, Any] | None:
        """The waiting policies to save, or None if the agent said nothing of them."""
        if not self._waiting:
            return None
        before = self._held.session.waiting
        return {**(before if isinstance(before, dict) else {}), **self._waiting}


#: What the `python` executor calls.
AgentFunction = Callable[[Context], Any]
