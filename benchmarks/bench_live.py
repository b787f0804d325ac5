"""How long the first text of a model agent takes from the provider's first byte to whoever reads `Client.stream`.

A whole stack; a scripted provider in this process, which the real client of Anthropic talks to; one reader for each
session. First one session after the other, then as many at once as there are slots. The time begins when the provider
writes the first piece of its answer and ends when the reader has the first text.

Prints one JSON line for each part: sessions, and milliseconds at the median, p95 and at most. The last line has
`first_text_p95_ms`, that of the sessions one after the other.

    python benchmarks/bench_live.py [--sessions N] [--at-once N] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from orchestrator.client.client import Client
from orchestrator.config.settings import load_settings
from orchestrator.deployment.local_stack import LocalStack
from orchestrator.testing import Say, WireServer

AGENTS = """
from orchestrator import model_agent

teller = model_agent("teller", instructions="You tell.", model="anthropic:claude-haiku-5-5")
"""
ANSWER = Say("Once upon a time there was a lease that nobody renewed.", pace_s=0.01)


def first_text_ms(client: Client, server: WireServer, name: str) -> float:
    """Submit, read until there is text; milliseconds from the provider's first piece to that."""
    session = client.submit("teller", name)
    stream = client.stream(session.id, timeout_s=60)
    next(event for event in stream if event.kind == "text")
    seen = time.monotonic()
    [wrote] = [at for at, request in list(server.first_pieces) if request.messages[0].text == name]
    for _ in stream:
        pass
    return (seen - wrote) * 1000


def show(part: str, found: list[float]) -> float:
    """Print the figures of one part; its p95."""
    found = sorted(found)
    p95 = found[min(len(found) - 1, int(len(found) * 0.95))]
    figures = {
        "part": part,
        "sessions": len(found),
        "p50_ms": round(statistics.median(found), 1),
        "p95_ms": round(p95, 1),
        "max_ms": round(found[-1], 1),
    }
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()
    return p95


def main() -> None:
    """Measure on a stack of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sessions", type=int, default=25)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="few sessions, to see that it runs")
    options = parser.parse_args()
    count = 5 if options.quick else options.sessions
    with tempfile.TemporaryDirectory(dir="/tmp") as name, WireServer(lambda _: ANSWER) as server:
        folder = Path(name)
        (folder / "teller.py").write_text(AGENTS, encoding="utf-8")
        os.environ.update(server.environment())
        agents = (str(folder / "teller.py"),)
        settings = load_settings(data=folder / "data", agents=agents, concurrency=options.at_once)
        with LocalStack(settings) as stack:
            stack.wait_ready()
            with Client(stack.settings) as client, ThreadPoolExecutor(options.at_once) as pool:
                # Each process of the worker makes its provider's client first.
                for number in range(2 * options.at_once):
                    first_text_ms(client, server, f"warm {number}")
                alone = [first_text_ms(client, server, f"alone {number}") for number in range(count)]
                p95 = show("one after the other", alone)
                names = [f"at once {number}" for number in range(count)]
                together = list(pool.map(lambda name: first_text_ms(client, server, name), names))
                show(f"{options.at_once} at once", together)
    sys.stdout.write(json.dumps({"first_text_p95_ms": round(p95, 1)}) + "\n")


if __name__ == "__main__":
    main()
