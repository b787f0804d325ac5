"""A plain Celery chord, with Celery's own defaults: `celery -A chord worker`, and a driver when run as a program."""

from __future__ import annotations

import os
import time

import redis
from celery import Celery, chord
from driver import ANSWER, drive, report

_SOCKET = os.environ["BENCH_SOCKET"]
_DATABASE = os.environ["BENCH_DATABASE"]
_URL = f"redis+socket://{_SOCKET}?virtual_host={_DATABASE}"

app = Celery("chord", broker=_URL, backend=_URL, set_as_current=False)
# The only setting: redis-py knows no keepalive on a unix socket.
app.conf.redis_socket_keepalive = False
client = redis.Redis(unix_socket_path=_SOCKET, db=int(_DATABASE))


@app.task(name="leaf")
def leaf(_: int) -> str:
    return ANSWER


@app.task(name="resume")
def resume(answers: list[str], key: str, size: int) -> None:
    now = time.time()
    assert answers == [ANSWER] * size
    report(client, key, now)


def launch(size: int, key: str) -> None:
    chord([leaf.s(number) for number in range(size)])(resume.s(key, size))


if __name__ == "__main__":
    drive(client, launch)
