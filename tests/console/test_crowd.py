"""Ten thousand sessions in the console, on a stack of their own."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.console.conftest import Running
from tests.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]


@pytest.mark.slow
def test_ten_thousand_sessions_are_folded(open_page: OpenPage, running: Running) -> None:
    """The page of such a tree has at most 200 rows, says how many there are, and unfolds them by fifties."""
    crowd = running.client.submit("crowd", "10000", title="A crowd").id
    wait_until(lambda: running.client.session(crowd).launched == 10_000, "the crowd")
    page = open_page(f"/trees/{crowd}")
    assert page.locator("tbody tr").count() <= 200
    assert "10,001 sessions" in page.inner_text("#live")
    large = page.locator("tr.group").filter(has_text=re.compile(r"\d,\d{3}")).first
    if large.locator("a.fold").get_attribute("aria-expanded") == "false":
        large.locator("a.fold").click()
    page.wait_for_selector("tr.more")
    assert page.locator("tbody tr").count() <= 200
    page.click("tr.more >> text=Next 50")
    page.wait_for_selector("tr.more >> text=51–100")
