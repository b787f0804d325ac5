"""Trees of a model that is one: what is counted, what comes while it writes, and what is left after kills of both sides.

No test reads what the model says: the same question gives another answer in another slot.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import tomllib

from orchestrator.client.client import Client
from orchestrator.policy.budget import limit_of
from tests.chaos.stack import children_of, wait_until

from .conftest import Interrupter, ModelServer, Trees, of_the_page

CHILDREN = 20


def test_a_form_that_is_forced_is_kept_by_each_child_and_each_token_counts_once(
    stack: Trees, server: ModelServer
) -> None:
    read, written = server.tokens()
    root = stack.submit("lead", f"judge {CHILDREN}")
    assert stack.answer(root) == f"{CHILDREN} answered, 0 failed"
    children = stack.tree(root)
    for child in children:
        assert set(json.loads(stack.ledger.result(child.id)[1])) == {"good"}
    now_read, now_written = server.tokens()
    assert stack.used(*(child.id for child in children)) == (now_read - read, now_written - written)


def test_free_text_is_an_answer_or_a_reason_and_each_token_counts_once(
    stack: Trees, server: ModelServer
) -> None:
    """A small model forgets the tag of its answer; it is reminded, and says so in the end."""
    read, written = server.tokens()
    root = stack.submit("lead", f"writer {CHILDREN}")
    stack.answer(root)
    children = stack.tree(root)
    assert len(children) == CHILDREN
    for child in children:
        assert child.state.value == "finished" or child.reason
    now_read, now_written = server.tokens()
    assert stack.used(*(child.id for child in children)) == (now_read - read, now_written - written)


def test_text_is_shown_while_it_is_written(stack: Trees) -> None:
    with Client(stack.settings) as client:
        session = client.submit("teller", "Tell me of the sea.")
        pieces = [event.text for event in client.stream(session.id, timeout_s=120) if event.kind == "text"]
        assert len(pieces) > 1
        assert session.result(timeout_s=60) == "".join(pieces)


def test_kills_of_the_worker_and_of_the_server_lose_and_double_nothing(
    stack: Trees, server: ModelServer
) -> None:
    """The worker dies while answers are written; the server is away for longer than the back-off of all attempts."""
    _, before = server.tokens()
    root = stack.submit("lead", f"judge {CHILDREN}")
    wait_until(lambda: server.tokens()[1] > before + 10, "text in mid-stream", explain=stack.logs)
    worker = next(process for process in stack.running if process.name == "worker")
    for pid in children_of(worker):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: any_judged(stack, root.id), "an answer after the kill", explain=stack.logs)
    server.kill()
    time.sleep(5)  # what is measured is that nothing happens meanwhile
    server.start()
    assert stack.answer(root) == f"{CHILDREN} answered, 0 failed"
    children = stack.tree(root)
    assert sorted(child.state.value for child in children) == ["finished"] * CHILDREN


def any_judged(stack: Trees, root: str) -> bool:
    return any(session.parent and session.state.value == "finished" for session in stack.ledger.tree(root))


def test_one_slot_answers_twenty_children(stack: Trees, one_slot: ModelServer) -> None:
    one_slot.start()
    root = stack.submit("lead", f"patient {CHILDREN}")
    assert stack.answer(root) == f"{CHILDREN} answered, 0 failed"
    stack.tree(root)
    one_slot.kill()


def test_a_conversation_that_outgrows_the_context_goes_on_without_its_oldest_part(
    stack: Trees, server: ModelServer
) -> None:
    with stack.client() as client:
        session = client.submit("talker", "Remember this. " + "The sea is deep. " * 40)
        stack.answer(session)
        for number in range(3):
            client.resume(session.id, f"{number}: " + "The sky is high. " * 40)
            stack.ends(session, runs=number + 2)


def test_a_stream_that_ends_without_a_reason_is_no_answer(stack: Trees, interrupter: Interrupter) -> None:
    session = stack.submit("interrupted", "Tell me of the sea.")
    assert stack.answer(session)
    # A client has its answer before the server has seen the end of it.
    wait_until(lambda: len(interrupter.reasons) > 1, "both streams", explain=stack.logs)
    first, *_, last = interrupter.reasons
    assert first is None
    assert last in ("stop", "length")
    (run,) = stack.ledger.runs(session.id)
    assert run.attempt == 2


def test_a_program_that_keeps_conversations_goes_on_with_its_own(stack: Trees) -> None:
    """`llm`, with a database for each session."""
    with stack.client() as client:
        session = client.submit("remembers", "My name is Ada.")
        stack.answer(session)
        client.resume(session.id, "What is my name?")
        stack.ends(session, runs=2)
    database = f"{stack.env['LLM_USER_PATH']}/{session.id}.db"
    logs = [stack.env["LLM_PROGRAM"], "logs", "--json", "-n", "0", "-d", database]
    turns = json.loads(subprocess.check_output(logs, env=stack.env))
    assert [turn["prompt"] for turn in turns] == ["My name is Ada.", "What is my name?"]
    assert len({turn["conversation_id"] for turn in turns}) == 1


def test_the_agents_of_the_page_answer_as_they_stand_there(stack: Trees) -> None:
    assert stack.answer(stack.submit("reader", "The sea is deep. The sky is high."))
    assert set(json.loads(stack.answer(stack.submit("critic", "The sea is deep.")))) == {"good", "reason"}
    agents, limits = map(tomllib.loads, of_the_page("toml"))
    _, name = agents["agents"]["reader"]["model"].split(":")
    assert limit_of(limits["orchestra"]["provider_limits"], "openai", name).calls == 2
