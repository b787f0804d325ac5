"""Plans: what is read, what is refused and with which words, and the waves that come of it."""

from __future__ import annotations

import json

import pytest

from orchestrator.errors import PlanError
from orchestrator.policy.plan import MAX_ASSIGNMENTS, Assignment, looks_like_plan, parse_plan


def test_a_plan_is_read_with_its_defaults() -> None:
    plan = parse_plan(
        '[{"role": "dev", "task": "a"}, {"role": "dev", "task": "b", "sequence": 2, "caller": "lead"}]'
    )
    assert plan.assignments == (
        Assignment(role="dev", task="a", sequence=1, caller=None),
        Assignment(role="dev", task="b", sequence=2, caller="lead"),
    )
    assert plan.callers == ("lead",)


def test_waves_are_in_the_order_of_their_numbers_and_keep_the_order_of_the_plan() -> None:
    numbers = [30, 1, 30, 7, 1]
    plan = parse_plan(
        json.dumps([{"role": "r", "task": str(n), "sequence": s} for n, s in enumerate(numbers)])
    )
    assert [(w.sequence, [a.task for a in w.assignments]) for w in plan.waves] == [
        (1, ["1", "4"]),
        (7, ["3"]),
        (30, ["0", "2"]),
    ]


def test_an_empty_list_is_nothing_to_do() -> None:
    assert parse_plan(" [] ").waves == ()


def test_one_code_block_around_a_plan_is_taken_off() -> None:
    assert len(parse_plan('\n```json\n[{"role": "r", "task": "t"}]\n```\n').assignments) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is not JSON: Expecting value at line 1 column 1"),
        ("Here is the plan:\n[]", "it is not JSON"),
        ('[{"role": "r",\n "task": }]', "at line 2 column 10"),
        ('{"role": "r", "task": "t"}', "it is an object; write a JSON array of assignments"),
        ('["dev"]', "assignment 1 is a string; write an object with role and task"),
        ('[{"role": "r", "task": "t"}, {"task": "t"}]', "assignment 2 has no 'role'"),
        ('[{"role": "r"}]', "assignment 1 has no 'task'"),
        ('[{"role": "r", "task": "t", "seqence": 1}]', "assignment 1 has the unknown key 'seqence'"),
        ('[{"role": "r", "task": "t", "sequence": 0}]', "assignment 1: sequence = 0"),
        ('[{"role": "r", "task": "t", "sequence": "1"}]', 'assignment 1: sequence = "1"'),
        ('[{"role": "r", "task": "t", "sequence": true}]', "assignment 1: sequence = true"),
        ('[{"role": "r", "task": " \\n"}]', 'task = " \\n": must not be blank'),
        ('[{"role": "r", "task": "t", "caller": ""}]', 'caller = ""'),
        ('[{"role": "r", "role": "s", "task": "t"}]', "the key 'role' twice"),
        ("[" * 100_000, "it cannot be read"),
        (
            json.dumps([{"role": "r", "task": "t"}] * (MAX_ASSIGNMENTS + 1)),
            "10001 assignments; at most 10000",
        ),
        (
            json.dumps([{"role": "r", "task": "t", "sequence": s} for s in (1, 2) for _ in range(600)]),
            "wait for 360000 assignments in all; at most 250000",
        ),
    ],
)
def test_what_is_wrong_is_said(text: str, words: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_plan(text)
    assert words in str(caught.value)
    assert "['" not in str(caught.value)


def test_every_problem_is_named_up_to_a_number() -> None:
    with pytest.raises(PlanError) as caught:
        parse_plan(json.dumps([{"role": "r"}] * 14))
    assert len(caught.value.problems) == 14
    assert "assignment 10 has no 'task'; and 4 more" in str(caught.value)


def test_unknown_agents_and_callers_are_named_before_anything_is_launched() -> None:
    plan = parse_plan(
        json.dumps(
            [
                {"role": "designer", "task": "a", "caller": "lead"},
                {"role": "dev", "task": "b", "caller": "designer"},
                {"role": "dev", "task": "c", "sequence": 2, "caller": "designer"},
                {"role": "ghost", "task": "d", "sequence": 3, "caller": "boss"},
            ]
        )
    )
    with pytest.raises(PlanError) as caught:
        plan.check(agents=["designer", "dev"], callers=["lead"])
    assert caught.value.problems == (
        "caller 'designer' of task 'b' has no session when sequence 1 begins (callers may be: lead)",
        "there is no agent 'ghost' for task 'd' (agents: designer, dev)",
        "caller 'boss' of task 'd' has no session when sequence 3 begins (callers may be: designer, dev, lead)",
    )


def test_what_looks_like_a_plan() -> None:
    assert all(map(looks_like_plan, [" \n[", "```json\n[]\n```"]))
    assert not any(map(looks_like_plan, ["All is done.", ""]))
