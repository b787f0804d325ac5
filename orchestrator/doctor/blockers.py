"""Blockers: what a session and its pending callbacks wait for, what will move them, and by when. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import redis

from orchestrator.bootstrap import Container
from orchestrator.display.text import counted
from orchestrator.doctor.approvals import requests
from orchestrator.doctor.findings import Blocker, Problem, Severity, Terms, TermsReader, stuck, warning
from orchestrator.doctor.policies import is_ready, outstanding, still_out
from orchestrator.ids import approval_of, child_of, question_of, shard_of
from orchestrator.ledger import CLOSED, Item, ItemState, Run, RunState, Session, SessionState
from orchestrator.ledger.snapshot import Snapshot
from orchestrator.machine import isoformat
from orchestrator.redisdb import keys
from orchestrator.streams import ROUTER_GROUP, StreamId, stream_key

#: Children that are named one by one.
_NAMED = 3
#: What something waits for, what moves it, and by when.
_Wait = tuple[str, str, str]


def of_session(snapshot: Snapshot, terms: Terms) -> Blocker | None:
    """Return why a session sleeps or what it is at; None if it has ended with nothing to come."""
    wait = _wait_of(snapshot, terms)
    return None if wait is None else Blocker(snapshot.session.id, snapshot.session.id, *wait)


def _wait_of(snapshot: Snapshot, terms: Terms) -> _Wait | None:
    session, run = snapshot.session, snapshot.run
    if run is not None and run.state in (RunState.QUEUED, RunState.RUNNING):
        return (_to_run if run.state == RunState.QUEUED else _at_work)(snapshot, run, terms)
    if damage := session.damage + snapshot.damage:
        return (
            f"somebody who looks at it, as it is damaged: {damage[0]}",
            f"you: orchestra doctor --fix, or orchestra stop {session.id}",
            "never by itself",
        )
    if session.state in (SessionState.SCHEDULED, SessionState.PENDING):
        return _unrouted(session)
    if session.state in CLOSED:
        left = f"{session.state}; children still to be stopped or let go: {session.owed}"
        mover = "the callback service, and each child's own end"
        return (left, mover, f"swept every {terms.sweep_s:g} s") if session.owed else None
    if snapshot.stop_pending:
        end = "its own end: it was told to stop, or a child's failure ends it by policy"
        return end, "the callback service, at once", f"{terms.sweep_s:g} s"
    if snapshot.queue:
        return _queued(snapshot, terms)
    if session.questions:
        return _asking(snapshot)
    if session.owed:
        return _with_children(snapshot)
    return _resting(snapshot, terms) if session.state == SessionState.IDLE else None


def _to_run(snapshot: Snapshot, run: Run, terms: Terms) -> _Wait:
    session = snapshot.session
    if run.claimable_ms and session.questions and (session.approvals or not session.parent):
        return _asking(snapshot)  # it is parked, and goes on with the answer
    again = f" (its last try: {run.reason})" if run.reason else ""
    if run.claimable_ms:
        # The tries that were lost with their worker do not count.
        failed = f", {run.failures} of {run.allowed} allowed failures so far" if run.failures else ""
        return (
            f"{run.id} waits for its attempt {run.attempt + 1}{failed}{again}",
            "the reaper, which makes it ready for a worker then",
            isoformat(run.claimable_ms),
        )
    if terms.held_back is not None:
        queued = f"{run.id} is queued: {terms.held_back.waits_for}{again}"
        return queued, terms.held_back.mover, "at once then"
    start = "start a worker that does, for example: orchestra up --agents my_agents.py"
    return (
        f"{run.id} is queued for a worker that serves agent {session.agent!r}{again}",
        f"nobody: {terms.nobody}; {start}"
        if terms.nobody
        else "a free worker; the reaper notifies workers again while none takes it",
        "notified again after a second, then ever more rarely",
    )


def _unrouted(session: Session) -> _Wait:
    if session.state == SessionState.SCHEDULED:
        mover = f"the reaper; or you: orchestra stop {session.id}"
        return "its time: it was submitted to begin later", mover, isoformat(session.due_ms)
    if session.parked:
        return (
            f"its task-delegation is held by the router: {session.parked}",
            "a router, as soon as that is there, and by the retry policy",
            "looked at again every few seconds; `orchestra dlq list` once it is given up",
        )
    return (
        "its task-delegation is on its way through the router",
        "a router that reads the stream",
        f"within seconds while a router runs; since {isoformat(session.created_ms)}",
    )


def _at_work(snapshot: Snapshot, run: Run, terms: Terms) -> _Wait:
    session = snapshot.session
    agent = f"agent {session.agent!r}"
    where = f"{run.id} on {run.worker}{f', asked to stop: {run.stop}' if run.stop else ''}"
    limit = f"run limit {terms.run_limit_s:g} s"
    if run.external:
        program = f"{agent}, an external program, is at work in {run.id}"
        mover = f"that program's report; or you: orchestra stop {session.id}"
        return program, mover, "no limit: it holds no lease"
    for item in run.awaits:
        if child := child_of(item):
            call = f"{agent} waits in a call of child {child}, in {where}"
            return call, f"the child's end: see `orchestra why {child}`", limit
        if approval := approval_of(item):
            asked = f"{agent} waits for a person's yes or no to {approval}, in {where}"
            return asked, _who_decides(approval), limit
        if question := question_of(item):
            asked = f"{agent} waits for the reply to its question {question}, in {where}"
            return asked, _who_replies(session, question), limit
    mover = "its agent, or the reaper should its lease stand still"
    return f"{agent} is at work in {where}", mover, f"lease {terms.lease_s:g} s; {limit}"


def _asking(snapshot: Snapshot) -> _Wait:
    session = snapshot.session
    people = requests(snapshot)
    others = [_reply_to(one) for one in session.questions if one not in people]
    asked = [
        f"a person's yes or no to {one} ({r.tool if r else 'damaged'})" for one, (_, r) in people.items()
    ]
    waits_for = "; ".join([*asked, *others, *map(str, outstanding(snapshot))])
    first = next(iter(people), session.questions[0])
    due = snapshot.question_due_ms.get(first, 0)
    if people:
        request = people[first][1]
        mover = _who_decides(first)
        then = f"then its default counts, {request.default if request is not None else 'deny'}"
    else:
        mover, then = _who_replies(session, first), "then it is told that no reply came"
    return waits_for, mover, f"{isoformat(due)}: {then}" if due else "no limit of its own"


def _who_decides(approval: str) -> str:
    return f"you: orchestra approve {approval}, or orchestra deny {approval}"


def _who_replies(session: Session, question: str) -> str:
    you = f"you: orchestra reply {question} TEXT"
    return f"session {session.parent}, which was asked, or {you}" if session.parent else you


def _reply_to(question: str) -> str:
    return f"a reply to its question {question}"


def _with_children(snapshot: Snapshot) -> _Wait:
    session, wakes = snapshot.session, snapshot.wakes_ms
    children = sorted(i.child for i in snapshot.items if i.state == ItemState.OWED)
    more = f" and {session.owed - _NAMED} more" if session.owed > _NAMED else ""
    policies = "".join(f"; {group}" for group in outstanding(snapshot)) if session.waiting else ""
    return (
        f"{session.owed} of its children: {', '.join(children[:_NAMED])}{more}{policies}",
        "the deadline, if no child comes first" if wakes else "each child's end",
        isoformat(wakes) if wakes else "see `orchestra why` of each",
    )


def _resting(snapshot: Snapshot, terms: Terms) -> _Wait:
    if wakes := snapshot.wakes_ms:
        deadline = "the deadline of its waiting policy: nothing else is outstanding"
        return deadline, "the deadline, or a prompt or message before it", isoformat(wakes)
    last = "one more run for its final answer: nothing is outstanding"
    return last, "the callback service", f"{terms.sweep_s:g} s"


def _named(out: list[Item]) -> str:
    names = ", ".join(f"{item.child} ({item.agent})" for item in out[:_NAMED])
    return f"{names} and {len(out) - _NAMED} more" if len(out) > _NAMED else names


def _queued(snapshot: Snapshot, terms: Terms) -> _Wait:
    count = f"{len(snapshot.queue)} {'items are' if len(snapshot.queue) > 1 else 'item is'} queued"
    if not is_ready(snapshot):
        waits_for = [*map(str, outstanding(snapshot)), *map(_reply_to, snapshot.session.questions)]
        mover, by = f"the end of {_named(still_out(snapshot))}", "no deadline; see `orchestra why` of each"
        if wakes := snapshot.wakes_ms:
            mover, by = f"{mover}, else the deadline", isoformat(wakes)
        return "; ".join(waits_for), mover, by
    if until := snapshot.window_until_ms:
        return (
            f"{count}, and what comes within its window joins them",
            "the end of the window",
            isoformat(until),
        )
    mover = "the callback service, at once; else the reaper's sweep"
    return f"{count} and the next resume takes what it has room for", mover, f"{terms.sweep_s:g} s"


def of_pending(snapshot: Snapshot, terms: Terms) -> Iterator[Blocker]:
    """Yield a blocker for each callback that is neither delivered nor dead."""
    own = of_session(snapshot, terms)
    for item in snapshot.items:
        if item.kind != "completion" or not item.callback:
            continue
        if item.state == ItemState.OWED:
            child = snapshot.children.get(item.child)
            state = f"child {item.child} ({item.agent}) is {child.state if child else 'gone'}"
            by = f"see `orchestra why {item.child}`"
            yield Blocker(snapshot.session.id, item.id, state, "the child's end", by)
        elif item.state in {ItemState.QUEUED, ItemState.CLAIMED} and own is not None:
            waits_for = f"{item.state}; of its parent: {own.waits_for}"
            yield Blocker(snapshot.session.id, item.id, waits_for, own.mover, own.by)


def held_up_by(snapshot: Snapshot) -> list[str]:
    """Return the sessions that a session waits for: a child that it calls, the session that it asked, else its
    children.
    """
    session, run = snapshot.session, snapshot.run
    if run is not None and run.state == RunState.RUNNING:
        called: list[str] = [child for item in run.awaits if (child := child_of(item))]
        return called or ([session.parent] if any(map(question_of, run.awaits)) else [])
    if run is not None or session.state in (SessionState.SCHEDULED, SessionState.PENDING):
        return []
    out = still_out(snapshot) or [i for i in snapshot.items if i.state == ItemState.OWED]
    children = [item.child for item in out]
    if len(session.questions) > len(session.approvals) and session.parent:
        return [*children, session.parent]
    return children if not snapshot.queue or not is_ready(snapshot) else []


#: A stream, and the id of an entry in it.
Place = tuple[StreamId, str]
#: Answers for each place: what is pending of it, whether it is there, whether it waits.
_ANSWERS: Final = 3


def coming(client: redis.Redis, places: Collection[Place]) -> set[Place]:
    """Return those that are unread, in a router's hands, or among the messages that wait.

    An entry of which nobody can tell is one of them: of streams that are damaged or not there others speak.
    """
    # The groups first: an entry that moves on meanwhile at worst counts as not handled yet.
    read = {stream: _last_read(client, stream) for stream in {stream for stream, _ in places}}
    pipeline = client.pipeline(transaction=False)
    for stream, entry in places:
        pipeline.xpending_range(stream_key(stream), ROUTER_GROUP, entry, entry, 1)
        pipeline.xrange(stream_key(stream), entry, entry)
        pipeline.zscore(keys.parked(stream.shard), f"{stream.type}:{stream.priority}:{entry}")
    answers: list[Any] = pipeline.execute(raise_on_error=False) if places else []
    found = set()
    for number, (stream, entry) in enumerate(places):
        held, there, waits = answers[number * _ANSWERS : (number + 1) * _ANSWERS]
        last = read[stream]
        if (
            last is None
            or any(isinstance(answer, Exception) for answer in (held, there, waits))
            or held
            or waits is not None
            or (there and _order(entry) > last)
        ):
            found.add((stream, entry))
    return found


def taken_launch(client: redis.Redis, session: Session) -> Iterator[Problem]:
    """Yield a pending session whose launch is neither unread nor held by a router nor waiting: it never starts.

    A router acknowledges a launch in the step that begins, refuses or delays its session. A reader of its group that
    acknowledges the entry, or deletes it, leaves the session as it is.
    """
    if session.state is not SessionState.PENDING or session.run or not session.entry:
        return
    kind, _, rest = session.entry.partition(":")
    priority, _, entry = rest.partition(":")
    place = (StreamId(shard_of(session.id), kind, priority), entry)
    if coming(client, [place]):
        return
    yield Problem(
        Severity.BREAK,
        "launch-taken",
        session.entry,
        f"{session.id} never starts: its {kind} (entry {entry}) is gone from group {ROUTER_GROUP!r} and no "
        f"router has routed it; find out who else reads as that group or deletes entries, then stop the session "
        f"(orchestra stop {session.id}), which its parent is told, and submit or delegate the task again",
        session=session.id,
    )


def lost_stop(client: redis.Redis, snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a session that is marked to be ended, although neither its run is asked to stop nor a service notified."""
    session, run = snapshot.session, snapshot.run
    if not snapshot.stop_pending or session.state in CLOSED or (run is not None and run.stop):
        return
    key, start = keys.session_events(shard_of(session.id)), "-"
    while entries := _events(client, key, start):
        if any(
            fields.get(b"event") == b"stop" and fields.get(b"session") == session.id.encode()
            for _, fields in entries
        ):
            return
        start = f"({entries[-1][0].decode()}"
    yield Problem(
        Severity.BREAK,
        "stop-lost",
        "",
        f"{session.id} is marked to be ended, and nobody does it: nothing of it is resumed",
        session=session.id,
    )


