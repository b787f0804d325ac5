"""A plan of many waves, while whatever carries it out is killed."""

from __future__ import annotations

import json
import time

import pytest

from .test_chaos import KILLS, LONG, PAUSE_S, MakeStack, Monkey, all_over, new_dice, start

#: The long form is a plan of 1,000 assignments.
WAVES, WIDTH = 100 if LONG else 12, 10

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800 if LONG else 480)]


def test_every_assignment_runs_in_its_wave_and_is_heard_of_once(make_stack: MakeStack) -> None:
    dice = new_dice()
    stack = start(make_stack)
    plan = [
        {"role": "step", "task": f"p {wave} {n} {WIDTH}", "sequence": wave + 1, "caller": "planner"}
        for wave in range(WAVES)
        for n in range(WIDTH)
    ]
    monkey = Monkey(stack, dice, ["worker", "process of a worker", "router", "callbacks", "reaper", "server"])
    with stack.client() as client:
        handle = client.submit_plan(json.dumps(plan), key="the plan")
        while monkey.killed.total() < KILLS and not all_over(stack, [handle.id]):
            time.sleep(dice.uniform(*PAUSE_S))
            monkey.strike()
        monkey.rest()
        assert stack.answer(handle, timeout_s=1200 if LONG else 240) == f"{len(plan)} of {len(plan)}, 0 early"
    stack.assert_settled(timeout_s=150)
