"""The commands that users type: what they print, and with which exit code they end."""

from __future__ import annotations

import json
import re
import threading
from functools import partial

import pytest

from orchestrator.cli import control
from orchestrator.cli.exit_codes import Exit
from orchestrator.cli.output import say
from orchestrator.client.client import Client
from orchestrator.ledger import CLOSED
from orchestrator.reconciler.callbacks import CallbackService
from orchestrator.runtime.service import SignsOfLife
from orchestrator.worker.announce import queues_of
from orchestrator.worker.context.context import Context
from tests.commands import Orchestra
from tests.integration.client.conftest import echo, in_background
from tests.kit import Kit

pytestmark = pytest.mark.usefixtures("solo")


def one_line(text: str) -> str:
    assert text.startswith("Error: ")
    assert text.count("\n") == 1
    return text


def test_submit_prints_the_session(kit: Kit, orchestra: Orchestra) -> None:
    done = orchestra("submit", "solo", "hello")
    assert done.exit_code == 0
    assert re.fullmatch(r"ses_[0-9a-f]{26}\n", done.stdout)


def test_the_same_key_is_the_same_session_and_says_so(kit: Kit, orchestra: Orchestra) -> None:
    """With another prompt or agent it is refused: nobody is to take another session's answer for that of their own."""
    kit.agent("other")(echo)
    life = SignsOfLife("worker", kit.redis, kit.steady, serves=queues_of(kit.catalogue))
    life.begin()
    first = orchestra("submit", "solo", "hello", "--key", "k", "--json")
    session = json.loads(first.stdout)["session"]
    assert (json.loads(first.stdout)["new"], first.stderr) == (True, "")
    again = orchestra("submit", "solo", "hello", "--key", "k")
    assert (again.exit_code, again.stdout) == (0, f"{session}\n")
    assert again.stderr == "key 'k' was used before, by the same submit: this is its session\n"
    assert kit.document("submit", "solo", "hello", "--key", "k")["new"] is False
    limited = ("solo", "hello", "--time-limit", "9")
    others = {("solo", "good bye"): "prompt", ("other", "hello"): "agent", limited: "set of options"}
    for arguments, other in others.items():
        refused = orchestra("submit", *arguments, "--key", "k")
        assert (refused.exit_code, refused.stdout) == (2, "")
        words = f"key 'k' is that of session {session} of agent 'solo', which was launched with another {other}; choose"
        assert words in one_line(refused.stderr)
    kit.play(session)
    assert orchestra("submit", "solo", "hello", "--key", "k", "--wait").stdout == "hello\n"
    assert [s.id for s in kit.ledger.roots(0, limit=10)] == [session]
    life.end()


def test_submit_reads_the_prompt_from_standard_input(kit: Kit, client: Client, orchestra: Orchestra) -> None:
    session = orchestra("submit", "solo", "-", stdin="from a pipe").stdout.strip()
    kit.play(session)
    assert client.answer(session) == "from a pipe"


def test_what_is_no_text_is_refused_in_one_line(kit: Kit, orchestra: Orchestra) -> None:
    """Octets that are not UTF-8, from a pipe or as an argument (where Python makes halves of surrogate pairs of them)."""
    piped = orchestra("submit", "solo", "-", stdin=b"abc\xff")
    assert (piped.exit_code, piped.stdout) == (2, "")
    assert one_line(piped.stderr) == "Error: standard input is not text in UTF-8 (byte 3); convert it\n"
    named = orchestra("submit", "so\udcfflo", "x")
    assert named.exit_code == 2
    assert "so\\udcfflo" in one_line(named.stderr)


def test_a_time_to_wait_needs_waiting(kit: Kit, orchestra: Orchestra) -> None:
    """It would look like a limit on the work, and is none."""
    for arguments in (["submit", "solo", "x"], ["result", "ses_x"], ["resume", "ses_x", "y"]):
        refused = orchestra(*arguments, "--timeout", "5")
        assert refused.exit_code == 2
        assert "--timeout says how long to wait: it needs --wait" in refused.stderr


