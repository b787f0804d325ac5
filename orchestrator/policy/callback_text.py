"""The text that resumes a parent: what its children said, in tags that no child can forge.

One callback is one ``<agent-callback>``; two or more are nested in one aggregate. A child's or a user's own
text stands between the tags as it is, but for tags named ``agent-callback``, ``agent-message`` or ``response``: their
``<`` is written as an entity, so that they stay readable and neither open nor close anything. `parse_callbacks`
turns the text back into exactly what went in.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from orchestrator.policy.callback import Callback
from orchestrator.policy.guarded_tags import defuse, restore
from orchestrator.policy.kinds import HEADINGS

_TAG = re.compile(r"<(/?)agent-callback((?: [a-z]+=\"[^\"<>]*\")*)>")
_ATTRIBUTE = re.compile(r"([a-z]+)=\"([^\"]*)\"")
_NAMED = {"&": "amp", "<": "lt", ">": "gt", '"': "quot"}
_CHARACTER = {name: char for char, name in _NAMED.items()}
#: With what a normalising reader turns into one of them.
_UNSAFE_IN_ATTRIBUTE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u2028\u2029&<>\"\u226e\u226f\ufe60\ufe64\ufe65\uff02\uff06\uff1c\uff1e]"
)
_REFERENCE = re.compile(rf"&(?:#([0-9]{{1,7}})|({'|'.join(_CHARACTER)}));")

#: A size has fewer digits than this.
_DIGITS = 19
_ATTACHED = "\n[attached: "
_CONTEXT_HEADING = "\n\n### Context\n\n"
_AFTER_RESULT = "Please continue with the orchestration based on this result."
_AFTER_ERROR = "Please handle this failure and continue with the orchestration."
_AFTER_MANY = "Please continue with the orchestration based on these results."
_AFTER_QUESTION = "Please answer this and continue with the orchestration."
_AFTER_REPLY = "Please continue with your task based on this reply."
_AFTER_NO_REPLY = "Please continue with your task as well as you can without a reply."
_AFTER_REPORT = "It needs no reply. Please take this into account and continue with the orchestration."
_AFTER_MESSAGE = "Please take this into account and continue with the orchestration."


class _Notes(NamedTuple):
    """Notes for the reader of a resume on how to get what is not in its text."""

    read_on: Callable[[Callback], str]
    read_attached: Callable[[Callback], str]


def render_callbacks(
    callbacks: Sequence[Callback],
    *,
    prompts: Sequence[str] = (),
    max_bytes: int | None = None,
    read_on: Callable[[Callback], str] | None = None,
    read_attached: Callable[[Callback], str] | None = None,
) -> str:
    """Return the text of one resume: ``callbacks`` in the order given, then what a user said meanwhile.

    Args:
        callbacks: what is delivered; may be empty.
        prompts: texts of a user; they are not wrapped.
        max_bytes: a single text longer than this (in UTF-8) is cut and refers to the whole.
        read_on: says of a callback that was cut how to read on; by default the command or the call that does.
        read_attached: says of a callback with attachments how to read them; by default the command that does.
    """
    notes = _Notes(read_on or _where, read_attached or _where_attached)
    shown = [_cut(callback, max_bytes) for callback in callbacks]
    parts: list[str] = []
    if len(shown) == 1:
        parts.append(f"{_element(shown[0], notes)}\n\n{_instruction(shown[0])}")
    elif shown:
        inner = "\n\n".join(_element(callback, notes) for callback in shown)
        opening = f'<agent-callback type="aggregated" count="{len(shown)}">'
        parts.append(f"{opening}\n{inner}\n</agent-callback>\n\n{_AFTER_MANY}")
    # Together, so that no tag is made of the end of one and the beginning of the next.
    parts.append(defuse("\n\n".join(prompts)))
    return "\n\n".join(filter(None, parts))


def parse_callbacks(text: str, *, known: Callable[[str], bool] | None = None) -> tuple[Callback, ...]:
    """Return the callbacks in a prompt, each with its text as the child wrote it.

    Args:
        text: a prompt; what stands outside of callbacks is passed over.
        known: tells whether the ledger has a callback of that id. One that is then not `genuine` was
            written by somebody else than this system and is not to be believed. An id alone can be copied:
            `ctx.parse_callbacks` and `Client.parse_callbacks` ask the ledger for what it says, too.
    """
    found = tuple(_elements(text))
    if known is None:
        return found
    return tuple(replace(callback, genuine=known(callback.id)) for callback in found)


def _cut(callback: Callback, max_bytes: int | None) -> Callback:
    if max_bytes is None:
        return callback
    raw = callback.text.encode()
    if len(raw) <= max_bytes:
        return callback
    size = callback.size if callback.size >= 0 else len(raw)
    return replace(callback, text=raw[:max_bytes].decode(errors="ignore"), size=size)


def _element(callback: Callback, notes: _Notes) -> str:
    attributes = [("session", callback.session), ("status", callback.status)]
    if not callback.status or callback.kind != "completion":
        attributes.insert(0, ("type", callback.kind))
    attributes += [("id", callback.id), ("agent", callback.agent), ("title", callback.title)]
    attributes += [
        ("priority", callback.priority),
        ("size", str(callback.size) if callback.size >= 0 else ""),
        ("question", callback.question),
        ("context", "json" if callback.context is not None else ""),
        ("attached", " ".join(callback.attachments)),
        ("details", str(len(_details(callback))) if callback.details else ""),
        ("reply", "expected" if callback.can_reply else ""),
    ]
    listed = "".join(f' {name}="{_attribute(value)}"' for name, value in attributes if value)
    return (
        f"<agent-callback{listed}>\n{_heading(callback)}\n\n{defuse(callback.text)}"
        f"{_cut_note(callback, notes.read_on)}{_attached_note(callback, notes.read_attached)}{_details(callback)}"
        f"{_context(callback)}\n</agent-callback>"
    )


def _details(callback: Callback) -> str:
    return f"\n\n{defuse(callback.details)}" if callback.details else ""


def _context(callback: Callback) -> str:
    """JSON without any opening of a tag; its line breaks are never within a text of it."""
    if callback.context is None:
        return ""
    return _CONTEXT_HEADING + json.dumps(callback.context, indent=2).replace("<", "\\u003c")


def _heading(callback: Callback) -> str:
    if callback.kind != "completion":
        return f"## {HEADINGS.get(callback.kind, 'Message')}"
    return "## Error" if callback.status == "failed" else "## Child Result"


def _instruction(callback: Callback) -> str:
    if callback.kind == "reply":
        return _AFTER_NO_REPLY if callback.status == "failed" else _AFTER_REPLY
    if callback.kind != "completion":
        if callback.can_reply:
            return _AFTER_QUESTION
        return _AFTER_REPORT if callback.kind in HEADINGS else _AFTER_MESSAGE
    return _AFTER_ERROR if callback.status == "failed" else _AFTER_RESULT


def _cut_note(callback: Callback, read_on: Callable[[Callback], str]) -> str:
    if callback.size < 0:
        return ""
    return f"\n[cut after {len(callback.text.encode())} of {callback.size} bytes; {read_on(callback)}]"


def _attached_note(callback: Callback, read_attached: Callable[[Callback], str]) -> str:
    if not callback.attachments:
        return ""
    # One line, so that its beginning is the last of its kind, whatever a session is called.
    how = " ".join(read_attached(callback).splitlines())
    return f"{_ATTACHED}{', '.join(callback.attachments)}; {how}]"


def _where_attached(callback: Callback) -> str:
    return f"`orchestra result {callback.session} --attachment NAME` prints one"


def _where(callback: Callback) -> str:
    if callback.kind == "completion":
        return f"`orchestra result {callback.session}` prints the whole"
    return "`callback.full()` reads the whole"


def _attribute(value: str) -> str:
    def close(match: re.Match[str]) -> str:
        return f"&{_NAMED.get(match.group()) or f'#{ord(match.group())}'};"

    return _UNSAFE_IN_ATTRIBUTE.sub(close, value)


def _attribute_value(text: str) -> str:
    def reopen(match: re.Match[str]) -> str:
        if not match[1]:
            return _CHARACTER[match[2]]
        return chr(int(match[1])) if int(match[1]) <= sys.maxunicode else match[0]

    return _REFERENCE.sub(reopen, text)


def _elements(text: str) -> Iterator[Callback]:
    #: Of each open tag its attributes, where its content starts, and whether all around it are aggregates.
    open_tags: list[tuple[dict[str, str], int, bool]] = []
    within_aggregates = True
    for tag in _TAG.finditer(text):
        if not tag[1]:
            attributes = {name: _attribute_value(value) for name, value in _ATTRIBUTE.findall(tag[2])}
            open_tags.append((attributes, tag.end(), within_aggregates))
            within_aggregates = within_aggregates and _is_aggregate(attributes)
        elif open_tags:
            attributes, start, within_aggregates = open_tags.pop()
            if within_aggregates and not _is_aggregate(attributes) and attributes.get("session"):
                yield _callback(attributes, text[start : tag.start()])


def _is_aggregate(attributes: dict[str, str]) -> bool:
    return attributes.get("type") == "aggregated" and "session" not in attributes


def _callback(attributes: dict[str, str], content: str) -> Callback:
    size = attributes.get("size", "")
    callback = Callback(
        id=attributes.get("id", ""),
        kind=attributes.get("type", "completion"),
        session=attributes["session"],
        agent=attributes.get("agent", ""),
        status=attributes.get("status", ""),
        title=attributes.get("title", ""),
        priority=attributes.get("priority", ""),
        size=int(size) if size.isascii() and size.isdigit() and len(size) < _DIGITS else -1,
        question=attributes.get("question", ""),
        attachments=tuple(attributes.get("attached", "").split()),
    )
    body = content.removeprefix(f"\n{_heading(callback)}\n\n").removesuffix("\n")
    if attributes.get("context") == "json":
        body, _, values = body.rpartition(_CONTEXT_HEADING)
        callback = replace(callback, context=_json(values))
    length = attributes.get("details", "")
    if length.isascii() and length.isdigit() and len(length) < _DIGITS and 2 < int(length) <= len(body):
        callback = replace(callback, details=restore(body[-int(length) + 2 :]))
        body = body[: -int(length)]
    if callback.attachments:
        body = body.rpartition(_ATTACHED)[0]
    if callback.size >= 0:
        body = body.rpartition("\n[cut after ")[0]
    return replace(callback, text=restore(body))


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None  # written by somebody else than this system
