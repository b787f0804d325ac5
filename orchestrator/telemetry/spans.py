"""Spans of runs: ids that follow from what they are of, and the names of OpenTelemetry's conventions for agents.

A new release of the conventions changes this module and no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.ids import run_id, span_id, trace_id

#: Of the conventions; development versions bear the number of the next release.
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/gen-ai-dev/1.42.0-dev"
#: Kind and states of a span in OTLP.
_INTERNAL: Final = 1
_ERROR: Final = 2
_MS: Final = 1_000_000
_FAILED: Final = frozenset({"failed", "lost"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpan:
    """An attempt of a run that has ended: from its claim to its commit, or to the moment at which its worker counted as lost."""

    root: str
    session: str
    run: str
    attempt: int
    agent: str
    #: start, callbacks or user.
    cause: str
    #: completed, failed, stopped, parked or lost.
    end: str
    began_ms: int
    ended_ms: int
    input_tokens: int
    output_tokens: int
    #: How many callbacks it carried, and the spans that ended with them, up to a bound.
    callbacks: int
    links: tuple[str, ...]
    #: The span of the run that launched its session; empty: a root, or it is not known any more.
    launched_by: str

    @property
    def id(self) -> str:
        """Its id."""
        return span_id(self.run, self.attempt)

    @property
    def parent(self) -> str:
        """The span that it stands in: of the launch, else of the first attempt of its root; empty for that one itself."""
        first = span_id(run_id(self.root, 1), 1)
        return self.launched_by or (first if first != self.id else "")

    def to_otlp(self) -> dict[str, Any]:
        """Return it as OTLP has a span in JSON. No text of a session is in it."""
        trace = trace_id(self.root)
        attributes: dict[str, str | int] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": self.agent,
            "gen_ai.conversation.id": self.session,
            "gen_ai.usage.input_tokens": self.input_tokens,
            "gen_ai.usage.output_tokens": self.output_tokens,
            "orchestra.session.id": self.session,
            "orchestra.root.id": self.root,
            "orchestra.run.id": self.run,
            "orchestra.run.try": self.attempt,
            "orchestra.run.cause": self.cause,
            "orchestra.run.end": self.end,
            "orchestra.callbacks.injected": self.callbacks,
            **({"error.type": self.end} if self.end in _FAILED else {}),
        }
        return {
            "traceId": trace,
            "spanId": self.id,
            **({"parentSpanId": self.parent} if self.parent else {}),
            "name": f"invoke_agent {self.agent}",
            "kind": _INTERNAL,
            "startTimeUnixNano": str(self.began_ms * _MS),
            "endTimeUnixNano": str(max(self.began_ms, self.ended_ms) * _MS),
            "attributes": attributes_of(attributes),
            "links": [{"traceId": trace, "spanId": link} for link in self.links],
            "status": {"code": _ERROR} if self.end in _FAILED else {},
        }


def attributes_of(facts: Mapping[str, str | int]) -> list[dict[str, Any]]:
    """Return attributes as OTLP has them in JSON; whole numbers are text there."""
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in facts.items()
    ]
