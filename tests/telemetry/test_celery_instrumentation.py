"""Where somebody instruments Celery, its spans of our notifications do not stand beside the spans of runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from orchestrator.config.settings import load_settings
from orchestrator.dispatch import Dispatcher, build_celery
from orchestrator.ids import span_id, trace_id
from tests.console.conftest import stack_of
from tests.telemetry import celery_signals
from tests.waiting import wait_until

AGENTS = """

import json
import os
from pathlib import Path

from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from orchestrator import agent

WRITTEN = Path({written!r})


class _ToFile(SpanExporter):
    def export(self, spans):
        with WRITTEN.open("a") as file:
            file.writelines(span.to_json(indent=None) + "\\n" for span in spans)
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(_ToFile()))
tracer = provider.get_tracer("agents")
instrumentor().instrument(tracer_provider=provider)


@agent("traced-lead", role="coordinator")
def lead(ctx):
    if ctx.cause == "start":
        for name in ("one", "two"):
            ctx.delegate("traced-child", name)
        ctx.wait_for("all")
        return "waiting"
    return "done"


@agent("traced-child")
def child(ctx):
    with tracer.start_as_current_span("own work"):
        return "a word"
"""


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """The spans of Celery in this process."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    instruments = celery_signals.instrumentor()
    instruments.instrument(tracer_provider=provider)
    yield kept
    instruments.uninstrument()


def test_a_notification_has_no_span_where_it_is_sent_and_its_receiver_is_told(
    spans: InMemorySpanExporter, redis: redis_py.Redis, redis_url: str, tmp_path: Path
) -> None:
    app = build_celery(load_settings(redis_url=redis_url, data=tmp_path / "data"))
    app.send_task("a.task.of.another.program", queue="theirs")
    Dispatcher(app).wake([("writer", "ours")])
    assert [span.name for span in spans.get_finished_spans()] == ["apply_async/a.task.of.another.program"]
    raw: Any = redis.lindex("ours", 0)
    assert json.loads(raw)["headers"]["traceparent"].endswith("-00"), "not sampled"


def test_only_the_spans_of_runs_and_of_their_code_are_there(tmp_path: Path) -> None:
    """Of a tree whose workers are instrumented: what the agent traces is there, in its run's span, and nothing else."""
    written = tmp_path / "spans.jsonl"
    source = Path(celery_signals.__file__).read_text(encoding="utf-8")
    with stack_of(tmp_path, source + AGENTS.replace("{written!r}", repr(str(written)))) as (_, client):
        root = client.submit("traced-lead", "go").id
        assert client.result(root, timeout_s=60) == "done"
        children = [one.id for one in client.tree(root) if one.parent]
        runs = [client.runs(name)[0].id for name in children]
        wait_until(lambda: written.exists() and len(written.read_text().splitlines()) >= 2, "the spans", 20)
    found = [json.loads(line) for line in written.read_text().splitlines()]
    assert {span["name"] for span in found} == {"own work"}
    assert {span["parent_id"] for span in found} == {f"0x{span_id(run, 1)}" for run in runs}
    assert {span["context"]["trace_id"] for span in found} == {f"0x{trace_id(root)}"}
