"""The lead of the crew: it gives each line of its prompt to a coder, and what they changed to a reviewer."""

from __future__ import annotations

from typing import Any


def lead(ctx: Any) -> str:
    """One task a line; lines that begin with `!` belong to the task before (orders for the stand-in)."""
    if ctx.cause == "start":
        for task in tasks_of(ctx.prompt):
            ctx.delegate("coder", task)
        ctx.wait_for("all")
        return "waiting for the coders"
    done = [callback for callback in ctx.all_results if callback.agent == "coder"]
    reviews = [callback for callback in ctx.all_results if callback.agent == "reviewer"]
    if not reviews:
        changes = "\n\n".join(callback.attachment("diff") or "" for callback in done)
        ctx.delegate("reviewer", f"Review these changes, and answer in one sentence.\n\n{changes}")
        return "waiting for the review"
    lines = [f"{callback.title}: {callback.result or callback.error}" for callback in done]
    return "\n".join([*lines, f"Review: {reviews[0].result or reviews[0].error}"])


def tasks_of(prompt: str) -> list[str]:
    """The tasks of a prompt."""
    tasks: list[str] = []
    for line in filter(None, map(str.strip, prompt.splitlines())):
        if line.startswith("!") and tasks:
            tasks[-1] += f"\n{line}"
        else:
            tasks.append(line)
    return tasks
