"""A server that goes away under an open page: the page says so, keeps what it shows, and comes back by itself."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.agents.registry import AgentRecord
from orchestrator.client.client import Client
from orchestrator.config.settings import load_settings
from orchestrator.deployment.embedded.valkey import ValkeyProcess
from tests.console.conftest import serve_console

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture
def valkey(start_valkey: Callable[..., ValkeyProcess]) -> ValkeyProcess:
    """A server of this test alone, which has its data again when it comes back."""
    return start_valkey(durable=True)


@pytest.fixture
def page(browser: Browser, valkey: ValkeyProcess, tmp_path: Path) -> Iterator[Page]:
    """The sessions of a ledger without workers, in a browser."""
    settings = load_settings(data=tmp_path / "data", redis_url=valkey.url)
    process, address = serve_console(settings, tmp_path / "console.log")
    context = browser.new_context()
    try:
        opened = context.new_page()
        opened.goto(address)
        opened.goto(address.partition("/?")[0] + "/sessions")
        yield opened
    finally:
        context.close()
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def test_page_outlasts_an_outage_of_the_server(page: Page, valkey: ValkeyProcess, tmp_path: Path) -> None:
    """What was there stays to be read, an action says why it failed, and what is new appears when the server is back."""
    settings = load_settings(data=tmp_path / "data", redis_url=valkey.url)
    with Client(settings) as client:
        client._parts.agents.announce([AgentRecord(name="idle", role="coordinator")])
        session = client.submit("idle", "wait", title="Before the outage").id
        page.wait_for_selector("text=Before the outage", timeout=30_000)
        valkey.kill()
        page.wait_for_selector("#away:not([hidden])", timeout=30_000)
        assert "No stack answers; this page is from" in page.inner_text("#away")
        assert "Before the outage" in page.inner_text("#live")
        base = page.url.partition("/sessions")[0]
        form = {"session": session, "reason": "", "back": "/"}
        refused = page.request.post(f"{base}/do/stop", form=form, headers={"sec-fetch-site": "same-origin"})
        assert refused.status == 503
        assert "No stack answers" in refused.text()
        assert page.request.get(f"{base}/healthz").status == 200
        assert page.request.get(f"{base}/metrics").status == 503
        valkey.start()
        page.wait_for_selector("#away", state="hidden", timeout=60_000)
        client.submit("idle", "wait", title="After the outage")
        page.wait_for_selector("text=After the outage", timeout=30_000)
        assert page.request.get(f"{base}/metrics").status == 200
