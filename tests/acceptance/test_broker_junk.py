"""What anybody who reaches the broker may send: junk ends no worker, and no worker takes orders from there."""

from __future__ import annotations

import base64
import json
import os
import pickle
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery.app.control import Control

from orchestrator.redisdb.client import connect
from tests.acceptance.conftest import Terminal, open_stack, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(480)]

QUEUE = "orchestra"
AGENTS = """
import time
from orchestrator import agent

@agent("echo", queue="orchestra")
def echo(ctx):
    time.sleep(float(ctx.prompt) if ctx.prompt[0] == "0" else 0)
    return ctx.prompt
"""


class Evil:
    """Leaves a folder behind when it is unpickled."""

    def __init__(self, sprung: Path) -> None:
        self.sprung = sprung

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.sprung),)


def message(body: object = None, **changes: Any) -> dict[str, Any]:
    """A message as Celery writes it, with changes."""
    task = str(uuid.uuid4())
    octets = json.dumps([[], {"agent": "echo", "prompt": "x"}, {}] if body is None else body).encode()
    made = {
        "body": base64.b64encode(octets).decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"task": "orchestrator.start_session", "id": task, "lang": "py"},
        "properties": {
            "correlation_id": task,
            "delivery_info": {"exchange": "", "routing_key": QUEUE},
            "delivery_tag": str(uuid.uuid4()),
            "body_encoding": "base64",
        },
    }
    return {**made, **changes}


def junk(sprung: Path) -> Iterator[bytes]:
    """Everything that is no message of a task of ours."""
    yield b""
    yield b"no json at all"
    yield b"\xff\xfe\x00"
    yield b'"\\ud800"'
    yield b"[" * 200_000
    yield b'{"a":' * 100_000
    yield b"x" * (24 * 1024 * 1024)
    yield pickle.dumps(Evil(sprung))
    for value in (None, 1, "text", [], [1, 2], {}, {"properties": None}, {"properties": {}}):
        yield json.dumps(value).encode()
    whole = message()
    for name in whole:
        yield json.dumps({k: v for k, v in whole.items() if k != name}).encode()
        for value in (None, 7, [1], {"x": 1}, "nonsense"):
            yield json.dumps({**whole, name: value}).encode()
    for name in ("delivery_info", "delivery_tag", "body_encoding", "correlation_id"):
        for value in (None, 7, [1], {"x": 1}, "nonsense"):
            yield json.dumps(message(properties={**whole["properties"], name: value})).encode()
    for name, value in (
        *(("task", value) for value in (None, 7, [1], {"x": 1}, "no.such.task")),
        *(("id", value) for value in (None, 7, [1], {"x": 1})),
        *(("eta", value) for value in (7, [1], "soon")),
        *(("expires", value) for value in ([1], "soon")),
        *((name, value) for name in ("retries", "timelimit", "lang", "origin") for value in ([1], {"x": 1})),
        *((name, value) for name in ("root_id", "parent_id", "group", "stamps") for value in ([1], 7)),
        *(("compression", value) for value in ("zlib", "nonsense", [1])),
    ):
        yield json.dumps(message(headers={**whole["headers"], name: value})).encode()
    for body in (7, None, "text", [], [1], [[], []], [{}, [], []], [[], {"x": 1}, {}], [[], {}, 7]):
        yield json.dumps(message(body if body is not None else {})).encode()
    deep = "[" * 900 + "]" * 900
    for text in (f'[[], {{"task": {deep}}}, {{}}]', f'[[], {{}}, {{"chain": [{{"x": {deep}}}]}}]'):
        yield json.dumps({**whole, "body": base64.b64encode(text.encode()).decode()}).encode()
    stamped = json.dumps(message(headers={**whole["headers"], "stamps": {"x": "deep"}}))
    yield stamped.replace('"deep"', deep).encode()
    for kind in ("application/x-python-serialize", "application/x-yaml", "text/plain", "nonsense"):
        evil = base64.b64encode(pickle.dumps(Evil(sprung))).decode()
        yield json.dumps(
            message(**{"body": evil, "content-type": kind, "content-encoding": "binary"})
        ).encode()


@pytest.fixture(scope="module")
def stack() -> Iterator[Terminal]:
    with open_stack(AGENTS, "--concurrency 2 -v") as terminal:
        yield terminal


def test_junk_in_a_queue_ends_no_worker(stack: Terminal) -> None:
    """No JSON, no message, a message of nothing, pickles, 24 MB of nothing; the run behind them is run."""
    before = stack.workers()
    with stack.client() as client, connect(client.settings.redis_url or "") as broker:
        sprung = stack.folder / "sprung"
        sent = list(junk(sprung))
        broker.lpush(QUEUE, *sent)
        assert client.submit("echo", "still there").result(timeout_s=60) == "still there"
        wait_until(lambda: not broker.llen(QUEUE), "the end of the junk")
        wait_until(lambda: not broker.hlen("unacked"), "the acknowledgement of the junk")
    assert stack.workers() == before
    assert not sprung.exists()
    (up,) = stack.background
    assert "worker ended" not in up.output
    assert "message-not-understood" in up.output


def test_a_worker_takes_no_orders_from_the_broker(stack: Terminal) -> None:
    """Remote control is off: whoever reaches the broker can neither stop a worker nor slow it down, nor end a run."""
    from orchestrator.dispatch import WORK_TASK, build_celery

    before = stack.workers()
    with stack.client() as client:
        app = build_celery(client.settings)
        control = Control(app)
        assert control.ping(timeout=2) == []
        limit = {"task_name": "orchestrator.start_session", "rate_limit": "1/h"}
        control.broadcast("rate_limit", arguments=limit)
        control.cancel_consumer(QUEUE)
        control.broadcast("shutdown")
        control.broadcast("pool_shrink", arguments={"n": 5})
        for number in range(3):
            assert client.submit("echo", str(number + 1)).result(timeout_s=60) == str(number + 1)
        for _ in range(300):  # one of them takes the run
            app.send_task(WORK_TASK, queue=QUEUE, soft_time_limit=0.05)
        assert client.submit("echo", "0.5").result(timeout_s=60) == "0.5"
    assert stack.workers() == before
    stack.must("python -P -m orchestrator.healthcheck worker")
