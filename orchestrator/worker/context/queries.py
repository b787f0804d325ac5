"""What an agent says of a question beside its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from orchestrator.envelope.bodies import FileReference, Query
from orchestrator.envelope.model_values import Priority
from orchestrator.envelope.structured import part_of
from orchestrator.errors import InputError
from orchestrator.worker.context.arguments import check_list

#: What a question is, or what it asks for.
Kind = Literal[
    "query",
    "blocker",
    "clarification",
    "error",
    "ask-for-help",
    "request-review",
    "request-analysis",
    "get-status",
]
#: Files that matter for a question.
File = str | FileReference | Mapping[str, Any] | Sequence[str | FileReference | Mapping[str, Any]]

_ASKED_FOR = frozenset({"ask-for-help", "request-review", "request-analysis"})


def kind_of(kind: str) -> str:
    """The kind of the item that a question becomes; what it asks for is in its body."""
    return "query" if kind in _ASKED_FOR else kind


def query_of(
    kind: str,
    *,
    problem: str,
    attempted: Sequence[str],
    file: File,
    error: str,
    urgency: Priority | None,
    required_by: datetime | str | None,
) -> Query | None:
    """The structured part of a question; None where it has only a text.

    Raises:
        InputError: a value is invalid.
    """
    check_list("attempted", attempted)
    if isinstance(required_by, datetime) and required_by.tzinfo is None:
        raise InputError(f"required_by = {required_by!r} has no time zone; give one, such as datetime.UTC")
    files = [file] if isinstance(file, str | FileReference | Mapping) else list(file)
    context = {
        "problem": problem or None,
        "attempted_solutions": [{"order": n, "text": text} for n, text in enumerate(attempted, 1)],
        "file_references": [{"path": one, "text": ""} if isinstance(one, str) else one for one in files],
        "error_message": error or None,
    }
    fields = {
        "query_type": kind if kind in _ASKED_FOR else None,
        "context": context if any(context.values()) else None,
        "urgency": urgency,
        "required_by": required_by.isoformat() if isinstance(required_by, datetime) else required_by,
    }
    given = {name: value for name, value in fields.items() if value}
    return part_of(Query, {"subject": "", **given}, name="ask") if given else None
