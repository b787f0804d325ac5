"""What Flower is started with: its list shows what a run is about, unless somebody chooses other columns."""

from __future__ import annotations

import pytest

from orchestrator.worker.flower import TASKS_COLUMNS, guard_flower


@pytest.mark.parametrize(
    ("arguments", "environ", "columns"),
    [
        (["flower"], {}, TASKS_COLUMNS),
        (["flower"], {"FLOWER_TASKS_COLUMNS": "name"}, "name"),
        (["flower", "--tasks-columns=name"], {}, None),
        (["flower", "--tasks_columns=name"], {}, None),
        (["worker"], {}, None),
    ],
)
def test_rows_say_agent_session_and_cause_unless_other_columns_are_chosen(
    arguments: list[str], environ: dict[str, str], columns: str | None
) -> None:
    guard_flower(arguments, environ)
    assert environ.get("FLOWER_TASKS_COLUMNS") == columns
    assert "kwargs" in TASKS_COLUMNS.split(",")
