"""The documents about the audit trail."""

from __future__ import annotations

from pydantic import Field

from orchestrator.cli.documents.base import Document, Time
from orchestrator.cli.documents.budgets import CostDocument


class AuditBreak(Document):
    """A place where the audit trail is not what was written."""

    table: str = Field(description="The table.")
    seq: int = Field(description="The row.")
    what: str = Field(description="What is wrong there.")


class AuditState(Document):
    """Whether the audit trail is whole."""

    file: str = Field(description="The audit database.")
    intact: bool = Field(description="Whether the trail is what was written.")
    messages: int = Field(description="Entries that it holds.")
    published: int | None = Field(description="Entries that were published; null: Redis was not asked.")
    steps: int = Field(description="Steps of the ledger that were written so far.")
    steps_published: int | None = Field(
        description="Steps of the ledger that were published; null: Redis was not asked."
    )
    not_written_yet: int | None = Field(
        validation_alias="waiting",
        description="Published entries that a writer is still to write; null: Redis was not asked.",
    )
    behind_ms: int | None = Field(
        description="Milliseconds since the oldest of them was published; 0: there are none; null: Redis was not asked."
    )
    missing: int = Field(
        validation_alias="lost", description="Published entries that it lacks and that no writer will write."
    )
    breaks: tuple[AuditBreak, ...] = Field(description="Where it is not what was written.")


class AuditBacklog(Document):
    """What was published and is not in the audit trail yet."""

    entries: int = Field(description="All entries.")
    messages: int = Field(description="Messages.")
    steps: int = Field(description="Steps of the ledger.")
    dead_letters: int = Field(description="Dead letters.")
    oldest_ms: int = Field(
        description="Milliseconds since the oldest of them was published; 0: there are none."
    )


class TransitionDocument(Document):
    """One change of one thing in the ledger."""

    at: Time = Field(validation_alias="at_ms", description="When.")
    kind: str = Field(description="session, run, callback, item, step, budget or approval.")
    session: str = Field(description="Its session.")
    id: str = Field(description="Its id; '-': the session itself.")
    state: str = Field(description="The state that it has from then on.")
    detail: str = Field(description="What else is known of it.")
    by: str = Field(description="The step of the ledger that made it.")
    stream: str = Field(description="The stream of that step.")
    entry_id: str = Field(description="Its entry there; what has the same was changed at once.")


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
    """A trail that was exported or imported."""

    file: str = Field(description="The file.")
    messages: int = Field(description="Rows of messages.")


class Durations(Document):
    """Durations in milliseconds, by nearest rank; null: nothing was measured."""

    count: int = Field(description="How many were measured.")
    p50_ms: int | None = Field(description="Half of them took no longer.")
    p95_ms: int | None = Field(description="The same of 95 in 100.")
    p99_ms: int | None = Field(description="The same of 99 in 100.")
    max_ms: int | None = Field(description="The longest.")


class Hop(Document):
    """How long one hop took."""

    hop: str = Field(
        description="published-routed, ready-claimed, claimed-answered, answered-delivered, promised-delivered, task, "
        "query-reply or published-audited."
    )
    what: str = Field(description="From what to what.")
    times: Durations = Field(description="How long it took.")


class AgentFigures(Document):
    """What an agent said and did."""

    agent: str = Field(description="The agent.")
    sent: int = Field(description="Messages that it sent.")
    received: int = Field(description="Messages to it.")
    dead: int = Field(description="Its entries that became dead letters.")
    tasks: Durations = Field(description="How long tasks took that it was given and completed.")


class Failures(Document):
    """Dead letters of one rule."""

    rule: str = Field(description="The rule.")
    checked_by: str = Field(description="parser, schema, content, signature or router.")
    count: int = Field(description="Dead letters.")


class CallbackFigures(Document):
    """Callbacks that were promised and kept: carried + launched = delivered + dead + pending."""

    agent: str = Field(description="Agent of the sessions that were promised them; empty: not known, or all.")
    carried: int = Field(description="Promised before the time of the report, and moved in it.")
    launched: int = Field(description="Promised in it.")
    delivered: int = Field(description="Delivered.")
    dead: int = Field(description="Dead.")
    pending: int = Field(description="Neither, at the end of the time.")


class Spent(Document):
    """What the sessions of an agent spent on calls of models."""

    agent: str = Field(description="The agent; empty: not known.")
    cost: CostDocument = Field(description="What it spent.")


class TimelineBucket(Document):
    """What happened in one hour or day."""

    start: Time = Field(validation_alias="start_ms", description="When it begins.")
    messages: int = Field(description="Messages.")
    retries: int = Field(description="Further attempts.")
    dead: int = Field(description="Entries published in it that became dead letters.")
    finished: int = Field(description="Sessions that came to an answer.")
    failed: int = Field(description="Sessions that failed or were stopped.")
    cost: CostDocument = Field(description="What calls of models cost.")


class AuditReport(Document):
    """What was said, refused, answered, promised and spent in a time."""

    database: str = Field(description="The audit database.")
    made: Time = Field(validation_alias="made_ms", description="When the report was made.")
    since: Time = Field(
        validation_alias="since_ms", description="The time asked for; null: from the first on."
    )
    until: Time = Field(validation_alias="until_ms", description="Its end; null: to the last.")
    first: Time = Field(
        validation_alias="first_ms", description="When the first entry was published; null: none."
    )
    last: Time = Field(validation_alias="last_ms", description="When the last was; null: none.")
    entries: int = Field(description="Published entries, retries included.")
    messages: int = Field(description="Messages: first attempts.")
    conversations: int = Field(description="Conversations.")
    bytes: int = Field(description="Bytes of all entries.")
    retries: int = Field(description="Further attempts.")
    retried: int = Field(description="Messages that needed more than one attempt.")
    attempts: int = Field(description="The most attempts of one message.")
    dead: int = Field(description="Entries that became dead letters.")
    delivered: float | None = Field(
        description="The part of the messages that did not become dead letters, from 0 to 1; null: no messages."
    )
    by_type: dict[str, int] = Field(description="Messages by type.")
    by_priority: dict[str, int] = Field(description="Messages by priority.")
    failures: tuple[Failures, ...] = Field(
        description="Dead letters of the time by rule, the commonest 50 first."
    )
    agents: tuple[AgentFigures, ...] = Field(description="The 50 busiest agents.")
    other_agents: int = Field(description="How many others there are.")
    hops: tuple[Hop, ...] = Field(description="How long each hop took.")
    sessions: dict[str, int] = Field(
        description="Sessions that were begun, finished, failed, stopped, deleted; one that was resumed may finish twice."
    )
    runs_retried: int = Field(description="Tries of runs beyond the first.")
    callbacks: CallbackFigures = Field(description="Callbacks promised and kept.")
    callbacks_by_agent: tuple[CallbackFigures, ...] = Field(description="The same by agent.")
    spent: CostDocument = Field(description="What calls of models cost.")
    spent_by_agent: tuple[Spent, ...] = Field(description="The same by agent.")
    by: str = Field(description="What the time line is divided by: hour or day, of UTC.")
    timeline: tuple[TimelineBucket, ...] = Field(description="The hours or days in which something happened.")
    longest_conversation: str = Field(
        description="Correlation-id of the conversation with the most entries; empty: none."
    )
