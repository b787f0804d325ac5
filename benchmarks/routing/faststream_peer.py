"""The peer of `bench_router.py`: one FastStream consumer of JSON. Needs nothing but FastStream itself.

    python benchmarks/peer_faststream.py URL N

Publishes N messages of the size of ours, then consumes them on one core; prints messages a second.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from faststream.redis import RedisBroker, StreamSub  # type: ignore[import-not-found,unused-ignore]

STREAM = "bench:faststream"


async def consume(url: str, count: int) -> None:
    """Publish ``count`` messages, then consume them."""
    broker = RedisBroker(url, logger=None)
    done = asyncio.Event()
    seen: list[float] = []
    spent: list[float] = []

    @broker.subscriber(stream=StreamSub(STREAM, group="bench", consumer="one", last_id="0", max_records=100))  # type: ignore[untyped-decorator,unused-ignore]
    async def handle(body: dict[str, Any]) -> None:  # noqa: ARG001 - the peer decodes by its type
        seen.append(time.perf_counter())
        spent.append(time.process_time())
        if len(seen) == count:
            done.set()

    await broker.connect()
    for number in range(count):
        await broker.publish({"id": number, "text": "x" * 2450}, stream=STREAM)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    await broker.start()
    await done.wait()
    await broker.stop()
    # As for ours: the first twentieth is left out.
    skip = count // 20
    sys.stdout.write(
        f"{(count - skip) / (seen[-1] - seen[skip])} {(spent[-1] - spent[skip]) / (count - skip) * 1e6}\n"
    )


if __name__ == "__main__":
    asyncio.run(consume(sys.argv[1], int(sys.argv[2])))
