"""Agents whose final answer alone shows whether a callback was lost or came twice.

A `branch` sums up what its children answer, over all its resumes; a `leaf` is worth one. Each keeps in its
state, which is saved only with a commit, whom it has heard of.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

from orchestrator import Retry, agent

Context = Any

#: Where `fragile` leaves a mark when it has killed its worker.
MARKS = Path(os.environ.get("CHAOS_MARKS", "."))
#: Seconds that a leaf works.
LEAF_S = float(os.environ.get("CHAOS_LEAF_S", "0"))


@agent("branch", role="coordinator", queue="chaos", attempts=3)
def branch(ctx: Context) -> str:
    """Prompt ``3,2``: three branches below it, each with two leaves."""
    heard = ctx.state.setdefault("heard", {})
    if ctx.cause == "start":
        width, _, below = ctx.prompt.partition(",")
        for number in range(int(width)):
            ctx.delegate("branch" if below else "leaf", below or "1", title=f"child {number}")
        ctx.state["launched"] = int(width)
        ctx.wait_for("any", window_s=float(os.environ.get("CHAOS_WINDOW_S", "0")) or None)
        return "launched"
    for callback in ctx.callbacks:
        if callback.session in heard:
            raise AssertionError(f"{callback.session} came twice")
        heard[callback.session] = callback.text if callback.status == "completed" else "0"
    if {c.session for c in ctx.all_results} != set(heard):
        raise AssertionError("all_results are not those that were heard of")
    if len(heard) < ctx.state["launched"]:
        return "not all yet"
    return str(sum(int(text) for text in heard.values()))


@agent("leaf", queue="chaos", attempts=3)
def leaf(ctx: Context) -> str:
    """Says that it is at work, and is worth one."""
    ctx.status(50, "counting")
    if LEAF_S:
        time.sleep(LEAF_S)
    return ctx.prompt


@agent("fragile", queue="chaos")
def fragile(ctx: Context) -> str:
    """Kills its worker the first time."""
    mark = MARKS / f"fragile-{ctx.session}"
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "1"


@agent("uprooted", queue="chaos")
def uprooted(ctx: Context) -> str:
    """Kills the worker's main process the first time, and with it whoever would see that this process died."""
    mark = MARKS / f"uprooted-{ctx.session}"
    if not mark.exists():
        mark.touch()
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    return "1"


@agent("computing", queue="chaos")
def computing(ctx: Context) -> str:
    """Does not look up the first time."""
    mark = MARKS / f"computing-{ctx.session}"
    if not mark.exists():
        mark.touch()
        time.sleep(60)
    return "1"


@agent("mixed", role="coordinator", queue="chaos")
def mixed(ctx: Context) -> str:
    """Prompt ``a b``: one child of each of these agents; the answer says how each ended."""
    ends = ctx.state.setdefault("ends", {})
    if ctx.cause == "start":
        for name in ctx.prompt.split():
            ctx.delegate(name, "1", title=name)
        return "launched"
    for callback in ctx.callbacks:
        if callback.agent in ends:
            raise AssertionError(f"{callback.agent} came twice")
        ends[callback.agent] = callback.status
    if len(ends) < ctx.state.get("launched", len(ctx.all_results)):
        return "not all yet"
    return " ".join(f"{name}={ends[name]}" for name in sorted(ends))


@agent("usurper", queue="chaos")
def usurper(ctx: Context) -> str:
    """A specialist that gives a coordinator work, which is refused."""
    if ctx.cause == "start":
        ctx.delegate("branch", "1", title="do my work")
        return "asked"
    (callback,) = ctx.callbacks
    return callback.status


@agent("quitter", role="coordinator", queue="chaos")
def quitter(ctx: Context) -> str:
    """Launches children that work for long, and fails: they are stopped."""
    for _ in range(3):
        ctx.delegate("sleeper", "1")
    raise RuntimeError("gives up")


@agent("sleeper", queue="chaos")
def sleeper(ctx: Context) -> str:
    """Works until it is asked to stop."""
    while True:
        ctx.check()
        time.sleep(0.02)


@agent("stubborn", queue="chaos", time_limit_s=1)
def stubborn(ctx: Context) -> str:
    """Never stops by itself."""
    while True:
        time.sleep(1)


