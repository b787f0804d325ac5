"""A run from its claim to its commit: what an agent does counts once, whatever happens to it."""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis as redis_py
from celery.result import AsyncResult

from orchestrator.agents.registry import AgentRecord
from orchestrator.config.settings import load_settings
from orchestrator.envelope.bodies import ErrorReport, Task
from orchestrator.errors import (
    ClaimLost,
    LimitExceeded,
    OrchestraError,
    Retry,
    RunParked,
    SessionFailed,
    SessionStopped,
)
from orchestrator.ids import new_message_id
from orchestrator.ledger import ItemState, Ledger, RunState, SessionState
from orchestrator.messages.factory import Thread
from orchestrator.redisdb import keys, ledger_keys
from orchestrator.redisdb.client import connect
from orchestrator.redisdb.scripts import Batch
from orchestrator.worker.context.context import Context
from orchestrator.worker.execution import runner
from tests.kit import Kit
from tests.waiting import wait_until

from .conftest import sent


def _is_to_stop(ctx: Context) -> bool:
    try:
        ctx.check()
    except SessionStopped:
        return True
    return False


def test_an_answer_finishes_the_session(kit: Kit) -> None:
    kit.agent("solo")(lambda ctx: ctx.prompt.upper())
    session = kit.begin("solo", "hello", ends="finished")
    assert kit.ledger.result(session) == (SessionState.FINISHED, "HELLO")


@pytest.mark.parametrize(
    ("value", "text"), [(None, ""), ("", ""), ({"a": [1, "é"]}, '{"a": [1, "é"]}'), (7, "7"), (True, "true")]
)
def test_what_an_agent_returns_becomes_text(kit: Kit, value: object, text: str) -> None:
    kit.agent("solo")(lambda ctx: value)
    session = kit.begin("solo")
    assert kit.answer(session) == text


def test_an_agent_may_be_a_coroutine_function(kit: Kit) -> None:
    @kit.agent("solo")
    async def solo(ctx: Context) -> str:
        return ctx.prompt

    session = kit.begin("solo", "later")
    assert kit.answer(session) == "later"


def test_a_failure_names_the_agents_own_line(kit: Kit) -> None:
    @kit.agent("solo")
    def solo(ctx: Context) -> None:
        raise RuntimeError("no luck\n")  # as a program ends its lines

    session = kit.begin("solo", ends="failed")
    reason = kit.ledger.session(session).reason
    assert reason.startswith(f"RuntimeError: no luck ({__file__}:")


@pytest.mark.parametrize("text", ["{", '"é'])
def test_a_failure_inside_of_a_library_names_the_line_that_called_it(kit: Kit, text: str) -> None:
    """Not one of the library, and not one of ours where that is what raised."""
    line = 0

    @kit.agent("solo")
    def solo(ctx: Context) -> None:
        nonlocal line
        line = sys._getframe().f_lineno + 1
        json.loads(ctx.prompt)

    session = kit.begin("solo", text)
    assert kit.ledger.session(session).reason.endswith(f"({__file__}:{line})")


def test_a_misuse_of_the_context_names_the_agents_line(kit: Kit) -> None:
    @kit.agent("solo")
    def solo(ctx: Context) -> None:
        ctx.wait_for("quorum")

    session = kit.begin("solo")
    reason = kit.ledger.session(session).reason
    assert reason.endswith(f"({__file__}:{solo.__code__.co_firstlineno + 2})")


def test_an_agent_that_was_installed_is_named_and_not_what_it_uses(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its code lies among the libraries then, as a project's own virtual environment lies in the project."""
    monkeypatch.setattr("orchestrator.worker.executors.python._LIBRARIES", (tmp_path,))
    package, library = tmp_path / "mine", tmp_path / "library"
    for folder in (package, library):
        folder.mkdir()
    (library / "helper.py").write_text("def fail():\n    raise ValueError('no')\n", encoding="utf-8")
    (package / "agents.py").write_text("def solo(ctx):\n    fail()\n", encoding="utf-8")
    names: dict[str, Any] = {}
    for file in (library / "helper.py", package / "agents.py"):
        exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), names)
    kit.agent("solo")(names["solo"])
    session = kit.begin("solo")
    assert kit.ledger.session(session).reason == f"ValueError: no ({package / 'agents.py'}:2)"


