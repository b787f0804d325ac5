"""The transcript of a session in the console, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.console.conftest import Running, beside
from tests.transcript.conftest import Stage, led, stage  # noqa: F401
from tests.transcript.test_transcript import SHOWN

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture(scope="module")
def running(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:  # noqa: F811
    """The console of the stack whose agents are models."""
    with beside(stage.settings, tmp_path_factory.mktemp("console"), stage.client) as found:
        yield found


def test_the_console_shows_what_was_said(led: str, open_page: Callable[..., Page]) -> None:  # noqa: F811
    """The session leads to it; texts are text, and its delegations lead to theirs."""
    page = open_page(f"/sessions/{led}")
    page.get_by_role("link", name="its transcript").click()
    page.wait_for_url(f"**/sessions/{led}/transcript")
    text = page.inner_text("#live")
    for words in (
        "Let me look.",
        f"the contents {SHOWN}",
        "there is no file wrong.txt",
        "approved by ann: go ahead",
    ):
        assert words in text
    assert page.locator("script:not([src]), style, [style], [onclick]").count() == 0
    assert page.title() != "gone"
    thinking = page.locator(".part.thinking pre").first
    assert not thinking.is_visible()
    page.locator(".part.thinking summary").first.click()
    assert thinking.inner_text() == "I look first"
    page.get_by_role("link", name=re.compile("ses_|count")).last.click()
    page.wait_for_url("**/transcript")
    assert "seven words" in page.inner_text("#live")


def test_what_a_model_is_writing_appears_by_itself(
    stage: Stage,  # noqa: F811
    open_page: Callable[..., Page],
) -> None:
    """Its words are on the pages of the session and of the transcript, and more of them a moment after they are written."""
    session = stage.client.submit("storyteller", "tell").id
    page, other = open_page(f"/sessions/{session}"), open_page(f"/sessions/{session}/transcript")
    page.wait_for_selector("#says >> text=Once upon a time")
    other.wait_for_selector("text=being written")
    assert "tell" in other.inner_text(".part.prompt pre")
    (stage.folder / "mark.more").touch()
    for shown in (page, other):
        shown.wait_for_selector("text=there was a queue.", timeout=20_000)
    assert "The end." not in page.inner_text("#says")
    assert "being written" in stage.transcript(session)
    (stage.folder / "mark.end").touch()
    stage.client.wait(session, timeout_s=60)
    page.wait_for_selector("#answer >> text=The end.")
    other.wait_for_selector("text=being written", state="detached")
    assert page.locator("#says").count() == 0
    assert "being written" not in stage.transcript(session)
