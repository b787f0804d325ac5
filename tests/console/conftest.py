"""A stack at work, the console beside it, and Debian's Chromium driven by Playwright."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.client.client import Client
from orchestrator.config.settings import Settings, load_settings
from orchestrator.deployment.local_stack import LocalStack
from tests.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

#: Titles and answers that would act on a page or a terminal, if they could.
HOSTILE = "<script>document.title='gone'</script> \x1b[31mred \u202eesrever"
AGENTS = """
import time

from orchestrator import agent

HOSTILE = {hostile!r}


@agent("lead", role="coordinator")
def lead(ctx):
    if ctx.cause == "start":
        for part in ctx.prompt.split("."):
            if part.strip():
                ctx.delegate("counter", part, title=part.strip()[:40])
        ctx.wait_for("all")
        return "waiting for the counters"
    return " and ".join(str(callback.result) for callback in ctx.all_results)


@agent("counter")
def counter(ctx):
    return f"{{len(ctx.prompt.split())}} words"


@agent("growing", role="coordinator")
def growing(ctx):
    ctx.delegate("slow", "take your time", title=f"child of run {{ctx.cause}}")
    ctx.wait_for("all")
    return "waiting"


@agent("slow")
def slow(ctx):
    ctx.status(10, "taking its time")
    for _ in range(60_000):
        if ctx.stopping:
            return "stopped early"
        time.sleep(0.01)
    return "done"


@agent("asking")
def asking(ctx):
    return f"it is {{ctx.ask('Which colour? ' + HOSTILE)}}"


@agent("careful")
def careful(ctx):
    answer = ctx.request_approval("delete_files", {{"path": "/srv/data", "note": HOSTILE}}, reason="the disk is full")
    return f"approved: {{answer.approved}}"


@agent("failing", attempts=1)
def failing(ctx):
    raise ValueError("nothing to work with " + HOSTILE)


@agent("unlucky", attempts=1)
def unlucky(ctx):
    raise ValueError("the printer has no paper")


@agent("hostile")
def hostile(ctx):
    return HOSTILE


@agent("spending")
def spending(ctx):
    with ctx.spending.reserve(input_tokens=900, output_tokens=100, usd=0.25) as reservation:
        reservation.settle(input_tokens=900, output_tokens=100, usd=0.25)
    return "The verdict: saffron"


@agent("crowd", role="coordinator")
def crowd(ctx):
    ctx.delegate_all("idle", (str(number) for number in range(int(ctx.prompt))))
    ctx.wait_for("all")
    return "waiting"


@agent("idle")
def idle(ctx):
    return "ok"
"""


@dataclass
class Running:
    """A stack with the console beside it."""

    settings: Settings
    client: Client
    url: str
    #: Makes an address that lets somebody in once.
    address: Callable[..., str]
    restart: Callable[[], None]
    end: Callable[[], None]


def serve_console(settings: Settings, log: Path, *options: str) -> tuple[subprocess.Popen[bytes], str]:
    """Start `orchestra console`; the process, and the address that it printed, with its token."""
    env = {**os.environ, **settings.to_env(), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "orchestrator", "console", *(options or ("--port", "0"))]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT)

    def printed() -> str:
        found = re.search(r"^console: (http\S+)$", log.read_text(), re.MULTILINE)
        return found[1] if found else ""

    wait_until(lambda: printed() or process.poll() is not None, "the console", 60)
    assert printed(), log.read_text()
    return process, printed()


@contextmanager
def stack_of(folder: Path, agents: str) -> Iterator[tuple[Settings, Client]]:
    """A whole stack of its own processes that serves the agents of that source, without a console."""
    (folder / "agents.py").write_text(agents, encoding="utf-8")
    settings = load_settings(
        data=folder / "data",
        agents=[str(folder / "agents.py")],
        concurrency=4,
        console=False,
        redis_url=None,
        stop_grace_s=3,
        signature_algorithm="Ed25519",
    )
    with LocalStack(settings) as stack:
        stack.wait_ready(120)
        with Client(stack.settings) as client:
            yield stack.settings, client


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A stack of agents that finish, fail, ask and say hostile things, and its console."""
    folder = tmp_path_factory.mktemp("stack")
    with (
        stack_of(folder, AGENTS.format(hostile=HOSTILE)) as (settings, client),
        beside(settings, folder, client) as found,
    ):
        yield found


@contextmanager
def beside(settings: Settings, folder: Path, client: Client) -> Iterator[Running]:
    """The console of a stack."""
    from orchestrator.console.access import Access, Rules

    processes = []
    process, printed = serve_console(settings, folder / "console.log")
    processes.append(process)
    url = printed.partition("/?")[0]
    port = url.rpartition(":")[2]

    def address(name: str = "ann", role: Any = "operator", path: str = "/") -> str:
        token = Access(Rules(folder=settings.data / "console")).make_token(name, role)
        return f"{url}{path}?token={token}"

    def end() -> None:
        processes[-1].send_signal(signal.SIGTERM)
        processes[-1].wait(30)

    def restart() -> None:
        processes.append(serve_console(settings, folder / f"console{len(processes)}.log", "--port", port)[0])

    try:
        yield Running(settings, client, url, address, restart, end)
    finally:
        with suppress(ProcessLookupError):
            end()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a window; without it the tests are skipped, or fail where CI promised it.

    Its driver has an event loop at work, beside which the tests of other modules could run none.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        reason = "the program chromium is not installed"
        if os.environ.get("TESTS_REQUIRE_PROGRAMS"):
            pytest.fail(reason)
        pytest.skip(reason)
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser: Browser, running: Running) -> Iterator[Callable[..., Page]]:
    """Open a page as a person who was let in; the page's errors and refusals fail the test."""
    contexts, faults = [], list[str]()

    def open_(path: str = "/", *, name: str = "ann", role: str = "operator", **options: Any) -> Page:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "console",
            lambda said: faults.append(said.text) if "Content Security Policy" in said.text else None,
        )
        page.goto(running.address(name, role))
        if path != "/":
            page.goto(running.url + path)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not faults, faults