#: More than may stand beside a text.
LONG = "x" * 300_000


@pytest.mark.parametrize(
    ("agent", "reason"),
    [
        (
            lambda ctx: object(),
            "InputError: agent 'solo' returned a value of type object, which is neither text nor JSON",
        ),
        (lambda ctx: sys.exit(3), "SystemExit: 3"),
        (lambda ctx: ctx.state.update(bad=object()), "InputError: ctx.state holds a value that is not JSON"),
        (lambda ctx: ctx.wait_for("some"), "InputError: wait_for('some'): wait for 'any', 'all' or 'quorum'"),
        (
            lambda ctx: ctx.wait_for("all", k=2),
            "InputError: wait_for('all', k=2): a quorum, and only a quorum",
        ),
        (lambda ctx: ctx.wait_for("quorum"), "InputError: wait_for('quorum', k=None): a quorum"),
        (
            lambda ctx: ctx.status(101),
            "InputError: status: progress = 101: input should be less than or equal to 100",
        ),
        (lambda ctx: ctx.delegate("solo", " "), "InputError: a delegation to 'solo' needs an agent and"),
        (lambda ctx: ctx.delegate("solo", 7), "InputError: task = 7: give a Task, or a mapping"),
        (lambda ctx: ctx.delegate(None, "x"), "InputError: delegate: agent is missing"),
        (lambda ctx: ctx.delegate_all("solo", ["x", 7]), "InputError: task = 7: give a Task"),
        (
            lambda ctx: ctx.delegate("solo", "x", priority="urgent"),
            "InputError: delegate: priority = 'urgent': choose from 'critical', 'high', 'normal', 'low'",
        ),
        (
            lambda ctx: ctx.delegate("solo", "x", on_failure="retry"),
            "InputError: delegate: on_failure = 'retry': choose from 'deliver', 'fail', 'ignore'",
        ),
        (
            lambda ctx: ctx.delegate_all("solo", ["x"], on_close="keep"),
            "InputError: delegate_all: on_close = 'keep': choose from 'stop', 'abandon'",
        ),
        (
            lambda ctx: [ctx.delegate("solo", "x", key="k", group=g) for g in ("a", "a", "b")],
            "KeyInUse: key 'k' is that of session ses_",
        ),
        (
            lambda ctx: ctx.call("solo", "x", priority="urgent"),
            "InputError: call: priority = 'urgent': choose",
        ),
        (lambda ctx: ctx.request_review(7), "InputError: request_review: description = 7 is not text"),
        (
            lambda ctx: ctx.escalate("x", reason="bored"),
            "InputError: escalate: reason = 'bored': choose from 'task-failed'",
        ),
        (lambda ctx: ctx.message("parent", 7), "InputError: message: text = 7 is not text"),
        (lambda ctx: ctx.ask(7), "InputError: ask: message = 7 is not text"),
        (
            lambda ctx: ctx.delegate("solo", "x", title=LONG),
            "InputError: title has 300000 bytes, and at most",
        ),
        (lambda ctx: ctx.delegate_all("solo", ["x"], group=LONG), "InputError: group has 300000 bytes"),
        (lambda ctx: ctx.wait_for("all", group=LONG), "InputError: group has 300000 bytes"),
        (lambda ctx: ctx.ask_later("x", key=LONG), "InputError: key has 300000 bytes"),
        (lambda ctx: ctx.ask_later("x", context={"log": LONG}), "InputError: context has 300011 bytes"),
        (lambda ctx: ctx.request_approval("x", reason=LONG), "InputError: reason has 300000 bytes"),
        (
            lambda ctx: ctx.delegate("solo", "x", after="ses_1"),
            "InputError: delegate: after = 'ses_1' is one text; give a list of texts",
        ),
        (lambda ctx: ctx.collect("ses_1"), "InputError: sessions = 'ses_1' is one text; give a list"),
        (
            lambda ctx: ctx.request_review("x", files="a.py"),
            "InputError: request_review: files = 'a.py' is one text",
        ),
        (
            lambda ctx: ctx.status(33.3),
            "InputError: status: progress = 33.3: input should be a valid integer",
        ),
        (
            lambda ctx: [ctx.post_approval("x", {"n": n}, key="k") for n in (1, 1, 2)],
            "KeyInUse: key 'k' is that of session apr_",
        ),
        (
            lambda ctx: ctx.post_approval(""),
            "InputError: an approval names what is to be approved: tool is empty",
        ),
        (
            lambda ctx: ctx.post_approval("x", {"a": object()}),
            "InputError: the arguments of 'x' have no form as JSON",
        ),
        (
            lambda ctx: ctx.post_approval("x", {"a": "y" * 300_000}),
            "InputError: the arguments of 'x' have 300008 bytes; a person is asked about",
        ),
        (lambda ctx: ctx.post_approval("x", default="maybe"), "InputError: default = 'maybe': choose"),
        (lambda ctx: ctx.attach("report", 7), "InputError: text = 7 is not text"),
        (
            lambda ctx: ctx.ask("x", timeout_s=math.inf),
            "InputError: timeout_s = inf is not a number of seconds",
        ),
        (
            lambda ctx: ctx.request_approval("x", timeout_s=math.inf),
            "InputError: timeout_s = inf is not a number of seconds",
        ),
    ],
)
def test_misuse_fails_the_run_and_says_how(kit: Kit, agent: Callable[[Context], Any], reason: str) -> None:
    kit.agent("solo")(agent)
    session = kit.begin("solo", ends="failed")
    assert kit.ledger.session(session).reason.startswith(reason)


