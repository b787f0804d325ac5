"""Prompts made of messages: a task with all its parts, a question, a message, a report with its structured part.
text, under headings and in lists. The headings are the names of the protocol's elements.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar, assert_never, cast, get_args

from pydantic import ValidationError

from orchestrator.envelope.bodies import (
    Artifact,
    CriterionResult,
    Deliverable,
    Escalation,
    Message,
    Query,
    ReviewRequest,
    Task,
    TaskDelegation,
)
from orchestrator.envelope.message_types import MESSAGE_TYPES, DetailedBody, LaunchBody
from orchestrator.envelope.model_values import Leaf, Part, with_values
from orchestrator.envelope.parts import TaskContext
from orchestrator.errors import InputError

#: The bodies that have such a text.
Prompt = LaunchBody | Query | Message


def title_of(body: LaunchBody) -> str:
    """Return the title of a body, for people."""
    match body:
        case TaskDelegation(task=about) | ReviewRequest(review=about) | Escalation(escalation=about):
            return about.title
        case _:
            assert_never(body)


def prompt_of(body: Prompt) -> str:
    """Return the description of a task, then a section for each of its other parts; or the text of a question or
    message.
    """
    match body:
        case TaskDelegation(task=task):
            return _text(
                task.description,
                ("Objectives", [o.text for o in task.objectives]),
                ("Acceptance criteria", [c.text for c in task.acceptance_criteria]),
                *_context(task.context),
                (
                    "Expected outputs",
                    [labelled(o.type, ", ".join(o.file_paths)) for o in task.expected_outputs],
                ),
                ("Success criteria", [labelled(m.name, m.text) for m in task.success_criteria]),
            )
        case ReviewRequest(review=review):
            return _text(
                review.description,
                ("Files", [labelled(f.path, f.text) for f in review.files]),
                ("Focus areas", [f.text for f in review.focus_areas]),
                ("Review criteria", [c.text for c in review.review_criteria]),
                *_context(review.context),
                ("Required by", [str(review.required_by)] if review.required_by else []),
            )
        case Escalation(escalation=matter):
            return _text(
                matter.description,
                ("Reason", [matter.reason] if matter.reason else []),
                ("Attempted solutions", [a.text for a in matter.attempted_solutions]),
                ("Options", [labelled(o.type, o.text) for o in matter.recovery_options]),
                *_context(matter.context),
                ("Requested action", [matter.requested_action] if matter.requested_action else []),
                ("Required by", [str(matter.required_by)] if matter.required_by else []),
            )
        case Query(subject=subject, context=context):
            problem = context.problem if context is not None else None
            return "\n\n".join(part for part in (subject, problem) if part)
        case Message(content=content):
            return content
        case _:
            assert_never(body)


def _context(context: TaskContext | None) -> list[tuple[str, list[str]]]:
    if context is None:
        return []
    return [
        ("Files to look at", [labelled(f.path, f.text) for f in context.file_references]),
        ("Interfaces", [labelled(a.endpoint, a.text) for a in context.api_contracts]),
        ("Constraints", [labelled(c.type, c.text) for c in context.constraints]),
    ]


def _text(description: str, *sections: tuple[str, Iterable[str]]) -> str:
    parts = [description]
    for heading, items in sections:
        lines = [f"- {item}" for item in items if item]
        if lines:
            parts.append(f"{heading}:\n" + "\n".join(lines))
    return "\n\n".join(parts)


#: Fields that identify a message or its task, or that a callback says itself.
_ELSEWHERE: Final = frozenset({"type", "task_id", "error_id"})
#: Of a task-completion, too: the callback has its status.
_OF_THE_END: Final = frozenset({"status", "completion_timestamp"})


def details_of(body: DetailedBody, text: str) -> str:
    """Return the parts of a body other than its text, as text; empty if there are none."""
    row = MESSAGE_TYPES[body.type]
    without = {row.text, *_ELSEWHERE, *(_OF_THE_END if row.ends else ())}
    parts = []
    for heading, items in _sections(body, without, text):
        lines = [item for item in items if item]
        if lines:
            parts.append(f"### {heading}\n\n" + ("\n".join(f"- {line}" for line in lines)))
    return "\n\n".join(parts)


def _sections(part: Part, without: Iterable[str], text: str) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield a heading and lines for each field of a part; a part within it has its own fields."""
    for name, value in part:
        if name in without or value is None or (name in _UNLESS and _UNLESS[name](value, text)):
            continue
        if isinstance(value, tuple):
            yield _heading(name), [_line(item) for item in value]
        elif isinstance(value, Part) and not isinstance(value, Leaf):
            yield from _sections(value, without, text)
        elif name == "progress_percentage":
            yield "Progress", [f"{value} %"]
        else:
            yield _heading(name), [_line(value)]


def _heading(name: str) -> str:
    return name.replace("_", " ").title()


def _repeats(summary: str, text: str) -> bool:
    """Tell whether a summary is the beginning of the answer: the stack made it."""
    beginning = " ".join(summary.rstrip("…").split())
    return " ".join(text.split(None, len(beginning))).startswith(beginning)


#: Fields that say nothing of their own for some values.
_UNLESS: Final[Mapping[str, Callable[[Any, str], bool]]] = MappingProxyType(
    {
        "summary": _repeats,
        "problem": lambda problem, text: problem in text,
        "query_type": lambda kind, _: kind == "ask-for-help",
    }
)


def _line(item: object) -> str:
    """Return one value of a list as a line."""
    match item:
        case CriterionResult():
            return _criterion(item)
        case Deliverable():
            return _deliverable(item)
        case Artifact():
            return _artifact(item)
        case Leaf():
            beside = [value for name, value in item if name != "text" and isinstance(value, str)]
            return labelled(beside[0] if beside else None, item.text)
        case Part():
            return ", ".join(f"{_heading(name)}: {value}" for name, value in item if value is not None)
    return str(item)


def _criterion(criterion: CriterionResult) -> str:
    met = {True: "met", False: "not met", None: "open"}[criterion.met]
    why = criterion.evidence or criterion.reason
    return f"{criterion.name or 'criterion'}: {met}" + (f" ({why})" if why else "")


def _deliverable(deliverable: Deliverable) -> str:
    parts = [" ".join(filter(None, [f.path, f.status, f.text])) for f in deliverable.files]
    if deliverable.test_coverage:
        parts.append(f"test coverage {deliverable.test_coverage}")
    if deliverable.all_tests_passing is not None:
        parts.append("all tests pass" if deliverable.all_tests_passing else "not all tests pass")
    return labelled(deliverable.type, ", ".join(parts))


def _artifact(artifact: Artifact) -> str:
    parts = [artifact.file_path or ""]
    if artifact.lines_of_code is not None:
        parts.append(f"{artifact.lines_of_code} lines")
    if artifact.tests_added is not None:
        parts.append(f"{artifact.tests_added} tests")
    return labelled(artifact.type, ", ".join(filter(None, parts)))


def labelled(label: str | None, text: str) -> str:
    """Return a text behind its label, where it has one."""
    return f"{label}: {text}" if label and text else (label or text)


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
