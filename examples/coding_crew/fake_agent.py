#!/usr/bin/env python3
"""A command-line agent without a model: it does what its prompt says, so that a crew can be tried without a key.

    fake_agent.py [-p --output-format stream-json | --format text|json|claude|codex|gemini] [--resume ID | --name ID] [PROMPT]

The prompt is an argument or stands on standard input. Lines that begin with `!` are orders; everything else is talk:

    !write PATH TEXT      write a file               !say TEXT          the text of the answer
    !result TEXT          answer in the tag          !untagged TEXT     answer without the tag, once
    !never TEXT           answer without it always   !sleep SECONDS     work for so long
    !hang                 work for ever              !flood MEGABYTES   print that much
    !crash CODE           end with that exit code    !ignore            ignore SIGTERM from here on
    !fork FILE            leave a daemon behind that writes its process id into FILE
    !half                 print half of a line of JSON and end
    !env NAME             answer with the value of an environment variable, or (unset)
    !run COMMAND          run a shell command, answer with its output and exit code
    !touch PATH           write this process's id to a file
    !recall               answer with everything that was said in this conversation so far

Conversations are kept in the folder FAKE_AGENT_HOME, or in ~/.fake_agent.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

NUDGE = ("You must wrap your final answer in ", "Your answer was cut off")


class Agent:
    """One turn."""

    def __init__(self, form: str, conversation: str, name: str = "") -> None:
        home = os.environ.get("FAKE_AGENT_HOME")
        self.folder = Path(home) if home else Path.home() / ".fake_agent"
        self.form = form
        self.id = conversation or name or f"conv-{uuid.uuid4().hex[:12]}"
        self.file = self.folder / f"{self.id}.json"
        if conversation and not self.file.exists():
            sys.exit(f"No conversation found with session ID: {conversation}")
        self.said: list[str] = json.loads(self.file.read_text()) if conversation else []
        self.answer = ""

    def event(self, **fields: object) -> None:
        """Print one line of JSON."""
        print(json.dumps(fields), flush=True)

    def begin(self) -> None:
        """Say who we are, as the program whose format this is does."""
        if self.form == "claude":
            self.event(type="system", subtype="init", session_id=self.id)
        elif self.form == "codex":
            self.event(type="thread.started", thread_id=self.id)
        elif self.form == "gemini":
            self.event(type="init", session_id=self.id)

    def tool(self, name: str) -> None:
        """Tell of a tool call."""
        if self.form == "claude":
            content = [{"type": "tool_use", "name": name}]
            self.event(type="assistant", session_id=self.id, message={"content": content})
        elif self.form == "codex":
            self.event(type="item.started", item={"type": "command_execution", "command": name})
        elif self.form == "gemini":
            self.event(type="tool_use", tool_name=name)

    def end(self) -> None:
        """Print the answer, and keep the conversation."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.said))
        match self.form:
            case "text":
                print(self.answer)
            case "json":
                print(json.dumps({"response": self.answer, "session": self.id, "tokens": 7}))
            case "claude":
                self.event(
                    type="result", subtype="success", is_error=False, result=self.answer, session_id=self.id,
                    total_cost_usd=0.25, usage={"input_tokens": 100, "output_tokens": 20},
                )  # fmt: skip
            case "codex":
                self.event(type="item.completed", item={"type": "agent_message", "text": self.answer})
                turns = len(self.said)  # the real one adds up, too
                self.event(
                    type="turn.completed", usage={"input_tokens": 100 * turns, "output_tokens": 20 * turns}
                )
            case "gemini":
                middle = len(self.answer) // 2
                for piece in (self.answer[:middle], self.answer[middle:]):
                    self.event(type="message", role="assistant", content=piece, delta=True)
                self.event(type="result", status="success", stats={"input_tokens": 100, "output_tokens": 20})

    def work(self, prompt: str) -> None:
        """Follow the orders of the prompt."""
        self.said.append(prompt)
        if prompt.startswith(NUDGE):
            # Reminded: what was answered without the tag is answered with it now.
            earlier = [
                line for text in self.said for line in text.splitlines() if line.startswith("!untagged")
            ]
            stubborn = any(line.startswith("!never") for text in self.said for line in text.splitlines())
            self.answer = (
                "still no tag" if stubborn else f"<response>{' '.join(earlier[-1:])[10:]}</response>"
            )
            return
        lines = [line for line in prompt.splitlines() if line.startswith("!")]
        for line in lines:
            order, _, rest = line[1:].partition(" ")
            self.obey(order, rest)
        if not lines:
            # The task stands after what the agent is told of the protocol.
            task = prompt.rpartition("\n\n---\n\n")[2].strip()
            self.answer += f"<response>I was told: {task.splitlines()[0] if task else ''}</response>"

    def obey(self, order: str, rest: str) -> None:
        """Follow one order."""
        match order:
            case "write":
                path, _, text = rest.partition(" ")
                self.tool(f"write {path}")
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                Path(path).write_text(f"{text}\n")
            case "say":
                self.answer += f"{rest}\n"
            case "result":
                self.answer += f"<response>{rest}</response>"
            case "untagged" | "never":
                self.answer += rest
            case "sleep":
                time.sleep(float(rest))
            case "hang":
                self.tool("hang")
                while True:
                    time.sleep(60)
            case "flood":
                block = "x" * 1023 + "\n"
                for _ in range(int(rest) * 1024):
                    sys.stdout.write(block)
            case "crash":
                print("something broke", file=sys.stderr)
                sys.exit(int(rest))
            case "ignore":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            case "fork":
                daemonise(Path(rest))
            case "half":
                sys.stdout.write('{"type": "result", "result": "ha')
                sys.stdout.flush()
                sys.exit(0)
            case "env":
                self.answer += f"<response>{os.environ.get(rest, '(unset)')}</response>"
            case "run":
                done = subprocess.run(rest, shell=True, capture_output=True, text=True, check=False)  # noqa: S602
                said = (done.stdout + done.stderr).strip()
                self.answer += f"<response>{said} [{done.returncode}]</response>"
            case "touch":
                Path(rest).write_text(str(os.getpid()))
            case "recall":
                self.answer += (
                    f"<response>{' | '.join(text.splitlines()[0] for text in self.said)}</response>"
                )
            case _:
                sys.exit(f"no such order: {order}")


def daemonise(file: Path) -> None:
    """Leave a process behind as daemons do: two forks, a session of its own, nothing that ties it to us."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in range(3):
                os.close(number)
            file.write_text(str(os.getpid()))
            time.sleep(600)
        os._exit(0)
    os.wait()
    while not (file.exists() and file.read_text()):
        time.sleep(0.01)


def main() -> None:
    """Take one turn."""
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt", nargs="?")
    parser.add_argument("--format", default="text", choices=["text", "json", "claude", "codex", "gemini"])
    parser.add_argument("--resume", default="")
    parser.add_argument("--name", default="")
    parser.add_argument("--prompt-file", type=Path)
    parser.add_argument("--output-format", default="")
    # As the real one is called: claude -p --output-format stream-json --verbose
    parser.add_argument("-p", "--print", action="store_true")
    options, _ = parser.parse_known_args()
    if options.output_format == "stream-json":
        options.format = "claude"
    agent = Agent(options.format, options.resume, options.name)
    prompt = options.prompt_file.read_text() if options.prompt_file else options.prompt
    agent.begin()
    agent.work(sys.stdin.read() if prompt is None else prompt)
    agent.end()


if __name__ == "__main__":
    main()
