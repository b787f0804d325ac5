"""The tag around an agent's answer: which one counts, and what is left of the text."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.policy.response_tag import tag_extract, tag_strip


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("<response>hello</response>", "hello"),
        ("Some preamble <response>The actual answer</response> trailing", "The actual answer"),
        ("<Response>a</Response>", "a"),
        ("<RESPONSE>a</response>", "a"),
        ("<rEsPoNsE>a</ReSpOnSe>", "a"),
        ("<response>has <inner> tags</response>", "has <inner> tags"),
        (
            "text <response>outer <response>inner</response> middle</response> end",
            "outer <response>inner</response> middle",
        ),
        ("<response>one</response> and <response>two</response>", "one</response> and <response>two"),
        ('<response foo="bar">content</response>', "content"),
        ("<response\n a='1'\n b='2'>content</response>", "content"),
        ("<response>content</response\n>", "content"),
        ("<response>Multi\n\n  line\ncontent</response>", "Multi\n\n  line\ncontent"),
        ("<response>\n\t trimmed  \n</response>", "trimmed"),
        ("<response>a &lt;b&gt; &amp; c</response>", "a &lt;b&gt; &amp; c"),
        ("<response></response>", ""),
        ("<response>  \n </response>", ""),
        # A close tag before the first open tag closes nothing.
        ("</response> then <response>answer</response>", "answer"),
        # Text knows no markup: a tag in a code block counts like any other.
        ("```xml\n<response>answer</response>\n```", "answer"),
        ("I answer in `<response>`: <response>x</response>", "`: <response>x"),
    ],
)
def test_the_first_open_and_the_last_close_tag_hold_the_content(text: str, content: str) -> None:
    assert tag_extract(text, "response") == content


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no tag",
        "only </response>",
        "<response> cut off",
        "</response> wrong way round <response>",
        "<responses>another tag</responses>",
        "<response-x>another tag</response-x>",
        "<response/>",
        "<response /> </response>",
        "< response>no tag</response>",
        "&lt;response&gt;no tag&lt;/response&gt;",
    ],
)
def test_without_one_of_them_there_is_nothing(text: str) -> None:
    assert tag_extract(text, "response") is None
    assert tag_strip(text, "response") == text


def test_strip_takes_the_block_and_leaves_the_rest() -> None:
    assert tag_strip("before <response>a</response> after", "response") == "before  after"
    assert tag_strip("a <Response x='1'>b</response> c </RESPONSE> d", "response") == "a  d"


def test_any_tag_will_do() -> None:
    assert tag_extract("<plan>a</plan>", "plan") == "a"
    assert tag_extract("<a.b>x</a.b>", "a.b") == "x"
    assert tag_extract("<axb>x</axb>", "a.b") is None


@given(st.text(), st.text(), st.text())
def test_what_is_put_in_comes_out(before: str, content: str, after: str) -> None:
    text = f"{before}<response>{content}</response>{after}"
    if not any("response" in part.lower() for part in (before, content, after)):
        assert tag_extract(text, "response") == content.strip()
        assert tag_strip(text, "response") == before + after


@pytest.mark.parametrize("piece", ["<response ", "</response ", "<response", '<response "', "<response>"])
def test_a_hostile_text_costs_no_more_time_than_its_length(piece: str) -> None:
    text = piece * 100_000
    begun = time.process_time()
    tag_extract(text, "response")
    assert time.process_time() - begun < 2
