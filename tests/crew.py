"""Agents that are real command-line programs, the fake agent that ships with the examples."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from orchestrator.agents.definition import define_agent
from tests.kit import Kit

ROOT = Path(__file__).resolve().parents[1]
FAKE = (sys.executable, str(ROOT / "examples" / "coding_crew" / "fake_agent.py"))

#: The options of the fake agent that prints one JSON document and keeps its conversations.
JSON: dict[str, Any] = {
    "output": "json",
    "start": ("--format", "json"),
    "resume": ("--format", "json", "--resume", "{conversation}"),
    "read": {"answer": "response", "conversation": "session", "output_tokens": "tokens"},
}


class Crew:
    """Defines agents of programs, lets them work, and says what came of it."""

    def __init__(self, kit: Kit, home: Path) -> None:
        self.kit = kit
        self.home = home
        home.mkdir()

    def agent(
        self, name: str = "coder", *, attempts: int = 1, time_limit_s: float | None = None, **options: Any
    ) -> None:
        """Define an agent; by default the fake one, which keeps conversations and prints text."""
        options.setdefault("command", FAKE)
        options.setdefault("folder", self.home)
        options.setdefault("stop_grace_s", 0.3)
        options.setdefault("protocol", False)
        options["set_env"] = {
            "FAKE_AGENT_HOME": str(self.home / "conversations"),
            **options.get("set_env", {}),
        }
        definition = define_agent(
            name,
            source="here",
            executor="command",
            options=options,
            attempts=attempts,
            time_limit_s=time_limit_s,
            backoff_s=0.001,
        )
        self.kit.serve(definition)

    def ask(self, prompt: str, agent: str = "coder") -> str:
        """Give a root the prompt; what it answers, or why it failed."""
        return self.answer(self.kit.begin(agent, prompt))

    def go_on(self, session: str, prompt: str) -> str:
        """Have its user say something more to a session; what it answers then, or why it failed."""
        self.kit.ledger.enqueue(session, prompt, item_id=f"itm_{prompt}")
        self.kit.play(session)
        return self.answer(session)

    def answer(self, session: str) -> str:
        """What a session answered, or why it failed."""
        return str(self.kit.answer(session))

    def delegate(self, prompt: str, agent: str = "coder") -> Any:
        """Have a parent delegate the prompt; the callback that it gets."""
        return self.kit.callback(agent, prompt)

    def memory(self, session: str) -> Any:
        """What the session keeps of its conversation."""
        return json.loads(self.kit.parts.ledger.memory(session))
