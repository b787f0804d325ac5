"""What a session and its pending callbacks wait for, what will move them, and by when. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.clock import isoformat
from orchestrator.doctor.approvals import requests
from orchestrator.doctor.findings import Blocker
from orchestrator.doctor.policies import is_ready, outstanding, still_out
from orchestrator.doctor.snapshot import Snapshot
from orchestrator.ids import approval_of, child_of, question_of
from orchestrator.ledger import CLOSED, HeldBack, Item, ItemState, Run, RunState, Session, SessionState

#: Children that are named one by one.
_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The times by which the parts of a stack act, in seconds."""

    lease_s: float
    sweep_s: float
    run_limit_s: float
    #: Why nobody takes the runs of the agent, in words; empty: a living worker serves it.
    nobody: str = ""
    #: What keeps the ready runs of the agent, or of the tree, from being taken; None: nothing.
    held_back: HeldBack | None = None


def of_session(session: Session, snapshot: Snapshot, terms: Terms) -> Blocker | None:
    """Why a session sleeps or what it is at; None when it has ended with nothing to come."""

    def wait(waits_for: str, mover: str, by: str) -> Blocker:
        return Blocker(session=session.id, subject=session.id, waits_for=waits_for, mover=mover, by=by)

    run = snapshot.run
    if run is not None and run.state == RunState.QUEUED:
        return _to_run(session, run, snapshot, terms)
    if run is not None and run.state == RunState.RUNNING:
        return _at_work(session, run, terms)
    if session.damage or snapshot.damage:
        return _damaged(session, snapshot)
    if session.state in (SessionState.SCHEDULED, SessionState.PENDING):
        return _unrouted(session)
    if session.state in CLOSED:
        return _closed(session, terms)
    if snapshot.stop_pending:
        return wait(
            "its own end: it was told to stop, or a child's failure ends it by policy",
            "the callback service, at once",
            f"{terms.sweep_s:g} s",
        )
    if snapshot.queue:
        return _queued(session, snapshot, terms)
    if session.questions:
        return _asking(session, session.questions[0], snapshot)
    if session.owed:
        return _owing(session, snapshot)
    if session.state == SessionState.IDLE:
        return _resting(session, snapshot, terms)
    return None


def _damaged(session: Session, snapshot: Snapshot) -> Blocker:
    return Blocker(
        session=session.id,
        subject=session.id,
        waits_for=f"somebody who looks at it, as it is damaged: {(session.damage + snapshot.damage)[0]}",
        mover=f"you: orchestra doctor --fix, or orchestra stop {session.id}",
        by="never by itself",
    )


def _closed(session: Session, terms: Terms) -> Blocker | None:
    if not session.owed:
        return None
    return Blocker(
        session=session.id,
        subject=session.id,
        waits_for=f"{session.state}; {session.owed} children are still to be stopped or let go",
        mover="the callback service, and each child's own end",
        by=f"swept every {terms.sweep_s:g} s",
    )


def _to_run(session: Session, run: Run, snapshot: Snapshot, terms: Terms) -> Blocker:
    if run.claimable_ms and session.questions and (session.approvals or not session.parent):
        return _asking(session, session.questions[0], snapshot)  # it is parked, and goes on with the answer
    again = f" (its last try: {run.reason})" if run.reason else ""
    if run.claimable_ms:
        # The tries that were lost with their worker do not count.
        failed = f", {run.failures} of {run.allowed} allowed failures so far" if run.failures else ""
        return Blocker(
            session=session.id,
            subject=session.id,
            waits_for=f"{run.id} waits for its attempt {run.attempt + 1}{failed}{again}",
            mover="the reaper, which makes it ready for a worker then",
            by=isoformat(run.claimable_ms),
        )
    if terms.held_back is not None:
        return Blocker(
            session=session.id,
            subject=session.id,
            waits_for=f"{run.id} is queued: {terms.held_back.waits_for}{again}",
            mover=terms.held_back.mover,
            by="at once then",
        )
    that = f"has version {session.pinned} of" if session.pinned else "serves"
    start = (
        f"start a worker that has it, or: orchestra unpin {session.id}"
        if session.pinned
        else "start a worker that does, for example: orchestra up --agents my_agents.py"
    )
    return Blocker(
        session=session.id,
        subject=session.id,
        waits_for=f"{run.id} is queued for a worker that {that} agent {session.agent!r}{again}",
        mover=f"nobody: {terms.nobody}; {start}"
        if terms.nobody
        else "a free worker; the reaper rings workers again while none takes it",
        by="rung for again after a second, then ever more rarely",
    )


