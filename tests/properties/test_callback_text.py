"""Properties of the text that resumes a parent."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.policy.callback import Callback
from orchestrator.policy.callback_text import parse_callbacks, render_callbacks
from orchestrator.policy.guarded_tags import defuse, restore

FRAGMENTS = st.sampled_from(
    [
        *("<", "</", "/", "agent-callback", "response", "Agent-Callback", ">", "&lt;", "&amp;", "&"),
        *("lt;", "amp;", " ", "\n", "\u200b", "＜", "﹤", "≮", "＂", "\x00", "\u3164", "&#xFF1C;", '"'),
        *("## Child Result", "\n\n### Context\n\n", "\\u003c", "\n[cut after 1 of 2 bytes"),
        *("\n[attached: ", "-", "x"),
    ]
)
TEXT = st.one_of(st.text(max_size=60), st.lists(FRAGMENTS, max_size=12).map("".join))
CALLBACKS = st.builds(
    Callback,
    id=TEXT,
    session=TEXT.filter(bool),
    agent=TEXT,
    title=TEXT,
    text=TEXT,
    priority=TEXT,
    status=st.sampled_from(["completed", "failed"]),
    attachments=st.just(()) | st.just(("diff", "notes/1.md")),
) | st.builds(
    Callback,
    id=TEXT,
    session=TEXT.filter(bool),
    kind=TEXT.filter(bool),
    text=TEXT,
    question=TEXT,
    context=st.none() | st.dictionaries(TEXT, TEXT | st.integers() | st.lists(TEXT, max_size=2), max_size=3),
)


@given(TEXT)
def test_defusing_can_be_undone(text: str) -> None:
    assert text == restore(defuse(text))


@given(TEXT)
def test_a_defused_text_holds_no_guarded_tag(text: str) -> None:
    assert not re.search(r"<\s*/?\s*(agent-callback|response)(?![\w.:-])", defuse(text), re.IGNORECASE)


@given(st.lists(CALLBACKS, max_size=4), st.lists(TEXT, max_size=2))
def test_parsing_gives_back_exactly_what_was_rendered(callbacks: list[Callback], prompts: list[str]) -> None:
    assert tuple(callbacks) == parse_callbacks(render_callbacks(callbacks, prompts=prompts))


@given(TEXT)
def test_parsing_any_text_ends_in_a_verdict(text: str) -> None:
    parse_callbacks(text)
