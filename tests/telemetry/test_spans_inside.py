"""Spans that code of a run begins stand in the span of that run, whoever makes them; programs get its trace context."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai import Agent
from pydantic_ai.models.instrumented import InstrumentationSettings

from orchestrator import agent, define_agent, model_agent
from orchestrator.ids import span_id, trace_id
from orchestrator.testing import Call, Say, Script, scripted_model
from tests.telemetry.conftest import Watched

PROMPT = "prompt-that-no-span-has"


@pytest.fixture
def spans() -> Iterator[Callable[[], tuple[ReadableSpan, ...]]]:
    """What pydantic-ai says to a tracer of OpenTelemetry's SDK, without texts."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    Agent.instrument_all(InstrumentationSettings(tracer_provider=provider, include_content=False))
    yield kept.get_finished_spans
    Agent.instrument_all(False)
    provider.shutdown()


@agent("traced-child")
def child(ctx) -> str:  # type: ignore[no-untyped-def]
    return str(ctx.traceparent)


def test_spans_of_models_stand_in_the_spans_of_their_runs(
    watch: Callable[..., Watched], spans: Callable[[], tuple[ReadableSpan, ...]]
) -> None:
    """Of both runs of a lead that delegates and is resumed: each in its own, and all in the trace of the tree."""
    script = Script(
        Say(calls=[Call("delegate", agent="traced-child", task=PROMPT)]),
        Say("waits"),
        lambda request: Say(f"<response>{request.last[-3:]}</response>"),
    )
    lead = model_agent(
        "traced-lead", model=scripted_model(script), instructions="You lead.", role="coordinator"
    )
    stack = watch(lead, child)
    session = stack.run("traced-lead", PROMPT).session
    runs = {run.number: run.id for run in stack.ledger.runs(session)}
    outer = [span for span in spans() if span.parent is not None and span.parent.is_remote]
    parents = [f"{span.parent.span_id:016x}" for span in outer if span.parent is not None]
    assert parents == [span_id(runs[1], 1), span_id(runs[2], 1)]
    assert {f"{span.context.trace_id:032x}" for span in spans() if span.context} == {trace_id(session)}
    assert any(span.name.startswith("chat") for span in spans())
    assert PROMPT not in "".join(span.to_json() for span in spans())


def test_an_agent_and_its_programs_know_the_trace_context(watch: Callable[..., Watched]) -> None:
    command = ["sh", "-c", 'echo "$TRACEPARENT"']
    program = define_agent(
        "traced-program", source="here:1", executor="command", options={"command": command, "output": "text"}
    )
    stack = watch(child, program)
    for name in ("traced-child", "traced-program"):
        done = stack.run(name, "go")
        (run,) = stack.ledger.runs(done.session)
        assert done.text.strip() == f"00-{trace_id(done.session)}-{span_id(run.id, 1)}-01"
    assert "TRACEPARENT" not in os.environ
