"""Messages that an agent writes into its answer: what it cannot know is filled in, what is wrong is said in a sentence."""

from __future__ import annotations

import re

import pytest

from orchestrator.envelope.bodies import ErrorReport, StatusUpdate
from orchestrator.envelope.model_values import UNKNOWN_TASK
from orchestrator.envelope.written import find_messages, read_message
from orchestrator.errors import InvalidEnvelope

STATUS = '<body type="status-update"><status>in-progress</status></body>'


def message(body: str = STATUS, header: str = "", opening: str = "<agent-message>") -> str:
    return f"{opening}<header>{header}</header>{body}</agent-message>"


def test_messages_are_taken_out_of_a_text_with_the_fence_around_them() -> None:
    found, rest = find_messages(f"before\n```xml\n{message()}\n```\nafter")
    assert (found, rest.split()) == ([message()], ["before", "after"])
    assert find_messages("no <agent-messages>") == ([], "no <agent-messages>")


def test_tags_that_nothing_closes_cost_time_in_proportion_to_the_text() -> None:
    """A megabyte of them took minutes."""
    opened = "<agent-message>" * 100_000
    assert find_messages(opened) == ([], opened)
    assert find_messages(message() + opened) == ([message()], opened)


def test_what_an_agent_cannot_know_is_filled_in() -> None:
    read = read_message(message())
    assert isinstance(read.body, StatusUpdate)
    assert (read.body.task_id, read.task_id, read.sender, read.priority) == (UNKNOWN_TASK, "", "", None)
    error = read_message(
        message(
            '<body type="error"><error-type>task-failed</error-type><severity>critical</severity><message>it broke</message></body>'
        )
    ).body
    assert isinstance(error, ErrorReport)
    assert error.error_id


def test_what_an_agent_says_is_read() -> None:
    header = (
        "<sender><agent-name>lead</agent-name></sender><recipient><agent-name>you</agent-name></recipient>"
        "<priority> high </priority>"
    )
    body = '<body type="status-update"><task-id>t-1</task-id><status>completed</status></body>'
    read = read_message(message(body, header))
    assert (read.sender, read.recipient, read.priority, read.task_id) == ("lead", "you", "high", "t-1")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("<agent-message><header/></agent-message>", 'has no <body type="…">'),
        ("<agent-message><body></agent-message>", "body"),
        (message(opening='<agent-message xmlns="urn:other">'), "the namespace of <agent-message> is"),
        (message(header="<priority>asap</priority>"), "<priority> is 'asap'; it is one of"),
        (message('<body type="task-delegation"></body>'), "task"),
        (message('<body type="gossip"></body>'), "is not a type of body"),
        (message('<body type="error"><error-id>7</error-id><message>x</message></body>'), "error-id"),
    ],
)
def test_what_is_wrong_is_refused_and_named(written: str, said: str) -> None:
    with pytest.raises(InvalidEnvelope, match=re.escape(said)):
        read_message(written)
