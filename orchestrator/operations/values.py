"""Values in requests: how each is checked, shown in JSON schema, and written as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Annotated, Any, Final, Literal

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema
from typing_extensions import Doc

from orchestrator.envelope.bodies import EscalationMatter, FileReference, Review, Task
from orchestrator.envelope.message_types import MAX_TIMEOUT_S
from orchestrator.envelope.model import RetryPolicy
from orchestrator.envelope.model_values import Part, Priority
from orchestrator.envelope.prompt_text import part_of
from orchestrator.errors import InputError
from orchestrator.policy.budget import Budget
from orchestrator.policy.moments import parse_moment

#: Seconds that one call of a program waits at most.
MAX_WAIT_S: Final = 50.0
#: Characters of a result that one call of a program reads at most.
MAX_READ_CHARS: Final = 200_000


class Mark(Enum):
    """Mark of a field, which holds wherever the field occurs."""

    FOR_MODELS = "a model may set it"
    ENCRYPTED = "it is a text of the task, which is encrypted where the session is"
    THIS_CALL = "it concerns the call and not the session that is launched"


ANY_OBJECT: Final[dict[str, Any]] = {"type": "object", "additionalProperties": True}


def _judge(read: Callable[[Any], Any]) -> PlainValidator:
    """A validator that reads a value; pydantic reports what it refuses."""

    def judge(value: Any) -> Any:
        try:
            return read(value)
        except InputError as error:
            raise ValueError(str(error)) from None

    return PlainValidator(judge)


def _part(model: type[Part], name: str) -> PlainValidator:
    return _judge(lambda value: part_of(model, value, name=name))


def as_fields(value: Any) -> Any:
    """A model as the fields that were given, anything else as it is."""
    return (
        value.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
        if hasattr(value, "model_dump")
        else value
    )


def _dump_budget(value: Budget) -> dict[str, float]:
    return {name: number for name, number in vars(value).items() if number is not None}


def _json(value: object) -> object:
    """Values as JSON: what has no form there becomes text, and so does what is no number."""
    return json.loads(json.dumps(value, default=str), parse_constant=str)


def _moment(value: object) -> datetime | str:
    if isinstance(value, datetime) and value.tzinfo is None:
        raise InputError(f"{value!r} has no time zone; give one, such as datetime.UTC")
    if not isinstance(value, datetime | str):
        raise InputError(f"{value!r} is neither a datetime nor a time in ISO 8601")
    return value


#: The parts of a task beside its text.
TaskParts = Annotated[
    Task | Mapping[str, Any], _part(Task, "task"), PlainSerializer(as_fields), WithJsonSchema(ANY_OBJECT)
]
#: A task: its text, or a `Task` with all its parts.
TaskGiven = str | TaskParts
BudgetGiven = Annotated[
    Budget | Mapping[str, Any] | str,
    _judge(Budget.of),
    PlainSerializer(_dump_budget),
    WithJsonSchema({"anyOf": [{"type": "string"}, ANY_OBJECT]}),
]
RetryGiven = Annotated[
    RetryPolicy | Mapping[str, Any],
    _part(RetryPolicy, "retry_policy"),
    PlainSerializer(as_fields),
    WithJsonSchema(ANY_OBJECT),
]
ReviewGiven = Annotated[
    Review | Mapping[str, Any],
    _part(Review, "review"),
    PlainSerializer(as_fields),
    WithJsonSchema(ANY_OBJECT),
]
MatterGiven = Annotated[
    EscalationMatter | Mapping[str, Any],
    _part(EscalationMatter, "matter"),
    PlainSerializer(as_fields),
    WithJsonSchema(ANY_OBJECT),
]
#: A time with a zone.
Moment = Annotated[
    datetime | str,
    _judge(_moment),
    PlainSerializer(lambda value: value.isoformat() if isinstance(value, datetime) else value),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
#: When a session begins.
BeginGiven = Annotated[
    datetime | timedelta | float | str,
    _judge(lambda value: parse_moment(value) if isinstance(value, str) else value),
    WithJsonSchema({"type": ["string", "number"]}),
]
#: Files that matter for a question.
FilesGiven = Annotated[
    str | FileReference | Mapping[str, Any] | Sequence[str | FileReference | Mapping[str, Any]],
    PlainSerializer(
        lambda value: (
            [as_fields(one) for one in value] if isinstance(value, list | tuple) else as_fields(value)
        )
    ),
    WithJsonSchema({"type": "array", "items": {"type": "string"}}),
]
#: JSON values for the agent or the user who is asked.
Context = Annotated[
    Mapping[str, Any],
    PlainSerializer(_json),
    WithJsonSchema(ANY_OBJECT),
    Doc("More values for the agent or user who is asked."),
]

Seconds = Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)]
WaitSeconds = Annotated[float, Field(ge=0, le=MAX_WAIT_S), Doc("Seconds to wait at most; 20 by default.")]

State = Literal[
    "scheduled", "pending", "running", "idle", "finished", "failed", "stopped", "deleted", "damaged"
]
Agent = Annotated[str, Doc("The name of a registered agent."), Mark.FOR_MODELS]
Key = Annotated[
    str,
    Doc("The same key is the same launch, with the same options. Give one if you repeat a call that failed."),
    Mark.THIS_CALL,
]
Title = Annotated[
    str, Doc("What people call it. Default: the beginning of the task."), Mark.FOR_MODELS, Mark.ENCRYPTED
]
Urgency = Annotated[Priority, Doc("How urgent it is. Default: by its type.")]
Group = Annotated[str, Doc("A name for tasks that are waited for together, see `wait_for`."), Mark.FOR_MODELS]
#: What the failure of a child means for its parent.
OnFailure = Literal["deliver", "fail", "ignore"]
#: What becomes of a child whose parent is closed; `heir:<session>` hands its callback on.
OnClose = Literal["stop", "abandon"]
