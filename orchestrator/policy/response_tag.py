"""The tag in which an agent that answers in text gives its result, ``<response>…</response>``, and answers of a type in it.

The first open tag and the last close tag count, in any case and with any attributes, and everything between them is
the answer, word for word: nothing is unescaped. Text knows no markup, so a tag inside a code block counts like any
other. A close tag that stands before the first open tag closes nothing.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from orchestrator.errors import InputError

RESPONSE: Final = "response"

# No text to an agent holds the tags themselves: a small model repeats what it is told, and an example in it would be read
# as its answer.
#: What an agent is told at the end of its task.
ANSWER_NOTE: Final = (
    f"When you are done, wrap your final answer in XML tags named `{RESPONSE}`. Whoever gave you this task is given "
    "what stands between them, word for word, and nothing else that you write."
)
#: What an agent is told once that has answered without the tag.
NUDGE: Final = f"You must wrap your final answer in XML tags named `{RESPONSE}`. Emit your response now."
#: What it is told instead where its answer was cut off; where that was is filled in.
CUT_NUDGE: Final = f"Your answer was cut off at {{}}, and nobody has read it. Give a shorter one, and wrap it in XML tags named `{RESPONSE}`."
#: What stands in for the answer of an agent that left the tag out again.
NO_RESPONSE: Final = "subagent did not produce a response"


def tag_extract(text: str, tag: str) -> str | None:
    """Return the text between the first ``<tag>`` and the last ``</tag>``, trimmed; None if either is missing."""
    found = _find(text, tag)
    return None if found is None else text[found[1] : found[2]].strip()


def tag_strip(text: str, tag: str) -> str:
    """Return the text without the block that :func:`tag_extract` reads; unchanged if there is none."""
    found = _find(text, tag)
    return text if found is None else text[: found[0]] + text[found[3] :]


def _find(text: str, tag: str) -> tuple[int, int, int, int] | None:
    """Return start and end of the opening tag, then of the closing tag; None if either is missing."""
    opening, closing = _patterns(tag)
    first = opening.search(text)
    if first is None:
        return None
    last = None
    for last in closing.finditer(text, first.end()):  # noqa: B007  (only the last one counts)
        pass
    return None if last is None else (*first.span(), *last.span())


@cache
def _patterns(tag: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    name = re.escape(tag)
    # An empty element `<tag/>` opens nothing. No pattern looks further than the next bracket, so that a hostile
    # text costs no more time than a harmless one.
    opening = re.compile(rf"<{name}(?:\s(?:[^<>]*[^<>/])?)?>", re.IGNORECASE)
    return opening, re.compile(rf"</{name}\s*>", re.IGNORECASE)


T = TypeVar("T")


def value_of(text: str) -> Any:
    """Return the JSON value that an answer is; the text itself, if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def typed(text: str, type: type[T], *, what: str) -> T:
    """Return an answer as a value of a type; ``str`` takes every text.

    Args:
        text: the answer.
        type: a pydantic model, a dataclass, or any other type that pydantic can check.
        what: whose answer it is, for the error.

    Raises:
        InputError: the answer does not fit the type.
    """
    if type is str:
        return text  # type: ignore[return-value]
    adapter: TypeAdapter[T] = TypeAdapter(type)
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        where = f"{place}: " if place else ""
        name = getattr(type, "__name__", str(type))
        raise InputError(f"the answer of {what} is not a {name}: {where}{first['msg']}") from None
