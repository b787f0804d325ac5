"""The text that an agent is given for a message: a task with all that goes with it, a question, a word."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.envelope.bodies import Escalation, Message, Query, ReviewRequest, TaskDelegation
from orchestrator.envelope.bodies.parts import TaskContext
from orchestrator.envelope.details import labelled

#: The bodies that have such a text.
Prompt = TaskDelegation | ReviewRequest | Escalation | Query | Message


def title_of(body: TaskDelegation | ReviewRequest | Escalation) -> str:
    """What people call it."""
    match body:
        case TaskDelegation(task=about) | ReviewRequest(review=about) | Escalation(escalation=about):
            return about.title


def prompt_of(body: Prompt) -> str:
    """The description of a task, followed by one section for each further thing that it says; a question; a word."""
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
