"""The prompt texts: each form that they ask for is held against the code that reads it."""

from __future__ import annotations

import re
import shlex
from itertools import product
from pathlib import Path

import click
import pytest

from orchestrator.agents.definition import AgentDefinition, define_agent
from orchestrator.agents.prompts import render_prompt
from orchestrator.cli import main
from orchestrator.envelope.written import find_messages
from orchestrator.errors import ConfigurationError, PlanError
from orchestrator.operations.table import OF_SESSIONS
from orchestrator.policy.callback_text import parse_callbacks
from orchestrator.policy.kinds import QUESTIONS, question_kind
from orchestrator.policy.plan import parse_plan
from orchestrator.policy.response_tag import RESPONSE, tag_extract
from orchestrator.worker.executors.protocol import protocol_text, takes_tagged_answers
from tests.commands import run_command

ROLES = ("coordinator", "specialist", "orchestrator")
ANSWERS = ("text", "plan")


def definition(role: str, answer: str, executor: str = "command") -> AgentDefinition:
    options = {"command": {"command": ("true",)}, "python": None, "llm": {}}[executor]
    return define_agent("boss", source="here", executor=executor, options=options, role=role, answer=answer)


@pytest.mark.parametrize(("role", "answer", "sub_session"), list(product(ROLES, ANSWERS, (False, True))))
def test_every_form_that_a_prompt_asks_for_is_read(role: str, answer: str, sub_session: bool) -> None:
    text = protocol_text(definition(role, answer), sub_session=sub_session, folder=None)
    assert "$" not in text
    assert text.startswith("You are `boss`, a ")
    (callback,) = parse_callbacks(text)
    assert (callback.agent, callback.status, callback.text) == (
        "developer",
        "completed",
        "The module is written.",
    )
    plans = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    assert len(plans) == (answer == "plan")
    for plan in plans:
        with pytest.raises(PlanError):  # a model that repeats the text has made no plan
            parse_plan(plan)
    for plan in (parse_plan(plan.replace(",\n  …", "")) for plan in plans):
        plan.check(agents=["developer", "tester"], callers=["boss"])
        assert [wave.sequence for wave in plan.waves] == [1, 2]
    after_the_role = text.partition("Another agent gave you this task.")[2]
    assert bool(after_the_role) == sub_session
    assert (f"tags named `{RESPONSE}`" in after_the_role) == sub_session
    assert tag_extract(text, RESPONSE) is None
    assert find_messages(text, lambda _: False) == ([], text)
    if role == "specialist":
        types = re.findall(r"type `(\w+)`:", text)
        assert set(types) == QUESTIONS
        assert [question_kind(name) for name in types] == types


def test_the_commands_that_a_prompt_names_can_be_given() -> None:
    text = protocol_text(definition("coordinator", "text"), sub_session=False, folder=None)
    commands = re.findall(r"`orchestra ([^`]+)`", text)
    found = []
    for line in commands:
        command: click.Command | None = main
        words = shlex.split(line)
        while isinstance(command, click.Group):
            command = command.get_command(click.Context(command), words.pop(0))
        command.make_context(None, words)  # it raises where an option or an argument is none
        found.append(command.name)
    assert found == ["delegate", "result", "result", "ask", "raise", "mcp"]


def test_the_tools_that_a_prompt_names_are_served() -> None:
    text = protocol_text(definition("coordinator", "text"), sub_session=False, folder=None)
    assert all(f"`{name}`" in text for name in OF_SESSIONS)


@pytest.mark.parametrize("role", ROLES)
def test_the_tools_of_a_model_are_those_that_it_has(role: str) -> None:
    pytest.importorskip("pydantic_ai", reason="the extra `llm` is not installed")
    from orchestrator.worker.executors.llm.tree_tools import tree_toolset

    made = definition(role, "text", "llm")
    text = protocol_text(made, sub_session=False, folder=None)
    named = re.findall(
        r"^- `(\w+)`: \S", text.partition("Tools for working with other agents:")[2], re.MULTILINE
    )
    assert named == list(tree_toolset(made, made.options).tools)  # type: ignore[arg-type]


@pytest.mark.parametrize(("role", "sub_session"), list(product(ROLES, (False, True))))
def test_the_compact_protocol_is_a_tenth_and_names_the_tag_of_the_answer(
    role: str, sub_session: bool
) -> None:
    whole, compact = (
        protocol_text(
            define_agent("boss", source="here", executor="llm", options={"protocol": protocol}, role=role),
            sub_session=sub_session,
            folder=None,
        )
        for protocol in (True, "compact")
    )
    assert compact.startswith(f"You are `boss`, a {role}. ")
    assert (f"tags named `{RESPONSE}`" in compact) == sub_session
    assert len(compact) < len(whole) / (4 if sub_session else 8)


def test_own_texts_take_the_place_of_the_shipped_ones(tmp_path: Path) -> None:
    made = definition("specialist", "text")
    (tmp_path / "specialist.md").write_text("I am ${agent}, and a dollar is $$.\n")
    text = render_prompt(made, tools={}, sub_session=True, folder=tmp_path)
    assert text.startswith("I am boss, and a dollar is $.\n\n")
    assert f"tags named `{RESPONSE}`" in text
    for wrong, words in (
        ("$nobody", "there is no value $nobody"),
        ("50 $ more", "write $$ for a dollar sign"),
    ):
        (tmp_path / "specialist.md").write_text(wrong)
        with pytest.raises(ConfigurationError, match=re.escape(words)):
            render_prompt(made, tools={}, sub_session=False, folder=tmp_path)


def test_the_command_prints_what_a_model_sees(tmp_path: Path) -> None:
    file = tmp_path / "agents.toml"
    file.write_text(
        '[agents.boss]\nexecutor = "command"\ncommand = ["true"]\nrole = "coordinator"\nanswer = "plan"\n'
    )
    shown = run_command("agents", "prompt", "boss", "--agents", str(file))
    assert shown.exit_code == 0, shown.output
    assert "ONLY a JSON array" in shown.output
    assert f"tags named `{RESPONSE}`" in shown.output
    as_root = run_command("agents", "prompt", "boss", "--agents", str(file), "--root")
    assert f"tags named `{RESPONSE}`" not in as_root.output
    unknown = run_command("agents", "prompt", "ghost", "--agents", str(file))
    assert unknown.exit_code == 2
    assert unknown.output == (
        f"Error: no agent 'ghost' is defined in {file}; name the module or file that defines it with --agents\n"
    )


@pytest.mark.parametrize(
    ("options", "tagged"),
    [({}, True), ({"output": str}, True), ({"output": {"type": "object"}}, False), ({"output": int}, False)],
)
def test_a_model_is_told_of_the_tag_where_it_answers_in_text(
    options: dict[str, object], tagged: bool
) -> None:
    pytest.importorskip("pydantic_ai", reason="the extra `llm` is not installed")
    made = define_agent("m", source="here", executor="llm", options=options)
    assert takes_tagged_answers(made) == tagged
    assert takes_tagged_answers(definition("specialist", "text"))


def test_an_agent_object_is_told_of_the_tag_where_it_answers_in_text() -> None:
    ai = pytest.importorskip("pydantic_ai", reason="the extra `llm` is not installed")
    for output, tagged in (
        (str, True),
        ([str, ai.DeferredToolRequests], True),
        (int, False),
        ([str, int], False),
    ):
        given = ai.Agent("test", output_type=output, defer_model_check=True)
        made = define_agent("m", source="here", executor="llm", options={"agent": given})
        assert takes_tagged_answers(made) == tagged, output
