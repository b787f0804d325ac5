"""For people who test their agents: a model that follows a script, over the wire or in the process.

    with WireServer(Script(Say(calls=[Call("search", query="lease")]), Say("Two sources."))) as server:
        monkeypatch.setenv(...server.environment())

`WireServer` speaks the formats of Anthropic (Messages) and OpenAI (Chat Completions), streaming too, so that the real
clients of the providers are tested with it. `scripted_model` is a model object for tests that need no server.
"""

from __future__ import annotations

from orchestrator.testing.replies import Call, Cut, Empty, Fail, Hang, Malformed, Reply, Say, Truncated
from orchestrator.testing.requests import Message, Request
from orchestrator.testing.script import ByInstructions, Script
from orchestrator.testing.server import WireServer

__all__ = [
    "ByInstructions",
    "Call",
    "Cut",
    "Empty",
    "Fail",
    "Hang",
    "Malformed",
    "Message",
    "Reply",
    "Request",
    "Say",
    "Script",
    "Truncated",
    "WireServer",
]
