"""What the web console costs beside a stack at work: its processor time as a share of that of router and fan-in.

A stack with the console, which `--pages` open pages and a scrape of `/metrics` every `--scrape` seconds keep busy, while trees of
`--children` children are launched one after the other for `--seconds`. A page does what a browser does: it listens, and fetches
itself again when it is told to. Prints one JSON line: processor seconds of each process, and the console's share of those of the
router, the callback service, the workers and the server, once with pages and scrapes and once without.

With `--tree N` it opens the page of one tree of N sessions instead, every few seconds while router and workers are at work on it, and then
at rest; the JSON line has the seconds that each took until all of it was there.

    python benchmarks/bench_console.py [--seconds N] [--pages N] [--children N] [--scrape S] [--tree N]
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import sys
import tempfile
import threading
import time
import urllib.parse
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from orchestrator.client.client import Client
from orchestrator.config.settings import load_settings
from orchestrator.console.access import COOKIE, Access, Person, Rules
from orchestrator.console.serving import running
from orchestrator.deployment.local_stack import LocalStack

AGENTS = """
from orchestrator import agent


@agent("lead", role="coordinator")
def lead(ctx):
    if ctx.cause == "start":
        ctx.delegate_all("child", (str(number) for number in range(int(ctx.prompt))))
        ctx.wait_for("all")
        return "waiting"
    return "done"


@agent("child")
def child(ctx):
    return "x" * 500
"""
_TICKS = os.sysconf("SC_CLK_TCK")


def processor_s(pid: int) -> float:
    """Processor time of a process, its threads, and its children that live or were waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS + sum(processor_s(int(child)) for child in children)


class Watcher:
    """Somebody with pages open, and Prometheus."""

    def __init__(self, url: str, cookie: str) -> None:
        self._place = urllib.parse.urlsplit(url).netloc
        self._headers = {"cookie": f"{COOKIE}={cookie}"}
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.fetched = self.scraped = 0

    def get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection(self._place, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", path, headers=self._headers)
            return connection.getresponse().read()

    def open_page(self, path: str) -> None:
        """Open a page and keep it up to date."""

        def look() -> None:
            while not self._stop.is_set():
                with contextlib.suppress(OSError, http.client.HTTPException):
                    self._follow(path)

        self._begin(look)

    def _follow(self, path: str) -> None:
        connection = http.client.HTTPConnection(self._place, timeout=20)
        with contextlib.closing(connection):
            connection.request("GET", "/events", headers=self._headers)
            events = connection.getresponse()
            self.get(path)
            while not self._stop.is_set():
                line = events.readline()
                if not line:
                    return
                if line.startswith(b"event: tick"):
                    self.get(path)
                    self.fetched += 1

    def scrape(self, every_s: float) -> None:
        """Read the metrics now and then."""

        def read() -> None:
            while not self._stop.wait(every_s):
                self.get("/metrics")
                self.scraped += 1

        self._begin(read)

    def _begin(self, work: object) -> None:
        self._threads.append(threading.Thread(target=work, daemon=True))  # type: ignore[arg-type]
        self._threads[-1].start()

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=10)


def measure(
    stack: LocalStack, client: Client, server: int, given: argparse.Namespace, *, watched: bool
) -> dict[str, object]:
    (place,) = running(stack.settings.data)
    access = Access(Rules(folder=stack.settings.data / "console"))
    watcher = Watcher(place.url, access.make_cookie(Person("bench", "operator")))
    root = client.submit("lead", str(given.children)).id
    client.result(root, timeout_s=120)
    if watched:
        paths = [f"/trees/{root}", "/", "/sessions", "/agents"][: given.pages]
        # What is done once is not what it costs: imports, templates, the first reading of the trail.
        for path in (*paths, "/metrics"):
            watcher.get(path)
        while b"is being examined" in watcher.get("/"):
            time.sleep(1)
        for path in paths:
            watcher.open_page(path)
        watcher.scrape(given.scrape)
    pids = {**stack.pids, "server": server}
    before = {name: processor_s(pid) for name, pid in pids.items()}
    until, trees = time.monotonic() + given.seconds, 0
    while time.monotonic() < until:
        client.result(client.submit("lead", str(given.children)).id, timeout_s=120)
        trees += 1
    used = {name: round(processor_s(pid) - before[name], 2) for name, pid in pids.items()}
    watcher.end()
    work = sum(used[name] for name in ("router", "callbacks", "worker", "server"))
    return {
        "children": trees * given.children,
        "processor_s": used,
        "share": round(used["console"] / work, 4),
        "fetched": watcher.fetched,
        "scraped": watcher.scraped,
    }


def open_large(stack: LocalStack, client: Client, sessions: int) -> dict[str, object]:
    (place,) = running(stack.settings.data)
    access = Access(Rules(folder=stack.settings.data / "console"))
    watcher = Watcher(place.url, access.make_cookie(Person("bench", "operator")))
    for path in (f"/trees/{client.submit('lead', '2').id}", "/"):
        watcher.get(path)  # imports and templates
    root = client.submit("lead", str(sessions)).id
    took: dict[str, list[float]] = {"at_work": [], "at_rest": []}
    sizes = []
    while len(took["at_rest"]) < 5:
        time.sleep(3)  # what was read a moment ago is kept that long
        now = client.session(root)
        if now.launched < sessions:
            continue
        began = time.monotonic()
        page = watcher.get(f"/trees/{root}")
        took["at_rest" if now.ended_ms else "at_work"].append(round(time.monotonic() - began, 2))
        sizes.append(len(page))
    return {"sessions": sessions, "bytes": max(sizes), "load": os.getloadavg()[0], **took}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--pages", type=int, default=3)
    parser.add_argument("--children", type=int, default=100)
    parser.add_argument("--scrape", type=float, default=15)
    parser.add_argument("--tree", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "agents.py").write_text(AGENTS, encoding="utf-8")
        settings = load_settings(
            data=folder / "data",
            agents=[str(folder / "agents.py")],
            concurrency=4,
            console=True,
            console_port=0,
            redis_url=None,
            stop_grace_s=2,
        )
        with LocalStack(settings) as stack:
            stack.wait_ready(120)
            with Client(stack.settings) as client:
                if given.tree:
                    print(json.dumps(open_large(stack, client, given.tree)))
                    return
                server = client._parts.redis.info("server")["process_id"]  # noqa: SLF001
                print(
                    json.dumps(
                        {
                            "pages": given.pages,
                            "unwatched": measure(stack, client, server, given, watched=False),
                            "watched": measure(stack, client, server, given, watched=True),
                        }
                    )
                )


if __name__ == "__main__":
    main()
