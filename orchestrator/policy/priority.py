"""The priorities: their order, and which one a message has when its header names none."""

from __future__ import annotations

from orchestrator.policy.routing import Priority, RoutingTable

#: Highest first.
ORDER: tuple[Priority, ...] = ("critical", "high", "normal", "low")


def priority_of(message_type: str, named: str | None, table: RoutingTable) -> Priority:
    """The header's priority, else the table's for this type of message."""
    for priority in ORDER:
        if priority == named:
            return priority
    return table[message_type].priority


def more_urgent(one: Priority, other: Priority) -> Priority:
    """The higher of two priorities."""
    return min(one, other, key=ORDER.index)
