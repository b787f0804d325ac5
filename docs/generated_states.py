"""The states of sessions, runs and callbacks, and every way from one to another.

The Lua transitions carry these out; plays of the ledger hold them to it, and ``docs/explanation/states.md``
is made from these tables. A state without an entry is terminal.
"""

from __future__ import annotations

from collections.abc import Mapping

#: state → (next state → what leads there)
Transitions = Mapping[str, Mapping[str, str]]

SESSION: Transitions = {
    "scheduled": {
        "pending": "its time has come",
        "failed": "its records cannot be read",
        "stopped": "stopped before its time",
        "deleted": "deleted by a user",
    },
    "pending": {
        "running": "a worker claims its first run",
        "failed": "refused, or its first run fails for good",
        "stopped": "stopped before it ran",
        "deleted": "deleted by a user",
    },
    "running": {
        "idle": "its run commits or fails at a question, something is outstanding",
        "finished": "its run commits, nothing is outstanding; or another run fails at a question",
        "failed": "its run fails for good",
        "stopped": "stopped by a user or by policy",
        "deleted": "deleted by a user",
    },
    "idle": {
        "running": "a resume is claimed",
        "failed": "failed by policy",
        "stopped": "stopped by a user or by policy",
        "deleted": "deleted by a user",
    },
    "finished": {
        "running": "a user resumes it",
        "stopped": "stopped while another resume waits",
        "failed": "failed by policy while another resume waits, or by what it inherited",
        "deleted": "deleted by a user",
    },
    "failed": {"deleted": "deleted by a user"},
    "stopped": {"deleted": "deleted by a user"},
}

RUN: Transitions = {
    "queued": {
        "running": "claimed by a worker",
        "stopped": "its session is stopped before it runs",
        "failed": "its session is failed before it runs",
    },
    "running": {
        "completed": "committed",
        "queued": "lease lost, process died, or failed with attempts left",
        "failed": "failed for good, or lost too often",
        "stopped": "stopped",
    },
}

CALLBACK: Transitions = {
    "owed": {
        "queued": "the child has ended",
        "dead": "the parent is closed, the failure is ignored by policy, or a retry did not take the child up",
    },
    "queued": {
        "claimed": "a resume takes it, or a blocking call",
        "delivered": "the parent is an external program, which reports its own end",
        "dead": "the parent is closed, or a retry did not take the child up",
    },
    "claimed": {
        "delivered": "the run that carries it commits",
        "queued": "the run that carries it fails at a question that it carries, too",
        "dead": "the run that carries it fails for good",
    },
}

#: What the page shows, in its order.
MACHINES: Mapping[str, Transitions] = {"Session": SESSION, "Run": RUN, "Callback": CALLBACK}
STARTS: Mapping[str, str] = {"Session": "pending", "Run": "queued", "Callback": "owed"}


def allowed(machine: Transitions, before: str, after: str) -> bool:
    """Whether one step may lead from ``before`` to ``after``; staying is always allowed."""
    return before == after or after in machine.get(before, {})


def table(name: str) -> str:
    """Return one machine as a table, with the states that begin and end it above."""
    machine = MACHINES[name]
    ends = sorted({after for steps in machine.values() for after in steps} - machine.keys())
    lines = [
        f"It begins as `{STARTS[name]}` and ends as {', '.join(f'`{end}`' for end in ends)}.",
        "",
        "| from | to | when |",
        "| --- | --- | --- |",
    ]
    rows: dict[tuple[str, str], list[str]] = {}
    for before, steps in machine.items():
        for after, why in steps.items():
            rows.setdefault((after, why), []).append(f"`{before}`")
    lines += [f"| {', '.join(before)} | `{after}` | {why} |" for (after, why), before in rows.items()]
    return "\n".join(lines)
