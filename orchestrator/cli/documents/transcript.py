"""The document about what was said in a session."""

from __future__ import annotations

from pydantic import Field

from orchestrator.cli.documents.base import Document, prints
from orchestrator.cli.documents.sessions import CostDocument
from orchestrator.transcript import model


@prints(model.Part)
class PartDocument(Document):
    """A piece of a turn."""


@prints(model.Turn, without="nano_usd", also="usd")
class TurnDocument(Document):
    """A turn of an agent: what it was given, and what it said and did."""


@prints(model.Attempt)
class AttemptDocument(Document):
    """A try of a run."""


@prints(model.Delegation)
class DelegationDocument(Document):
    """A session that was launched, and what came back."""


@prints(model.Verdict)
class VerdictDocument(Document):
    """An approval that was asked for, and its answer."""


@prints(model.RunTranscript)
class RunTranscriptDocument(Document):
    """A run: what it was given, its tries, what it launched."""

    cost: CostDocument = Field(description="The sum over its turns.")


@prints(model.Transcript)
class TranscriptDocument(Document):
    """All that was said in a session, run by run."""
