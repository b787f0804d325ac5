"""Layer 3 of validation: the rules that need to know the stack, each with its name.

The table in `docs/protocol.md` is generated from ``RULES`` and from those about signatures.
"""

from __future__ import annotations

from typing import Final

#: Rule → (whether trying again may help, what it demands).
RULES: Final[dict[str, tuple[bool, str]]] = {
    "no-envelope": (False, "An entry has the field `envelope` with the XML in it."),
    "stream-mismatch": (False, "A message stands in the stream of its own type and priority."),
    "outbox-sender": (False, "In the outbox of an external program stand its own messages only."),
    "shard": (
        False,
        "A message that gives somebody work stands in a stream of the shard that it belongs to.",
    ),
    "signature-missing": (False, "A message is signed, unless the settings make signatures optional."),
    "key-unknown": (True, "The signer's public key is registered."),
    "expired": (False, "A message is accepted before its expiration."),
    "too-old": (False, "A message is younger than duplicate marks are kept."),
    "from-the-future": (
        False,
        "A message is not dated later than clocks may differ, by when it was appended.",
    ),
    "sender-unknown": (True, "The sender is a registered agent or a part of the system."),
    "sender-role": (False, "The role that the sender claims is the one it is registered with."),
    "recipient-unknown": (True, "The recipient is a registered agent or a part of the system."),
    "unauthorised": (False, "The sender may send this type of message to this recipient."),
    "retry-limit": (False, "No more attempts are asked for than the system makes."),
    "payload": (
        False,
        "A sealed body can be opened: its parts are there, whole, and for a key that is here.",
    ),
    "duplicate": (False, "A message is acted upon once; another copy of it is acknowledged without effect."),
    "message-id": (False, "A sender gives each of its messages an id of its own."),
    "conversation-chain": (
        False,
        "A message with a chain names its conversation, and the chain ends at the first message of that.",
    ),
    "conversation-party": (
        True,
        "Who speaks in a conversation began it, or was given a task or a message in it.",
    ),
    "conversation-limit": (False, "A conversation has no more messages and no longer chains than allowed."),
    "task-id": (False, "A task-id belongs to one delegation of its conversation."),
    "session-unknown": (True, "A message about a session names one that this ledger has."),
    "session-pending": (True, "The session that a message reports the end of has begun."),
    "session-over": (False, "The session that a message is meant for can still take it."),
    "recipient-session": (True, "The conversation shows which session of the recipient is meant."),
    "dependency-cycle": (False, "Tasks do not wait for each other in a circle."),
    "dependency-failed": (False, "The tasks that a delegation waits for complete."),
    "dependency-outside": (
        False,
        "The tasks that a delegation waits for are of its own tree or conversation.",
    ),
    "timeout": (True, "An attempt is accepted within the timeout of its retry policy."),
    "poison": (False, "A message does not end the routers that handle it."),
    "internal-error": (True, "The router can handle the message."),
}
