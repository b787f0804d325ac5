"""The loop of a peer's driver: sizes come in, milliseconds go out, one a line."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import redis

ANSWER = "0123456789" * 50


def drive(client: redis.Redis, launch: Callable[[int, str], None]) -> None:
    """``launch`` starts a fan-in of a size, whose end is reported under a key by :func:`report`."""
    for number, line in enumerate(sys.stdin):
        key = f"bench:end:{number}"
        start = time.time()
        launch(int(line), key)
        _, end = client.blpop([key])
        print(json.dumps((float(end) - start) * 1000), flush=True)


def report(client: redis.Redis, key: str, now: float) -> None:
    """Tell the driver when the resume began."""
    client.lpush(key, now)
