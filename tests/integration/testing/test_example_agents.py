"""The agents of the examples, one at a time, on scripted sessions."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from orchestrator.agents.definition import agent
from orchestrator.testing import Call, Done, Say, Script, ScriptedSession, scripted_model

pytest_plugins = ["orchestrator.testing.plugin"]

EXAMPLES = Path(__file__).parents[3] / "examples"
Scripted = Callable[..., ScriptedSession]


def load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{file.parent.name}_{file.stem}", file)
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where pydantic looks for the names of annotations
    spec.loader.exec_module(module)
    return module


def with_script(definition: Any, script: Script) -> Any:
    """The agent of an example, with a model that follows a script."""
    from dataclasses import replace

    return replace(
        definition, options=definition.options.model_copy(update={"model": scripted_model(script)})
    )


def test_the_lead_of_the_crew_has_the_changes_reviewed(scripted: Scripted) -> None:
    lead = agent("lead", role="coordinator")(load(EXAMPLES / "coding_crew/crew.py").lead)
    session = scripted(lead, "Greet the customer\n!write greeting.txt Hello\nSay goodbye")
    start = session.run()
    assert [child.text for child in start.delegated] == [
        "Greet the customer\n!write greeting.txt Hello",
        "Say goodbye",
    ]
    for child, diff in zip(start.delegated, ("+Hello", "+Bye"), strict=True):
        session.end(child, "done", attachments={"diff": diff})
    [review] = session.run(crash_after="delegate").delegated
    assert review.agent == "reviewer"
    assert "+Hello\n\n+Bye" in review.text
    session.end(review, "Fine.")
    assert session.run().answer.endswith("Review: Fine.")


def test_the_lead_of_the_research_writes_a_report(scripted: Scripted) -> None:
    pytest.importorskip("pydantic_ai", reason="the extra `llm` is not installed")
    research = load(EXAMPLES / "research/agents.py")
    report = {"question": "q", "answer": "a", "findings": [{"claim": "c", "source": "s.md"}], "doubts": []}
    script = Script(
        Say(calls=[Call("delegate", agent="researcher", task=part, wait=True) for part in ("one", "two")]),
        Say(calls=[Call("delegate", agent="critic", task="all of it", wait=True)]),
        Say(calls=[Call("final_result", **report)]),
    )
    session = scripted(
        with_script(research.lead, script), "q", answers={"researcher": "found", "critic": Done("none")}
    )
    assert json.loads(session.finish().answer) == report
    assert [e.agent for e in session.effects if e.kind == "delegate"] == [
        "researcher",
        "researcher",
        "critic",
    ]


def test_the_researcher_reads_the_sources(scripted: Scripted) -> None:
    pytest.importorskip("pydantic_ai", reason="the extra `llm` is not installed")
    research = load(EXAMPLES / "research/agents.py")
    name = research.list_sources()[0]
    script = Script(
        Say(calls=[Call("list_sources")]),
        Say(calls=[Call("read_source", name=name)]),
        lambda request: Say(f"<response>{len(request.last) > 100}</response>"),
    )
    session = scripted(with_script(research.researcher, script), "What?", parent="lead")
    assert session.run(crash_after="step").answer == "True"


def test_the_judge_of_the_code_review_gives_a_verdict(scripted: Scripted) -> None:
    pytest.importorskip("pydantic_ai", reason="the extra `llm` is not installed")
    review = load(EXAMPLES / "code_review/agents.py")
    verdict = {"verdict": "change", "reason": "long functions", "worst": ["a.py"]}
    script = Script(
        Say(calls=[Call("delegate", agent="lead", task="/src", wait=True)]),
        Say(calls=[Call("final_result", **verdict)]),
    )
    session = scripted(with_script(review.judge, script), "/src", answers={"lead": "a.py is long"})
    assert json.loads(session.finish().answer) == verdict
