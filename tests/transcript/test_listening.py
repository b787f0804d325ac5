"""Turns are taken note of beside a run: whatever goes wrong with that costs the run nothing."""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from orchestrator.transcript.of_models import listening


def test_turns_that_cannot_be_read_fail_no_run() -> None:
    def price(*_: object, **__: object) -> Any:
        raise RuntimeError("no such list of prices")

    turns: list[Any] = []
    with listening(turns, [], price, None):
        answer = Agent(TestModel(custom_output_text="done")).run_sync("go").output
    assert answer == "done"
    [turn] = turns
    assert "no such list of prices" in turn.said("note")