def test_a_key_without_characters_is_no_key(kit: Kit) -> None:
    """Programs that fill in every field of a tool give it; a second task under it would never be begun."""

    @kit.agent("solo", role="coordinator")
    def solo(ctx: Context) -> str:
        assert ctx.delegate("helper", "one", key="") != ctx.delegate("helper", "two", key="")
        first, second = ctx.step("launch", lambda: [ctx.delegate("helper", word, key="") for word in "ab"])
        assert first != second
        return ""

    kit.agent("helper")(lambda _: "")
    root = kit.begin("solo", ends="idle")
    assert len(kit.children(root)) == 4


def test_a_provider_holds_nobody_back_for_longer_than_a_day(kit: Kit) -> None:
    """Some write a moment where seconds belong: the key would be of no use for decades."""

    @kit.agent("solo")
    def solo(ctx: Context) -> str:
        ctx.limits.hold_back("stub", "m", after_s=1_800_000_000)
        with pytest.raises(RunParked) as parked:
            ctx.limits.acquire("stub", "m")
        return str(float(parked.value.args[1]))

    root = kit.begin("solo", ends="finished")
    assert 86_000 < float(kit.answer(root)) <= 86_400


class Speechless(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Speechless(), "Speechless, which has no text"),
        (asyncio.CancelledError(), "CancelledError ("),
        (KeyboardInterrupt("Ctrl-C"), "KeyboardInterrupt: Ctrl-C ("),
        (GeneratorExit(), "GeneratorExit ("),
    ],
    ids=["speechless", "cancelled", "interrupt", "generator"],
)
def test_an_error_that_is_no_common_one_is_a_failure_too(kit: Kit, error: BaseException, reason: str) -> None:
    """Not the end of the slot, whose run would wait for its lease and be tried 20 times."""

    @kit.agent("solo")
    def solo(ctx: Context) -> None:
        raise error

    session = kit.begin("solo", ends="failed")
    assert kit.ledger.session(session).reason.startswith(reason)


