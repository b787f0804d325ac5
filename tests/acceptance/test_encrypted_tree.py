"""A tree that encrypts, on a whole stack: no key of Redis, no row of the trail and no export has a word of it."""

from __future__ import annotations

import sqlite3

import pytest
import redis as redis_py
import zstandard

from tests.acceptance.conftest import Terminal, wait_until
from tests.everything_in_redis import leaks

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

SECRET = "swordfish"
AGENTS = """
import logging
import sys
import threading
import warnings

from orchestrator import Completion, agent

def say(ctx):
    print(f"printed {ctx.prompt}")
    print(f"printed {ctx.prompt}", file=sys.stderr)
    logging.getLogger("mine").warning(f"logged {ctx.prompt}")
    warnings.warn(f"warned {ctx.prompt}")
    thread = threading.Thread(target=print, args=(f"printed in a thread {ctx.prompt}",))
    thread.start()
    thread.join()

@agent("lead", role="coordinator", encrypt=True)
def lead(ctx):
    if ctx.cause == "start":
        ctx.state["word"] = ctx.prompt
        say(ctx)
        ctx.status(10, f"looks for {ctx.prompt}")
        first = ctx.delegate("finder", f"find {ctx.prompt} one", title=f"Find {ctx.prompt}")
        ctx.delegate("finder", task={"description": f"find {ctx.prompt} two", "objectives": [ctx.prompt]}, after=[first])
        ctx.wait_for("all")
        return f"waits for {ctx.prompt}"
    return "; ".join(sorted(c.result for c in ctx.all_results))

@agent("finder", attempts=3, backoff_s=0.01)
def finder(ctx):
    if ctx.cause == "start":
        if ctx.attempt == 1:
            raise RuntimeError(f"failed at {ctx.prompt}")
        ctx.delegate("helper", f"help with {ctx.prompt}")
        return ""
    return Completion(result=f"{ctx.callbacks[0].result} for {ctx.task.description}",
                      quality_metrics=[{"name": "word", "text": ctx.task.description}])

@agent("helper")
def helper(ctx):
    return f"helped: {ctx.prompt}"

@agent("open")
def open_(ctx):
    say(ctx)
    return "said"
"""


def test_no_word_of_it_is_in_redis_or_the_trail(terminal: Terminal) -> None:
    stack = terminal.serve(AGENTS, "--concurrency 2")
    said = terminal.must(f"orchestra submit lead {SECRET} --wait")
    assert f"helped: help with find {SECRET} one for find {SECRET} one" in said
    with terminal.client() as client:
        (root,) = client.sessions()
        tree = client.tree(root.id)
        assert [session.depth for session in tree] == [0, 1, 1, 2, 2]
        assert all(session.encrypted for session in tree)
        server = redis_py.Redis.from_url(str(client.settings.redis_url))
        assert leaks(server, SECRET) == []
        database = client.settings.data / "audit.db"
    wait_until(lambda: terminal.run("orchestra doctor").returncode == 0, "the trail has caught up")
    found = terminal.document("orchestra doctor")
    assert [one for one in found["findings"] if one["severity"] == "break"] == []
    exported = terminal.folder / "trail.jsonl"
    terminal.must(f"orchestra audit export {exported}")
    with zstandard.open(exported, "rt") as lines:
        trail = lines.read()
    assert root.message in trail
    assert SECRET not in trail
    with sqlite3.connect(database) as rows:
        assert SECRET not in "\n".join(rows.iterdump())
    assert SECRET.encode() not in database.read_bytes()
    assert SECRET not in terminal.run(f"orchestra audit search --text {SECRET} --json").stdout.replace(
        f"--text {SECRET}", ""
    )
    assert SECRET not in stack.output
    # A task of the trail is begun again by who has the keys, and is as secret.
    with terminal.client() as client:
        terminal.must(f"orchestra audit replay {root.message} --json")
        wait_until(lambda: len(client.sessions()) == 2, "a fresh tree")
        again = next(one for one in client.sessions() if one.id != root.id)
        assert SECRET in client.result(again.id, timeout_s=60)
        assert leaks(server, SECRET) == []
    # What an agent prints and logs is in the log of its worker, unless its session is encrypted.
    terminal.must("orchestra submit open plaice --wait")
    log = terminal.folder / ".orchestra/logs/worker.log"
    wait_until(lambda: log.read_text().count("plaice") == 5, "the log of the run", explain=log.read_text)
    assert [line for line in log.read_text().splitlines() if SECRET in line] == []