def _unrouted(session: Session) -> Blocker:
    if session.state == SessionState.SCHEDULED:
        return Blocker(
            session=session.id,
            subject=session.id,
            waits_for="its time: it was submitted to begin later",
            mover=f"the reaper; or you: orchestra stop {session.id}",
            by=isoformat(session.due_ms),
        )
    if session.parked:
        return Blocker(
            session=session.id,
            subject=session.id,
            waits_for=f"its task-delegation is held by the router: {session.parked}",
            mover="a router, as soon as that is there, and by the retry policy",
            by="looked at again every few seconds; `orchestra dlq list` once it is given up",
        )
    return Blocker(
        session=session.id,
        subject=session.id,
        waits_for="its task-delegation is on its way through the router",
        mover="a router that reads the stream",
        by=f"within seconds while a router runs; since {isoformat(session.created_ms)}",
    )


def _at_work(session: Session, run: Run, terms: Terms) -> Blocker:
    asked = f", asked to stop: {run.stop}" if run.stop else ""
    where = f"{run.id} on {run.worker}{asked}"
    if run.external:
        return Blocker(
            session=session.id,
            subject=session.id,
            waits_for=f"agent {session.agent!r}, an external program, is at work in {run.id}",
            mover="that program's report; or you: orchestra stop " + session.id,
            by="no limit: it holds no lease",
        )
    for item in run.awaits:
        child, question = child_of(item), question_of(item)
        if child:
            return Blocker(
                session=session.id,
                subject=session.id,
                waits_for=f"agent {session.agent!r} stands still in a call of child {child}, in {where}",
                mover=f"the child's end: see `orchestra why {child}`",
                by=f"run limit {terms.run_limit_s:g} s",
            )
        if approval := approval_of(item):
            return Blocker(
                session=session.id,
                subject=session.id,
                waits_for=f"agent {session.agent!r} stands still for a person's yes or no to {approval}, in {where}",
                mover=_answer(approval),
                by=f"run limit {terms.run_limit_s:g} s",
            )
        if question:
            return Blocker(
                session=session.id,
                subject=session.id,
                waits_for=f"agent {session.agent!r} stands still for the reply to its question {question}, in {where}",
                mover=f"session {session.parent}, which was asked, or you: orchestra reply {question} TEXT",
                by=f"run limit {terms.run_limit_s:g} s",
            )
    return Blocker(
        session=session.id,
        subject=session.id,
        waits_for=f"agent {session.agent!r} is at work in {where}",
        mover="its agent, or the reaper should its lease stand still",
        by=f"lease {terms.lease_s:g} s; run limit {terms.run_limit_s:g} s",
    )


def _asking(session: Session, question: str, snapshot: Snapshot) -> Blocker:
    asked = requests(snapshot)
    if asked:
        approval, (_, request) = next(iter(asked.items()))
        due = snapshot.question_due_ms.get(approval, 0)
        default = request.default if request is not None else "deny"
        people = [
            f"a person's yes or no to {one} ({r.tool if r else 'damaged'})" for one, (_, r) in asked.items()
        ]
        others = [_reply_to(one) for one in session.questions if one not in session.approvals]
        return Blocker(
            session=session.id,
            subject=session.id,
            waits_for="; ".join([*people, *others, *map(str, outstanding(snapshot))]),
            mover=_answer(approval),
            by=f"{isoformat(due)}: then its default counts, {default}" if due else "no limit of its own",
        )
    due = snapshot.question_due_ms.get(question, 0)
    return Blocker(
        session=session.id,
        subject=session.id,
        waits_for="; ".join([*map(_reply_to, session.questions), *map(str, outstanding(snapshot))]),
        mover=_who_replies(session, question),
        by=f"{isoformat(due)}: then it is told that no reply came" if due else "no limit of its own",
    )


def _answer(approval: str) -> str:
    return f"you: orchestra approve {approval}, or orchestra deny {approval}"


def _who_replies(session: Session, question: str) -> str:
    you = f"you: orchestra reply {question} TEXT"
    return f"session {session.parent}, which was asked, or {you}" if session.parent else you


def _reply_to(question: str) -> str:
    return f"a reply to its question {question}"


