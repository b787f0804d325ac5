#!/usr/bin/env python3
"""The fake agent, speaking the Agent Client Protocol over standard input and output, without any library.

It follows the orders of `fake_agent.py`, and these:

    !permission TOOL      ask whether a tool may be used; the answer says what was chosen
    !limit                stop as one whose tokens are used up
    !refuse               stop as one that refuses

With `--no-load` it cannot load a conversation.
"""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

from fake_agent import NUDGE, Agent

_ids = itertools.count(1)


def send(**message: Any) -> None:
    """One message to the client."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def receive() -> dict[str, Any]:
    """The next message of the client; ends the program when there is none."""
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    message: dict[str, Any] = json.loads(line)
    return message


class AcpAgent(Agent):
    """One conversation."""

    def __init__(self, conversation: str) -> None:
        super().__init__("acp", conversation)
        self.stop_reason = "end_turn"
        self.turns = 0

    def update(self, **update: Any) -> None:
        """Tell of something."""
        send(method="session/update", params={"sessionId": self.id, "update": update})

    def tool(self, name: str) -> None:
        """Tell of a tool call."""
        self.update(sessionUpdate="tool_call", toolCallId=f"call-{next(_ids)}", title=name)

    def obey(self, order: str, rest: str) -> None:
        """Follow one order."""
        if order == "permission":
            self.answer += f"<response>{self.ask_for(rest)}</response>"
        elif order == "limit":
            self.stop_reason = "max_tokens"
        elif order == "refuse":
            self.stop_reason = "refusal"
        else:
            super().obey(order, rest)

    def ask_for(self, tool: str) -> str:
        """The option that the client chose, or `cancelled`."""
        options = [
            {"optionId": "yes-once", "name": "Allow once", "kind": "allow_once"},
            {"optionId": "no-once", "name": "Reject", "kind": "reject_once"},
        ]
        call = {"toolCallId": "call-p", "title": tool}
        number = f"p{next(_ids)}"
        send(id=number, method="session/request_permission",
             params={"sessionId": self.id, "toolCall": call, "options": options})  # fmt: skip
        while (message := receive()).get("id") != number:
            pass
        if "error" in message:
            return f"error {message['error']['message']}"
        outcome = message["result"]["outcome"]
        return str(outcome.get("optionId", outcome["outcome"]))

    def prompt(self, number: Any, text: str) -> None:
        """Take one turn."""
        self.answer, self.stop_reason = "", "end_turn"
        self.turns += 1
        self.work(text)
        middle = len(self.answer) // 2
        for piece in (self.answer[:middle], self.answer[middle:]):
            self.update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": piece})
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.said))
        usage = {
            "totalTokens": 120 * self.turns,
            "inputTokens": 100 * self.turns,
            "outputTokens": 20 * self.turns,
        }
        send(id=number, result={"stopReason": self.stop_reason, "usage": usage})


def main() -> None:
    """Answer the client until it goes."""
    loads = "--no-load" not in sys.argv
    agent: AcpAgent | None = None
    while True:
        message = receive()
        number, params = message.get("id"), message.get("params") or {}
        match message.get("method"):
            case "initialize":
                send(id=number, result={"protocolVersion": 1, "agentCapabilities": {"loadSession": loads}})
            case "session/new":
                agent = AcpAgent("")
                send(id=number, result={"sessionId": agent.id})
            case "session/load":
                agent = AcpAgent(params["sessionId"])
                for text in agent.said:  # it tells the client what was said, as the protocol wants
                    agent.update(
                        sessionUpdate="agent_message_chunk", content={"type": "text", "text": f"old: {text}"}
                    )
                send(id=number, result={})
            case "session/prompt" if agent is not None:
                agent.prompt(number, params["prompt"][0]["text"])
            case _ if number is not None:
                send(id=number, error={"code": -32601, "message": "Method not found"})


if __name__ == "__main__":
    main()

__all__ = ["NUDGE", "AcpAgent", "main"]
