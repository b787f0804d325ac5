"""Carries out a coordinator's plan: each assignment is a task-delegation, held until the sequence before is completed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from orchestrator.errors import PlanError
from orchestrator.ledger import Launch
from orchestrator.messages.factory import summary
from orchestrator.policy.plan import Assignment, Plan
from orchestrator.worker.context.effects import Effects
from orchestrator.worker.context.launches import Launches, LaunchRequest

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
        return LaunchRequest(
            agent=assignment.role,
            title=summary(task),
            description=task,
            options={"priority": "high", "group": PLAN_GROUP, "callback": caller == "", "after": before},
            caller=caller,
            caller_agent=assignment.caller or "",
            effect=self._effects.key(
                "plan", assignment.role, task, assignment.sequence, caller == "", caller
            ),
        )