def test_what_a_task_of_an_agent_raises_means_what_it_means_elsewhere(kit: Kit) -> None:
    """It comes in a group: a wait, a delay of the next try, and errors that tell nothing by their group."""

    @kit.agent("solo", attempts=2)
    async def solo(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            if ctx.prompt == "wait":
                group.create_task(asyncio.to_thread(ctx.sleep, 3600))
                group.create_task(asyncio.to_thread(ctx.sleep, 3600))
            elif ctx.prompt == "delay":
                group.create_task(
                    asyncio.to_thread(exec, "raise late", {"late": Retry("busy", after_s=1234)})
                )
            else:
                raise ExceptionGroup("both", [KeyError(name) for name in ctx.prompt.split()])

    kit.begin("solo", "wait", ends="parked")
    delayed = kit.begin("solo", "delay", ends="retry")
    (run,) = kit.ledger.runs(delayed)
    assert run.claimable_ms - run.tries[0].ended_ms == 1_234_000
    for errors, text in (
        ("one", "KeyError: 'one'"),
        ("one two", "a TaskGroup (1 sub-exception): KeyError: 'one'; KeyError: 'two' ("),
    ):
        failing = kit.begin("solo", errors, ends="retry")
        (run,) = kit.ledger.runs(failing)
        assert text in run.tries[0].reason


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("leave", "code"),
    [(lambda: "forged", 0), (lambda: sys.exit(3), 3), (lambda: sys.exit("no"), 1), (lambda: 1 / 0, 1)],
    ids=["returns", "exits", "says why", "raises"],
)
def test_a_fork_of_an_agents_process_cannot_end_its_run(
    kit: Kit, leave: Callable[[], str], code: int
) -> None:
    """It ends as a program does, and does not go on as a second worker either."""

    @kit.agent("solo")
    def solo(ctx: Context) -> str:
        fork = os.fork()
        if not fork:
            return leave()
        return str(os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]))

    session = kit.begin("solo", ends="finished")
    assert kit.answer(session) == str(code)


def test_a_run_is_executed_once(kit: Kit) -> None:
    calls = []
    kit.agent("solo")(lambda ctx: calls.append(1))
    dispatch = kit.start(kit.submit("solo"))
    assert [kit.execute(dispatch), kit.execute(dispatch)] == ["finished", "refused"]
    assert calls == [1]


def test_a_parent_hears_of_its_children_and_keeps_its_state(kit: Kit) -> None:
    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.state["asked"] = [ctx.delegate("helper", word, title=f"Say {word}") for word in ("a", "b")]
            ctx.wait_for("all")
            return "waiting"
        assert [callback.session for callback in ctx.callbacks] == ctx.state["asked"]
        assert ctx.prompt.startswith('<agent-callback type="aggregated" count="2">')
        return ",".join(callback.result for callback in ctx.all_results)

    kit.agent("helper")(lambda ctx: f"{ctx.title}: {ctx.prompt * 2}")
    session = kit.begin("lead", ends="idle")
    first, second = sorted(kit.children(session), key=lambda child: child.title)
    kit.play(first.id)
    assert kit.ledger.flush(session).outcome == "waits"
    kit.play(second.id)
    assert kit.play(session) == "finished"
    assert kit.answer(session) == "Say a: aa,Say b: bb"
    assert kit.balance(session) == (2, 2, 0, 0)


@pytest.mark.parametrize("cut", range(6))
def test_an_agent_that_dies_between_two_delegations_and_is_tried_again_has_each_child_once(
    kit: Kit, cut: int
) -> None:
    @kit.agent("lead", role="coordinator", attempts=2)
    def lead(ctx: Context) -> str:
        for number in range(5):
            if number == cut and ctx.attempt == 1:
                raise RuntimeError("cut")
            # Two of the five are the same call: they are counted.
            ctx.delegate("helper", f"task {number // 2}")
        if cut == 5 and ctx.attempt == 1:
            raise RuntimeError("cut")
        return "asked"

    kit.agent("helper")(lambda ctx: "done")
    session = kit.begin("lead", ends="retry")
    assert kit.again(session) == "idle"
    assert len(kit.children(session)) == 5
    assert kit.ledger.session(session).launched == 5