def test_submit_waits_for_the_final_answer(kit: Kit, client: Client, orchestra: Orchestra) -> None:
    expected = client.submit("solo", "hello", key="k").id
    worker = in_background(lambda: kit.play(expected))
    done = orchestra("submit", "solo", "hello", "--key", "k", "--wait", "--timeout", "20")
    worker.join()
    assert (done.exit_code, done.stdout) == (0, "hello\n")
    assert kit.document("result", expected) == {
        "session": expected,
        "state": "finished",
        "result": "hello",
        "incomplete": None,
        "error": None,
    }


def test_an_attachment_is_waited_for_as_well(kit: Kit, orchestra: Orchestra) -> None:
    kit.agent("solo")(lambda ctx: ctx.attach("diff", "+a\n-b") or "done")
    session = kit.submit("solo", "x")
    worker = threading.Timer(0.1, lambda: kit.play(session))
    worker.start()
    done = orchestra("result", session, "--wait", "--attachment", "diff")
    worker.join()
    assert (done.exit_code, done.stdout) == (0, "+a\n-b\n"), done.stderr
    assert orchestra("result", session, "--attachment", "other").exit_code == 2


def test_a_failure_is_one_line_and_exit_code_1(kit: Kit, orchestra: Orchestra) -> None:
    @kit.agent("bad")
    def bad(ctx: Context) -> None:
        raise ValueError("no\nluck")

    session = kit.begin("bad", "x")
    done = orchestra("result", session)
    assert done.exit_code == 1
    assert f"session {session} failed: ValueError: no luck" in " ".join(done.stderr.split())
    as_json = orchestra("result", session, "--json")
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["state"] == "failed"


def test_a_result_that_is_not_there_yet(kit: Kit, orchestra: Orchestra) -> None:
    session = kit.submit("solo", "x")
    done = orchestra("result", session)
    assert done.exit_code == 3
    assert one_line(done.stderr) == f"Error: session {session} is pending; wait for its answer with --wait\n"
    assert kit.document("result", session) == {
        "session": session,
        "state": "pending",
        "result": None,
        "incomplete": None,
        "error": None,
    }
    late = orchestra("result", session, "--wait", "--timeout", "0.1")
    assert late.exit_code == 3
    assert f"the session continues: orchestra result {session} --wait" in one_line(late.stderr)
    late = kit.document("result", session, "--wait", "--timeout", "0.1")
    assert late["state"] == "pending"


def test_bad_input_is_one_line(kit: Kit, orchestra: Orchestra) -> None:
    for arguments, words in {
        ("submit", "nobody", "x"): "no agent named 'nobody' is registered (registered: solo); start a worker",
        ("submit", "solo", " "): "the prompt for agent 'solo' is empty; say what it should do",
        ("result", "ses_1"): "no session 'ses_1' is in this ledger; `orchestra sessions` lists what is there",
        ("tree", "ses_1"): "no session 'ses_1'",
        ("logs", "ses_1"): "no session 'ses_1'",
        ("watch", "ses_1"): "no session 'ses_1'",
        ("stop", "ses_1"): "no session 'ses_1'",
        ("resume", "ses_1", "x"): "no session 'ses_1'",
    }.items():
        done = orchestra(*arguments)
        assert done.exit_code == 2
        assert words in one_line(done.stderr)
        assert done.stdout == ""


def test_sessions_tree_and_logs(kit: Kit, orchestra: Orchestra, lead: None) -> None:
    assert "no sessions yet" in orchestra("sessions").stderr
    root = orchestra("submit", "lead", "the whole", "--title", "A title").stdout.strip()
    kit.play(root)
    listed = orchestra("sessions").stdout
    assert root in listed
    assert "A title" in listed
    assert [s["session"] for s in kit.document("sessions")["sessions"]] == [root]
    header, *tree = orchestra("tree", root).stdout.splitlines()
    assert header.split() == ["SESSION", "AGENT", "STATE", "ABOUT"]
    assert tree[0].startswith(f"{root}     lead   idle")
    assert "0/2 children done" in tree[0]
    first, second = (child.id for child in kit.children(root))
    assert tree[1].startswith(f"├─ {first}  solo   pending")
    assert tree[2].startswith(f"└─ {second}  solo   pending")
    assert tree[3] == "2 launched = 0 delivered + 2 pending + 0 dead"
    members = kit.document("tree", root)["sessions"]
    assert [member["parent"] for member in members] == ["", root, root]
    logs = orchestra("logs", root).stdout
    assert re.search(r"launched .* lead: A title, as a root", logs)
    assert re.search(rf"delegated .* solo: a, as {first}", logs)
    assert kit.document("logs", root)["events"][0]["what"] == "launched"


