"""For people who test their agents: a model that follows a script, over the wire or in the process.

    script = Script(Say(calls=[Call("search", query="leases")]), Say("Two sources."))
    with InProcessStack([model_agent("finder", model=scripted_model(script), tools=[search])]) as stack:
        assert stack.run("finder", "What is a lease?").text == "Two sources."

`WireServer` speaks the formats of Anthropic (Messages) and OpenAI (Chat Completions), streaming too, so that the real
clients of the providers are tested with the same scripts.
"""

from __future__ import annotations

from orchestrator.testing.answers import Asks, Done, Failed, Never, NotScripted
from orchestrator.testing.exploring import ExplorationFailed, Explored, explore
from orchestrator.testing.model import scripted_model
from orchestrator.testing.recording import Attempt, Effect, ScriptedRun
from orchestrator.testing.replies import (
    Call,
    Cut,
    Empty,
    Fail,
    Hang,
    Malformed,
    Message,
    Reply,
    Request,
    Say,
    Truncated,
)
from orchestrator.testing.script import ByInstructions, Script
from orchestrator.testing.scripted import ScriptedSession
from orchestrator.testing.server import WireServer
from orchestrator.testing.stack import Answer, InProcessStack, Tree

__all__ = [
    "Answer",
    "Asks",
    "Attempt",
    "ByInstructions",
    "Call",
    "Cut",
    "Done",
    "Effect",
    "Empty",
    "ExplorationFailed",
    "Explored",
    "Fail",
    "Failed",
    "Hang",
    "InProcessStack",
    "Malformed",
    "Message",
    "Never",
    "NotScripted",
    "Reply",
    "Request",
    "Say",
    "Script",
    "ScriptedRun",
    "ScriptedSession",
    "Tree",
    "Truncated",
    "WireServer",
    "explore",
    "scripted_model",
]
