"""Log lines: an event and fields, the same for our own lines and those of other libraries."""

from __future__ import annotations

import json
import logging
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.config.settings import load_settings
from orchestrator.log import configure_logging, get_logger
from orchestrator.worker.context.event_log import EventLog
from orchestrator.worker.execution.printing import SHOWN_CHARS, SHOWN_TRACEBACK_CHARS, RunEnd, celery_event


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    yield
    root.handlers, root.level = handlers, level


def write(capfd: pytest.CaptureFixture[str], lines: Callable[[], None]) -> dict[str, object]:
    """The one line that comes of it, as a machine reads it."""
    configure_logging(load_settings(log_format="json", log_level="info"), service="toy")
    lines()
    (line,) = capfd.readouterr().err.splitlines()
    parsed: dict[str, object] = json.loads(line)
    return parsed


def test_a_line_holds_the_event_the_fields_and_whose_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    line = write(
        capfd,
        lambda: get_logger(run="run_1").bind(agent="lead").info("run-claimed", attempt=2, path=Path("x")),
    )
    assert str(line.pop("time")).endswith("Z")
    assert line == {
        "level": "info",
        "event": "run-claimed",
        "service": "toy",
        "run": "run_1",
        "agent": "lead",
        "attempt": 2,
        "path": "x",
    }


def test_lines_of_other_libraries_come_out_in_the_same_form(capfd: pytest.CaptureFixture[str]) -> None:
    line = write(
        capfd,
        lambda: logging.getLogger("celery.worker").warning(
            "lost %s", "contact", extra={"queue": "orchestra"}
        ),
    )
    assert (line["event"], line["logger"], line["queue"]) == ("lost contact", "celery.worker", "orchestra")


def test_an_event_is_no_format_string(capfd: pytest.CaptureFixture[str]) -> None:
    line = write(
        capfd, lambda: get_logger().warning("100% {done} %s", text="a\nb", name="n", message="m", args=(1,))
    )
    assert (line["event"], line["text"], line["name"], line["message"]) == (
        "100% {done} %s",
        "a\nb",
        "n",
        "m",
    )


def test_an_exception_brings_its_traceback_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        try:
            raise ZeroDivisionError("no")
        except ZeroDivisionError:
            get_logger().exception("act-failed")

    line = write(capfd, fail)
    assert line["level"] == "error"
    assert "ZeroDivisionError: no" in str(line["exception"])


def test_an_exception_that_is_handed_in_brings_its_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    """Also long after it was handled, and at any level."""
    try:
        raise ZeroDivisionError("no")
    except ZeroDivisionError as error:
        kept = error
    line = write(capfd, lambda: get_logger().warning("agent-failed", exc_info=kept, run="run_1"))
    assert "exc_info" not in line
    assert str(line["exception"]).startswith("Traceback (most recent call last):")
    assert f'File "{__file__}"' in str(line["exception"])
    assert str(line["exception"]).endswith("ZeroDivisionError: no")
    configure_logging(load_settings(log_format="console"))
    get_logger().warning("agent-failed", exc_info=kept)
    shown = capfd.readouterr().err
    assert "agent-failed\nTraceback (most recent call last):\n" in shown


def test_lower_levels_are_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logging(load_settings(log_format="json", log_level="info"))
    get_logger().debug("detail")
    assert capfd.readouterr().err == ""


def test_people_get_a_line_that_can_be_read(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure_logging(load_settings(log_format="console"))
    get_logger().error("act-failed", error="two words", empty="", n=1)
    line = capfd.readouterr().err
    assert line.strip().endswith('error    act-failed error="two words" empty="" n=1')
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    configure_logging(load_settings(log_format="auto"))
    try:
        raise KeyError("x")
    except KeyError:
        get_logger().exception("coloured")
    shown = capfd.readouterr().err
    assert "\x1b[31m" in shown
    assert "KeyError" in shown


# --- The events file: whole lines from any number of processes, each event once.


AT = "2026-01-02T03:04:05.678Z"


def _write_many(folder: Path, writer: int) -> None:
    log = EventLog(folder)
    for n in range(50):
        log.append("AGENT_CALLBACK", {"id": f"{writer}-{n}", "message": "x" * 3000}, timestamp=AT)


def events(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "_events.jsonl").read_text().splitlines()]


def test_an_event_has_the_fields_that_readers_expect(tmp_path: Path) -> None:
    data = {"from": "developer", "to": "manager", "type": "blocker", "message": "no config\n", "id": "ask_1"}
    assert EventLog(tmp_path).append("AGENT_CALLBACK", data, timestamp=AT)
    assert events(tmp_path) == [{"timestamp": AT, "event_type": "AGENT_CALLBACK", "data": data}]


def test_many_processes_write_whole_lines(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_many, args=(tmp_path, n)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    ids = [event["data"]["id"] for event in events(tmp_path)]  # type: ignore[index]
    assert sorted(ids) == sorted(f"{w}-{n}" for w in range(4) for n in range(50))


def test_an_event_that_is_told_again_is_not_written_twice(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    for n in range(3):
        log.append("AGENT_CALLBACK", {"id": f"ask_{n}", "message": "x" * 700_000}, timestamp=AT)
    assert not log.append("AGENT_CALLBACK", {"id": "ask_0"}, timestamp=AT, again=True)
    assert log.append("AGENT_CALLBACK", {"id": "ask_9"}, timestamp=AT, again=True)
    assert [e["data"]["id"] for e in events(tmp_path)] == ["ask_0", "ask_1", "ask_2", "ask_9"]  # type: ignore[index]


def test_a_line_that_was_cut_short_does_not_spoil_the_next(tmp_path: Path) -> None:
    """A process died while it wrote."""
    (tmp_path / "_events.jsonl").write_text('{"timestamp": "20')
    EventLog(tmp_path).append("AGENT_CALLBACK", {"id": "ask_1"}, timestamp=AT)
    assert json.loads((tmp_path / "_events.jsonl").read_text().splitlines()[1])["data"] == {"id": "ask_1"}


# --- What Celery's events say of a run.


def end(verdict: str, **facts: object) -> RunEnd:
    return RunEnd(run="run_1", verdict=verdict, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("verdict", "kind"),
    [
        ("idle", "task-succeeded"),
        ("finished", "task-succeeded"),
        ("failed", "task-failed"),
        ("retry", "task-retried"),
        ("lost", "task-retried"),
        ("outage", "task-retried"),
        ("stopped", "task-revoked"),
        ("deleted", "task-revoked"),
    ],
)
def test_every_verdict_has_its_event(verdict: str, kind: str) -> None:
    found, about = celery_event(end(verdict), runtime_s=1.5)
    assert found == kind
    assert json.dumps(about)


def test_a_failure_shows_its_reason_and_its_traceback_at_bounded_length() -> None:
    try:
        raise ValueError("y" * 50_000)
    except ValueError as error:
        _, about = celery_event(end("failed", reason="x" * 10_000, error=error), runtime_s=0)
    assert "run_1" in about["exception"]
    assert len(about["exception"]) < SHOWN_CHARS + 100
    assert len(about["traceback"]) == SHOWN_TRACEBACK_CHARS
