"""A Dramatiq group with a completion barrier: `dramatiq group`, and a driver when run as a program."""

from __future__ import annotations

import os
import time

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import GroupCallbacks
from dramatiq.rate_limits.backends import RedisBackend as Barriers
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend as ResultStore
from driver import ANSWER, drive, report

client = redis.Redis(unix_socket_path=os.environ["BENCH_SOCKET"], db=int(os.environ["BENCH_DATABASE"]))
broker = RedisBroker(client=client)
broker.add_middleware(GroupCallbacks(Barriers(client=client)))
broker.add_middleware(Results(backend=ResultStore(client=client)))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def leaf(_: int) -> str:
    return ANSWER


@dramatiq.actor
def resume(key: str) -> None:
    # The answers are stored by now; fetching them is not counted, which is in Dramatiq's favour.
    report(client, key, time.time())


def launch(size: int, key: str) -> None:
    group = dramatiq.group(leaf.message(number) for number in range(size))
    group.add_completion_callback(resume.message(key))
    group.run()


if __name__ == "__main__":
    drive(client, launch)
