"""What waits for a time or for a person survives a Redis that is killed, and so does who tells people of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from orchestrator.client.client import Client
from orchestrator.config.settings import load_settings
from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.deployment.local_stack import build_reaper
from orchestrator.ledger import RunRef
from orchestrator.redisdb import keys, ledger_keys
from orchestrator.redisdb.client import connect
from orchestrator.worker.context.context import Context
from tests.integration.test_notifier import Receiver, fails, receiver
from tests.kit import Kit
from tests.waiting import wait_until

__all__ = ["receiver"]


def test_a_redis_that_is_killed_loses_no_sleep_no_schedule_no_question_and_no_notification(
    start_valkey: Callable[..., ValkeyProcess], tmp_path: Path, receiver: Receiver
) -> None:
    server = start_valkey(durable=True)
    settings = load_settings(redis_url=server.url, data=tmp_path / "data", sweep_interval_s=0.05)
    kit = Kit.on(connect(server.url), settings)

    @kit.agent("sleeper")
    def sleeper(ctx: Context) -> str:
        ctx.sleep(1)
        return "slept"

    @kit.agent("asker")
    def asker(ctx: Context) -> str:
        return ctx.ask("Ship it?")

    env = {**os.environ, **settings.to_env(), "ORCHESTRA_NOTIFY_URL": receiver.url}
    notifier = subprocess.Popen([sys.executable, "-m", "orchestrator", "service", "notifier"], env=env)
    try:
        wait_until(lambda: kit.redis.exists(keys.notices(0)))
        parked: list[RunRef] = []
        for agent in ("sleeper", "asker"):
            parked.append(kit.start(kit.submit(agent)))
            assert kit.execute(parked[-1]) == "parked"
        with Client(settings) as client:
            later = client.submit("sleeper", "later", at=timedelta(seconds=2)).id
        server.kill()
        server.start()
        with Client(settings) as client:
            assert [one.id for one in client.scheduled()] == [later]
            (question,) = client.questions()
            client.reply(question.id, "yes")
            reaper = build_reaper(kit.redis, settings)
            wait_until(lambda: reaper.run_once() and client.session(later).state == "pending")
            for dispatch in parked:
                assert kit.redis.zscore(ledger_keys.ready(0, dispatch.agent), dispatch.run) is not None
                assert kit.execute(dispatch) == "finished"
            assert [client.answer(dispatch.session) for dispatch in parked] == ["slept", "yes"]
        failed = fails(kit)
        wait_until(lambda: any(event["subject"] == failed for event in receiver.events))
        asked = [e for e in receiver.events if e["type"] == "agent-orchestra.question.asked"]
        assert {event["subject"] for event in asked} == {parked[1].session}
        assert len({str(event["id"]) for event in asked}) == 1
    finally:
        notifier.kill()
        notifier.wait()
