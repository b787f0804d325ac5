"""The events file: whole lines from any number of processes, each event once."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

from orchestrator.worker.context.event_log import EventLog

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
