"""A real browser without a window, on pages that a server of the test hands out and writes down."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


@dataclass
class Seen:
    """What a browser made of a page, and what it asked for to do so."""

    dom: str
    #: What it wrote to its console: refusals, too.
    console: str
    requests: list[str] = field(default_factory=list)


def browse(page: str, folder: Path) -> Seen:
    """The page as Chromium has it after loading; without Chromium the test is skipped, or fails where CI promised it."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        reason = "the program chromium is not installed"
        if os.environ.get("TESTS_REQUIRE_PROGRAMS"):
            pytest.fail(reason)
        pytest.skip(reason)
    with _served(page) as (port, requests):
        done = subprocess.run(
            [
                *(
                    browser,
                    "--headless",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--disable-dev-shm-usage",
                    "--no-first-run",
                ),
                *("--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"),
                # No name leads anywhere, so that nothing but the server of the test can be reached.
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                *(f"--user-data-dir={folder / 'browser'}", "--virtual-time-budget=5000"),
                *("--dump-dom", f"http://127.0.0.1:{port}/page.html"),
            ],
            capture_output=True,
            timeout=120,
            check=True,
        )
    console = "\n".join(line for line in done.stderr.decode().splitlines() if "CONSOLE" in line)
    return Seen(dom=done.stdout.decode(), console=console, requests=requests)


@contextmanager
def _served(page: str) -> Iterator[tuple[int, list[str]]]:
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            found = self.path == "/page.html"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(page.encode() if found else b"")

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1], requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
