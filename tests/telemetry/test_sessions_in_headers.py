"""The signed header of each message names the sessions that it is between, so that a trail alone tells who told whom."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator import agent
from orchestrator.audit import AuditReader, AuditStore
from orchestrator.envelope.codec import decode
from orchestrator.envelope.parse import parse
from orchestrator.envelope.signature import verify
from orchestrator.errors import SignatureError
from tests.telemetry.conftest import Watched


@agent("named-lead", role="coordinator")
def lead(ctx) -> str:  # type: ignore[no-untyped-def]
    if ctx.cause == "start":
        ctx.delegate("named-helper", "count", key="first")
        ctx.delegate("named-helper", "fail", key="second")
    for question in ctx.callbacks:
        if question.kind == "query":
            ctx.reply(question, "seven")
    return "done"


@agent("named-helper", attempts=1)
def helper(ctx) -> str:  # type: ignore[no-untyped-def]
    if ctx.prompt == "fail":
        raise ValueError("as it was told")
    return str(ctx.ask("How many?"))


def test_each_message_names_the_sessions_that_it_is_between(watch: Callable[..., Watched]) -> None:
    """Two sessions of one agent are told apart, whoever's message it is, and the signature covers it."""
    stack = watch(lead, helper)
    client = stack.client
    root = client.submit("named-lead", "go").id
    assert client.result(root, timeout_s=30) == "done"
    client.resume(root, "again")
    stack.calm()
    first, second = (one.id for one in client.tree(root) if one.parent == root)
    if client.session(first).state != "finished":
        first, second = second, first

    store = AuditStore(stack.settings.audit_database, read_only=True)
    reader = AuditReader(store)
    rows = [row for row in reader.find(root) if row.type != "status-update"]
    said = {
        (row.type, (header := decode(row.xml).header).sender_session, header.recipient_session)
        for row in rows
    }
    about = {
        session: {row.type for row in reader.search(task_id=session)} for session in (root, first, second)
    }
    store.close()
    assert said == {
        ("task-delegation", None, root),
        ("task-delegation", root, first),
        ("task-delegation", root, second),
        ("query", first, root),
        ("reply", root, first),
        ("task-completion", first, root),
        ("error", second, root),
        ("task-completion", root, None),
        ("message", None, root),
    }
    # A search for a session has what it said, also what has no task-id in its body.
    assert {type_ for type_ in about[first] if type_ != "status-update"} == {
        "task-delegation",
        "query",
        "task-completion",
    }
    assert {type_ for type_ in about[second] if type_ != "status-update"} == {"task-delegation", "error"}
    assert {"message", "reply"} <= about[root]

    [query] = [row.xml for row in rows if row.type == "query"]
    verify(parse(query)[0], stack.parts.keyring)
    with pytest.raises(SignatureError):
        verify(parse(query.replace(first.encode(), second.encode()))[0], stack.parts.keyring)
