"""The process that a waiting slot is lent to: runs what one session needs, one run after another, then ends.

Started by `workers.lending` as ``python -m workers.lent SESSION WORKER``, with the worker's settings in its
environment. It ends when its standard input is closed and its present run is over, when nothing has been
left to do for a while, and at once when the process of the slot dies.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from typing import Final

from billiard.process import current_process

from orchestrator.dispatch import build_celery
from orchestrator.ids import shard_of
from orchestrator.ledger import Dispatch
from orchestrator.log import configure_logging
from orchestrator.settings import load_settings
from orchestrator.stack import resolve
from orchestrator.tether import die_with_parent
from workers.lending import Lending, Queued, serves
from workers.patience import persist
from workers.runner import execute_run
from workers.runtime import RuntimeOfProcess

#: Seconds without anything to do after which the process ends.
LINGER_S: Final = 3.0
#: Seconds without anything to do for the awaited session after which other trees' runs will do.
OTHERS_AFTER_S: Final = 0.5
#: Seconds between two looks, growing from the first to the second.
_LOOK_S: Final = (0.02, 0.25)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is needed."""
    # An agent may have made its call from a thread of its own, which ends when it has its answer.
    die_with_parent(signal.SIGTERM, of_thread=False)
    parser = argparse.ArgumentParser(prog="workers.lent", description=__doc__)
    parser.add_argument("session")
    parser.add_argument("worker")
    parser.add_argument("--depth", type=int, required=True)
    parser.add_argument("--queues", default="")
    given = parser.parse_args(arguments)
    # An agent that ignores a stop is ended together with its process, as in a pool of processes.
    current_process().name = f"LentProcess-{os.getpid()}"
    settings = resolve(load_settings())
    configure_logging(settings, service="worker")
    queues = frozenset(name for name in given.queues.split(",") if name)
    lending = Lending(settings, queues=queues, depth=given.depth)
    runtime = RuntimeOfProcess(build_celery(settings), settings, lending=lending).get()
    queued = Queued(runtime.parts.ledger, serves(runtime.catalogue, queues))

    def find() -> Dispatch | None:
        needed = queued.needed_by(given.session)
        if needed is None and time.monotonic() - idle_since > OTHERS_AFTER_S:
            needed = queued.any(shard_of(given.session))
        return needed

    idle_since, look_s = time.monotonic(), _LOOK_S[0]
    while not _told_to_end(look_s) and time.monotonic() - idle_since < LINGER_S:
        run = persist(find, what="lent")
        if run is None:
            look_s = min(look_s * 2, _LOOK_S[1])
            continue
        execute_run(runtime, agent=run.agent, session=run.session, run=run.run, worker=given.worker)
        idle_since, look_s = time.monotonic(), _LOOK_S[0]


def _told_to_end(wait_s: float) -> bool:
    """Whether standard input was closed, after waiting for that a little."""
    readable, _, _ = select.select([sys.stdin], [], [], wait_s)
    return bool(readable) and not sys.stdin.buffer.read(1)


if __name__ == "__main__":
    main()
