"""Log lines: an event and fields, the same for our own lines and those of other libraries."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.config.settings import load_settings
from orchestrator.log import configure_logging, get_logger


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
