"""The agents of the benchmark: they do nothing but delegate and answer."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from orchestrator import agent

ANSWER = "0123456789" * 50


@agent("fan", role="coordinator", tier="haiku")
def fan(ctx: Any) -> str:
    now = time.time()
    if ctx.cause == "start":
        ctx.state["began"] = now
        ctx.delegate_all("leaf", (str(number) for number in range(int(ctx.prompt))))
        ctx.wait_for("all")
        return "waiting"
    # With more children than one resume carries the last one ends it.
    assert all(callback.text == ANSWER for callback in ctx.callbacks)
    return json.dumps([ctx.state["began"], now])


@agent("leaf", role="specialist", tier="haiku")
def leaf(_: Any) -> str:
    return ANSWER


@agent("relay", role="coordinator", tier="haiku")
def relay(ctx: Any) -> str:
    now = time.time()
    times = ctx.state.setdefault("times", [])
    if ctx.callbacks:
        times.append((now - float(ctx.callbacks[0].text)) * 1000)
    if len(times) < int(ctx.state.setdefault("rounds", ctx.prompt)):
        ctx.delegate("stopwatch", f"round {len(times)}")
        return "waiting"
    return json.dumps(times)


@agent("host", role="coordinator", tier="haiku")
def host(ctx: Any) -> str:
    ctx.delegate_all("guest", ("wait",) * int(ctx.prompt))
    return "waiting"


@agent("guest", role="coordinator", tier="haiku")
def guest(ctx: Any) -> str:
    if ctx.cause == "start":
        ctx.delegate("late", "never")
    return "waiting"


@agent("late", role="specialist", tier="haiku")
def late(_: Any) -> str:
    return ANSWER


@agent("stopwatch", role="specialist", tier="haiku")
def stopwatch(_: Any) -> str:
    time.sleep(0.02)  # by now the parent is idle
    return str(time.time())


@agent("sleeper", role="specialist", tier="haiku")
def sleeper(ctx: Any) -> str:
    while not Path(ctx.prompt).exists():
        time.sleep(0.05)
    return ANSWER
