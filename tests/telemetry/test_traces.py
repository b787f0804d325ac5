"""Traces: each attempt of a run is exactly one span, also of killed workers; sums are those of the ledger."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from orchestrator import agent, model_agent
from orchestrator.errors import InputError
from orchestrator.ids import span_id, trace_id
from orchestrator.ledger import PollRequest, Slot
from orchestrator.telemetry import Exporter
from orchestrator.telemetry.otlp import TraceSender
from orchestrator.testing import Say, Script, scripted_model
from tests.commands import run_command
from tests.telemetry.conftest import Watched
from tests.waiting import wait_until

SECRET = "a prompt that nobody else may read"


class Collector:
    """A collector that keeps every span it is sent, and may refuse them."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.refuses = False
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if collector.refuses or self.path != "/v1/traces":
                    self.send_response(503)
                    self.end_headers()
                    return
                collector.requests.append(body)
                for resource in body["resourceSpans"]:
                    for scope in resource["scopeSpans"]:
                        collector.spans += scope["spans"]
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def facts(span: dict[str, Any]) -> dict[str, str | int]:
    found: dict[str, str | int] = {}
    for attribute in span["attributes"]:
        (kind, value), *_ = attribute["value"].items()
        found[attribute["key"]] = int(value) if kind == "intValue" else value
    return found


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()


def traced(stack: Watched, collector: Collector) -> None:
    """The exporter of the stack sends traces from now on."""
    stack.exporter = Exporter(stack.parts, keep_s=0, traces=TraceSender(collector.url))
    stack.samples()


@agent("traced-leaf")
def leaf(ctx) -> str:  # type: ignore[no-untyped-def]
    return "done"


@agent("traced-lead")
def lead(ctx) -> str:  # type: ignore[no-untyped-def]
    if not ctx.callbacks:
        for number in range(100):
            ctx.delegate("traced-leaf", f"{SECRET} {number}")
    return "all"


@agent("breaks-once", attempts=2)
def breaks_once(ctx) -> str:  # type: ignore[no-untyped-def]
    if ctx.attempt == 1:
        raise ValueError(SECRET)
    return "second time"


def test_each_attempt_of_a_tree_is_one_span(watch: Callable[..., Watched], collector: Collector) -> None:
    """A hundred children and an agent that fails once; killed exporters; links from resumes to the children that ended."""
    stack = watch(lead, leaf, breaks_once)
    traced(stack, collector)
    session = stack.run("traced-lead", SECRET).session
    other = stack.run("breaks-once", SECRET).session
    stack.until(100, "orchestra_callbacks_total", state="delivered")
    stack.calm()
    ledger = stack.ledger
    runs = {run.id: run for root in (session, other) for s in ledger.tree(root) for run in ledger.runs(s.id)}
    wanted = {span_id(run.id, attempt) for run in runs.values() for attempt in range(1, run.attempt + 1)}
    assert Counter(span["spanId"] for span in collector.spans) == Counter(wanted)
    for span in collector.spans:
        said = facts(span)
        run = runs[str(said["orchestra.run.id"])]
        assert said["gen_ai.conversation.id"] == run.session
        assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
        if said["orchestra.run.try"] == run.attempt:
            assert said["orchestra.run.end"] == run.state == "completed"
            assert int(span["endTimeUnixNano"]) // 10**6 == pytest.approx(run.ended_ms, abs=50)
    tree = [span for span in collector.spans if span["traceId"] == trace_id(session)]
    (first,) = [span for span in tree if "parentSpanId" not in span]
    assert first["spanId"] == span_id(ledger.runs(session)[0].id, 1)
    leaves = [span for span in tree if span["name"] == "invoke_agent traced-leaf"]
    assert {span["parentSpanId"] for span in leaves} == {first["spanId"]}
    resumed = [span for span in tree if span["name"] == "invoke_agent traced-lead"]
    links = [link["spanId"] for span in resumed for link in span["links"]]
    # Some may have been given back before they began, by a slot that held them with a slow one.
    assert set(links) == {span_id(run.id, run.attempt) for run in runs.values()} & {
        s["spanId"] for s in leaves
    }
    assert len(links) == 100
    assert sum(int(facts(span)["orchestra.callbacks.injected"]) for span in resumed) == 100
    failed, second = sorted(
        (span for span in collector.spans if span not in tree),
        key=lambda span: str(span["startTimeUnixNano"]),
    )
    assert (facts(failed)["error.type"], failed["status"]) == ("failed", {"code": 2})
    assert (facts(second)["orchestra.run.end"], second["status"]) == ("completed", {})
    assert SECRET not in json.dumps(collector.requests)


