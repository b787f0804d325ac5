"""Sessions keep the version that they began with: who may go on with them after a deploy, and what becomes of them."""

from __future__ import annotations

from typing import Any

from orchestrator.agents.definition import define_agent
from orchestrator.ids import callback_id
from orchestrator.ledger import ItemState, RunRef, Session, SessionState
from orchestrator.worker.context.context import Context
from orchestrator.worker.execution.slot import SlotLoop
from tests.kit import Kit


def deploy(kit: Kit, version: str, on_deploy: str = "refuse", *, agent: str = "lead", **options: Any) -> None:
    """What a worker with this version of an agent serves from now on: it waits for a helper, then names its version."""

    def work(ctx: Context) -> str:
        if ctx.cause == "start" and ctx.prompt == "go":
            ctx.delegate("helper", "help")
            return "waits"
        return f"{version} was told {[one.result or one.error for one in ctx.callbacks]}"

    kit.agent(agent, version=version, on_deploy=on_deploy, role="coordinator", **options)(work)


def slots(kit: Kit) -> dict[str, int]:
    """Let one slot of the worker work until nothing is ready for it."""
    return dict(SlotLoop(kit.runtime, worker="w1").run())


def parked(kit: Kit, *, task: str = "") -> str:
    """A session of the lead that has had its first run and waits for its helper."""
    kit.agent("helper")(lambda ctx: "done")
    session = kit.submit("lead", task=task)
    kit.start(session)
    assert slots(kit) == {"idle": 1}
    return session


def told(kit: Kit, session: str) -> RunRef:
    """The helper has answered, and the resume of its parent is ready."""
    (child,) = kit.children(session)
    kit.start(child.id)
    mine = {name: one for name, one in kit.catalogue.items() if name == "helper"}
    lead = kit.catalogue.pop("lead")
    assert slots(kit) == {"finished": 1}
    kit.catalogue.update(mine | {"lead": lead})
    flushed = kit.ledger.flush(session).dispatch
    assert flushed is not None
    return flushed


def session_of(kit: Kit, session: str) -> Session:
    return kit.ledger.session(session)


def test_the_first_run_writes_the_version_down(kit: Kit) -> None:
    """Before it nobody knows which worker will take the session; the run has its version as well."""
    deploy(kit, "v1")
    session = kit.submit("lead")
    assert (session_of(kit, session).version, session_of(kit, session).on_deploy) == ("", "latest")
    kit.start(session)
    deploy(kit, "v2")  # deployed before it began: it begins with this one
    slots(kit)
    assert (session_of(kit, session).version, session_of(kit, session).on_deploy) == ("v2", "refuse")
    assert [run.version for run in kit.ledger.runs(session)] == ["v2"]


def test_the_latest_version_goes_on(kit: Kit) -> None:
    """The mode is the one that it began with; the version is that of its latest run."""
    deploy(kit, "v1", "latest")
    session = parked(kit)
    deploy(kit, "v2", "refuse")
    told(kit, session)
    assert slots(kit) == {"finished": 1}
    assert kit.ledger.result(session) == (SessionState.FINISHED, "v2 was told ['done']")
    assert (session_of(kit, session).version, session_of(kit, session).on_deploy) == ("v2", "latest")
    assert [run.version for run in kit.ledger.runs(session)] == ["v1", "v2"]


def test_a_session_that_refuses_fails_with_one_sentence(kit: Kit) -> None:
    """What it was to be told is dead with that reason, and no attempt is made again."""
    deploy(kit, "v1", "refuse", attempts=5)
    session = parked(kit)
    (child,) = kit.children(session)
    deploy(kit, "v2", "refuse", attempts=5)
    told(kit, session)
    assert slots(kit) == {"failed": 1}
    state, reason = kit.ledger.result(session)
    assert state is SessionState.FAILED
    assert reason.startswith("the definition of agent 'lead' has changed: the session began with version v1")
    callback = kit.ledger.item(session, callback_id(child.id))
    assert (callback.state, callback.reason) == (ItemState.DEAD, f"resume failed: {reason}")


def test_a_session_that_refuses_goes_on_after_a_rollback(kit: Kit) -> None:
    deploy(kit, "v1", "refuse")
    session = parked(kit)
    deploy(kit, "v2", "refuse")
    deploy(kit, "v1", "refuse")
    told(kit, session)
    assert slots(kit) == {"finished": 1}


def test_a_slot_is_told_what_it_serves(kit: Kit) -> None:
    kit.catalogue["plain"] = define_agent("plain", function=lambda ctx: "x", source="here")
    deploy(kit, "v1", "latest")
    assert kit.runtime.served == ("lead", "plain")
    assert kit.runtime.version_of("lead") == "v1 latest"
