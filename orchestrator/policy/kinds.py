"""The kinds of what waits in a session's queue: which the system gives, and which a sender may choose.

The kind decides what an item does: a completion settles what a parent is owed, a prompt makes a run in a user's name.
Only the system gives these kinds; a sender's own word that reads like one of them is marked as the sender's.
The script that makes every item (``post.lua``) refuses what is not made as its kind demands.
"""

from __future__ import annotations

import unicodedata
from typing import Final

from orchestrator.envelope.message_types import MESSAGE_TYPES

#: What an agent may call its question.
QUESTIONS: Final = frozenset({"query", "blocker", "clarification", "error"})
#: The headings of kinds in a prompt; any other kind has that of a message.
HEADINGS: Final = {
    "blocker": "Blocker",
    "clarification": "Clarification",
    **{name: row.heading for name, row in MESSAGE_TYPES.items() if row.heading},
}
#: Kinds that only the system gives an item.
SYSTEM: Final = (
    frozenset({"completion", "prompt", "message", "escalation", "aggregated"}) | HEADINGS.keys() - QUESTIONS
)
#: Characters of a sender's word that are kept.
MAX_CHARS: Final = 100


def question_kind(word: str) -> str:
    """Return the kind of a question that its asker calls ``word``."""
    return _own(word, taken=SYSTEM, default="query")


def message_kind(word: str) -> str:
    """Return the kind of a message whose ``message-type`` is ``word``; it asks nothing and reports nothing."""
    return _own(word, taken=SYSTEM | QUESTIONS, default="message")


def _own(word: str, *, taken: frozenset[str], default: str) -> str:
    shown = " ".join(word.split())[:MAX_CHARS]
    if not shown or shown == default:
        return default
    # Case and signs make no difference.
    likened = _plain(shown) in {_plain(kind) for kind in taken}
    return f"agent-{shown}" if likened and shown not in QUESTIONS - taken else shown


def _plain(word: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKC", word).casefold() if c.isalpha())
