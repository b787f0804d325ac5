"""The structured parts of messages as users give them and as the ledger keeps them: checked, bounded, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast, get_args

from pydantic import ValidationError

from orchestrator.envelope.bodies import Task, TaskDelegation
from orchestrator.envelope.message_types import MESSAGE_TYPES, DetailedBody
from orchestrator.envelope.model_base import Part
from orchestrator.envelope.model_values import with_values
from orchestrator.envelope.prompt_text import prompt_of
from orchestrator.errors import InputError

P = TypeVar("P", bound=Part)

#: Bytes that the structured part of one message may have as JSON. Long text belongs into the description, the answer
#: or an attachment, which are stored apart where they are large.
MAX_BYTES: Final = 256 * 1024
_DETAILED: Final = frozenset(get_args(DetailedBody))


def part_of(model: type[P], value: object, *, name: str) -> P:
    """Return a value that a user gave as a ``model``: one, or a mapping of its fields.

    Raises:
        InputError: it is neither, or a field is wrong; ``name`` is what the user calls it.
    """
    if isinstance(value, model):
        return value
    if not isinstance(value, Mapping):
        raise InputError(f"{name} = {value!r}: give a {model.__name__}, or a mapping of its fields")
    try:
        return model.model_validate(dict(value))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(filter(None, [name, *map(str, first["loc"])]))
        known = (
            f"; the fields are {', '.join(model.model_fields)}" if first["type"] == "extra_forbidden" else ""
        )
        raise InputError(f"{where}: {first['msg']}{known}") from None


def task_of(task: Task | Mapping[str, Any], *, description: str = "", title: str = "") -> Task:
    """Return a task that a user gave, with the description and the title that were given beside it.

    Raises:
        InputError: it is no task, or it has another description or title than the one beside it.
    """
    found = part_of(Task, task, name="task")
    for name, own, beside in (
        ("description", found.description, description),
        ("title", found.title, title),
    ):
        if own and beside and own != beside:
            raise InputError(
                f"the task has a {name} and another {name} is given beside it; give one of the two"
            )
    return with_values(found, description=found.description or description, title=found.title or title)


def prompt_of_task(task: Task) -> str:
    """Return the prompt of the agent that does a task: its description, and a section for each list that it has."""
    return prompt_of(TaskDelegation(task=task))


def pack(part: Part) -> str:
    """Return a part as the ledger keeps it.

    Raises:
        InputError: it is larger than :data:`MAX_BYTES`.
    """
    text = part.model_dump_json(exclude_defaults=True, exclude_none=True)
    if len(text) > MAX_BYTES // 4 and len(text.encode()) > MAX_BYTES:
        raise InputError(
            f"the structured part of this {type(part).__name__} has more than {MAX_BYTES} bytes; put long text into "
            "its description or result, or attach it"
        )
    return text


def pack_body(body: DetailedBody) -> str:
    """Return a body that reports or asks as the ledger keeps it, beside its text.

    Raises:
        InputError: it is larger than :data:`MAX_BYTES`.
    """
    rest = pack(_with_text(body, None))[1:]
    return f'{{"type":"{body.type}"{rest if rest == "}" else f",{rest}"}'


def unpack_body(packed: str, text: str) -> DetailedBody | None:
    """Return the body that :func:`pack_body` packed, with its text; None if empty, or written by somebody else."""
    try:
        facts = json.loads(packed) if packed else {}
        row = MESSAGE_TYPES.get(facts.get("type", ""))
        if row is None or row.body not in _DETAILED:
            return None
        body = cast("DetailedBody", row.body.model_validate(facts))
    except (ValueError, RecursionError, AttributeError, TypeError):
        return None
    return _with_text(body, text)


def _with_text(body: DetailedBody, text: str | None) -> DetailedBody:
    """Return the body with another text, or with none, which is kept apart; as it is where its type has no text."""
    field = MESSAGE_TYPES[body.type].text
    if not field:
        return body
    if text is None and type(body).model_fields[field].is_required():
        text = ""
    return body.model_copy(update={field: text})


def unpack(model: type[P], text: str) -> P | None:
    """Return the part that :func:`pack` packed; None if empty, or written by somebody else than this system."""
    if not text:
        return None
    try:
        return model.model_validate(json.loads(text))
    except (ValueError, RecursionError):
        return None