def test_a_delegation_may_be_told_apart_by_a_key(kit: Kit) -> None:
    made = []

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> None:
        made.append(ctx.delegate("helper", "same", key="one"))
        made.append(ctx.delegate("helper", "same", key="one"))
        made.append(ctx.delegate("helper", "same", key="two"))

    kit.begin("lead")
    assert made[0] == made[1] != made[2]


def test_a_delegation_without_a_callback_owes_nothing(kit: Kit) -> None:
    kit.agent("lead", role="coordinator")(lambda ctx: ctx.delegate("helper", "whatever", callback=False))
    session = kit.begin("lead", ends="finished")
    assert kit.ledger.session(session).launched == 0


def test_a_limit_refuses_a_delegation_and_changes_nothing_else(kit: Kit) -> None:
    object.__setattr__(kit.ledger.limits, "max_children", 2)
    caught = []

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        ctx.delegate("helper", "1")
        ctx.delegate("helper", "2")
        try:
            ctx.delegate("helper", "3")
        except LimitExceeded as error:
            caught.append(str(error))
        return "two"

    session = kit.begin("lead", ends="idle")
    assert caught == [
        f"limit max_children = 2 reached for session {session}; wait for work to finish, or split it"
    ]
    assert kit.ledger.session(session).launched == 2


def test_an_agent_that_works_on_is_told_that_it_lost_its_run(kit: Kit) -> None:
    """By its heartbeat, and not only when its time is up."""
    told: list[Exception] = []

    @kit.agent("solo")
    def solo(ctx: Context) -> str:
        kit.crash(ctx.session)
        while not ctx.stopping:
            threading.Event().wait(0.01)
        try:
            ctx.check()
        except OrchestraError as error:
            told.append(error)
            raise
        return "never"

    kit.begin("solo", ends="lost")
    assert [type(error) for error in told] == [ClaimLost]


def test_a_run_that_was_asked_for_and_is_of_another_type_is_left_alone_and_its_worker_goes_on(
    kit: Kit,
) -> None:
    """No other run has a part in it, so it is no outage."""
    kit.agent("solo")(lambda ctx: "done")
    session = kit.submit("solo")
    dispatch = kit.start(session)
    bodies = kit.redis.dump(ledger_keys.bodies(session))
    kit.redis.set(ledger_keys.bodies(session), "of another type")
    assert kit.execute(dispatch) == "damaged"
    kit.redis.restore(ledger_keys.bodies(session), 0, bodies, replace=True)
    assert kit.execute(dispatch) == "finished"


def test_the_lease_of_an_agent_that_computes_is_renewed(kit: Kit) -> None:
    beats = []

    @kit.agent("solo")
    def solo(ctx: Context) -> str:
        deadline = threading.Event()
        while len(set(beats)) < 3 and not deadline.wait(0.01):
            beats.append(kit.ledger.sweep.leases(0)[0].lease_version)
        return "still mine"

    kit.begin("solo", ends="finished")


def test_a_user_can_stop_a_running_agent(kit: Kit) -> None:
    began = threading.Event()

    @kit.agent("solo")
    def solo(ctx: Context) -> str:
        began.set()
        while True:
            ctx.status(activity="busy")

    session = kit.submit("solo")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(kit.play, session)
        assert began.wait(60)
        assert kit.ledger.stop(session, "enough").outcome == "asked"
        assert running.result(10) == "stopped"
    assert kit.ledger.result(session) == (SessionState.STOPPED, "enough")


def test_a_run_that_is_asked_to_stop_between_effects_hears_of_it(kit: Kit) -> None:
    reasons = []

    @kit.agent("solo")
    def solo(ctx: Context) -> str:
        kit.ledger.stop(ctx.session, "enough")
        while not ctx.stopping:
            threading.Event().wait(0.01)
        reasons.append(ctx.stopping)
        with pytest.raises(SessionStopped):
            ctx.check()
        return "an answer after all"

    kit.begin("solo", ends="finished")
    assert reasons == ["enough"]


