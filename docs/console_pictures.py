"""The pictures of the web console: the demo and a few agents that ask and fail, and a real browser without a window.

`python docs/console_pictures.py` writes `docs/images/console-*.png`; it needs Chromium, Playwright and the extra `console`.
`python docs/console_pictures.py --stay` leaves the stack and the console running until Ctrl-C: `make console`.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import which

from orchestrator.client.client import Client
from orchestrator.config.settings import load_settings
from orchestrator.console.serving import address
from orchestrator.deployment.local_stack import LocalStack
from orchestrator.errors import NoStack

ROOT = Path(__file__).parent.parent
IMAGES = Path(__file__).parent / "images"
AGENTS = """
import time

from orchestrator import agent


@agent("publisher", role="coordinator")
def publisher(ctx):
    ctx.delegate("editor", "Check the release notes", title="Check the notes")
    return f"published in {ctx.ask('Publish these notes as 1.2, or wait for the fix?')}"


@agent("editor")
def editor(ctx):
    return "two typing errors, corrected"


@agent("cleaner")
def cleaner(ctx):
    ctx.request_approval("delete_files", {"path": "/srv/builds", "older_than_days": 30}, reason="the disk is 94 % full")


@agent("importer")
def importer(ctx):
    # Under a name of its own, so that the picture has no folder of the machine that it was taken on.
    exec(compile("raise ValueError('row 118 has no date')", "import_orders.py", "exec"))


@agent("research", role="coordinator")
def research(ctx):
    if ctx.cause == "start":
        for topic in ("queues", "leases", "fan-in", "signatures", "tracing", "budgets", "retries", "sandboxes"):
            ctx.delegate("reader", topic, title=f"Read about {topic}")
        ctx.wait_for("all")
        return "reading"
    return "a report of eight chapters"


@agent("reader")
def reader(ctx):
    if ctx.prompt in ("tracing", "budgets", "retries"):
        for done in range(10, 90, 10):
            ctx.status(done, f"reading chapter {done // 10}")
            time.sleep(6)
    return f"{ctx.prompt}: three sources"
"""


@contextmanager
def at_work(folder: Path) -> Iterator[tuple[LocalStack, Client, dict[str, str]]]:
    """A stack with the demo and the agents above at work, and its console."""
    (folder / "agents.py").write_text(AGENTS, encoding="utf-8")
    settings = load_settings(
        data=folder / "data",
        agents=[str(folder / "agents.py")],
        review_roots=[ROOT / "orchestrator" / "policy"],
        concurrency=6,
        console=True,
        console_port=0,
        stop_grace_s=2,
        redis_url=None,
    )
    with LocalStack(settings) as stack:
        stack.wait_ready(120)
        with Client(stack.settings) as client:
            titles = {
                "publisher": "Release 1.2",
                "cleaner": "Free the disk",
                "importer": "Import the orders of May",
                "research": "What queues promise",
            }
            found = {
                name: client.submit(name, f"{title}, please.", title=title).id
                for name, title in titles.items()
            }
            review = str(ROOT / "orchestrator" / "policy")
            found["lead"] = client.submit("lead", review, title="Review of policy").id
            yield stack, client, found


def take(stack: LocalStack, client: Client, found: dict[str, str]) -> None:
    """Take the pictures once there is something to see."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        raise SystemExit("no Chromium is here: apt-get install chromium")
    client.result(found["lead"], timeout_s=120)
    with suppress(Exception):
        client.result(found["importer"], timeout_s=60)
    while not (client.questions() and client.approvals()):
        time.sleep(0.1)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1160, "height": 800})
        page.goto(address(stack.settings.data, "ann", "operator"))
        base = page.url.rstrip("/")
        time.sleep(12)  # the next examination has all of it
        for name, path in (
            ("triage", "/"),
            ("tree", f"/trees/{found['research']}"),
            ("session", f"/sessions/{found['publisher']}"),
        ):
            page.goto(base + path)
            time.sleep(1.5)
            picture = IMAGES / f"console-{name}.png"
            page.screenshot(path=str(picture), full_page=True)
            print(f"{picture.name}: {picture.stat().st_size} bytes")
        browser.close()


def stay(stack: LocalStack) -> None:
    """Leave it running until Ctrl-C."""
    try:
        url = address(stack.settings.data, "you", "operator")
    except NoStack as error:
        raise SystemExit(str(error)) from error
    print(f"console: {url}\nThe address lets its bearer in once. Ctrl-C stops everything.", flush=True)
    with suppress(webbrowser.Error):
        webbrowser.open(url)
    with suppress(KeyboardInterrupt):
        threading.Event().wait()


def main() -> None:
    """Take the pictures, or stay."""
    with (
        tempfile.TemporaryDirectory(prefix="orchestra-console-", ignore_cleanup_errors=True) as name,
        at_work(Path(name)) as (stack, client, found),
    ):
        stay(stack) if "--stay" in sys.argv else take(stack, client, found)


if __name__ == "__main__":
    main()
