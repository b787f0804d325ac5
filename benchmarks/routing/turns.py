"""One router in this process, which routes so many messages each time it is told to: for comparisons in short turns.

    python benchmarks/routing/turns.py CHECKOUT

The `benchmarks` of the checkout make the messages, so that the library of another version can be measured, too: run it with
the interpreter in which that version is installed. Reads a number of messages from each line of its input, and writes the
microseconds of processor time that one of them took the router.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    """Serve turns until the input ends."""
    sys.path.insert(0, str(Path(sys.argv[1]) / "benchmarks"))
    from orchestrator.envelope.signature import ED25519
    from orchestrator.router.build import build_router
    from routing.stack import fresh

    with tempfile.TemporaryDirectory() as folder, fresh(Path(folder), algorithm=ED25519) as bench:
        router = build_router(bench.client, bench.parts.settings, consumer="bench")
        gc.collect()
        gc.freeze()  # as a service does
        for line in sys.stdin:
            count = int(line)
            bench.publish(bench.envelopes(count))
            done, begun = 0, time.process_time_ns()
            while done < count:
                done += router.run_once(block_ms=1).done
            sys.stdout.write(f"{(time.process_time_ns() - begun) / count / 1000:.2f}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