@agent("enduring", role="coordinator", queue="chaos")
def enduring(ctx: Context) -> str:
    """Calls an agent; says how often it was tried, and how its child ended. The first try takes a while after that."""
    callback = ctx.call(ctx.prompt, "1", key="child")
    if ctx.attempt == 1:
        time.sleep(30)
    return f"{ctx.attempt} {callback.status}"


@agent("broken", queue="chaos")
def broken(ctx: Context) -> Any:
    """Fails inside of a library."""
    return json.loads(ctx.prompt)


@agent("killer", queue="chaos")
def killer(ctx: Context) -> str:
    """Ends its process, every time."""
    os._exit(int(ctx.prompt))


@agent("postponed", queue="chaos", attempts=2)
def postponed(ctx: Context) -> str:
    """Asks to be tried again after a while."""
    if ctx.attempt == 1:
        raise Retry("not yet", after_s=float(ctx.prompt))
    return "1"


@agent("talkative", queue="chaos")
async def talkative(ctx: Context) -> None:
    """Writes log lines of its own."""
    log = logging.getLogger("crew")
    log.info("from the %s", "agent")
    await asyncio.to_thread(log.warning, "from a thread")


@agent("stumbler", queue="chaos", attempts=3)
def stumbler(ctx: Context) -> str:
    """Fails twice, then answers."""
    if ctx.attempt < 3:
        raise RuntimeError(f"attempt {ctx.attempt}")
    return "1"


@agent("fickle", role="coordinator", queue="chaos", attempts=2)
def fickle(ctx: Context) -> str:
    """Launches one child and fails; on its second try it launches another one instead."""
    if ctx.cause == "start":
        ctx.delegate("sleeper" if ctx.attempt == 1 else "leaf", "1")
        if ctx.attempt == 1:
            raise RuntimeError("changes its mind")
        return "launched"
    return " ".join(callback.agent for callback in ctx.all_results)


@agent("mixture", role="coordinator", queue="chaos", attempts=3)
def mixture(ctx: Context) -> str:
    """Prompt ``branch 3,2 caller 2``: a child of each agent with its prompt; the sum of what they answer."""
    heard = ctx.state.setdefault("heard", {})
    if ctx.cause == "start":
        words = ctx.prompt.split()
        for name, prompt in zip(words[::2], words[1::2], strict=True):
            ctx.delegate(name, prompt)
        ctx.state["launched"] = len(words) // 2
        return "launched"
    for callback in ctx.callbacks:
        if callback.kind != "completion":
            ctx.reply(callback, f"{callback.text}!")
        elif callback.session in heard:
            raise AssertionError(f"{callback.session} came twice")
        else:
            heard[callback.session] = (
                callback.text if callback.status == "completed" else f"0 {callback.text}"
            )
    if len(heard) < ctx.state["launched"]:
        return "not all yet"
    return str(sum(int(text) for text in heard.values()))


@agent("caller", role="coordinator", queue="chaos", attempts=3)
def caller(ctx: Context) -> str:
    """Calls as many children as it is told, one after the other in one run, and answers what they ask."""
    total = 0
    for number in range(int(ctx.prompt)):
        called = ctx.call("curious", f"child {number}", answer=lambda question: f"{question.text}!")
        total += int(called.text)
    return str(total)


@agent("curious", queue="chaos", attempts=3)
def curious(ctx: Context) -> str:
    """Asks its parent something and waits for the reply."""
    reply = ctx.raise_callback("how much?")
    return "1" if reply == "how much?!" else f"0 {reply!r}"


@agent("listener", queue="chaos", attempts=3)
def listener(ctx: Context) -> str:
    """Remembers every word of its user."""
    words = ctx.state.setdefault("words", [])
    if ctx.cause == "user":
        words.append(ctx.prompt)
    return ", ".join(words)


@agent("patient", queue="chaos", attempts=3)
def patient(ctx: Context) -> str:
    """Asks its parent something, ends its run, and is resumed with the reply."""
    if ctx.cause == "start":
        ctx.raise_callback("how much?", wait=False)
        return "asked"
    (reply,) = ctx.callbacks
    return "1" if reply.text == "how much?!" else f"0 {reply!r}"


@agent("nested", queue="chaos")
def nested(ctx: Context) -> str:
    """Prompt ``3``: calls itself until three runs wait for one another; the answer is how many there were."""
    depth = int(ctx.prompt)
    return str(1 + int(ctx.call("nested", str(depth - 1)).result)) if depth > 1 else "1"
