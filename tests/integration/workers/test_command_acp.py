"""Agents of the Agent Client Protocol: turns, conversations, permissions, and what becomes of broken ones."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Client
from orchestrator.client.approvals import Approval
from orchestrator.runtime.process import is_alive
from tests.crew import FAKE, Crew
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.skipif(
    find_spec("acp") is None, reason="the library agent-client-protocol is not installed"
)

ACP = (FAKE[0], str(Path(FAKE[1]).with_name("fake_acp_agent.py")))


@pytest.fixture
def acp_crew(crew: Crew) -> Callable[..., Crew]:
    def make(*arguments: str, **options: Any) -> Crew:
        crew.agent(preset="acp", **{"command": (*ACP, *arguments), **options})
        return crew

    return make


def test_a_turn_and_a_resumed_conversation(acp_crew: Callable[..., Crew]) -> None:
    crew = acp_crew()
    root = crew.kit.begin("coder", "!result one", ends="finished")
    assert crew.answer(root) == "<response>one</response>"
    # What the agent tells of the old conversation while it loads is no part of the answer.
    assert crew.go_on(root, "!recall") == "<response>!result one | !recall</response>"
    assert crew.memory(root)["turns"] == 2


def test_one_that_cannot_load_is_told_again(acp_crew: Callable[..., Crew]) -> None:
    crew = acp_crew("--no-load")
    root = crew.kit.begin("coder", "first words")
    assert "This is how our conversation went so far." in crew.go_on(root, "!recall")
    memory = crew.memory(root)
    assert (memory["input_tokens"], memory["output_tokens"]) == (200, 40)


def test_the_tag_forgotten_once_is_asked_for_in_the_same_process(acp_crew: Callable[..., Crew]) -> None:
    callback = acp_crew().delegate("!untagged forty-two")
    assert (callback.status, callback.result) == ("completed", "forty-two")


def test_an_answer_cut_by_the_token_limit_is_asked_for_again(acp_crew: Callable[..., Crew]) -> None:
    callback = acp_crew().delegate(
        "!untagged short\n!say <response>the whole truth\n!say </response> and\n!limit"
    )
    assert (callback.status, callback.result) == ("completed", "short")


@pytest.mark.parametrize(("rule", "chosen"), [("allow", "yes-once"), ("deny", "no-once")], ids=str)
def test_a_rule_asks_nobody(acp_crew: Callable[..., Crew], rule: str, chosen: str) -> None:
    assert acp_crew(permissions=rule).ask("!permission rm -rf build") == f"<response>{chosen}</response>"


@pytest.mark.parametrize(
    ("reply", "chosen"),
    [
        ("yes", "Once"),
        ("yes, always", "For ever"),
        ("allow always", "For ever"),
        ("yes, but not always", "Once"),
        ("allow it. I always check.", "Once"),
        ("never, as always", "No"),
    ],
)
def test_a_reply_allows_for_ever_only_where_it_says_so(reply: str, chosen: str) -> None:
    # Takes half a second to import, which every process that collects tests would spend.
    from acp import schema

    from orchestrator.worker.executors.command.acp import choose

    options = [
        schema.PermissionOption(option_id="1", name="Once", kind="allow_once"),
        schema.PermissionOption(option_id="2", name="For ever", kind="allow_always"),
        schema.PermissionOption(option_id="3", name="No", kind="reject_once"),
    ]
    option = choose(reply, options)
    assert option.name == chosen


def test_an_agent_that_falls_silent_is_ended(acp_crew: Callable[..., Crew]) -> None:
    assert "it printed nothing for 0.5 s (silence_limit_s)" in acp_crew(silence_limit_s=0.5).ask("!hang")


@pytest.mark.parametrize("rule", ["approve", "ask"])
@pytest.mark.parametrize(("approves", "chosen"), [(True, "yes-once"), (False, "no-once")], ids=str)
def test_a_root_asks_a_person(acp_crew: Callable[..., Crew], rule: str, approves: bool, chosen: str) -> None:
    crew = acp_crew(permissions=rule, silence_limit_s=20)
    root = crew.kit.submit("coder", "!permission rm -rf build")
    with ThreadPoolExecutor(1) as pool, Client(crew.kit.settings) as client:
        running = pool.submit(crew.kit.play, root)

        def open_approvals() -> list[Approval]:
            assert not running.done(), running.result()
            return client.approvals(root)

        asked = wait_until(open_approvals, "what it asks")
        assert "rm -rf build" in asked[0].tool
        (client.approve if approves else client.deny)(asked[0].id)
        assert running.result(PATIENCE_S) == "finished"
    assert crew.answer(root) == f"<response>{chosen}</response>"


@pytest.mark.parametrize(
    ("reply", "chosen"),
    [
        ("Allow once", "yes-once"),
        ("yes, go on", "yes-once"),
        ("no-once", "no-once"),
        ("what is that?", "no-once"),
    ],
)
def test_the_parent_is_asked_and_its_reply_chooses(
    acp_crew: Callable[..., Crew], playing: Callable[..., threading.Thread], reply: str, chosen: str
) -> None:
    crew = acp_crew()
    kit = crew.kit
    told = kit.lead("coder: !permission rm -rf build", reply=lambda _: reply)
    root = kit.begin("lead")
    (child,) = kit.children(root)
    working = playing(lambda: kit.play(child.id))
    wait_until(lambda: kit.ledger.session(child.id).questions, "the question to the parent")
    kit.play(root)
    working.join(30)
    kit.play(root)
    assert crew.answer(root) == chosen
    question, _ = told
    assert (
        question.text
        == "May I use rm -rf build? Reply with one of: 'Allow once', 'Reject'; or with allow or deny."
    )
    assert question.context == {"tool": "rm -rf build"}


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("true",), "it ended before its answer (exit code 0)"),
        (
            (sys.executable, "-c", "import sys; sys.exit('no key')"),
            "it ended before its answer (exit code 1; no key)",
        ),
        (("echo", "this is no JSON"), "it ended before its answer"),
        (("sh", "-c", 'printf \'{"jsonrpc": "2.0", "id"\''), "it ended before its answer"),
        (("sh", "-c", "yes | head -c 100000000 | tr -d '\\n'"), "it ended before its answer"),
    ],
    ids=["silent", "fails", "no JSON", "half a line", "flood"],
)
def test_a_broken_one_fails_its_session(
    acp_crew: Callable[..., Crew], command: tuple[str, ...], why: str
) -> None:
    answer = acp_crew(command=command).ask("go")
    assert answer.startswith(f"the program {command[0]}: ")
    assert why.partition(" (")[0] in answer


def test_one_that_refuses_fails(acp_crew: Callable[..., Crew]) -> None:
    assert "the model refused" in acp_crew().ask("!refuse")


def test_a_stop_ends_the_process(
    acp_crew: Callable[..., Crew], playing: Callable[..., threading.Thread], tmp_path: Path
) -> None:
    crew, file = acp_crew(), tmp_path / "pid"
    kit = crew.kit
    root = kit.submit("coder", f"!ignore\n!touch {file}\n!hang")
    working = playing(lambda: kit.play(root))
    wait_until(lambda: file.exists() and file.read_text(), "the program at work")
    assert kit.ledger.session(root).activity in ("", "tool: hang")
    kit.ledger.stop(root, "enough")
    working.join(30)
    assert kit.ledger.session(root).state == "stopped"
    assert not is_alive(int(file.read_text()))


def test_one_that_dies_while_it_waits_for_permission_fails_at_once(
    acp_crew: Callable[..., Crew], playing: Callable[..., threading.Thread], tmp_path: Path
) -> None:
    crew, file = acp_crew(), tmp_path / "pid"
    kit = crew.kit
    kit.lead(f"coder: !touch {file}\n!permission rm -rf build")
    root = kit.begin("lead")
    (child,) = kit.children(root)
    working = playing(lambda: kit.play(child.id))
    wait_until(lambda: kit.ledger.session(child.id).questions, "the question to the parent")
    os.kill(int(file.read_text()), signal.SIGKILL)
    working.join(15)
    assert not working.is_alive()
    assert "it ended before its answer (signal 9)" in crew.answer(child.id)
