"""The message types: one row for each, and everything that depends on the type of a message is read from here.

A type is added by its body, in the schema and in `bodies`, its name in `ClearBody`, and its row. The type checker and the
tests name what is missing then; what is done with a message of that type is a `match` that ends in `assert_never`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.envelope.bodies import (
    ErrorReport,
    Escalation,
    Message,
    Query,
    Reply,
    ReviewRequest,
    StatusUpdate,
    TaskCompletion,
    TaskDelegation,
)
from orchestrator.envelope.model_values import BackoffStrategy, Part, bindings, demands

#: A body that can be read as it stands.
ClearBody = (
    TaskDelegation
    | StatusUpdate
    | TaskCompletion
    | ErrorReport
    | Query
    | ReviewRequest
    | Escalation
    | Reply
    | Message
)
#: A body that begins a session.
LaunchBody = TaskDelegation | ReviewRequest | Escalation
#: A body that reports or asks: the ledger keeps it beside its text.
DetailedBody = TaskCompletion | ErrorReport | Query | StatusUpdate

#: Who a message goes to, as seen from its sender.
Recipient = Literal[
    "subordinate", "delegator", "delegate", "escalation-path", "code-reviewer", "tech-lead", "any"
]
#: The longest timeout of a route, in seconds: ten years, which is as good as none.
MAX_TIMEOUT_S: Final = 315_360_000


class Route(BaseModel):
    """The path of a type of message: from whom to whom, how urgent, how long, how often; settings may change each field."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: The role that sends it, or `any`; a higher rank may always do what a lower one may.
    sender: Literal["coordinator", "specialist", "any"]
    recipient: Recipient
    priority: Literal["critical", "high", "normal", "low"]
    #: Seconds within which one attempt must have been accepted: recorded in the ledger for its recipient.
    timeout_s: float = Field(gt=0, le=MAX_TIMEOUT_S)
    #: Attempts in all, the first included.
    attempts: int = Field(ge=1, le=100)
    backoff: BackoffStrategy = "exponential"


@dataclass(frozen=True, kw_only=True)
class MessageType:
    """The row of one type of message. Its streams are named after the type. What no test of a new type would miss has no default."""

    body: type[ClearBody]
    route: Route
    #: It begins a session of its recipient: it is recorded for its recipient when the router has done so.
    starts_session: bool = False
    #: It goes back to whoever gave the work, or asked: no agent's list of others concerns it.
    report: bool
    #: What its recipient waits for and it ends: it is never refused for being late, nor for the length of its conversation.
    ends: Literal["", "task", "question"] = ""
    #: The router passes it on unread when it is encrypted: header and chain are enough to route it.
    passed_on_encrypted: bool = False
    #: An agent may write it into the text of its answer.
    in_answers: bool = False
    #: One specialist may well send it to another.
    between_specialists: bool
    #: The field of the body that becomes the text of an item in a session's queue; empty: none.
    text: str
    #: Its heading in the prompt of an agent, as an item of the kind that is named after it; empty: that of any message.
    heading: str

    #: It gives somebody work by rank: the ranks of the two decide who may send it, not the sender of its route.
    by_rank: bool = False

    @cached_property
    def name(self) -> str:
        """The type attribute of its body."""
        return str(self.body.model_fields["type"].default)

    @cached_property
    def task_part(self) -> str | None:
        """The field of the body that holds its task-id: empty for the body itself, None if it has none."""
        if "task_id" in self.body.model_fields:
            return ""
        inner = (one for one in bindings(self.body) if one.model is not None and one.mark is None)
        return next((one.name for one in inner if one.model and "task_id" in one.model.model_fields), None)

    @cached_property
    def first_elements(self) -> tuple[str, ...]:
        """The elements with which its body may begin: up to the first that it must have."""
        found: list[str] = []
        for field in bindings(self.body):
            found.append(field.tag)
            if demands(self.body, field.name):
                break
        return tuple(found)

    @cached_property
    def statuses(self) -> tuple[str, ...]:
        """The values that its status may have; empty if it has no status."""
        status = self.body.model_fields.get("status")
        return tuple(get_args(status.annotation)) if status is not None else ()


