"""The reference of events; one that the code has and this page does not explain fails `make docs`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import get_args

from generated_fields import Undocumented

_NOTIFICATIONS = {
    "question": ("a root asks you", "`question`: `id`, `kind`, `text`, `context`, `reply`"),
    "approval": (
        "any agent of a tree asks you for a yes or no",
        "`approval`: `id`, `tool`, `arguments`, `reason`, `digest`, `expires`, `default`, `approve`, `deny`",
    ),
    "finished": ("a root has its answer", ""),
    "failed": ("a root has failed", "`reason`"),
    "stopped": ("a root was stopped", "`reason`"),
    "dead": ("a callback will not be delivered", "`callbacks` (how many), `reason`"),
    "test": ("`orchestra service notifier --test` was run", ""),
}
_HISTORY = {
    "launched": "the session was made: by a user, or by its parent",
    "run": "a worker took a run: the first one, a resume, or another attempt",
    "attempt": "an attempt of a run ended without an answer: why, and how long it waits; `detail` has the traceback",
    "step": "a durable step was recorded",
    "delegated": "it launched a child",
    "callback": "a child ended, and what became of its callback",
    "printed": "what the agent printed, or its model said, in an attempt, or the end of it; only with texts",
    "run ended": "a run ended",
    "ended": "the session ended",
    "answer": "the latest answer; only with texts",
}
_LIVE = {
    "begin": "an answer of the model begins",
    "text": "more of it",
    "call": "the model calls a tool",
    "result": "the tool has returned",
    "replaced": "what came since the position `since` is void: its run is tried again",
}
_TRANSITIONS = {
    "session": "a session has another state",
    "run": "a run has another state, or was asked to stop",
    "callback": "the end of a child was queued, delivered, or is dead",
    "item": "a question, a reply, a message or a prompt likewise",
    "step": "a durable step was recorded",
    "budget": "a budget was set, reserved or spent",
    "approval": "a yes or no was asked for, answered, or is not needed any more",
}


def notifications() -> str:
    """One row for each CloudEvent."""
    from orchestrator.notifier.service import EVENTS

    _compare("notification", EVENTS, _NOTIFICATIONS)
    rows = [
        "| `notify_events` | `type` | what has happened | in `data` beside `session`, `agent`, `title`, `root` |"
    ]
    rows.append("| --- | --- | --- | --- |")
    rows += [
        f"| `{name}` | `{EVENTS[name]}` | {what} | {data} |" for name, (what, data) in _NOTIFICATIONS.items()
    ]
    return "\n".join(rows)


def history() -> str:
    """One row for each kind of line of `orchestra logs`."""
    import orchestrator.client.history as module

    calls = [n for n in ast.walk(ast.parse(Path(module.__file__).read_text())) if isinstance(n, ast.Call)]
    given = [c.args[1] for c in calls if isinstance(c.func, ast.Name) and c.func.id == "_event"]
    words = {value.value for value in given if isinstance(value, ast.Constant)} | {"callback"}
    _compare("event of a history", words, _HISTORY)
    return _table("what", _HISTORY)


def live() -> str:
    """One row for each kind of live event."""
    from orchestrator.ledger.live_text import Kind

    _compare("live event", get_args(Kind), _LIVE)
    return _table("kind", _LIVE)


def transitions() -> str:
    """One row for each kind of transition."""
    import orchestrator.redisdb.scripts as package

    folder = Path(str(package.__file__)).parent if package.__file__ else Path(next(iter(package.__path__)))
    texts = "\n".join(path.read_text() for path in folder.rglob("*.lua"))
    kinds = set(re.findall(r"\bchanged\('(\w+)'", texts)) | {"callback", "item"}
    _compare("transition", kinds, _TRANSITIONS)
    return _table("kind", _TRANSITIONS)


def _compare(what: str, there: Iterable[str], explained: Mapping[str, object]) -> None:
    if different := set(there) ^ set(explained):
        raise Undocumented(f"{what}: {', '.join(sorted(different))}")


def _table(heading: str, rows: Mapping[str, str]) -> str:
    return "\n".join(
        [
            f"| `{heading}` | what has happened |",
            "| --- | --- |",
            *(f"| `{k}` | {v} |" for k, v in rows.items()),
        ]
    )