def test_a_run_that_takes_too_long_fails_with_that_reason(kit: Kit) -> None:
    @kit.agent("solo", time_limit_s=0.1, attempts=3)
    def solo(ctx: Context) -> None:
        while True:
            threading.Event().wait(0.01)
            ctx.check()

    session = kit.begin("solo", ends="failed")
    assert kit.ledger.session(session).reason == "it ran longer than its time limit of 0.1 s"


@pytest.mark.parametrize("swept", [False, True], ids=["no sweep has noticed", "it was asked to stop"])
def test_an_answer_after_the_time_of_its_session_is_a_timeout(kit: Kit, swept: bool) -> None:
    """It is reported as such, and its parent hears of nothing else."""
    heard: list[Any] = []

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("late", "go", time_limit_s=0.2)
        heard.extend((c.status, c.error) for c in ctx.callbacks)
        return "done"

    @kit.agent("late", attempts=3)
    def late(ctx: Context) -> str:
        due = kit.redis.zscore(ledger_keys.timers(0), f"limit|{ctx.session}")
        wait_until(lambda: kit.ledger.server_ms() > due, "the time has passed")
        for _ in range(2 * swept):  # it is asked to stop for as long as it does not
            kit.services.reaper.run_once()
        if swept:
            wait_until(lambda: _is_to_stop(ctx), "it hears of that, and does not heed it")
        return "done after all"

    root = kit.begin("lead")
    (child,) = kit.children(root)
    assert kit.play(child.id) == "failed"
    kit.play(root)
    assert heard == [("failed", "it was not done within its time limit")]
    bodies = [message.body for message in sent(kit, "error", "critical")]
    assert [(body.error_type, body.message) for body in bodies] == [("timeout", heard[0][1])]
    assert kit.redis.zscore(ledger_keys.timers(0), f"limit|{child.id}") is None