def test_watch_prints_changes_and_the_promise(kit: Kit, orchestra: Orchestra, lead: None) -> None:
    root = kit.begin("lead", "x")
    late = orchestra("watch", root, "--timeout", "0.1")
    assert late.exit_code == 3
    assert f"session {root} is idle after 0.1 s" in late.stderr
    kit.end_children(root)
    done = orchestra("watch", root)
    assert done.exit_code == 0
    assert done.stdout.endswith("2 launched = 2 delivered + 0 pending + 0 dead\n")
    documents = [json.loads(line) for line in orchestra("watch", root, "--json").stdout.splitlines()]
    assert [s["state"] for s in documents[-1]["sessions"]] == ["finished"] * 3


def test_resume_and_stop(kit: Kit, orchestra: Orchestra) -> None:
    session = kit.begin("solo", "first")
    assert orchestra("resume", session, "second", "--key", "k").stdout == f"{session} will run with it\n"
    worker = in_background(lambda: kit.play(session))
    assert orchestra("resume", session, "second", "--key", "k", "--wait").stdout == "second\n"
    worker.join()
    # Nobody is to take the answer to another prompt for that to their own.
    refused = orchestra("resume", session, "third", "--key", "k", "--wait")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert f"session {session} was given another prompt under the same key; choose" in one_line(
        refused.stderr
    )
    other = kit.submit("solo", "never")
    assert orchestra("stop", other, "--reason", "why not").stdout == f"{other} is stopped\n"
    assert orchestra("stop", other).stdout.startswith(f"{other} had ended already")
    assert kit.document("stop", other)["outcome"] == "over"
    done = orchestra("resume", other, "go on")
    assert done.exit_code == 2
    assert "it will not run again" in one_line(done.stderr)


def begun_by_an_agent_that_stops(kit: Kit) -> threading.Event:
    """Make the agent `stopping`, which stops as it is asked to; set once a run of it has begun."""
    began = threading.Event()

    @kit.agent("stopping")
    def stopping(ctx: Context) -> None:
        began.set()
        while True:
            ctx.check()
            threading.Event().wait(0.01)

    return began


def test_stop_says_what_became_of_the_run(kit: Kit, orchestra: Orchestra) -> None:
    """A queued one never starts; a running one is asked, and the command waits to say what the agent did."""
    began = begun_by_an_agent_that_stops(kit)

    @kit.agent("quick")
    def quick(ctx: Context) -> str:
        began.set()
        while not ctx.stopping:
            threading.Event().wait(0.01)
        return "done"

    queued = kit.submit("stopping", "x")
    kit.start(queued)
    assert orchestra("stop", queued).stdout == f"{queued} is stopped; its queued run never starts\n"
    for agent, end in (
        ("stopping", "is stopped: its agent stopped as it was asked to"),
        ("quick", "is finished: its agent had finished before it learnt of it"),
    ):
        began.clear()
        session = kit.submit(agent, "x")
        worker = in_background(partial(kit.play, session))
        assert began.wait(60)
        lines = orchestra("stop", session).stdout.splitlines()
        worker.join()
        assert lines[0].endswith("its agent was asked to stop, and is ended by force if it does not")
        assert lines[1:] == [f"{session} {end}"]


def test_stop_takes_nothing_for_its_answer_that_was_in_its_own_question(
    kit: Kit, orchestra: Orchestra
) -> None:
    """A reason may have the very words; and an agent with children may be done before it hears of it."""
    began = begun_by_an_agent_that_stops(kit)

    @kit.agent("quick", role="coordinator")
    def quick(ctx: Context) -> str:
        ctx.delegate("stopping", "x")
        began.set()
        while not ctx.stopping:
            threading.Event().wait(0.01)
        return "waiting"

    callbacks = CallbackService(kit.redis, kit.parts.delivery, consumer="one")
    for agent, how in (("stopping", "by itself"), ("quick", "done")):
        began.clear()
        answered = threading.Event()
        session = kit.submit(agent, "x")

        def work(session: str = session, answered: threading.Event = answered) -> None:
            kit.play(session)
            while not answered.is_set():
                callbacks.run_once()

        worker = in_background(work)
        assert began.wait(60)
        said = kit.document("stop", session, "--reason", "to be ended by force")
        answered.set()
        worker.join()
        assert (said["state"], said["agent_ended"]) == ("stopped", how)