def _owing(session: Session, snapshot: Snapshot) -> Blocker:
    owed = sorted(i.child for i in snapshot.items if i.state == ItemState.OWED)
    more = f" and {session.owed - _NAMED} more" if session.owed > _NAMED else ""
    wakes = snapshot.wakes_ms
    policies = "".join(f"; {group}" for group in outstanding(snapshot)) if session.waiting else ""
    return Blocker(
        session=session.id,
        subject=session.id,
        waits_for=f"{session.owed} of its children: {', '.join(owed[:_NAMED])}{more}{policies}",
        mover="the deadline, if no child comes first" if wakes else "each child's end",
        by=isoformat(wakes) if wakes else "see `orchestra why` of each",
    )


def _resting(session: Session, snapshot: Snapshot, terms: Terms) -> Blocker:
    wakes = snapshot.wakes_ms
    return Blocker(
        session=session.id,
        subject=session.id,
        waits_for="the deadline of its waiting policy: nothing else is outstanding"
        if wakes
        else "one more run for its final answer: nothing is outstanding",
        mover="the deadline, or a prompt or message before it" if wakes else "the callback service",
        by=isoformat(wakes) if wakes else f"{terms.sweep_s:g} s",
    )


def _named(out: list[Item]) -> str:
    names = ", ".join(f"{item.child} ({item.agent})" for item in out[:_NAMED])
    return f"{names} and {len(out) - _NAMED} more" if len(out) > _NAMED else names


def _queued(session: Session, snapshot: Snapshot, terms: Terms) -> Blocker:
    wakes = snapshot.wakes_ms
    count = f"{len(snapshot.queue)} {'items are' if len(snapshot.queue) > 1 else 'item is'} queued"
    if not is_ready(snapshot):
        waits_for = "; ".join([*map(str, outstanding(snapshot)), *map(_reply_to, session.questions)])
        mover = f"the end of {_named(still_out(snapshot))}"
        by = "no deadline; see `orchestra why` of each"
        if wakes:
            mover, by = f"{mover}, else the deadline", isoformat(wakes)
    elif snapshot.window_until_ms:
        waits_for = f"{count}, and what comes within its window joins them"
        mover, by = "the end of the window", isoformat(snapshot.window_until_ms)
    else:
        waits_for = f"{count} and the next resume takes what it has room for"
        mover, by = "the callback service, at once; else the reaper's sweep", f"{terms.sweep_s:g} s"
    return Blocker(session=session.id, subject=session.id, waits_for=waits_for, mover=mover, by=by)


def of_pending(snapshot: Snapshot, terms: Terms) -> Iterator[Blocker]:
    """One entry for each callback that is neither delivered nor dead."""
    own = of_session(snapshot.session, snapshot, terms)
    for item in snapshot.items:
        if item.kind != "completion" or not item.callback:
            continue
        if item.state == ItemState.OWED:
            yield _owed(snapshot, item)
        elif item.state in {ItemState.QUEUED, ItemState.CLAIMED} and own is not None:
            yield Blocker(
                session=snapshot.session.id,
                subject=item.id,
                waits_for=f"{item.state}; of its parent: {own.waits_for}",
                mover=own.mover,
                by=own.by,
            )


def _owed(snapshot: Snapshot, item: Item) -> Blocker:
    child = snapshot.children.get(item.child)
    state = child.state if child else "gone"
    return Blocker(
        session=snapshot.session.id,
        subject=item.id,
        waits_for=f"child {item.child} ({item.agent}) is {state}",
        mover="the child's end",
        by=f"see `orchestra why {item.child}`",
    )


def held_up_by(snapshot: Snapshot) -> list[str]:
    """The sessions that a session waits for: a child that it calls, whoever was asked, else what is owed to it."""
    session, run = snapshot.session, snapshot.run
    if run is not None and run.state == RunState.RUNNING:
        called: list[str] = [child for item in run.awaits if (child := child_of(item))]
        return called or ([session.parent] if any(map(question_of, run.awaits)) else [])
    if run is not None or session.state in (SessionState.SCHEDULED, SessionState.PENDING):
        return []
    out = still_out(snapshot) or [i for i in snapshot.items if i.state == ItemState.OWED]
    owed = [item.child for item in out]
    if len(session.questions) > len(session.approvals) and session.parent:
        return [session.parent] if not owed else [*owed, session.parent]
    return owed if not snapshot.queue or not is_ready(snapshot) else []
