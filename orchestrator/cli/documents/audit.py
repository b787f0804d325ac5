"""The documents about the audit trail."""

from __future__ import annotations

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
from orchestrator.cli.documents.base import Document, Octets, prints
from orchestrator.cli.inspection import Inspected


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
