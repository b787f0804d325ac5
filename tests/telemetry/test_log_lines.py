"""Log lines: each event is in the reference, lines of a run name its trace, and none has a prompt or an answer."""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from orchestrator import agent, model_agent
from orchestrator.ids import span_id, trace_id
from orchestrator.log import _JsonFormatter
from orchestrator.testing import Say, Script, scripted_model
from tests.telemetry.conftest import Watched

ROOT = Path(__file__).resolve().parents[2]
PROMPT, ANSWER, DETAIL = "prompt-nobody-may-read", "answer-nobody-may-read", "detail-nobody-may-read"


@pytest.fixture
def lines() -> Iterator[Callable[[], list[dict[str, object]]]]:
    """What is written at level info and above, as JSON has it."""
    written: list[str] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(self.format(record))

    handler, root = Keeping(logging.INFO), logging.getLogger()
    handler.setFormatter(_JsonFormatter({}))
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield lambda: [json.loads(line) for line in written]
    root.removeHandler(handler)
    root.setLevel(before)


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """What writes the reference of events."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("generated_log")


@agent("quiet-child")
def child(ctx) -> str:  # type: ignore[no-untyped-def]
    print(DETAIL)
    return ANSWER


@agent("quiet-lead", attempts=2)
def lead(ctx) -> str:  # type: ignore[no-untyped-def]
    if ctx.callbacks:
        return ANSWER
    if ctx.attempt == 1:
        raise ValueError("once")
    ctx.step("look", lambda: DETAIL)
    ctx.delegate("quiet-child", PROMPT, title=DETAIL)
    return "waits"


@pytest.mark.parametrize("ids", [True, False])
def test_lines_of_a_run_name_its_trace_and_no_prompt_and_no_answer(
    watch: Callable[..., Watched],
    lines: Callable[[], list[dict[str, object]]],
    reference: ModuleType,
    *,
    ids: bool,
) -> None:
    script = Script(Say(f"<response>{ANSWER}</response>"))
    thinker = model_agent("quiet-model", model=scripted_model(script), instructions=DETAIL)
    stack = watch(lead, child, thinker, log_traces=ids)
    session = stack.run("quiet-lead", PROMPT, title=DETAIL).session
    stack.run("quiet-model", PROMPT)
    found = lines()
    said = json.dumps(found)
    for text in (PROMPT, ANSWER, DETAIL):
        assert text not in said
    ended = [line for line in found if line["event"] == "run-ended" and line["session"] == session]
    assert len(ended) >= 3
    (run,) = [run for run in stack.ledger.runs(session) if run.number == 1]
    (first,) = [line for line in ended if line["run"] == run.id and line["attempt"] == 1]
    wanted = (trace_id(session), span_id(run.id, 1)) if ids else (None, None)
    assert (first.get("trace_id"), first.get("span_id")) == wanted
    events = {str(line["event"]) for line in found if "logger" not in line}
    assert events <= set(reference.MEANINGS)


def test_every_event_of_the_source_is_in_the_reference(reference: ModuleType) -> None:
    """The generator refuses one that is not explained, and one that is not there; the page has what it writes."""
    table = reference.log_lines()
    assert table in (ROOT / "docs" / "reference" / "events.md").read_text(encoding="utf-8")