def test_stop_ends_what_a_finished_session_has_left_at_work(kit: Kit, orchestra: Orchestra) -> None:
    """Children that owe it nothing, at any depth; but not those that are to go on without it."""

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> None:
        ctx.delegate("solo", "a", callback=False)
        ctx.delegate("solo", "b", callback=False, on_close="abandon")
        if ctx.prompt == "go":
            ctx.delegate("lead", "deeper", callback=False)

    root = kit.begin("lead", "go")
    (deeper,) = [child for child in kit.children(root) if child.agent == "lead"]
    kit.play(deeper.id)
    said = orchestra("stop", root).stdout
    assert said == f"{root} had ended already (finished); 2 sessions below it asked to stop\n"
    states = {(s.parent, s.title): s.state.value for s in kit.ledger.tree(root) if s.agent == "solo"}
    assert states == {
        (root, "a"): "stopped",
        (root, "b"): "pending",
        (deeper.id, "a"): "stopped",
        (deeper.id, "b"): "pending",
    }
    assert orchestra("stop", root).stdout == f"{root} had ended already (finished)\n"


@pytest.mark.parametrize("end", ["stop", "session delete"])
def test_stop_of_an_idle_parent_waits_for_those_below(
    kit: Kit, orchestra: Orchestra, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Whose agents take their time; but not for those that go on without it. Without waiting, it says how many."""
    at_work = threading.Barrier(4)
    slow = threading.Event()

    @kit.agent("slow")
    def stubborn(ctx: Context) -> None:
        at_work.wait(60)
        while not ctx.stopping:
            threading.Event().wait(0.01)
        assert slow.wait(60)
        ctx.check()

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> None:
        for title in ctx.prompt.split():
            ctx.delegate("lead" if title == "deeper" else "slow", "b" if title == "deeper" else title)
        ctx.delegate("slow", "elsewhere", on_close="abandon")

    root = kit.begin("lead", "a c deeper")
    (deeper,) = [child for child in kit.children(root) if child.agent == "lead"]
    kit.play(deeper.id)
    agents = [
        threading.Thread(target=kit.play, args=[s.id], daemon=True)
        for s in kit.ledger.tree(root)
        if s.agent == "slow" and s.title != "elsewhere"
    ]
    for agent in agents:
        agent.start()
    at_work.wait(60)
    without = kit.document(*end.split(), root, "--no-wait")
    assert (without["outcome"], without["stopping"]) == ("ended", 4)  # and the one in between
    callbacks = CallbackService(kit.redis, kit.parts.delivery, consumer="one")
    stopped = threading.Event()

    def follow() -> None:
        while not stopped.is_set():
            callbacks.run_once()

    service = threading.Thread(target=follow, daemon=True)
    service.start()

    interrupted: list[bool] = []

    def interrupt_or_let_go(text: str, *, err: bool = False) -> None:
        say(text, err=err)
        if text.startswith("3 sessions"):
            if not interrupted:
                interrupted.append(True)
                raise KeyboardInterrupt
            slow.set()

    monkeypatch.setattr(control, "say", interrupt_or_let_go)
    first = orchestra(*end.split(), root)
    assert first.exit_code == Exit.INTERRUPTED
    assert first.stderr.endswith("; 3 sessions below it are still stopping\n")
    lines = orchestra(*end.split(), root).stdout.splitlines()
    left = {s.title for s in kit.ledger.tree(root) if s.state not in CLOSED}
    slow.set()
    stopped.set()
    for thread in (*agents, service):
        thread.join()
    assert left == {"elsewhere"}
    assert lines[0].startswith(f"{root} had ended already")
    assert "3 sessions below it are still stopping" in lines
    assert lines[-1] == "all sessions below it have ended"


def test_logs_name_every_dead_callback_with_its_reason(kit: Kit, orchestra: Orchestra) -> None:
    """Also those that were never queued: a failure that is ignored, a child that was let go."""

    @kit.agent("bad")
    def bad(ctx: Context) -> None:
        raise ValueError("no luck")

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> None:
        ctx.delegate("bad", "a", on_failure="ignore")
        ctx.delegate("bad", "b", on_close="abandon")

    root = kit.begin("lead", "x")
    kit.play(kit.children(root)[0].id)
    orchestra("stop", root)
    kit.parts.delivery.close(root)
    logs = orchestra("logs", root).stdout
    assert re.search(r"callback +bad: a failed, dead: failure ignored by policy", logs)
    assert re.search(r"callback +bad: b, dead: abandoned: parent stopped", logs)


def test_stop_without_waiting_says_that_it_asked(kit: Kit, orchestra: Orchestra) -> None:
    session = kit.submit("solo", "x")
    dispatch = kit.start(session)
    held = kit.ledger.claim(dispatch.run, "c1", session_id=session, worker="w")
    assert held is not None
    said = kit.document("stop", session, "--no-wait")
    assert said == {
        "session": session,
        "outcome": "asked",
        "run": dispatch.run,
        "below": 0,
        "stopping": 0,
        "state": "running",
        "reason": "",
        "agent_ended": None,
    }


def test_budget_says_what_is_left_and_who_spent_it(kit: Kit, orchestra: Orchestra) -> None:
    """And the tree says what it spent in all."""

    @kit.agent("solo")
    def solo(ctx: Context) -> str:
        with ctx.spending.reserve(input_tokens=90) as reservation:
            reservation.settle(input_tokens=60, output_tokens=5, usd=0.5)
        return "done"

    session = orchestra("submit", "solo", "hello", "--budget", "tokens=100, usd=2").stdout.strip()
    kit.play(session)
    assert orchestra("session", "budget", session).stdout == (
        f"budget of {session}\n"
        "  tokens: 65 of 100 spent, 0 reserved, 35 left\n"
        "  USD: 0.5 of 2 spent, 0 reserved, 1.5 left\n"
        "    solo: 1 request, 65 tokens, 0.5 USD\n"
    )
    (found,) = kit.document("session", "budget", session)["budgets"]
    assert found["limits"]["tokens"] == {"limit": 100, "spent": 65, "reserved": 0, "left": 35}
    assert found["agents"] == {"solo": {"requests": 1, "tokens": 65, "usd": 0.5}}
    assert "spent: 1 request, 60 + 5 tokens, 0.5 USD\n" in orchestra("tree", session).stdout
    (about,) = kit.document("tree", session)["sessions"]
    used = {"requests": 1, "input_tokens": 60, "output_tokens": 5, "usd": 0.5, "estimated": 0}
    assert about["used"] == used
    wrong = orchestra("submit", "solo", "hello", "--budget", "euro=1")
    assert (wrong.exit_code, "budget 'euro=1'" in one_line(wrong.stderr)) == (2, True)
    free = kit.submit("solo", "hello")
    assert orchestra("session", "budget", free).stdout == f"session {free} counts against no budget\n"


def test_questions_lists_what_roots_ask_and_reply_answers(kit: Kit, orchestra: Orchestra) -> None:
    kit.agent("lead")(lambda ctx: ctx.ask("Ship\x1b[31m it?", kind="blocker", context={"v": 1}))
    assert orchestra("questions").stderr == "nothing waits for you\n"
    session = kit.submit("lead")
    dispatch = kit.start(session)
    assert kit.execute(dispatch) == "parked"
    listed = orchestra("questions")
    assert "[blocker]  lead: go\n    Ship\\x1b[31m it?\n" in listed.stdout
    assert listed.stderr == "answer: orchestra reply QUESTION TEXT\n"
    (asked,) = kit.document("questions", session)["questions"]
    assert (asked["session"], asked["kind"], asked["context"]) == (session, "blocker", {"v": 1})
    # The session stands for the one thing that it asks.
    replied = kit.document("reply", "@last", "yes")
    assert replied == {"session": session, "question": asked["question"]}
    assert kit.document("questions") == {"questions": [], "approvals": []}
    again = orchestra("reply", session, "yes")
    assert (again.exit_code, f"session {session} asks nothing" in one_line(again.stderr)) == (2, True)
    assert kit.execute(dispatch) == "finished"
