"""The routing table: the routes of the message types, who may send what to whom by it, and who hears of failures.

A table ``[routing.<type>]`` of a TOML file overrides any part of any route. A header that names a priority or a retry
policy wins over its route.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from orchestrator.envelope.message_types import MESSAGE_TYPES, Route
from orchestrator.errors import ConfigurationError

_ROUTES: Final = {name: row.route for name, row in MESSAGE_TYPES.items()}


class RoutingTable:
    """The rows by message type, and the agents that stand at the end of every path."""

    operator: Final = "operator"

    def __init__(
        self,
        rows: Mapping[str, Route] = _ROUTES,
        *,
        tech_lead: str = "tech-lead",
        code_reviewer: str = "code-reviewer",
    ) -> None:
        self._rows = dict(rows)
        self.tech_lead = tech_lead
        self.code_reviewer = code_reviewer

    def __getitem__(self, message_type: str) -> Route:
        return self._rows[message_type]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def items(self) -> list[tuple[str, Route]]:
        """Return every type with its row, in the order of the protocol."""
        return list(self._rows.items())

    @classmethod
    def load(cls, config: Mapping[str, Any] | None = None) -> RoutingTable:
        """Return the table with the overrides of a TOML table ``[routing]``.

        ``tech_lead`` and ``code_reviewer`` name agents; every other key is a message type whose table
        overrides parts of that type's row.

        Raises:
            ConfigurationError: an unknown type or field, or a value out of range.
        """
        given = dict(config or {})
        names: dict[str, str] = {}
        for field in ("tech_lead", "code_reviewer"):
            value = given.pop(field, None)
            if value is None:
                continue
            if not isinstance(value, str) or not value.strip():
                raise ConfigurationError(f"[routing] {field} = {value!r}: give the name of an agent")
            names[field] = value
        rows = dict(_ROUTES)
        for message_type, overrides in given.items():
            if message_type not in rows:
                known = ", ".join(rows)
                raise ConfigurationError(
                    f"[routing.{message_type}] is not a message type; the types are {known}"
                )
            if not isinstance(overrides, Mapping):
                raise ConfigurationError(f"[routing.{message_type}] must be a table of a row's fields")
            try:
                rows[message_type] = Route.model_validate({**rows[message_type].model_dump(), **overrides})
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                field = ".".join(str(part) for part in first["loc"])
                if first["type"] == "extra_forbidden":
                    known = ", ".join(Route.model_fields)
                    raise ConfigurationError(
                        f"[routing.{message_type}] {field}: there is no such field; the fields are {known}"
                    ) from None
                raise ConfigurationError(f"[routing.{message_type}] {field}: {first['msg']}") from None
        return cls(rows, **names)


#: Higher stands above lower.
RANK = {"orchestrator": 3, "coordinator": 2, "specialist": 1}

#: How an entry of a list of agents begins that means every agent with a tag.
TAG_PREFIX: Final = "tag:"


@dataclass(frozen=True, kw_only=True)
class Principal:
    """Sender or recipient of a message, as the registry knows it."""

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
    """Return why the sender may not send this type to the recipient; None if it may.

    An agent that has no list may send what its row and the ranks allow. The system's own agents
    (role orchestrator) stand above all others; reports and replies go back to whoever gave the work.
    """
    return _unlisted(message_type, sender, recipient, table) or _outranked(
        message_type, sender, recipient, table
    )


def _unlisted(message_type: str, sender: Principal, recipient: Principal, table: RoutingTable) -> str | None:
    """Return why the lists of the two forbid it, or None; the operator is on every list."""
    if MESSAGE_TYPES[message_type].report or table.operator in {sender.name, recipient.name}:
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
    """Return why the ranks or the table's row forbid it, or None."""
    row = table[message_type]
    if MESSAGE_TYPES[message_type].by_rank:
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
