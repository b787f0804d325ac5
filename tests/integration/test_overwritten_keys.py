"""A key that all sessions share and that another program has overwritten: named, mended, and waited for by what needs it.

Every shared key of the registry in turn, under a stack at work: no service ends, each names the key, the doctor does and is
done in time, `--fix` sets it aside, and then all work that there was, and new work, comes to its end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
from click.testing import Result

from orchestrator.agents.definition import define_agent
from orchestrator.agents.registry import AgentRecord
from orchestrator.audit.writer import build_writer
from orchestrator.bootstrap import Container
from orchestrator.client.client import Client
from orchestrator.config.settings import Settings, load_settings
from orchestrator.deployment.local_stack import build_callbacks, build_reaper
from orchestrator.doctor import Doctor, examination
from orchestrator.errors import OrchestraError
from orchestrator.ledger import CLOSED
from orchestrator.redisdb import keys, ledger_keys
from orchestrator.redisdb.all_keys import shared_keys
from orchestrator.router.build import build_router
from orchestrator.runtime.service import serve
from orchestrator.streams import consumer_name, stream_key
from orchestrator.streams.values import StreamId
from orchestrator.worker.announce import announce
from orchestrator.worker.context.context import Context
from orchestrator.worker.execution.slot import SlotLoop
from tests.kit import Kit
from tests.waiting import wait_until

#: Written by a plain SET again and again: nobody reads it, and it is right again at once.
SET_ANEW = ("sweep", "replicated")
LAUNCHES = stream_key(StreamId(0, "task-delegation", "high"))
ENDS = stream_key(StreamId(0, "task-completion", "normal"))
SHARED = {
    key: kind
    for key, kind in shared_keys(1, ["reviewer"], [LAUNCHES, ENDS]).items()
    if not key.endswith(SET_ANEW) and not any(box in key for box in (":in:", ":out:", ":quota:"))
}
#: Rows of the table; the keys of one are overwritten together.
ROWS = 9
SERVICES: dict[str, Callable[[redis_py.Redis, Settings], Any]] = {
    "router": lambda client, settings: build_router(client, settings, consumer=consumer_name("router")),
    "callbacks": build_callbacks,
    "reaper": build_reaper,
    "audit": lambda client, settings: build_writer(
        Container(client, settings), consumer=consumer_name("audit")
    ),
}


class AtWork(Kit):
    """A whole stack in threads, the services in their real frame; one child is at work until it is released."""

    def __init__(self, parts: Container) -> None:
        super().__init__(parts)
        self.released, self.began = threading.Event(), threading.Event()
        #: What ended a thread.
        self.ended: dict[str, BaseException] = {}
        self.serve(define_agent("lead", function=self.delegates, role="coordinator", source="here"))
        self.serve(define_agent("reviewer", function=self.works, source="here"))

    def doctor(self, *words: str) -> Result:
        return self.orchestra("doctor", "--quick", *words)

    def announce(self) -> None:
        """Make the agents known, as every worker does again and again."""
        announce(self.parts, self.catalogue)

    def delegates(self, ctx: Context) -> str:
        if ctx.cause == "start" and ctx.prompt == "patiently":
            ctx.delegate("reviewer", "slowly", time_limit_s=1800)
            ctx.wait_for("all", deadline_s=900)
            ctx.ask_later("may I?")
        elif ctx.cause == "start":
            ctx.delegate("reviewer", ctx.prompt)
        return "done"

    def works(self, ctx: Context) -> str:
        if ctx.prompt == "slowly":
            self.began.set()
            self.released.wait(60)
        return "fine"

    @contextmanager
    def running(self) -> Iterator[Client]:
        stop = threading.Event()
        self.announce()

        def slot(number: int) -> None:
            while not stop.wait(0.02):
                try:
                    SlotLoop(self.runtime, worker=f"w{number}").run()
                except OrchestraError:
                    stop.wait(0.1)  # Celery gives the slot its next task

        def guarded(name: str, work: Callable[[], None]) -> None:
            try:
                work()
            except BaseException as error:
                self.ended[name] = error

        work = {name: partial(serve, name, make, self.settings, stop=stop) for name, make in SERVICES.items()}
        work |= {f"slot {n}": partial(slot, n) for n in range(2)}
        threads = [threading.Thread(target=guarded, args=each, daemon=True) for each in work.items()]
        with ExitStack() as leaving:
            for thread in threads:
                thread.start()
                leaving.callback(thread.join, 60)
            leaving.callback(stop.set)
            leaving.callback(self.released.set)
            yield leaving.enter_context(Client(self.settings))


@pytest.fixture
def at_work(redis: redis_py.Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AtWork:
    # The doctor's sweep waits as long as a lease is renewed.
    for name, value in {"LEASE_S": "4", "HEARTBEAT_S": "0.2"}.items():
        monkeypatch.setenv(f"ORCHESTRA_{name}", value)
    settings = load_settings(
        redis_url=redis_url, data=tmp_path, question_time_limit_s=2700, sweep_interval_s=0.2
    )
    return AtWork.on(redis, settings)


def submitted(client: Client, prompt: str) -> str:
    """A root, or nothing: a submission that cannot be written whole is refused, and its caller told so."""
    try:
        return client.submit("lead", prompt).id
    except OrchestraError:
        return ""


def overwrite(redis: redis_py.Redis, key: str, kind: str) -> None:
    pipe = redis.pipeline(transaction=True)
    pipe.delete(key)
    pipe.rpush(key, "x") if kind == "string" else pipe.set(key, "x")
    pipe.execute()


@pytest.mark.parametrize("overwritten", [list(SHARED)[n::ROWS] for n in range(ROWS)], ids=" ".join)
def test_overwritten_keys_end_nothing_and_are_mended(
    at_work: AtWork,
    redis: redis_py.Redis,
    caplog: pytest.LogCaptureFixture,
    impatient_doctor: None,
    overwritten: list[str],
) -> None:
    asked = Counter[str]()

    def named() -> bool:
        lines = [record for record in caplog.records if record.getMessage() == "key-overwritten"]
        asked.clear()
        asked.update(str(getattr(record, "fields", {}).get("key")) for record in lines)
        return all(asked[key] >= len(SERVICES) for key in overwritten)

    with at_work.running() as client, caplog.at_level(logging.ERROR):
        before = submitted(client, "slowly")
        assert at_work.began.wait(60)
        for key in overwritten:
            overwrite(redis, key, SHARED[key])
        meanwhile = submitted(client, "quickly")
        wait_until(named, "each service names the keys", explain=lambda: (at_work.ended, asked))
        began = time.monotonic()
        look = at_work.doctor()
        assert time.monotonic() - began < 30
        first = {keys.format_version(), keys.agreed()} & set(overwritten)  # without them nobody may look
        assert look.exit_code == (2 if first else 1), look.output
        assert [key for key in first or overwritten if key not in look.output] == []
        fixed = at_work.doctor("--fix")
        for key in overwritten:
            assert redis.type(key) in (b"none", SHARED[key].encode()), fixed.output
            assert redis.exists(keys.aside(key))
        at_work.announce()
        at_work.released.set()
        for session in (before, submitted(client, "quickly"), meanwhile):
            if session and not (
                session == meanwhile and LAUNCHES in overwritten
            ):  # its message was lost with it
                assert client.result(session, timeout_s=120) == "done"
        assert at_work.ended == {}


def test_many_broken_sessions_take_the_doctor_no_longer_than_one(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks again at all of them together."""
    monkeypatch.setattr(examination, "SECOND_LOOKS", (0.0, 0.5))
    kit.parts.agents.announce([AgentRecord(name="lead", role="coordinator")])
    for _ in range(50):
        kit.submit("lead")
    kit.redis.delete("ao:{00}:roots")
    slept: list[float] = []
    findings = Doctor(kit.parts, audit=None, sleep=slept.append).examine(watch_leases=False).findings
    assert len([finding for finding in findings if finding.rule == "session-unindexed"]) == 50
    assert len(slept) < 20


