"""Messages that an agent wrote into the text of its answer: found there, read, and held up to the schema.

An agent knows what it wants to say. It does not know ids, times, keys or the namespace. What it cannot know may be
missing and is filled in; what it says of that is not believed, and a signature of its own making is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast, get_args

from lxml import etree

from orchestrator import machine
from orchestrator.envelope.codec import decode_body
from orchestrator.envelope.message_types import MESSAGE_TYPES
from orchestrator.envelope.model import Body
from orchestrator.envelope.model_values import NAMESPACE, UNKNOWN_TASK, Priority
from orchestrator.envelope.parse import DEFAULT_LIMITS, Unparsable, parse
from orchestrator.errors import InvalidEnvelope

#: Messages that one answer may hold.
MAX_MESSAGES: Final = 1_000

_OPENING: Final = re.compile(r"<agent-message(?=[\s>])[^<>]*>")
_CLOSING: Final = re.compile(r"</agent-message\s*>")
_FENCE: Final = re.compile(r"^[ \t]*```[A-Za-z]*[ \t]*\n\s*^[ \t]*```[ \t]*$", re.MULTILINE)
_PREFIX: Final = f"{{{NAMESPACE}}}"
_PRIORITIES: Final[tuple[str, ...]] = get_args(get_args(Priority)[0])


@dataclass(frozen=True, kw_only=True)
class WrittenMessage:
    """A message as an agent wrote it."""

    body: Body
    sender: str  #: as it says; empty where it does not
    recipient: str  #: likewise
    task_id: str  #: likewise, of a body that has one
    priority: Priority | None


def find_messages(text: str, is_quoted: Callable[[str], bool] = lambda _: False) -> tuple[list[str], str]:
    """Return the messages in a text, as they are written, and the text without them; what is quoted stays in the
    text.
    """
    found, rest, at = [], [], 0
    # One pattern for both tags would look through the text again behind each opening tag that nothing closes.
    while (opening := _OPENING.search(text, at)) and (closing := _CLOSING.search(text, opening.end())):
        written = text[opening.start() : closing.end()]
        if is_quoted(written):
            rest.append(text[at : closing.end()])
        else:
            found.append(written)
            rest.append(text[at : opening.start()])
        at = closing.end()
    if not found:
        return [], text
    return found, _FENCE.sub("", "".join([*rest, text[at:]])).strip()


def read_message(written: str) -> WrittenMessage:
    """Return the content of a message.

    Raises:
        InvalidEnvelope: it is no XML, or its body breaks the schema; the findings say where and how.
    """
    root = _parse(written)
    body = root.find(f"{_PREFIX}body")
    if body is None:
        raise InvalidEnvelope('the agent-message has no <body type="…">', ())
    kind = body.get("type", "")
    task_id = fill_in_ids(body, kind)
    read = decode_body(etree.tostring(body))
    priority = _text(root, "header/priority")
    if priority and priority not in _PRIORITIES:
        raise InvalidEnvelope(f"<priority> is {priority!r}; it is one of {', '.join(_PRIORITIES)}", ())
    return WrittenMessage(
        body=read,
        sender=_text(root, "header/sender/agent-name"),
        recipient=_text(root, "header/recipient/agent-name"),
        task_id=task_id,
        priority=cast(Priority, priority) if priority else None,
    )


def _parse(written: str) -> etree._Element:
    """Return the tree of a message, in our namespace whatever namespace it declares."""
    opening, end, rest = written.partition(">")
    if "xmlns" not in opening:
        opening = f'{opening} xmlns="{NAMESPACE}"'
    try:
        root, _ = parse(f"{opening}{end}{rest}".encode(errors="replace"), DEFAULT_LIMITS)
    except Unparsable as refused:
        raise InvalidEnvelope(refused.finding.sentence, (refused.finding,)) from None
    if root.tag != f"{_PREFIX}agent-message":
        raise InvalidEnvelope(f'the namespace of <agent-message> is "{NAMESPACE}", or left out', ())
    return root


def _text(root: etree._Element, path: str) -> str:
    steps = "/".join(f"{_PREFIX}{name}" for name in path.split("/"))
    return (root.findtext(steps) or "").strip()


def fill_in_ids(body: etree._Element, kind: str) -> str:
    """Return the task-id that a body gives itself; where a required one is missing, a stand-in is put in."""
    if kind == "error" and body.find(f"{_PREFIX}error-id") is None:
        made = etree.Element(f"{_PREFIX}error-id")
        made.text = str(machine.uuid4())
        body.insert(0, made)
    row = MESSAGE_TYPES.get(kind)
    if row is None or row.task_part is None:
        return ""
    about = body.find(f"{_PREFIX}{row.task_part}") if row.task_part else body
    if about is None:
        return ""  # the schema says what is missing
    given = about.find(f"{_PREFIX}task-id")
    if given is None:
        given = etree.Element(f"{_PREFIX}task-id")
        about.insert(0, given)
    task_id = (given.text or "").strip()
    if not task_id:
        given.text = UNKNOWN_TASK
    return task_id
