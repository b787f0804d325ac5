"""The documents about the audit trail and its messages."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from orchestrator.audit.records import MessageRecord
from orchestrator.audit.report.model import (
    AgentRow,
    Bucket,
    CallbackRow,
    CostRow,
    FailureRow,
    HopRow,
    Percentiles,
    Report,
)
from orchestrator.audit.transitions import Transition
from orchestrator.audit.verification import Break
from orchestrator.cli.documents.base import Document, Octets, Time, prints, show_as_text
from orchestrator.doctor.inspection import Inspected
from orchestrator.envelope.findings import Finding
from orchestrator.router.deadletters.store import DeadLetter
from orchestrator.streams import StreamId


@prints(Break)
class AuditBreak(Document):
    """A place where the audit trail is not what was written."""


@prints(
    Inspected,
    only="file intact messages published steps steps_published waiting behind_ms lost breaks",
    numbers="behind_ms",
    waiting="not_written_yet",
    lost="missing",
)
class AuditState(Document):
    """State of the audit trail: is it whole?"""


@prints(Transition)
class TransitionDocument(Document):
    """A change of one thing in the ledger."""


class Transitions(Document):
    """A page of what the ledger changed, newest first."""

    transitions: tuple[TransitionDocument, ...] = Field(description="The changes.")
    next: str | None = Field(
        description="Where the next page begins, for `--before`; null: nothing is older."
    )


class PrunedTrail(Document):
    """The oldest part of the trail that was removed."""

    messages: int = Field(description="Rows of messages.")
    dead_letters: int = Field(description="Rows of dead letters.")
    transitions: int = Field(description="Rows of transitions; a row has many steps of the ledger.")
    removed: bool = Field(description="Whether they were removed; false: `--dry-run`.")


class RedactedMessage(Document):
    """A message whose text was removed from the trail."""

    message_id: str = Field(description="Its id.")
    rows: int = Field(description="How many rows lost their text: one for each attempt.")
    reason: str = Field(description="Why.")


class TransferredTrail(Document):
    """A trail that was exported."""

    file: str = Field(description="The file.")
    messages: int = Field(description="Rows of messages.")


@prints(Percentiles, numbers="p50_ms p95_ms p99_ms max_ms")
class Durations(Document):
    """Durations in milliseconds, by nearest rank; null: nothing was measured."""


@prints(HopRow)
class Hop(Document):
    """Times that one hop took."""


@prints(AgentRow)
class AgentFigures(Document):
    """Messages and tasks of one agent."""


@prints(FailureRow)
class Failures(Document):
    """Dead letters of one rule."""


@prints(CallbackRow, also="pending")
class CallbackFigures(Document):
    """Callbacks that were promised and kept: carried + launched = delivered + dead + pending."""


@prints(CostRow)
class Spent(Document):
    """Spending of an agent's sessions on calls of models."""


@prints(Bucket)
class TimelineBucket(Document):
    """Counts of one hour or day."""


@prints(Report, also="delivered")
class AuditReport(Document):
    """Report on a time: messages, refusals, replies, callbacks and spending."""


@prints(
    MessageRecord, without="xml salt commitment body_octets", parent_id="parent_message_id", entry_id="entry"
)
class MessageDocument(Document):
    """A published message as the audit trail keeps it; what could not be read of it is empty."""


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


show_as_text(StreamId)


class Published(Document):
    """A message that was published."""

    message_id: str = Field(description="Its id.")
    stream: str = Field(description="Its stream: `shard/type/priority`.")
    entry: str = Field(description="The id of its entry in the stream.")
    note: str | None = Field(default=None, description="What the sender should know of it; null: nothing.")


@prints(DeadLetter, without="data", id="dead_letter", conversation="correlation_id")
class DeadLetterDocument(Document):
    """A message that is not tried again; what could not be read of its header is empty."""


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
    how: Literal["message", "task", "copy", "notification", "refused", "skipped"] = Field(
        description="`message`: a new message; `task`: a new root session; `copy`: the same bytes; `notification`: its target has it; "
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
        """Return the document about a replay; ``new_id`` is the id of the message, the session or the entry that it
        made.
        """
        field = {"message": "message_id", "task": "session", "copy": "entry"}.get(how)
        return cls.model_validate({"how": how, **facts, **({field: new_id} if field else {})})


class ReplayedMessages(Document):
    """Dead letters, or messages of the trail, that were replayed."""

    replayed: tuple[ReplayedDocument, ...] = Field(description="What was made of each.")


class Dropped(Document):
    """Dead letters that were dropped."""

    dropped: tuple[str, ...] = Field(description="Their ids.")


@prints(Finding)
class Judged(Document):
    """Something that validation found in a document."""


class Validated(Document):
    """Result of the rules for one document."""

    file: str = Field(description="The file as it was named; `-`: standard input.")
    valid: bool = Field(description="Whether no finding is an error.")
    findings: tuple[Judged, ...] = Field(description="What was found, warnings and infos included.")


class ValidatedDocuments(Document):
    """Results of the rules for documents."""

    documents: tuple[Validated, ...] = Field(
        description="The documents in the order in which they were named."
    )


class Verified(Document):
    """Result of the check of one document's signature."""

    file: str = Field(description="The file as it was named; `-`: standard input.")
    valid: bool = Field(description="Whether the signature is good.")
    rule: str | None = Field(default=None, description="The rule that it breaks; null: it is good.")
    message: str | None = Field(default=None, description="What is wrong with it; null: it is good.")
    signer: str | None = Field(default=None, description="The agent that signed; null: it is not good.")
    key_id: str | None = Field(default=None, description="The key that signed.")
    algorithm: str | None = Field(default=None, description="The algorithm of the signature.")
    signed: Time = Field(default=None, description="When it was signed.")


class VerifiedDocuments(Document):
    """Results of the check of documents' signatures."""

    documents: tuple[Verified, ...] = Field(
        description="The documents in the order in which they were named."
    )
