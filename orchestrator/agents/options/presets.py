"""Well-known command-line agents, with the flags that their makers document for use in programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_RESULT: Final = {"type": "result"}
_CLAUDE: Final = ("-p", "--output-format", "stream-json", "--verbose")

PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    # Claude Code, print mode: one JSON object a line, the last one of type `result`.
    "claude": {
        "command": ("claude",),
        "start": _CLAUDE,
        "resume": (*_CLAUDE, "--resume", "{conversation}"),
        "prompt": "stdin",
        "output": "json-lines",
        "env": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "CLAUDE_CONFIG_DIR"),
        "read": {
            "answer": {"path": "result", "when": {**_RESULT, "is_error": False}},
            "error": {"path": "result", "when": {**_RESULT, "is_error": True}},
            "conversation": "session_id",
            "text": {"path": "message.content[].text", "when": {"type": "assistant"}},
            "tool": {"path": "message.content[].name", "when": {"type": "assistant"}},
            "cut_off": {
                "path": "message.stop_reason",
                "when": {"type": "assistant", "message.stop_reason": "max_tokens"},
            },
            "input_tokens": {
                "path": "usage.input_tokens",
                # What its provider's cache takes and gives is counted apart there.
                "plus": ("usage.cache_creation_input_tokens", "usage.cache_read_input_tokens"),
                "when": _RESULT,
            },
            "output_tokens": {"path": "usage.output_tokens", "when": _RESULT},
            "cost_usd": {"path": "total_cost_usd", "when": _RESULT},
        },
    },
    # Codex, `exec`: one JSON object a line; `-` reads the prompt from standard input.
    "codex": {
        "command": ("codex",),
        "start": ("exec", "--json", "{args}", "-"),
        "resume": ("exec", "--json", "{args}", "resume", "{conversation}", "-"),
        "prompt": "stdin",
        "output": "json-lines",
        "env": ("OPENAI_API_KEY", "OPENAI_BASE_URL", "CODEX_API_KEY", "CODEX_HOME"),
        "read": {
            "answer": {"path": "item.text", "when": {"type": "item.completed", "item.type": "agent_message"}},
            "error": {"path": "error.message", "when": {"type": "turn.failed"}},
            "conversation": {"path": "thread_id", "when": {"type": "thread.started"}},
            "text": {"path": "item.text", "when": {"type": "item.completed", "item.type": "agent_message"}},
            "tool": {
                "path": "item.command",
                "when": {"type": "item.started", "item.type": "command_execution"},
            },
            "input_tokens": {"path": "usage.input_tokens", "when": {"type": "turn.completed"}, "total": True},
            "output_tokens": {
                "path": "usage.output_tokens",
                "when": {"type": "turn.completed"},
                "total": True,
            },
        },
    },
    # Gemini CLI, headless: one JSON object a line; the answer comes in pieces.
    "gemini": {
        "command": ("gemini",),
        "start": ("--output-format", "stream-json"),
        "resume": ("--output-format", "stream-json", "--resume", "{conversation}"),
        "prompt": "stdin",
        "output": "json-lines",
        "env": (
            "GEMINI_API_KEY",
            "GOOGLE_API_KEY",
            "GOOGLE_CLOUD_PROJECT",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "GOOGLE_GEMINI_BASE_URL",
            "GEMINI_CLI_TRUST_WORKSPACE",
        ),
        "read": {
            "answer": {"path": "content", "when": {"type": "message", "role": "assistant"}, "join": True},
            "error": {"path": "error.message", "when": {"type": "result", "status": "error"}},
            "conversation": {"path": "session_id", "when": {"type": "init"}},
            "text": {"path": "content", "when": {"type": "message", "role": "assistant"}},
            "tool": {"path": "tool_name", "when": {"type": "tool_use"}},
            "input_tokens": {"path": "stats.input_tokens", "when": _RESULT},
            "output_tokens": {"path": "stats.output_tokens", "when": _RESULT},
        },
    },
    # Any agent that speaks the Agent Client Protocol over standard input and output: `command` says which.
    "acp": {"output": "acp"},
}