def test_an_answer_that_takes_long_to_commit_counts(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its agent has returned, so the end of the grace period ends nothing by force."""
    kit = kit.beside(stop_grace_s=0.05)
    kit.agent("solo", time_limit_s=0.1)(lambda ctx: "in time")
    commit, agent_thread = kit.ledger.commit_all, threading.current_thread()
    tried_by: list[threading.Thread] = []

    def slow(*args: Any, **given: Any) -> Any:
        tried_by.append(threading.current_thread())
        if tried_by[-1] is agent_thread:
            time.sleep(0.3)  # longer than the time limit and the grace period together
        return commit(*args, **given)

    monkeypatch.setattr(kit.ledger, "commit_all", slow)
    session = kit.begin("solo", ends="finished")
    assert kit.ledger.result(session) == (SessionState.FINISHED, "in time")
    assert tried_by == [agent_thread]


def test_an_agent_that_heeds_nothing_is_ended_from_outside(kit: Kit) -> None:
    kit = kit.beside(stop_grace_s=0.1)
    ended = threading.Event()

    @kit.agent("solo", time_limit_s=0.1)
    def solo(ctx: Context) -> str:
        while not kit.ledger.session(ctx.session).ended_ms:
            threading.Event().wait(0.02)
        ended.set()
        return "too late"

    session = kit.begin("solo")
    assert ended.is_set()
    assert kit.ledger.result(session) == (
        SessionState.FAILED,
        "it ran longer than its time limit of 0.1 s, and its agent, which did not stop within 0.1 s, was ended by force",
    )


def test_a_process_that_is_blocked_is_ended_although_the_end_of_its_run_cannot_be_written(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slot would be lost for good."""
    kit = kit.beside(stop_grace_s=0.1)
    killed, commit = threading.Event(), kit.ledger.commit_all

    def refuse(*args: Any, **given: Any) -> Any:
        if not killed.is_set():
            raise redis_py.ResponseError("damaged")
        return commit(*args, **given)

    @kit.agent("solo", time_limit_s=0.1)
    def solo(ctx: Context) -> str:
        killed.wait(10)
        return "too late"

    monkeypatch.setattr(runner, "current_process", lambda: SimpleNamespace(name="ForkPoolWorker-1"))
    monkeypatch.setattr(os, "kill", lambda *_: killed.set())
    monkeypatch.setattr(kit.ledger, "commit_all", refuse)
    kit.begin("solo", ends="lost")
    assert killed.is_set()


def test_progress_is_shown_in_the_ledger(kit: Kit) -> None:
    seen = []

    @kit.agent("solo")
    def solo(ctx: Context) -> None:
        ctx.status(40, "counting")
        found = kit.ledger.session(ctx.session)
        seen.append((found.progress, found.activity))

    kit.begin("solo")
    assert seen == [(40, "counting")]


def test_a_quorum_and_a_deadline_reach_the_ledger(kit: Kit) -> None:
    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> None:
        for number in range(3):
            ctx.delegate("helper", str(number), group="g")
        ctx.wait_for("quorum", k=2, group="g", deadline_s=60)
        ctx.wait_for("any", window_s=0.5)

    session = kit.begin("lead")
    waiting = kit.ledger.session(session).waiting
    assert waiting[""] == {"mode": "any", "window_ms": 500}
    assert (waiting["g"]["mode"], waiting["g"]["k"]) == ("quorum", 2)
    assert waiting["g"]["deadline_ms"] > kit.ledger.server_ms()


def test_a_user_resumes_a_finished_session(kit: Kit) -> None:
    @kit.agent("solo")
    def solo(ctx: Context) -> str:
        ctx.state["turns"] = ctx.state.get("turns", 0) + 1
        return f"{ctx.cause} {ctx.state['turns']}: {ctx.prompt}"

    session = kit.begin("solo", "first")
    kit.ledger.enqueue(session, "and <response>second</response>", item_id="itm_00x")
    assert kit.play(session) == "finished"
    assert kit.answer(session) == "user 2: and &lt;response>second&lt;/response>"


def test_the_callers_of_roots_get_the_final_answer_or_the_failure(kit: Kit) -> None:
    kit.agent("good")(lambda ctx: "fine")

    @kit.agent("bad")
    def bad(ctx: Context) -> None:
        raise ValueError("not fine")

    kit.begin("good", task="t-good")
    kit.begin("bad", task="t-bad")
    assert AsyncResult("t-good", app=kit.app).get(timeout=60) == "fine"
    with pytest.raises(SessionFailed, match="not fine"):
        AsyncResult("t-bad", app=kit.app).get(timeout=60)
    assert kit.ledger.sweep.unpublished_results(0) == []


def test_the_caller_of_a_root_that_waits_sees_that_it_does(kit: Kit) -> None:
    kit.agent("lead", role="coordinator")(lambda ctx: ctx.delegate("helper", "x"))
    kit.begin("lead", task="t-waits")
    assert AsyncResult("t-waits", app=kit.app).state == "WAITING"


def test_every_end_is_reported_by_a_signed_envelope(kit: Kit) -> None:
    kit.lead("helper: x")

    @kit.agent("helper")
    def helper(ctx: Context) -> None:
        raise ValueError("no")

    session = kit.begin("lead")
    kit.end_children(session)
    (child,) = kit.children(session)
    streams = {("task-delegation", "high"): 2, ("error", "critical"): 1, ("task-completion", "high"): 1}
    for (kind, priority), expected in streams.items():
        assert kit.redis.xlen(keys.messages(0, kind, priority)) == expected
    ((_, fields),) = kit.redis.xrange(keys.messages(0, "error", "critical"))
    text = fields[b"envelope"].decode()
    assert "<agent-name>helper</agent-name>" in text
    assert "<agent-name>lead</agent-name>" in text
    assert "<signature>" in text
    assert json.dumps(child.id)[1:-1] in text


def test_an_outage_of_redis_in_the_middle_of_a_run_changes_nothing(
    start_valkey: Callable[..., Any], tmp_path: Path
) -> None:
    server = start_valkey(durable=True)
    kit = Kit.on(connect(server.url), load_settings(redis_url=server.url, data=tmp_path / "data"))
    killed = threading.Event()

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        ctx.delegate("helper", "before")
        server.kill()
        killed.set()
        ctx.delegate("helper", "after")
        return "both"

    session = kit.submit("lead")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(kit.play, session)
        assert killed.wait(60)
        server.start()
        assert running.result(30) == "idle"
    assert [child.title for child in kit.children(session)] == ["before", "after"]
    owed = [item.state for item in Ledger(kit.redis).items(session)]
    assert owed == [ItemState.OWED, ItemState.OWED]


@pytest.mark.parametrize("what", ["an effect", "results"])
def test_an_agent_is_not_blamed_for_a_ledger_that_refuses(kit: Kit, what: str) -> None:
    """Whatever the agent makes of it, the run is left to be tried again: it has neither failed nor finished."""

    @kit.agent("solo")
    def solo(ctx: Context) -> str:
        if ctx.attempt == 1:
            kit.redis.set(refusing, "no hash")
        if what == "results":
            assert ctx.all_results == ()
        else:
            ctx.status(50, "at work")
        return "done"

    dispatch = kit.start(kit.submit("solo"))
    refusing = {
        "an effect": ledger_keys.effects(dispatch.run),
        "results": ledger_keys.items(dispatch.session),
    }[what]
    assert kit.execute(dispatch) == "outage"
    run = kit.ledger.run(dispatch.run)
    assert (run.state, kit.ledger.session(dispatch.session).state) == (
        RunState.RUNNING,
        SessionState.RUNNING,
    )
    kit.redis.delete(refusing)
    assert kit.crash(dispatch.session) == "queued"
    assert kit.again(dispatch) == "finished"


def test_an_end_that_can_be_foreseen_is_committed_in_one_step(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its envelope goes with the commit; that of a parent whose children are at work is not written in vain."""
    commits: list[bool] = []
    script = Batch.script

    def note(batch: Batch, name: str, names: Any, args: Any) -> None:
        if name == "commit":
            commits.append(args[3] != "")  # its envelope
        script(batch, name, names, args)

    monkeypatch.setattr(Batch, "script", note)
    kit.agent("helper")(lambda ctx: "helped")
    kit.lead("helper: help")
    session = kit.begin("lead", ends="idle")
    assert commits == [False]
    assert kit.end_children(session) == "finished"
    assert commits == [False, True, True]


@pytest.mark.parametrize("ends", ["task-completion", "error"])
def test_what_a_program_asked_for_is_reported_under_its_own_task_id(
    kit: Kit, tmp_path: Path, ends: str
) -> None:
    """It knows nothing of our sessions."""

    @kit.agent("worker")
    def worker(ctx: Context) -> str:
        ctx.status(50, "half")
        if ends == "error":
            raise ValueError("no luck")
        return "done"

    kit.parts.agents.announce([AgentRecord(name="partner", role="coordinator", executor="foreign")])
    outgoing = kit.parts.message_factory.delegation(
        sender="partner",
        recipient="worker",
        task_id="T-1",
        task=Task(title="Count", description="the lines"),
        thread=Thread(correlation=new_message_id()),
    )
    kit.publish(outgoing.data, outgoing.type, outgoing.priority)
    kit.route()
    ((dispatch, _),) = kit.sent.runs
    kit.execute(dispatch)
    priority = "high" if ends == "task-completion" else "critical"
    said = sent(kit, "status-update", "normal") + sent(kit, ends, priority)
    assert len(said) == 2
    for message in said:
        assert message.header.recipient.agent_name == "partner"
        body = message.body
        named = (
            json.loads(body.details.context_data)["task"] if isinstance(body, ErrorReport) else body.task_id
        )
        assert named == "T-1"
