"""The routing table: who sends which type of message to whom, how urgent, how long, how often.

Seven rows come from the protocol; `reply` and `message` were added so that everything agents say is an
envelope. Rows are data: a table ``[routing.<type>]`` of a TOML file overrides any part of any row.
A header that names a priority or a retry policy wins over its row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.errors import ConfigurationError

Priority = Literal["critical", "high", "normal", "low"]
Backoff = Literal["exponential", "linear"]
#: Who a message goes to, as seen from its sender.
Recipient = Literal[
    "subordinate", "delegator", "delegate", "escalation-path", "code-reviewer", "tech-lead", "any"
]


#: Types that begin a session: recorded for their recipient when the router has done so.
LAUNCHES = frozenset({"task-delegation", "review-request", "escalation"})


#: The longest timeout of a row, in seconds: ten years, which is as good as none.
MAX_TIMEOUT_S = 315_360_000


class Row(BaseModel):
    """What holds for one type of message."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: The role that sends it, or `any`; a higher rank may always do what a lower one may.
    sender: Literal["coordinator", "specialist", "any"]
    recipient: Recipient
    priority: Priority
    #: Seconds within which one attempt must have been accepted: recorded in the ledger for its recipient.
    timeout_s: float = Field(gt=0, le=MAX_TIMEOUT_S)
    #: Attempts in all, the first included.
    attempts: int = Field(ge=1, le=100)
    backoff: Backoff = "exponential"


_ROWS: Mapping[str, Row] = MappingProxyType(
    {
        "task-delegation": Row(
            sender="coordinator", recipient="subordinate", priority="high", timeout_s=300, attempts=3
        ),
        "status-update": Row(
            sender="specialist", recipient="delegator", priority="normal", timeout_s=120, attempts=1
        ),
        "task-completion": Row(
            sender="specialist", recipient="delegator", priority="high", timeout_s=60, attempts=1
        ),
        "error": Row(
            sender="any", recipient="escalation-path", priority="critical", timeout_s=30, attempts=2
        ),
        "query": Row(
            sender="specialist", recipient="delegator", priority="normal", timeout_s=180, attempts=2
        ),
        "review-request": Row(
            sender="specialist", recipient="code-reviewer", priority="high", timeout_s=86_400, attempts=1
        ),
        "escalation": Row(
            sender="coordinator", recipient="tech-lead", priority="critical", timeout_s=60, attempts=3
        ),
        "reply": Row(sender="any", recipient="delegate", priority="high", timeout_s=180, attempts=3),
        "message": Row(sender="any", recipient="any", priority="normal", timeout_s=300, attempts=2),
    }
)


class RoutingTable:
    """The rows by message type, and the agents that stand at the end of every path."""

    operator: Final = "operator"

    def __init__(
        self,
        rows: Mapping[str, Row] = _ROWS,
        *,
        tech_lead: str = "tech-lead",
        code_reviewer: str = "code-reviewer",
    ) -> None:
        self._rows = dict(rows)
        self.tech_lead = tech_lead
        self.code_reviewer = code_reviewer

    def __getitem__(self, message_type: str) -> Row:
        return self._rows[message_type]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def items(self) -> list[tuple[str, Row]]:
        """Every type with its row, in the order of the protocol."""
        return list(self._rows.items())

    @classmethod
    def load(cls, config: Mapping[str, Any] | None = None) -> RoutingTable:
        """The table with the overrides of a TOML table ``[routing]``.

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
        rows = dict(_ROWS)
        for message_type, overrides in given.items():
            if message_type not in rows:
                known = ", ".join(rows)
                raise ConfigurationError(
                    f"[routing.{message_type}] is not a message type; the types are {known}"
                )
            if not isinstance(overrides, Mapping):
                raise ConfigurationError(f"[routing.{message_type}] must be a table of a row's fields")
            try:
                rows[message_type] = Row.model_validate({**rows[message_type].model_dump(), **overrides})
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                field = ".".join(str(part) for part in first["loc"])
                if first["type"] == "extra_forbidden":
                    known = ", ".join(Row.model_fields)
                    raise ConfigurationError(
                        f"[routing.{message_type}] {field}: there is no such field; the fields are {known}"
                    ) from None
                raise ConfigurationError(f"[routing.{message_type}] {field}: {first['msg']}") from None
        return cls(rows, **names)
