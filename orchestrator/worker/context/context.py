"""The context of an agent: one run of its session."""

from __future__ import annotations

from typing import Any, Literal

from orchestrator.errors import InputError, PayloadError
from orchestrator.ids import shard_of
from orchestrator.ledger.large_text import check_size
from orchestrator.ledger.launches import FORKED
from orchestrator.ledger.live_text import Kind, LiveText
from orchestrator.operations.values import OnClose
from orchestrator.policy.moments import wait_ms
from orchestrator.policy.plan import Plan, parse_plan
from orchestrator.worker.context.delegation import Delegating
from orchestrator.worker.context.durable import Durable
from orchestrator.worker.context.launches import PLAN_GROUP, Planning
from orchestrator.worker.context.messaging import Messaging


class Context(Messaging, Delegating, Durable):
    """Context of one run of a session, for its agent.

    Every effect (`delegate`, `status`, …) raises `ClaimLost` when another worker has the run by now and
    `SessionStopped` when it was asked to stop; let both pass through, and nothing is done twice.

    Threads of the agent may have effects and wait in calls at the same time. They are to end before it returns:
    whatever comes after the end of the run raises `ClaimLost`.
    """

    # --- policies ----------------------------------------------------------------------------

    def when_closed(self, policy: OnClose | None = None, *, heir: str | None = None) -> None:
        """Set what becomes of the children that still run when this session is stopped, fails or is deleted.

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
        chosen = policy or f"heir:{heir}"
        effect = self._effects.key("close-policy", chosen)
        self._effects.attempt(
            "close_policy",
            lambda: self._ledger.effect(self._held.claim, effect=effect, facts={"close_policy": chosen}),
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
        """Set when this session is to be resumed, from the end of this run on, until another call changes it.

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
        check_size("group", group)
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

    # --- programs ------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """Return the environment variables by which a program takes part in this run, with a token for this run only.

        `orchestra program raise`, `delegate`, `ask` and `mcp` and `current_session()` find the run by it.
        """
        return self._parts.environment()

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
        parsed = parse_plan(plan) if isinstance(plan, str) else plan
        sessions = Planning(self._effects, self._parts.launches).launch(parsed)
        if any(assignment.caller == self.agent for assignment in parsed.assignments):
            self._waiting.setdefault(PLAN_GROUP, {"mode": "all"})
        return sessions

    @property
    def claim_lost(self) -> bool:
        """True if this run belongs to another worker by now, so that whatever it has started must end at once."""
        return self._claim_status.lost

    @property
    def stopping(self) -> str:
        """The reason why this run is to end now; empty while it may go on. For agents that work long between effects."""
        return self._claim_status.stop_reason

    def check(self) -> None:
        """Return if this run may go on.

        Raises:
            ClaimLost, SessionStopped: it may not.
        """
        self._claim_status.check()

    @property
    def waits(self) -> bool:
        """True if somebody is to answer this session after this run: a child, or the recipient of a question.

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

    # --- for executors -----------------------------------------------------------------------

    def correct(self, problem: str) -> None:
        """Refuse the answer of this run: its agent is called once more, and `prompt` says what was wrong."""
        self.correction = problem
        self.prompt = (
            f"Your answer was not accepted: {problem}. Answer again, with the complete corrected answer."
        )

    @property
    def live(self) -> LiveText:
        """The live texts of sessions."""
        return self._ledger.live

    def write_live(self, kind: Kind, **facts: str) -> None:
        """Add an event to the live text of the session.

        Raises:
            redis.RedisError: it could not be written.
        """
        self._ledger.live.write(self.session, self.run, kind, seal=self._held.claim.seal, **facts)

    def read_memory(self) -> str:
        """Return the executor's memory of the conversation as of the last commit; empty if there is none.

        Raises:
            PayloadError: it is not kept any more, or was altered.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        try:
            return self._effects.retrying("memory", lambda: self._ledger.memory(self.session))
        except PayloadError as error:
            raise PayloadError(f"the memory of session {self.session} cannot be read: {error}") from None