_ROWS: Final = (
    MessageType(
        body=TaskDelegation,
        route=Route(
            sender="coordinator", recipient="subordinate", priority="high", timeout_s=300, attempts=3
        ),
        starts_session=True,
        report=False,
        passed_on_encrypted=True,
        in_answers=True,
        between_specialists=False,
        text="",
        heading="",
        by_rank=True,
    ),
    MessageType(
        body=StatusUpdate,
        route=Route(sender="specialist", recipient="delegator", priority="normal", timeout_s=120, attempts=1),
        report=True,
        in_answers=True,
        between_specialists=True,
        text="",
        heading="",
    ),
    MessageType(
        body=TaskCompletion,
        route=Route(sender="specialist", recipient="delegator", priority="high", timeout_s=60, attempts=1),
        report=True,
        ends="task",
        in_answers=True,
        between_specialists=True,
        text="result",
        heading="",
    ),
    MessageType(
        body=ErrorReport,
        route=Route(sender="any", recipient="escalation-path", priority="critical", timeout_s=30, attempts=2),
        report=True,
        ends="task",
        in_answers=True,
        between_specialists=True,
        text="message",
        heading="Error",
    ),
    MessageType(
        body=Query,
        route=Route(sender="specialist", recipient="delegator", priority="normal", timeout_s=180, attempts=2),
        report=True,
        passed_on_encrypted=True,
        in_answers=True,
        between_specialists=False,
        text="subject",
        heading="Query",
    ),
    MessageType(
        body=ReviewRequest,
        route=Route(
            sender="specialist", recipient="code-reviewer", priority="high", timeout_s=86_400, attempts=1
        ),
        starts_session=True,
        report=False,
        passed_on_encrypted=True,
        between_specialists=True,
        text="",
        heading="",
    ),
    MessageType(
        body=Escalation,
        route=Route(
            sender="coordinator", recipient="tech-lead", priority="critical", timeout_s=60, attempts=3
        ),
        starts_session=True,
        report=False,
        passed_on_encrypted=True,
        between_specialists=False,
        text="",
        heading="",
    ),
    # `reply` and `message` were added to the protocol, so that everything agents say is an envelope.
    MessageType(
        body=Reply,
        route=Route(sender="any", recipient="delegate", priority="high", timeout_s=180, attempts=3),
        report=True,
        ends="question",
        between_specialists=True,
        text="answer",
        heading="Reply",
    ),
    MessageType(
        body=Message,
        route=Route(sender="any", recipient="any", priority="normal", timeout_s=300, attempts=2),
        report=False,
        passed_on_encrypted=True,
        between_specialists=False,
        text="content",
        heading="",
    ),
)

#: The message types by name, in the order of the protocol.
MESSAGE_TYPES: Final[Mapping[str, MessageType]] = MappingProxyType({row.name: row for row in _ROWS})
#: Types that begin a session.
SESSION_STARTING: Final = frozenset(row.name for row in _ROWS if row.starts_session)
#: Types that end what somebody waits for.
TERMINAL_TYPES: Final = frozenset(row.name for row in _ROWS if row.ends)


def named_type(value: str) -> str:
    """Return the name of a message type.

    Raises:
        ValueError: there is no such type.
    """
    if value not in MESSAGE_TYPES:
        raise ValueError(f"{value!r} is not a message type; the types are {', '.join(MESSAGE_TYPES)}")
    return value


def task_id_of(body: Part | None) -> str:
    """Return the task-id in a body; empty if its type has none, or it cannot be read."""
    row = _BY_BODY.get(type(body))
    if row is None or row.task_part is None:
        return ""
    part: Any = getattr(body, row.task_part) if row.task_part else body
    return str(part.task_id)


_BY_BODY: Final[Mapping[type, MessageType]] = MappingProxyType({row.body: row for row in _ROWS})
