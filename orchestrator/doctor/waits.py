"""What a session and its pending callbacks wait for, what will move them, and by when. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.clock import isoformat
from orchestrator.doctor.findings import Wait
from orchestrator.doctor.snapshot import Snapshot
from orchestrator.ledger import CLOSED, Item, ItemState, RunState, Session, SessionState


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The times by which the parts of a stack act, in seconds."""

    lease_s: float
    sweep_s: float
    redispatch_s: float
    run_limit_s: float


def of_session(session: Session, snapshot: Snapshot | None, terms: Terms) -> Wait | None:
    """Why a session sleeps or what it is at; None when it is over with nothing to come."""

    def wait(waits_for: str, mover: str, by: str) -> Wait:
        return Wait(session=session.id, subject=session.id, waits_for=waits_for, mover=mover, by=by)

    run = snapshot.run if snapshot else None
    if run is not None and run.state == RunState.QUEUED:
        again = f" (its last try: {run.reason})" if run.reason else ""
        return wait(
            f"{run.id} is queued for a worker that serves agent {session.agent!r}{again}",
            "a free worker; the reaper sends it again while none takes it",
            f"sent again every {terms.redispatch_s:g} s and more",
        )
    if run is not None and run.state == RunState.RUNNING:
        asked = f", asked to stop: {run.stop}" if run.stop else ""
        return wait(
            f"agent {session.agent!r} is at work in {run.id} on {run.worker}{asked}",
            "its agent, or the reaper should its lease stand still",
            f"lease {terms.lease_s:g} s; run limit {terms.run_limit_s:g} s",
        )
    if session.state == SessionState.PENDING and session.parked:
        return wait(
            f"its task-delegation is held by the router: {session.parked}",
            "a router, as soon as that is there, and by the retry policy",
            "looked at again every few seconds; `orchestra dlq list` once it is given up",
        )
    if session.state == SessionState.PENDING:
        return wait(
            "its task-delegation is on its way through the router",
            "a router that reads the stream",
            f"within seconds while a router runs; since {isoformat(session.created_ms)}",
        )
    if session.state in CLOSED:
        if session.owed:
            return wait(
                f"{session.state}; {session.owed} children are still to be stopped or let go",
                "the callback service, and each child's own end",
                f"swept every {terms.sweep_s:g} s",
            )
        return None
    if snapshot and snapshot.queue:
        return _queued(session, snapshot, terms)
    if session.questions:
        return wait(
            f"a reply to its question {session.questions[0]}",
            "the session that was asked, or you: orchestra reply " + session.questions[0] + " TEXT",
            "no limit of its own",
        )
    if session.owed:
        named = ", ".join(
            sorted(i.child for i in (snapshot.items if snapshot else ()) if i.state == ItemState.OWED)[:3]
        )
        more = f" and {session.owed - 3} more" if session.owed > 3 else ""
        return wait(
            f"{session.owed} of its children: {named}{more}",
            "each child's end",
            "see `orchestra why` of each",
        )
    if session.state == SessionState.IDLE:
        return wait(
            "one more run for its final answer: nothing is outstanding",
            "the callback service",
            f"{terms.sweep_s:g} s",
        )
    return None


def _queued(session: Session, snapshot: Snapshot, terms: Terms) -> Wait:
    policy = session.waiting.get("") or {"mode": "any"}
    deadline = policy.get("deadline_ms")
    ready = policy.get("mode", "any") == "any" or session.owed == 0
    if ready:
        waits_for = f"{len(snapshot.queue)} items are queued and the next resume takes them"
        mover, by = "the callback service, at once; else the reaper's sweep", f"{terms.sweep_s:g} s"
    else:
        kind = policy["mode"] if policy["mode"] != "quorum" else f"a quorum of {policy.get('k')}"
        waits_for = f"{kind} of its children: {len(snapshot.queue)} are back, {session.owed} are not"
        mover, by = "the children that are still out", "no deadline"
    if deadline and not ready:
        mover, by = "the deadline, if the children do not come first", isoformat(int(deadline))
    return Wait(session=session.id, subject=session.id, waits_for=waits_for, mover=mover, by=by)


def of_pending(snapshot: Snapshot, terms: Terms) -> Iterator[Wait]:
    """One entry for each callback that is neither delivered nor dead."""
    own = of_session(snapshot.session, snapshot, terms)
    for item in snapshot.items:
        if item.kind != "completion" or not item.callback:
            continue
        if item.state == ItemState.OWED:
            yield _owed(snapshot, item)
        elif item.state in {ItemState.QUEUED, ItemState.CLAIMED} and own is not None:
            yield Wait(
                session=snapshot.session.id,
                subject=item.id,
                waits_for=f"{item.state}; of its parent: {own.waits_for}",
                mover=own.mover,
                by=own.by,
            )


def _owed(snapshot: Snapshot, item: Item) -> Wait:
    child = snapshot.children.get(item.child)
    state = child.state if child else "gone"
    return Wait(
        session=snapshot.session.id,
        subject=item.id,
        waits_for=f"child {item.child} ({item.agent}) is {state}",
        mover="the child's end",
        by=f"see `orchestra why {item.child}`",
    )
