"""Fan-in: N children, each returning 500 characters, into one resume; ours beside three others on one server.

Prints a JSON line for each size, with the median of all turns; then the latency from a child's stop to its
parent's resume, what a child costs the server, and whether the cost of a child stays the same for very many of
them. `--cpu` also says which process used how much CPU time. Everything runs on one Valkey over a unix socket, started
for the run with the settings of the embedded server (`appendfsync always`), its file in the folder for temporary
files: `TMPDIR=/dev/shm` keeps it in memory and shows what is left when the disk costs nothing. `--server` takes another
program than the embedded one, which allocates with the C library; distributions build Redis and Valkey with jemalloc.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fanin import cpu, peers
from fanin.ours import Ours

from orchestrator.deployment.embedded import valkey
from orchestrator.deployment.embedded.valkey import ValkeyProcess, make_socket_dir, remove_socket_dir

#: The key of each system in the JSON lines.
KEYS = {
    "ours": "ms_per_child",
    "chord": "chord_ms_per_child",
    "dramatiq": "dramatiq_ms_per_child",
    "bullmq": "bullmq_ms_per_child",
}
#: Fan-ins before the first that counts: connections, imports, keys, and code that every process has been through.
WARM_UP = (10, 50, 200)


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--turns", type=int, default=12, help="so often each system has its turn")
    parser.add_argument(
        "--repeat", type=int, default=1, help="measurements of 1,000 in each turn; more of fewer"
    )
    parser.add_argument("--slots", type=int, default=4, help="worker processes of each system")
    parser.add_argument("--systems", nargs="+", default=list(KEYS), choices=list(KEYS))
    parser.add_argument("--latency", type=int, default=300, help="resumes to time; 0: none")
    parser.add_argument(
        "--flat", type=int, default=10_000, help="children in all, of one and of many; 0: none"
    )
    parser.add_argument("--quick", action="store_true", help="one short turn: whether it runs, not how fast")
    parser.add_argument("--cpu", action="store_true", help="CPU time of each process for each child")
    parser.add_argument(
        "--server",
        type=Path,
        help="server program, such as /usr/bin/redis-server; by default the embedded Valkey",
    )
    parser.add_argument("--keep", type=Path, help="folder for data and logs; by default they are removed")
    args = parser.parse_args()
    if args.quick:
        args.sizes, args.turns, args.repeat, args.latency, args.flat = [10, 100], 1, 1, 30, 500
    return args


def measure(args: argparse.Namespace, server: ValkeyProcess, folder: Path) -> None:
    """All turns. The systems are up side by side and take short turns, so that a slow moment is nobody's own."""
    times: dict[tuple[str, int], list[float]] = {}
    spent: dict[tuple[str, int], list[dict[str, float]]] = {}
    with contextlib.ExitStack() as up:
        running: dict[str, Any] = {}
        for name in args.systems:
            started = up.enter_context(system(name, args, server, folder / name))
            if started is not None:
                running[name] = started
                for size in WARM_UP:
                    started.fan_in(size)
        for turn in range(args.turns if running else 0):
            # Whoever comes first does so in its turn, too.
            first = turn % len(running)
            for name in [*running, *running][first : first + len(running)]:
                for size in args.sizes:
                    # A short one says little: it is measured more often. What it leaves to be done falls into the next.
                    often = args.repeat * max(1, round((1000 / size) ** 0.5))
                    before = cpu.by_process(running[name].labels())
                    found = times.setdefault((name, size), [])
                    found += [running[name].fan_in(size) / size for _ in range(often)]
                    running[name].settle()
                    after = cpu.by_process(running[name].labels())
                    spent.setdefault((name, size), []).append(cpu.difference(before, after, often * size))
    for size in args.sizes:
        medians = {n: statistics.median(times[n, size]) if (n, size) in times else None for n in KEYS}
        say(fan_in=size, **{KEYS[n]: None if m is None else round(m, 3) for n, m in medians.items()})
    if args.cpu:
        for (name, size), differences in spent.items():
            say(cpu_ms_per_child=name, fan_in=size, **cpu.medians(differences))


def system(name: str, args: argparse.Namespace, server: ValkeyProcess, folder: Path) -> Any:
    folder.mkdir(parents=True)
    if name == "ours":
        return Ours(server, folder, slots=args.slots)
    return peers.Peer(name, server, folder, slots=args.slots)


def measure_latency(args: argparse.Namespace, server: ValkeyProcess, folder: Path) -> None:
    peers.flush(server.url)
    folder.mkdir()
    with Ours(server, folder, slots=args.slots) as running:
        running.latencies(20)
        times = sorted(running.latencies(args.latency))
    say(
        latency="child's stop to parent's resume running, parent idle",
        resumes=len(times),
        p50_ms=round(statistics.median(times), 2),
        p99_ms=round(times[min(len(times) - 1, round(len(times) * 0.99))], 2),
        max_ms=round(times[-1], 2),
    )


def measure_server(args: argparse.Namespace, server: ValkeyProcess, folder: Path) -> None:
    """Commands and microseconds of the server for each child; the fastest turn, as others disturb a turn and never help it."""
    peers.flush(server.url)
    folder.mkdir()
    size = max(args.sizes)
    with Ours(server, folder, slots=args.slots) as running:
        for warm_up in WARM_UP:
            running.fan_in(warm_up)
        turns = [running.server_work(size) for _ in range(args.turns)]
    fastest = min(turns, key=lambda turn: turn["us_in_scripts"])
    say(server_per_child=size, **{name: round(figure, 1) for name, figure in fastest.items()})


def measure_flatness(args: argparse.Namespace, server: ValkeyProcess, folder: Path) -> None:
    """The cost of a child with few, with all children under one parent, and with all under many parents."""
    peers.flush(server.url)
    folder.mkdir()
    total = args.flat
    with Ours(server, folder, slots=args.slots, bounded=True) as running:
        running.fan_in(50)
        few = [running.fan_in(100) / 100 for _ in range(3)]
        say(flatness="100 children of one parent", ms_per_child=round(statistics.median(few), 3))
        say(flatness=f"{total} children of one parent", ms_per_child=round(running.fan_in(total) / total, 3))
        many = running.forest(max(1, total // 10), 10) / total
        say(flatness=f"{max(1, total // 10)} parents with 10 children each", ms_per_child=round(many, 3))


def folders(args: argparse.Namespace) -> Iterator[Path]:
    if args.keep is not None:
        args.keep.mkdir(parents=True)
        yield args.keep.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="fanin-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def main() -> None:
    args = arguments()
    for name in [n for n in os.environ if n.startswith("ORCHESTRA_")]:
        del os.environ[name]
    if args.server is not None:
        valkey.find_binary = lambda: args.server
    for folder in folders(args):
        sockets = make_socket_dir()
        try:
            with ValkeyProcess(folder / "server", sockets) as server:
                say(
                    server=f"{args.server or 'embedded Valkey'} over a unix socket, appendfsync always",
                    worker_processes=args.slots,
                    cores=os.cpu_count(),
                    turns=args.turns,
                )
                measure(args, server, folder)
                if "ours" in args.systems:
                    measure_server(args, server, folder / "server-work")
                if args.latency:
                    measure_latency(args, server, folder / "latency")
                if args.flat:
                    measure_flatness(args, server, folder / "flatness")
        finally:
            remove_socket_dir(sockets)


if __name__ == "__main__":
    main()
