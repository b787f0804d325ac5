"""The table of message types agrees with the schema, with the unions that the type checker reads, and with what is published."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from lxml import etree

import orchestrator
from orchestrator.envelope import schemas
from orchestrator.envelope.bodies import Step
from orchestrator.envelope.catalogue import RULES
from orchestrator.envelope.document import BODIES
from orchestrator.envelope.message_types import MESSAGE_TYPES, ClearBody, DetailedBody, LaunchBody
from orchestrator.envelope.model_values import Kind, Part, bindings
from orchestrator.policy.kinds import QUESTIONS, SYSTEM, message_kind

_XS = "{http://www.w3.org/2001/XMLSchema}"
SCHEMA = etree.fromstring(schemas.read(schemas.AGENT_MESSAGE))


def test_the_schema_has_the_types_of_the_table_and_their_bodies_begin_alike() -> None:
    types = SCHEMA.iterfind(f"{_XS}simpleType[@name='body-type']//{_XS}enumeration")
    assert [one.get("value") for one in types] == list(MESSAGE_TYPES)
    begin: set[str] = set()
    for sequence in SCHEMA.iterfind(f"{_XS}complexType[@name='body']/{_XS}choice/{_XS}sequence"):
        for element in sequence.iterfind(f"{_XS}element"):
            begin.add(element.get("name", ""))
            if element.get("minOccurs") != "0":
                break
    assert begin == {element for row in MESSAGE_TYPES.values() for element in row.first_elements}


def test_the_type_checker_knows_the_bodies_of_the_table() -> None:
    assert list(get_args(ClearBody)) == [row.body for row in MESSAGE_TYPES.values()]
    assert set(get_args(LaunchBody)) == {row.body for row in MESSAGE_TYPES.values() if row.starts_session}
    assert set(get_args(DetailedBody)) <= set(get_args(ClearBody))
    # Agents can make what reports or asks, and its parts; next steps they give as texts.
    made = set[type]().union(*map(_models, get_args(DetailedBody))) - {Step}
    assert made <= {getattr(orchestrator, name) for name in orchestrator.__all__}


def _models(body: type[Part]) -> set[type]:
    return {body}.union(*(_models(one.model) for one in bindings(body) if one.model is not None))


@pytest.mark.parametrize("name", MESSAGE_TYPES)
def test_a_row_is_complete(name: str) -> None:
    row = MESSAGE_TYPES[name]
    assert not row.text or row.text in row.body.model_fields
    assert not row.starts_session or row.task_part, "its session is found again by its task-id"
    assert not row.report or row.route.sender in ("specialist", "any"), "who may be given work may report"
    assert not (row.report and row.body in get_args(DetailedBody)) or row.in_answers
    assert not row.report or row.between_specialists or name == "query", "specialists report to each other"
    assert schemas.path(f"examples/valid/minimal-{name}.xml").is_file()
    texts = {one.name for one in bindings(row.body) if one.kind is Kind.TEXT}
    required = {one for one in texts if row.body.model_fields[one].is_required()}
    assert row.starts_session or required <= {row.text}, "what it must say is the text of its item"
    # A sender's own word for its message does not pass as a report, a reply or a question; an end is a completion.
    if row.heading or (row.report and row.text and name != "task-completion"):
        assert name in SYSTEM | QUESTIONS
        assert message_kind(name.replace("-", " ").title()) != name


# --- docs/protocol.md says what the code does.


def _page(root: Path) -> str:
    return (root / "docs" / "protocol.md").read_text()


def test_the_example_of_the_page_runs(root: Path) -> None:
    """The Python in it does what it says."""
    blocks = re.findall(r"```python\n(.*?)```", _page(root), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "docs/protocol.md", "exec"), {})


def test_the_page_names_every_rule_and_type(root: Path) -> None:
    """A rule that is added is documented with it."""
    page = _page(root)
    assert [name for name in (*RULES, *BODIES) if f"| `{name}` |" not in page] == []
    programs = (root / "docs" / "external-programs.md").read_text().partition("| the program sends |")[2]
    assert [name for name in BODIES if f"`{name}`" not in programs.partition("\n\n")[0]] == []
    answers = (root / "docs" / "explanation" / "text-answers.md").read_text()
    written = {name for name, row in MESSAGE_TYPES.items() if row.in_answers}
    assert [name for name in written if f"| `{name}` |" not in answers] == []