def test_tokens_of_spans_are_those_of_the_ledger(watch: Callable[..., Watched], collector: Collector) -> None:
    script = Script(*(Say(f"<response>answer {n}</response>") for n in range(5)))
    stack = watch(model_agent("counting", model=scripted_model(script), instructions="You count."))
    traced(stack, collector)
    for number in range(5):
        stack.run("counting", f"go {number}")
    stack.until(5, "orchestra_runs_total", end="completed")
    stack.calm()
    roots = stack.parts.reader.roots(0)
    for place, name in enumerate(("input", "output")):
        spent = sum((root.used.input_tokens, root.used.output_tokens)[place] for root in roots)
        assert spent > 0
        assert sum(int(facts(span)[f"gen_ai.usage.{name}_tokens"]) for span in collector.spans) == spent
        assert stack.of("orchestra_tokens_total", direction=name) == spent


def test_a_killed_worker_and_a_killed_exporter(watch: Callable[..., Watched], collector: Collector) -> None:
    """Two attempts whose workers were lost are a span each; what was sent before the exporter was killed has the same id."""
    stack = watch(leaf, slots=0)
    traced(stack, collector)
    session = stack.client.submit("traced-leaf", "go").id
    for number in range(2):
        wait_until(lambda: stack.ledger.sweep.ready(0, ["traced-leaf"]), "a ready run")
        slot = Slot(name=f"gone-{number}", worker="gone", agents=("traced-leaf",))
        stack.ledger.claim_next(0, PollRequest(slot=slot, claim=f"clm_gone{number}"))
        stack.until(number + 1, "orchestra_leases_lost_total", cause="lost")
    (run,) = stack.ledger.runs(session)
    assert [span["spanId"] for span in collector.spans] == [span_id(run.id, 1), span_id(run.id, 2)]
    assert [facts(span)["orchestra.run.end"] for span in collector.spans] == ["lost", "lost"]
    stack.exporter._trail._kept = None
    before = len(collector.spans)
    stack.exporter.close()
    traced(stack, collector)
    stack.samples()
    assert len(collector.spans) == before


def test_what_ended_before_the_first_start_is_history(
    watch: Callable[..., Watched], collector: Collector
) -> None:
    """A long trail is counted and not sent."""
    stack = watch(leaf)
    stack.run("traced-leaf", "one")
    stack.until(1, "orchestra_runs_total")
    traced(stack, collector)
    stack.run("traced-leaf", "two")
    stack.until(2, "orchestra_runs_total")
    assert len(collector.spans) == 1


def test_a_collector_that_is_away_costs_no_span_and_no_scrape(
    watch: Callable[..., Watched], collector: Collector
) -> None:
    """Spans wait; those that an exporter had when it was killed are sent by the next one."""
    stack = watch(leaf)
    traced(stack, collector)
    stack.run("traced-leaf", "one")
    stack.until(1, "orchestra_runs_total")
    stack.exporter.close()
    traced(stack, collector)
    collector.refuses = True
    stack.run("traced-leaf", "two")
    stack.until(2, "orchestra_runs_total")
    assert len(collector.spans) == 1
    stack.exporter.close()
    traced(stack, collector)
    stack.until(2, "orchestra_runs_total")
    collector.refuses = False
    stack.samples()
    assert Counter(Counter(span["spanId"] for span in collector.spans).values()) == {1: 2}


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="no address of a collector"):
        TraceSender("localhost:4318")
    done = run_command("metrics", "--otlp", "file:///etc/passwd")
    assert done.exit_code == 2
    assert "no address of a collector" in done.output