def _events(client: redis.Redis, key: str, start: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
    try:
        entries: Any = client.xrange(key, start, "+", count=1000)
    except redis.ResponseError:  # of another type: of that others speak
        return []
    return list(entries)


def _last_read(client: redis.Redis, stream: StreamId) -> tuple[int, int] | None:
    """Return the last entry that the routers' group was given; None if there is no such group."""
    try:
        groups: Any = client.xinfo_groups(stream_key(stream))
    except redis.ResponseError:
        return None
    group = next((g for g in groups if g["name"] == ROUTER_GROUP.encode()), None)
    return None if group is None else _order(group["last-delivered-id"].decode())


def _order(entry: str) -> tuple[int, int]:
    ms, _, number = entry.partition("-")
    return (int(ms), int(number)) if ms.isdecimal() and number.isdecimal() else (0, 0)


def unserved(waiting: Mapping[str, Sequence[Run]], terms: TermsReader) -> Iterator[Problem]:
    """Agents that no living worker serves, of the queued runs of each."""
    for agent, runs in sorted(waiting.items()):
        if nobody := terms.of(agent).nobody:
            first, more = runs[0], len(runs) - 1
            wait = f"{first.id} of {first.session} {f'and {more} more wait' if more else 'waits'}"
            yield stuck(
                "agent-unserved",
                agent,
                f"{wait} for a worker, and {nobody}: start one that does, "
                "for example: orchestra up --agents my_agents.py",
                session=first.session,
            )


def limits_lost(parts: Container) -> Iterator[Problem]:
    """Yield limits and pauses of an operator that are no longer in force: the key was deleted."""
    for field, value in sorted(parts.concurrency.lost().items()):
        what, _, name = field.removeprefix("paused:").partition(":")
        was = (
            f"{what} {name!r} was paused at {isoformat(int(value))}, and no longer is"
            if field.startswith("paused:")
            else f"the limit {field} {value} is no longer in force"
        )
        yield stuck(
            "limits-lost", field, f"{was}: the key was deleted; `orchestra doctor --fix` puts it back"
        )


def paused(waiting: Mapping[str, Sequence[Run]], parts: Container) -> Iterator[Problem]:
    """Yield the pauses, and how many runs wait for each."""
    queued = Counter[tuple[str, str]]()
    for agent, runs in waiting.items():
        record = parts.agents.get(agent)
        queued["agent", agent] += len(runs)
        queued["queue", record.queue if record is not None else ""] += len(runs)
    for (kind, name), since_ms in sorted(parts.concurrency.paused().items()):
        count = queued[kind, name]
        yield warning(
            "paused",
            name,
            f"{kind} {name!r} is paused since {isoformat(since_ms)}, and {counted(count, 'queued run')} "
            f"wait{'s' if count == 1 else ''} for it: orchestra agents unpause {name}",
        )
