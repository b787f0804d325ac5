"""Sessions keep the version that they began with: who may go on with them after a deploy, and what becomes of them."""

from __future__ import annotations

from typing import Any

from orchestrator.agents.definition import define_agent
from orchestrator.ids import callback_id
from orchestrator.ledger import ItemState, RunRef, Session, SessionState
from orchestrator.worker.context.context import Context
from orchestrator.worker.execution.slot import SlotLoop

from .conftest import StackHarness


def deploy(
    stage: StackHarness, version: str, on_deploy: str = "refuse", *, agent: str = "lead", **options: Any
) -> None:
    """What a worker with this version of an agent serves from now on: it waits for a helper, then names its version."""

    def work(ctx: Context) -> str:
        if ctx.cause == "start" and ctx.prompt == "go":
            ctx.delegate("helper", "help")
            return "waits"
        return f"{version} was told {[one.result or one.error for one in ctx.callbacks]}"

    stage.agent(agent, version=version, on_deploy=on_deploy, role="coordinator", **options)(work)


def slots(stage: StackHarness) -> dict[str, int]:
    """Let one slot of the worker work until nothing is ready for it."""
    return dict(SlotLoop(stage.runtime, worker="w1").run())


def parked(stage: StackHarness, *, task: str = "") -> str:
    """A session of the lead that has had its first run and waits for its helper."""
    stage.agent("helper")(lambda ctx: "done")
    session = stage.submit("lead", task=task)
    stage.start(session)
    assert slots(stage) == {"idle": 1}
    return session


def told(stage: StackHarness, session: str) -> RunRef:
    """The helper has answered, and the resume of its parent is ready."""
    (child,) = stage.children(session)
    stage.start(child.id)
    mine = {name: one for name, one in stage.catalogue.items() if name == "helper"}
    lead = stage.catalogue.pop("lead")
    assert slots(stage) == {"finished": 1}
    stage.catalogue.update(mine | {"lead": lead})
    flushed = stage.ledger.flush(session).dispatch
    assert flushed is not None
    return flushed


def session_of(stage: StackHarness, session: str) -> Session:
    return stage.ledger.session(session)


def test_the_first_run_writes_the_version_down(stage: StackHarness) -> None:
    """Before it nobody knows which worker will take the session; the run has its version as well."""
    deploy(stage, "v1")
    session = stage.submit("lead")
    assert (session_of(stage, session).version, session_of(stage, session).on_deploy) == ("", "latest")
    stage.start(session)
    deploy(stage, "v2")  # deployed before it began: it begins with this one
    slots(stage)
    assert (session_of(stage, session).version, session_of(stage, session).on_deploy) == ("v2", "refuse")
    assert [run.version for run in stage.ledger.runs(session)] == ["v2"]


def test_the_latest_version_goes_on(stage: StackHarness) -> None:
    """The mode is the one that it began with; the version is that of its latest run."""
    deploy(stage, "v1", "latest")
    session = parked(stage)
    deploy(stage, "v2", "refuse")
    told(stage, session)
    assert slots(stage) == {"finished": 1}
    assert stage.ledger.result(session) == (SessionState.FINISHED, "v2 was told ['done']")
    assert (session_of(stage, session).version, session_of(stage, session).on_deploy) == ("v2", "latest")
    assert [run.version for run in stage.ledger.runs(session)] == ["v1", "v2"]


def test_a_session_that_refuses_fails_with_one_sentence(stage: StackHarness) -> None:
    """What it was to be told is dead with that reason, and no attempt is made again."""
    deploy(stage, "v1", "refuse", attempts=5)
    session = parked(stage)
    (child,) = stage.children(session)
    deploy(stage, "v2", "refuse", attempts=5)
    told(stage, session)
    assert slots(stage) == {"failed": 1}
    state, reason = stage.ledger.result(session)
    assert state is SessionState.FAILED
    assert reason.startswith("the definition of agent 'lead' has changed: the session began with version v1")
    callback = stage.ledger.item(session, callback_id(child.id))
    assert (callback.state, callback.reason) == (ItemState.DEAD, f"resume failed: {reason}")


def test_a_session_that_refuses_goes_on_after_a_rollback(stage: StackHarness) -> None:
    deploy(stage, "v1", "refuse")
    session = parked(stage)
    deploy(stage, "v2", "refuse")
    deploy(stage, "v1", "refuse")
    told(stage, session)
    assert slots(stage) == {"finished": 1}


def test_a_slot_is_told_what_it_serves(stage: StackHarness) -> None:
    stage.catalogue["plain"] = define_agent("plain", function=lambda ctx: "x", source="here")
    deploy(stage, "v1", "latest")
    assert stage.runtime.served == ("lead", "plain")
    assert stage.runtime.version_of("lead") == "v1 latest"
