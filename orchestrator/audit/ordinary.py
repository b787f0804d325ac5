"""The facts of the messages that the stack's own agents send most, read without a tree.

One pattern for each type holds a whole document as the encoder writes it: every tag, every closed list and every form
of a value are spelt out as narrowly as the schema has them, and no attribute, reference to a character or optional
part is left open. What a pattern matches is therefore valid, and means what a parser reads there; the test that
compares both readers over mutants keeps it so. Whatever else there is, however valid, is None here.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final, NamedTuple

from orchestrator.envelope.model_values import NAMESPACE

#: Octets up to which a document is read here: no value in it is too long for the schema's patterns.
_MOST: Final = 65_536

_WORD: Final = r"[!-%'-;=?-~]+"
_UUID: Final = r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-4[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}"
_MOMENT: Final = (
    r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
    r"(?:\.[0-9]{1,9})?Z"
)
#: What XML 1.0 can hold between two tags, with no other reference than those that the encoder writes.
_CHARACTERS: Final = r"[\t\n -%'-;=?-\x7f\x80-\xff]*+"
_TEXT: Final = rf"{_CHARACTERS}(?:&(?:amp|lt|gt);{_CHARACTERS})*+"
_ROLE: Final = r"(?:coordinator|specialist|orchestrator)"
_TIER: Final = r"(?:opus|sonnet|haiku)"


def _party(name: str) -> str:
    return (
        rf"<{name}><agent-name>(?P<{name}>{_WORD})</agent-name><agent-role>{_ROLE}</agent-role>"
        rf"(?:<tier>{_TIER}</tier>)?</{name}>"
    )


def _one(tag: str, value: str) -> str:
    return f"<{tag}>{value}</{tag}>"


def _maybe(tag: str, value: str) -> str:
    return f"(?:{_one(tag, value)})?"


_HEADER: Final = (
    rf'<agent-message xmlns="{re.escape(NAMESPACE)}" version="1\.0"><header>'
    + _one("message-id", f"(?P<id>{_UUID})")
    + _one("timestamp", f"(?P<sent>{_MOMENT})")
    + _party("sender")
    + _party("recipient")
    + _maybe("correlation-id", f"(?P<correlation>{_UUID})")
    + rf'(?:<conversation-chain>(?P<chain>(?:<message-ref index="[0-9]">{_UUID}</message-ref>)+)</conversation-chain>)?'
    + _maybe("priority", "(?:critical|high|normal|low)")
    + "</header>"
)
_TASK_ID: Final = _one("task-id", f"(?P<task>{_WORD})")
_SIGNATURE: Final = (
    "(?:<signature>"
    + _one("algorithm", "(?:Ed25519|RSA-SHA256)")
    + _one("signer", _WORD)
    + _one("timestamp", _MOMENT)
    + _one("public-key-id", _WORD)
    + _one("signature-value", "[A-Za-z0-9+/]+={0,2}")
    + "</signature>)?</agent-message>"
)
_BODIES: Final = {
    "task-delegation": _one("task", _TASK_ID + _one("title", _TEXT) + _one("description", _TEXT))
    + "(?P<status>)"
    + _maybe(
        "assignment",
        _maybe("assigned-to", _WORD) + _maybe("assigned-by", _WORD) + _maybe("assigned-timestamp", _MOMENT),
    ),
    "status-update": _TASK_ID
    + _one("status", "(?P<status>in-progress|blocked|completed|failed)")
    + _maybe("progress-percentage", "(?:100|[1-9]?[0-9])")
    + _maybe("current-activity", _TEXT),
    "task-completion": _TASK_ID
    + _one("status", "(?P<status>success|partial-success|failed)")
    + _one("summary", _TEXT)
    + _maybe("completion-timestamp", _MOMENT)
    + _maybe("result", _TEXT),
}
_DOCUMENTS: Final = {
    body_type: re.compile(f'{_HEADER}<body type="{body_type}">{body}</body>{_SIGNATURE}'.encode("latin-1"))
    for body_type, body in _BODIES.items()
}
_TYPE: Final = re.compile(rb'</header><body type="([a-z-]+)">')
#: Where in a reference of a chain its number stands, and its id; how long it is; and the numbers in their order.
_INDEX: Final = len('<message-ref index="')
_ID: Final = len('<message-ref index="0">')
_REF: Final = len('<message-ref index="0"></message-ref>') + 36
_NUMBERS: Final = "0123456789"
#: Noncharacters that XML forbids: U+FFFE and U+FFFF.
_FORBIDDEN: Final = (b"\xef\xbf\xbe", b"\xef\xbf\xbf")


class Facts(NamedTuple):
    """What an envelope says of itself; empty where it is not valid. Ids are in lower case."""

    message_id: str = ""
    sender: str = ""
    recipient: str = ""
    correlation_id: str = ""
    parent_id: str = ""
    task_id: str = ""
    sent: str = ""
    #: How a task stands, by a status-update or a task-completion.
    status: str = ""
    #: The body as it is stored apart from its envelope; empty: it is not, or is gone.
    body: bytes = b""


def read_ordinary(octets: bytes) -> Facts | None:
    """The facts of a valid document that is spelt in the ordinary way; None: it must be parsed."""
    if len(octets) > _MOST:
        return None
    said = _TYPE.search(octets)
    pattern = None if said is None else _DOCUMENTS.get(said[1].decode())
    found = None if pattern is None else pattern.fullmatch(octets)
    if found is None or not (octets.isascii() or _fits_xml(octets)):
        return None
    names = ("id", "sent", "sender", "recipient", "correlation", "chain", "task", "status")
    message_id, sent, sender, recipient, correlation, chain, task_id, status = [
        "" if part is None else part.decode() for part in found.group(*names)
    ]
    try:
        datetime.fromisoformat(sent)
    except ValueError:  # a day that the calendar does not have
        return None
    message_id = message_id.lower()
    refs = [chain[at + _ID : at + _ID + 36].lower() for at in range(0, len(chain), _REF)]
    if chain[_INDEX::_REF] != _NUMBERS[: len(refs)] or len({message_id, *refs}) <= len(refs):
        return None
    parent_id = refs[0] if refs else ""
    correlation = correlation.lower() or message_id
    return Facts(message_id, sender, recipient, correlation, parent_id, task_id, sent, status)


def _fits_xml(octets: bytes) -> bool:
    """Whether the octets are UTF-8 and hold no character that XML forbids; control characters aside."""
    try:
        octets.decode()
    except UnicodeDecodeError:
        return False
    return not any(bad in octets for bad in _FORBIDDEN)
