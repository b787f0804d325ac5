"""The documents about messages: published, dead, replayed, judged."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from orchestrator.cli.documents.base import Document, FindingDocument, Time


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


#: The text of bytes; what is not UTF-8 is replaced.
Octets = Annotated[str, BeforeValidator(_text)]


class Published(Document):
    """A message that was published."""

    message_id: str = Field(description="Its id.")
    stream: str = Field(description="Its stream: `shard/type/priority`.")
    entry: str = Field(description="The id of its entry in the stream.")
    note: str | None = Field(default=None, description="What the sender should know of it; null: nothing.")


class MessageDocument(Document):
    """A published message as the audit trail keeps it; what could not be read of it is empty."""

    message_id: str = Field(description="Its id.")
    type: str = Field(description="Its type.")
    priority: str = Field(description="The priority of its stream.")
    sender: str = Field(description="The agent that sent it.")
    recipient: str = Field(description="The agent that it is for.")
    correlation_id: str = Field(description="Its conversation.")
    parent_message_id: str = Field(
        validation_alias="parent_id", description="The message that it follows upon; else empty."
    )
    task_id: str = Field(description="The task or session that it is about; else empty.")
    sent: str = Field(description="When its sender says it was made.")
    published: Time = Field(description="When it entered its stream.")
    received: Time = Field(validation_alias="received_ms", description="When the audit trail took it.")
    attempt: int = Field(description="Which attempt to deliver it this is, from 1.")
    stream: str = Field(description="Its stream: `shard/type/priority`.")
    entry: str = Field(validation_alias="entry_id", description="The id of its entry in the stream.")
    dead: str = Field(description="Why it is a dead letter, `rule: reason`; empty: it is not a dead letter.")
    status: str = Field(
        description="How the task stands, by a status-update or a task-completion; else empty."
    )
    body: str = Field(
        description="SHA-256 of its body, where that travelled apart and is kept (`--body` prints it); else empty."
    )
    seq: int = Field(description="Its number in the audit trail.")
    sha256: str = Field(description="The SHA-256 of its bytes.")
    chain: str = Field(description="The hash that chains it to the one before.")


class FullMessage(MessageDocument):
    """A published message with its bytes."""

    envelope: Octets = Field(
        validation_alias="xml", description="Its bytes as text; what is not UTF-8 is replaced."
    )


class Messages(Document):
    """Messages of the audit trail: of `search` newest first, of `conversation` as they were published."""

    messages: tuple[MessageDocument, ...] = Field(description="The messages.")
    next: int | None = Field(
        default=None, description="What `search --before` takes for the next page; null: this is the last."
    )


class FullMessages(Document):
    """Messages of the audit trail with their bytes."""

    messages: tuple[FullMessage, ...] = Field(description="The messages, each with `envelope`.")


class DeadLetterDocument(Document):
    """A message that is not tried again; what could not be read of its header is empty."""

    dead_letter: str = Field(validation_alias="id", description="The id by which the `dlq` commands know it.")
    rule: str = Field(description="The rule that it broke.")
    reason: str = Field(description="Why it was given up.")
    attempts: int = Field(description="How often it was tried.")
    at: Time = Field(validation_alias="at_ms", description="When it was given up.")
    stream: Annotated[str, BeforeValidator(str)] = Field(description="Its stream: `shard/type/priority`.")
    entry: str = Field(description="The id of its entry in the stream.")
    message_id: str = Field(description="Its id.")
    type: str = Field(description="Its type.")
    sender: str = Field(description="The agent that sent it.")
    recipient: str = Field(description="The agent that it is for.")
    correlation_id: str = Field(validation_alias="conversation", description="Its conversation.")


class FullDeadLetter(DeadLetterDocument):
    """A dead letter with its bytes."""

    envelope: Octets = Field(
        validation_alias="data", description="Its bytes as text; what is not UTF-8 is replaced."
    )


class DeadLetters(Document):
    """Dead letters, oldest first."""

    dead_letters: tuple[DeadLetterDocument, ...] = Field(description="The dead letters.")


class ReplayedDocument(Document):
    """A message that was sent once more."""

    dead_letter: str = Field(default="", description="The dead letter it was; empty: it was none.")
    replays: str = Field(default="", description="The old message; empty: it was a dead letter.")
    how: Literal["message", "task", "copy", "refused", "skipped"] = Field(
        description="`message`: a new message; `task`: a new root session; `copy`: the same bytes; "
        "`refused`, `skipped`: nothing was sent."
    )
    done: bool = Field(
        default=True, description="Whether this was done; false: `--dry-run`, refused or skipped."
    )
    message_id: str = Field(default="", description="The new message; else empty.")
    session: str = Field(default="", description="The new root session; else empty.")
    entry: str = Field(default="", description="The new entry of the same bytes; else empty.")
    rule: str = Field(default="", description="The rule for which it was refused; else empty.")
    reason: str = Field(default="", description="Why it was refused or skipped, in words; else empty.")

    @classmethod
    def made(cls, how: str, new_id: str = "", **facts: Any) -> ReplayedDocument:
        """The document about a replay; ``new_id`` is the id of the message, the session or the entry that it made."""
        field = {"message": "message_id", "task": "session", "copy": "entry"}.get(how)
        return cls.model_validate({"how": how, **facts, **({field: new_id} if field else {})})


class ReplayedMessages(Document):
    """Dead letters, or messages of the trail, that were replayed."""

    replayed: tuple[ReplayedDocument, ...] = Field(description="What was made of each.")


class Dropped(Document):
    """Dead letters that were dropped."""

    dropped: tuple[str, ...] = Field(description="Their ids.")


class Judged(FindingDocument):
    """Something that validation found in a document."""

    line: int | None = Field(description="The line; null: unknown.")
    path: str | None = Field(description="The XPath of the element; null: the document as a whole.")
    value: str | None = Field(description="The value that is wrong, cut where it is long; null: none.")


class Validated(Document):
    """What the rules say about one document."""

    file: str = Field(description="The file as it was named; `-`: standard input.")
    valid: bool = Field(description="Whether no finding is an error.")
    findings: tuple[Judged, ...] = Field(description="What was found, warnings and infos included.")


class ValidatedDocuments(Document):
    """What the rules say about documents."""

    documents: tuple[Validated, ...] = Field(
        description="The documents in the order in which they were named."
    )


class Verified(Document):
    """What the signature of one document says."""

    file: str = Field(description="The file as it was named; `-`: standard input.")
    valid: bool = Field(description="Whether the signature is good.")
    rule: str | None = Field(default=None, description="The rule that it breaks; null: it is good.")
    message: str | None = Field(default=None, description="What is wrong with it; null: it is good.")
    signer: str | None = Field(default=None, description="The agent that signed; null: it is not good.")
    key_id: str | None = Field(default=None, description="The key that signed.")
    algorithm: str | None = Field(default=None, description="The algorithm of the signature.")
    signed: Time = Field(default=None, description="When it was signed.")


class VerifiedDocuments(Document):
    """What the signatures of documents say."""

    documents: tuple[Verified, ...] = Field(
        description="The documents in the order in which they were named."
    )
