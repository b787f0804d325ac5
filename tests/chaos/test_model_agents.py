"""kill -9 at every step of a scripted conversation: what was paid is not paid again, and the answer is the same."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from collections.abc import Iterator

import pytest

from orchestrator import Approval, Client
from orchestrator.audit import AuditReader, AuditStore
from orchestrator.client.async_client import AsyncClient
from orchestrator.deployment.embedded.valkey import ValkeyProcess, make_socket_dir, remove_socket_dir
from orchestrator.deployment.forks import ForkServer
from orchestrator.errors import SessionFailed, WrongState
from orchestrator.ledger.live_text import LiveEvent
from orchestrator.redisdb import ledger_keys
from orchestrator.testing import ByInstructions, Call, Request, Say, Script, WireServer
from tests.waiting import wait_until

from .conftest import QUICK
from .stack import MODELS, Stack

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(480)]

#: The steps of the tree, in the order in which one slot takes them.
STEPS = ("model", "note", "model", "delegate", "delegate", "helper's model", "helper's model", "model")
MODEL_CALLS = sum(step.endswith("model") for step in STEPS)
ANSWER = "two helped: True"
STORY = "Once upon a time there was a lease that nobody renewed, and a journal that knew everything. " * 3


def finish(request: Request) -> Say:
    return Say(f"two helped: {request.last.count('I helped.') == 2}")


def ask_each(request: Request) -> Say:
    sessions = list(dict.fromkeys(re.findall(r'session="(ses_[0-9a-z]+)"', request.last)))
    return Say(calls=[Call("ask_child", to=name, message=f"Why {n}?") for n, name in enumerate(sessions)])


def because(request: Request) -> Say:
    task = re.search(r"task \d", request.messages[0].text)
    question = re.search(r"Why (\d)", request.last)
    said = f"because of {task[0] if task else 'nothing'}, asked {question[1] if question else 'nothing'}"
    return Say(f"<response>{said}</response>")


def pass_on(request: Request) -> Say:
    """The task goes down over three agents to the shipper."""
    below = {"model-captain": "model-mate", "model-mate": "model-bosun", "model-bosun": "model-shipper"}
    found = re.search(r"You are `(model-\w+)`", request.instructions)
    agent = below[found[1]] if found else ""
    return Say(calls=[Call("delegate", agent=agent, task="pass it on", wait=True)])


def pass_up(request: Request) -> Say:
    found = re.search(r"all done: [a-z 0-9,]*", request.last)
    said = found[0] if found else request.last
    return Say(said if "`model-captain`" in request.instructions else f"<response>{said}</response>")


SCRIPT = ByInstructions(
    {
        "You pass on": Script(pass_on, pass_up),
        "You ship": Script(
            Say(calls=[Call("ship", version="7")]),
            lambda request: Say(calls=[Call("announce", to="all")] if "shipped 7" in request.last else ()),
            lambda request: Say(
                f"<response>all done: shipped 7, {'announced to all' * ('announced to all' in request.last)}</response>"
            ),
        ),
        "You lead": Script(
            Say(calls=[Call("note", text="plan")]),
            Say(
                calls=[Call("delegate", agent="model-helper", task=f"help {n}", wait=True) for n in range(2)]
            ),
            finish,
        ),
        "You hold": Script(Say(calls=[Call("hold")])),
        "You help": Script(Say("<response>I helped.</response>")),
        "You ask": Script(
            Say(
                calls=[Call("delegate", agent="model-expert", task=f"task {n}", wait=True) for n in range(3)]
            ),
            ask_each,
            lambda request: Say("; ".join(sorted(set(re.findall(r"because of task \d", request.last))))),
        ),
        "You know": Script(Say("<response>I know.</response>"), because),
        "You tell": Script(Say(calls=[Call("note", text="begun")]), Say(STORY, pace_s=0.05)),
    }
)


@pytest.fixture(scope="module")
def wire() -> Iterator[WireServer]:
    with WireServer(SCRIPT) as server:
        yield server


@pytest.fixture(scope="module")
def stack(
    wire: WireServer, model_forks: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    socket_dir = make_socket_dir()
    folder = tmp_path_factory.mktemp("model-agents")
    # Trees outlive the weeks that a test lets pass for the ledger: to the audit trail, for which they do not, it would have lost them.
    knobs = {**QUICK, "concurrency": "1", "tree_ttl_s": str(60 * 24 * 3600)}
    with (
        ValkeyProcess(folder / "valkey", socket_dir) as server,
        Stack(model_forks, server, folder / "stack", knobs, agents=MODELS) as stack,
    ):
        stack.env.update(wire.environment())
        stack.start_all()
        yield stack
    remove_socket_dir(socket_dir)


@pytest.mark.kills("at a step")
@pytest.mark.parametrize("number", range(1, len(STEPS) + 1))
@pytest.mark.parametrize("place", ["worker.stepped", "worker.recorded"])
def test_a_kill_at_a_step_costs_at_most_that_one_model_call(
    place: str, number: int, stack: Stack, wire: WireServer
) -> None:
    before = len(wire.answered)
    worker = stack.replace("worker", crash_at=f"{place}#{number}")
    stack.wait_ready()
    with stack.client() as client:
        session = client.submit("model-lead", f"{place} {number}")
        stack.wait(worker.mark.exists, f"a crash at {place}")
        assert stack.answer(session) == ANSWER
    stack.assert_settled()
    unrecorded = place == "worker.stepped" and STEPS[number - 1].endswith("model")
    paid = wire.answered[before:]
    assert len(paid) == MODEL_CALLS + unrecorded, [
        (call.instructions, call.turn, call.last[:80]) for call in paid
    ]
    [lead, *helpers] = stack.ledger.tree(session.id)
    assert [helper.agent for helper in helpers] == ["model-helper"] * 2
    run = stack.ledger.runs(lead.id)[0].id
    assert len(list(stack.marks.glob(f"note-{run}*"))) == 1
    called = len((stack.marks / f"noted-{session.id}").read_text())
    assert called == (2 if place == "worker.stepped" and number == 2 else 1)


def test_experts_that_have_finished_are_asked_again_and_each_is_killed_once(
    stack: Stack, wire: WireServer
) -> None:
    """Three follow-up questions, three experts, each killed while it answers: three answers, with their memory."""
    place = "worker.stepped"
    # Steps 1 to 7 are the tasks: a model, three delegations, three experts; then a model and three questions.
    for number in (12, 1, 1):
        worker = stack.replace("worker", crash_at=f"{place}#{number}")
        stack.wait_ready()
        with stack.client() as client:
            if number == 12:
                session = client.submit("model-chief", "go")
            stack.wait(worker.mark.exists, "a crash")
    with stack.client() as client:
        assert stack.answer(session) == "because of task 0; because of task 1; because of task 2"
    stack.assert_settled()
    experts = [child for child in stack.ledger.tree(session.id) if child.parent]
    assert [expert.runs for expert in experts] == [2, 2, 2]


def test_a_tool_that_blocks_the_loop_of_all_model_agents_costs_its_process(stack: Stack) -> None:
    """Its run fails at its time limit, and the next model agent of that slot works."""
    with stack.client() as client:
        held = client.submit("model-holder", "go")
        with pytest.raises(SessionFailed, match=r"time limit of 1 s, and its agent, .* was ended by force"):
            held.result(timeout_s=120)
        assert stack.answer(client.submit("model-helper", "help")) == "<response>I helped.</response>"
    stack.assert_settled()


def test_who_reads_along_loses_nothing_when_the_writer_is_killed(stack: Stack) -> None:
    """Two readers, one of them async; each reconnects after every piece. What they keep is the answer."""
    worker = stack.replace("worker")
    stack.wait_ready()
    with stack.client() as client:
        session = client.submit("model-teller", "tell")
        reader = threading.Thread(
            target=lambda: later.extend(asyncio.run(read_again_and_again(stack, session.id)))
        )
        later: list[LiveEvent] = []
        reader.start()
        events: list[LiveEvent] = []
        while True:
            with stack.client() as again:
                stream = again.stream(session.id, after=events[-1].position if events else "", timeout_s=120)
                event = next(stream, None)
            if event is None:
                break
            events.append(event)
            if worker.alive and sum(event.kind == "text" for event in events) == 4:
                worker.kill()
                stack.replace("worker")
        reader.join()
        assert stack.answer(session) == STORY
    assert later == events
    [replaced] = [event for event in events if event.kind == "replaced"]
    [since] = [number for number, event in enumerate(events) if event.position == replaced.since]
    kept = [*events[:since], *events[events.index(replaced) :]]
    assert "".join(event.text for event in kept if event.kind == "text") == STORY
    assert [e.kind for e in kept if e.kind != "text"] == ["begin", "call", "result", "replaced", "begin"]
    assert "".join(event.text for event in events if event.kind == "text") != STORY
    stack.assert_settled()


async def read_again_and_again(stack: Stack, session: str) -> list[LiveEvent]:
    """Every event, with another connection for each."""
    events: list[LiveEvent] = []
    while True:
        async with AsyncClient(stack.settings) as client:
            stream = client.stream(session, after=events[-1].position if events else "", timeout_s=120)
            event = await anext(stream, None)
        if event is None:
            return events
        events.append(event)


WEEK_MS = 7 * 86_400_000


MOVE_BACK = "return redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])"


def pass_time(stack: Stack, ms: int) -> None:
    """Let time pass for a stack at rest: everything that it has written down lies so much further back."""
    client = stack.redis
    for shard in stack.shards:
        for timer in client.zrange(ledger_keys.timers(shard), 0, -1):
            client.zincrby(ledger_keys.timers(shard), -ms, timer)
    for key in [
        *client.scan_iter("ao:{*}:session:ses_*", 10_000, "hash"),
        *client.scan_iter("ao:{*}:run:run_*", 10_000, "hash"),
    ]:
        if key.count(b":") == 3:  # not its items, its texts or its steps
            for name, value in client.hgetall(key).items():
                if name.endswith(b"_ms") and int(value):
                    # What is deleted meanwhile stays deleted.
                    client.eval(MOVE_BACK, 1, key, name, int(value) - ms)


def the_approval(stack: Stack, client: Client, session: str, tool: str) -> Approval:
    """The one open approval of a tree, once nothing else in it is at work."""

    def look() -> list[Approval]:
        resting = not any(member.busy for member in client.tree(session))
        return [one for one in client.approvals(session) if one.tool == tool and resting]

    def stands() -> object:
        return [(s.agent, s.state.value, s.reason, s.trouble) for s in client.tree(session)], stack.logs()

    return wait_until(look, f"the approval of {tool}", timeout_s=60, explain=stands)[0]


def test_two_approvals_in_a_row_at_depth_3_outlast_a_deploy_a_kill_and_two_weeks(
    stack: Stack, wire: WireServer
) -> None:
    """Nothing that ran before is run again: each model call is paid once, and each tool is called once."""
    before = len(wire.answered)
    with stack.client() as client:
        session = client.submit("model-captain", "ship it")
        first = the_approval(stack, client, session.id, "ship")
        assert first.depth == 3
        # A deploy: all workers stop, and others start.
        for worker in [process for process in stack.running if process.name == "worker"]:
            os.kill(worker.pid, signal.SIGTERM)
            stack.wait(lambda worker=worker: not worker.alive, "the end of a worker")
            stack.running.remove(worker)
        pass_time(stack, WEEK_MS)
        assert client.approvals(session.id) == [first]
        worker = stack.start("worker", crash_at="worker.recorded#1")
        stack.wait_ready()
        client.approve(first.id, "ship it", digest=first.digest)
        # kill -9 right after the call of the tool was recorded.
        stack.wait(worker.mark.exists, "a crash")
        second = the_approval(stack, client, session.id, "announce")
        assert len(wire.answered) - before == 5  # one of each of the four, and the shipper's second
        stack.replace("worker")
        stack.wait_ready()
        pass_time(stack, WEEK_MS)
        client.approve(second.id)
        assert stack.answer(session) == "all done: shipped 7, announced to all"
        with pytest.raises(WrongState):
            client.deny(second.id)
        assert client.approvals() == []
    assert (stack.marks / f"shipped-{session.id}").read_text() == "7 "
    assert (stack.marks / f"announced-{session.id}").read_text() == "all "
    assert len(wire.answered) - before == 3 * 2 + 3
    stack.assert_settled()
    assert not stack.redis.exists(ledger_keys.approvals(0))
    store = AuditStore(stack.settings.audit_database, read_only=True)
    trail = AuditReader(store).conversation(stack.ledger.session(session.id).correlation)
    said = {kind: [m for m in trail if m.type == kind] for kind in ("query", "reply")}
    assert [(m.sender, m.recipient) for m in said["query"]] == [("model-shipper", "operator")] * 2
    assert [(m.sender, m.recipient) for m in said["reply"]] == [("operator", "model-shipper")] * 2
