"""Who may send what to whom: ranks, the routing table's roles, and the agents' own lists."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from orchestrator.policy.routing import RoutingTable

#: Higher stands above lower.
RANK = {"orchestrator": 3, "coordinator": 2, "specialist": 1}
#: Types that give somebody work: here the ranks decide, not the row's sender.
WORK = frozenset({"task-delegation"})
#: Types that no agent's list concerns: they go back to whoever gave the work, or asked.
REPORTS = frozenset({"status-update", "task-completion", "error", "query", "reply"})


#: How an entry of a list of agents begins that means every agent with a tag.
TAG_PREFIX: Final = "tag:"


@dataclass(frozen=True, kw_only=True)
class Principal:
    """One end of a message, as the registry knows it."""

    name: str
    role: str
    #: Agents it may send to, by name or `tag:TAG`; None: no list.
    may_send_to: Collection[str] | None = None
    #: Agents it takes messages from, likewise; None: no list.
    accepts_from: Collection[str] | None = None
    tags: Collection[str] = ()

    @property
    def entries(self) -> frozenset[str]:
        """The entries of lists that mean it."""
        return frozenset({self.name, *(f"{TAG_PREFIX}{tag}" for tag in self.tags)})


def refusal(message_type: str, sender: Principal, recipient: Principal, table: RoutingTable) -> str | None:
    """Why the sender may not send this type to the recipient, or None: it may.

    An agent that has no list may send what its row and the ranks allow. The system's own agents
    (role orchestrator) stand above all others; reports and replies go back to whoever gave the work.
    """
    return _unlisted(message_type, sender, recipient, table) or _outranked(
        message_type, sender, recipient, table
    )


def _unlisted(message_type: str, sender: Principal, recipient: Principal, table: RoutingTable) -> str | None:
    """Why the lists of the two forbid it; the operator is on every list."""
    if message_type in REPORTS or table.operator in {sender.name, recipient.name}:
        return None
    if sender.may_send_to is not None and recipient.entries.isdisjoint(sender.may_send_to):
        return (
            f"{sender.name!r} may send only to {_list(sender.may_send_to)}; "
            f"add {recipient.name!r} to its may_send_to to allow it"
        )
    if recipient.accepts_from is not None and sender.entries.isdisjoint(recipient.accepts_from):
        return (
            f"{recipient.name!r} takes messages only from {_list(recipient.accepts_from)}; "
            f"add {sender.name!r} to its accepts_from to allow it"
        )
    return None


def _outranked(message_type: str, sender: Principal, recipient: Principal, table: RoutingTable) -> str | None:
    """Why the ranks or the table's row forbid it."""
    row = table[message_type]
    if message_type in WORK:
        if RANK[sender.role] < RANK[recipient.role]:
            return (
                f"{sender.name!r} ({sender.role}) may not delegate to {recipient.name!r} ({recipient.role}): "
                "work goes to an agent of equal or lower rank; send an escalation instead"
            )
    elif row.sender != "any" and RANK[sender.role] < RANK[row.sender]:
        return (
            f"a message of type {message_type} is sent by a {row.sender} or higher, and {sender.name!r} is a "
            f"{sender.role}: ask whoever gave {sender.name!r} its task"
        )
    if row.recipient == "code-reviewer" and recipient.name not in {table.code_reviewer, table.operator}:
        return f"a message of type {message_type} goes to {table.code_reviewer!r}, not to {recipient.name!r}"
    if row.recipient == "tech-lead" and recipient.name not in {table.tech_lead, table.operator}:
        return f"a message of type {message_type} goes to {table.tech_lead!r}, not to {recipient.name!r}"
    return None


def _list(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "nobody"
