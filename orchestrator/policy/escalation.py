"""Escalation of messages that could not be delivered: up the path, specialist, coordinator, tech-lead, operator."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.policy.routing import RoutingTable


def above(
    name: str,
    *,
    role: str,
    escalates_to: str,
    delegator: str | None,
    table: RoutingTable,
    exists: Callable[[str], bool],
) -> str:
    """Return the next one up from an agent, who is never that agent itself unless it is the operator.

    What the agent's own settings say comes first; then, for a specialist, whoever gave it its task; then the
    tech-lead; then the operator, above whom there is nobody. Names that are not registered are passed over.
    """
    if name == table.operator:
        return name
    steps = [escalates_to, (delegator or "") if role == "specialist" else "", table.tech_lead]
    for step in steps:
        if step and step != name and exists(step):
            return step
    return table.operator
