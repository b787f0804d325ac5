"""The version of a definition: the same for the same definition, and another for whatever makes its agent work otherwise."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agents.definition import AgentDefinition, agent, define_agent
from orchestrator.agents.loader import load_agents
from orchestrator.errors import AgentsFileError, ConfigurationError

SOURCE = """
from orchestrator import agent
LIMIT = 3

@agent("lead"{settings})
def lead(ctx):
    return "{answer}"
"""
needs_models = pytest.mark.skipif(
    importlib.util.find_spec("pydantic_ai") is None, reason="pydantic-ai is not installed"
)


def lead(folder: Path, *, settings: str = "", answer: str = "done", text: str = SOURCE) -> AgentDefinition:
    """The lead of an agents file as it is read by a process that has just started."""
    path = folder / "crew.py"
    path.write_text(text.format(settings=settings, answer=answer), encoding="utf-8")
    sys.modules.pop("orchestra_agents_crew", None)
    return load_agents([str(path)])["lead"]


def from_toml(folder: Path, table: str) -> AgentDefinition:
    (folder / "crew.toml").write_text(f"[agents.lead]\n{table}", encoding="utf-8")
    return load_agents([str(folder / "crew.toml")])["lead"]


def test_the_version_says_what_the_function_does(tmp_path: Path) -> None:
    first = lead(tmp_path).record.version
    assert len(first) == 12
    assert lead(tmp_path).record.version == first
    assert lead(tmp_path, answer="done!").record.version != first
    moved = SOURCE.replace("LIMIT = 3\n", "LIMIT = 4\n\n\n# a comment\n")
    assert lead(tmp_path, text=moved).record.version == first


def test_what_says_only_when_and_where_it_runs_does_not_count(tmp_path: Path) -> None:
    first = lead(tmp_path).record.version
    for settings in ('queue="q"', "attempts=9", "runs_at_once=2", "time_limit_s=3", 'may_send_to=["x"]'):
        assert lead(tmp_path, settings=f", {settings}").record.version == first, settings
    for settings in (
        'role="coordinator"',
        'tier="opus"',
        'steps="replace"',
        'on_deploy="refuse"',
        'answer="plan"',
    ):
        assert lead(tmp_path, settings=f", {settings}").record.version != first, settings


def test_an_author_may_name_the_version(tmp_path: Path) -> None:
    named = lead(tmp_path, settings=', version="2026.11"')
    assert named.record.version == "2026.11"


@pytest.mark.parametrize("version", ["", "a b", "x" * 65, "a@b", "-1", 3])
def test_a_version_that_cannot_be_one_is_refused(version: Any) -> None:
    with pytest.raises(ConfigurationError, match="a version has 1 to 64 letters"):
        agent("lead", version=version)(lambda ctx: None)


def test_a_mode_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentsFileError, match="on_deploy"):
        from_toml(tmp_path, 'executor = "command"\ncommand = ["cat"]\non_deploy = "later"')


@needs_models
def test_the_files_and_functions_of_a_model_agent_count(tmp_path: Path) -> None:
    text = tmp_path / "instructions.md"
    text.write_text("Be short.", encoding="utf-8")
    table = 'executor = "llm"\nmodel = "test"\ninstructions_file = "instructions.md"\n'
    first = from_toml(tmp_path, table).record.version
    assert from_toml(tmp_path, table).record.version == first
    assert from_toml(tmp_path, table + "attempts = 2\n").record.version == first
    assert from_toml(tmp_path, table.replace("test", "other")).record.version != first
    text.write_text("Be long.", encoding="utf-8")
    assert from_toml(tmp_path, table).record.version != first


@needs_models
def test_secrets_and_where_the_file_lies_do_not_count(tmp_path: Path) -> None:
    table = 'executor = "llm"\nmodel = "test"\n'
    server = 'mcp = [{{ id = "x", command = "y", env = {{ KEY = "{key}" }} }}]\n'
    first = from_toml(tmp_path, table + server.format(key="one")).record.version
    assert from_toml(tmp_path, table + server.format(key="two")).record.version == first
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert from_toml(elsewhere, table + server.format(key="one")).record.version == first


@needs_models
def test_an_agent_of_another_library_has_the_version_of_its_module(tmp_path: Path) -> None:
    text = """
from pydantic_ai import Agent
from orchestrator import model_agent
model_agent("lead", agent=Agent("test", instructions="{answer}"))
"""
    first = lead(tmp_path, text=text).record.version
    assert lead(tmp_path, text=text).record.version == first
    assert lead(tmp_path, text=text, answer="other").record.version != first


def test_a_function_without_a_text_has_a_version() -> None:
    scope: dict[str, Any] = {}
    exec("def lead(ctx): return 1", scope)
    made = [define_agent("lead", function=scope["lead"], source="here").record.version for _ in range(2)]
    assert made[0] == made[1]