def test_keys_that_are_lost_are_registered_again_and_no_work_waits(
    at_work: AtWork, redis: redis_py.Redis
) -> None:
    """Whoever has a key makes it known: the router of the folder, the process that signs with it, and the doctor."""
    with at_work.running() as client:
        assert client.result(client.submit("lead", "quickly").id, timeout_s=120) == "done"
        redis.delete(keys.public_keys())
        began = time.monotonic()
        assert client.result(client.submit("lead", "quickly").id, timeout_s=120) == "done"
        assert time.monotonic() - began < 8
    redis.delete(keys.public_keys())
    assert "is not in ao:keys" in at_work.doctor().output
    at_work.doctor("--fix")
    assert "is not in ao:keys" not in at_work.doctor().output


def test_what_has_to_have_ended_by_a_time_still_has_to(
    at_work: AtWork, redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time limits, deadlines of waiting policies and the end of a question stand in the sessions' own records, too."""
    monkeypatch.setenv("ORCHESTRA_QUESTION_TIME_LIMIT_S", str(at_work.settings.question_time_limit_s))
    with at_work.running() as client:
        root = client.submit("lead", "patiently", time_limit_s=3600).id
        assert at_work.began.wait(60)
        wait_until(lambda: len(timers(redis)) == 4, "a timer of each kind", explain=lambda: timers(redis))
        wait_until(lambda: at_work.doctor().exit_code != 2, "the audit trail")
        before = timers(redis)
        overwrite(redis, ledger_keys.timers(0), "zset")
        fixed = at_work.doctor("--fix")
        wait_until(
            lambda: timers(redis) == before,
            "the same",
            timeout_s=20,
            explain=lambda: (before, timers(redis), fixed.output),
        )
        redis.zrem(ledger_keys.timers(0), *before)
        assert at_work.doctor().output.count("[timer-lost]") == 4
        at_work.doctor("--fix")
        assert timers(redis) == before
        at_work.released.set()
        wait_until(client.questions, "its question")
        client.reply(client.questions()[0].id, "yes")
        assert client.result(root, timeout_s=60) == "done"
        assert not [name for name in timers(redis) if name.startswith("limit|")]


def test_a_late_answer_is_late_though_the_timers_are_lost(at_work: AtWork, redis: redis_py.Redis) -> None:
    with at_work.running() as client:
        root = client.submit("lead", "slowly", time_limit_s=2).id
        assert at_work.began.wait(60)
        overwrite(redis, ledger_keys.timers(0), "zset")
        time.sleep(2.5)
        redis.delete(ledger_keys.timers(0))
        at_work.released.set()
        wait_until(
            lambda: client.session(root).state in CLOSED, "its end", explain=lambda: client.session(root)
        )


def test_pauses_and_limits_are_put_back(at_work: AtWork, redis: redis_py.Redis) -> None:
    """Nothing of a paused agent is taken meanwhile; what is lifted later stays lifted."""
    with at_work.running() as client:
        for words in (("agents", "pause", "reviewer"), ("agents", "limit", "lead", "3")):
            assert at_work.orchestra(*words).exit_code == 0
        root = client.submit("lead", "quickly").id
        wait_until(lambda: client.session(root).owed == 1, "its child")
        overwrite(redis, ledger_keys.run_limits(0), "hash")
        assert "limits" in at_work.doctor().output
        at_work.doctor("--fix")
        assert limits(redis) == {
            "agent:lead": b"3",
            "paused:agent:reviewer": limits(redis)["paused:agent:reviewer"],
        }
        redis.delete(ledger_keys.run_limits(0))
        lost = at_work.doctor()
        assert "[limits-lost]" in lost.output
        assert "'reviewer' was paused" in lost.output
        at_work.doctor("--fix")
        assert set(limits(redis)) == {"agent:lead", "paused:agent:reviewer"}
        assert "limits-lost" not in at_work.doctor().output
        for words in (("agents", "unpause", "reviewer"), ("agents", "limit", "lead", "default")):
            assert at_work.orchestra(*words).exit_code == 0
        assert client.result(root, timeout_s=60) == "done"
        overwrite(redis, ledger_keys.run_limits(0), "hash")
        at_work.doctor("--fix")
        assert limits(redis) == {}


def timers(redis: redis_py.Redis) -> dict[str, float]:
    """What is due and when, apart from when a tree is removed."""
    if redis.type(ledger_keys.timers(0)) != b"zset":
        return {}
    due: Any = redis.zrange(ledger_keys.timers(0), 0, -1, withscores=True)
    return {name.decode(): at for name, at in due if not name.startswith(b"expire|")}


def limits(redis: redis_py.Redis) -> dict[str, bytes]:
    """What an operator has set."""
    found: Any = redis.hgetall(ledger_keys.run_limits(0))
    return {
        name.decode(): value
        for name, value in found.items()
        if name.startswith((b"agent:", b"paused:", b"tree"))
    }
