"""The picture of Flower's task list: a real stack, a real Flower, and a real browser without a window.

`python docs/flower_picture.py` writes `docs/images/flower-tasks.png`; it needs Chromium.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from orchestrator.client.client import Client
from orchestrator.config.settings import load_settings
from orchestrator.deployment.local_stack import LocalStack

IMAGE = Path(__file__).parent / "images" / "flower-tasks.png"
AGENTS = """
import time

from orchestrator import agent


@agent("lead", role="coordinator")
def lead(ctx):
    if ctx.cause == "start":
        for path in ctx.prompt.split():
            ctx.delegate("reviewer", path)
        ctx.wait_for("all")
        return "waiting for reviews"
    return "all reviewed"


@agent("reviewer")
def reviewer(ctx):
    time.sleep(0.2 + len(ctx.prompt) / 50)
    if ctx.prompt.endswith(".bin"):
        raise ValueError("this is no text")
    return "fine"
"""
PROMPT = "machine.py ids.py errors.py logo.bin settings.py"
USER, PASSWORD = "reader", "secret"
#: Seconds that anything may take.
PATIENCE_S = 60.0


def main() -> None:
    """Take the picture."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("no Chromium is here: apt-get install chromium")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        (folder / "crew.py").write_text(AGENTS, encoding="utf-8")
        settings = load_settings(
            data=folder / "data", agents=(str(folder / "crew.py"),), concurrency=2, review_roots=()
        )
        with LocalStack(settings) as stack:
            stack.wait_ready()
            _with_flower(stack, folder, browser)


def _with_flower(stack: LocalStack, folder: Path, browser: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    env = {**os.environ, **stack.settings.to_env(), "FLOWER_BASIC_AUTH": f"{USER}:{PASSWORD}"}
    command = [sys.executable, "-m", "celery", "-A", "orchestrator", "flower", f"--port={port}"]
    with (folder / "flower.log").open("wb") as log:
        flower = subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=folder)
    try:
        _wait_until(lambda: _ask(port, "/workers?json=1").get("data"))
        with Client(stack.settings) as client:
            client.submit("lead", PROMPT).result(timeout_s=PATIENCE_S)
        runs = len(PROMPT.split()) + 2
        _wait_until(
            lambda: (
                [t["state"] in {"SUCCESS", "FAILURE"} for t in _ask(port, "/api/tasks").values()]
                == [True] * runs
            )
        )
        _photograph(browser, f"http://{USER}:{PASSWORD}@127.0.0.1:{port}/tasks", folder)
    finally:
        flower.terminate()
        flower.wait()


def _photograph(browser: str, url: str, folder: Path) -> None:
    IMAGE.parent.mkdir(exist_ok=True)
    subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--user-data-dir={folder / 'browser'}", "--window-size=1720,680"),
            *("--virtual-time-budget=10000", f"--screenshot={IMAGE}", url),
        ],
        check=True,
        timeout=PATIENCE_S,
        capture_output=True,
    )


def _ask(port: int, path: str) -> dict[str, dict[str, object]]:
    credentials = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"Basic {credentials}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310  (on loopback)
            found: dict[str, dict[str, object]] = json.load(answer)
            return found
    except OSError:
        return {}


def _wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("Flower does not show what ran")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
