"""The promise, checked for one session from evidence that is kept in different places by different transitions.

    launched     the launches of the audit trail; the items; the children of the tree; the counter
    delivered    the lists of the committed runs; the items; the counter
    pending      the items against the queue, the runs that carry them, and the children they are owed for
    dead         the items, each with its reason; the counter

Pure: it looks at a snapshot and changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from orchestrator.doctor import indexes
from orchestrator.doctor.findings import Broken, Evidence, Problem, Severity
from orchestrator.ledger import CLOSED, Item, ItemState, RunState, SessionState
from orchestrator.ledger.snapshot import Snapshot


def breaks(snapshot: Snapshot, evidence: Evidence) -> Iterator[Problem]:
    """Yield everything about one session that breaks the invariant of its callbacks."""
    for rule, subject, message in _broken(snapshot, evidence):
        yield Problem(Severity.BREAK, rule, subject, message, session=snapshot.session.id)


def _broken(snapshot: Snapshot, evidence: Evidence) -> Iterator[Broken]:
    damage = snapshot.session.damage + snapshot.damage
    for number, what in enumerate(damage):
        yield ("damaged", str(number), f"is damaged: {what}")
    if snapshot.damage or snapshot.session.state is SessionState.DAMAGED:
        return  # what else could be said would follow from that
    owing = [i for i in snapshot.items if i.kind == "completion" and i.callback]
    if snapshot.session.state == SessionState.DELETED and "closing" not in snapshot.indexed:
        yield from _tombstone(snapshot, owing)
        yield from indexes.of_tree(snapshot)
        return
    yield from _launched(snapshot, evidence)
    yield from _counters(snapshot, owing)
    yield from _delivered(snapshot, owing)
    for item in snapshot.items:
        yield from _item(snapshot, item)
    yield from _queue(snapshot)
    yield from _run(snapshot)
    yield from indexes.breaks(snapshot)


def _tombstone(snapshot: Snapshot, owing: list[Item]) -> Iterator[Broken]:
    s = snapshot.session
    if s.pending != 0:
        yield ("counters", "", f"deleted with {s.pending} callbacks neither delivered nor dead")
    if sum(i.state == ItemState.DEAD for i in owing) != s.dead:
        yield ("counters", "", f"says {s.dead} callbacks are dead, and its tombstone names others")


def _launched(snapshot: Snapshot, evidence: Evidence) -> Iterator[Broken]:
    launches, own = evidence.launches, snapshot.session
    booked = {i.child for i in snapshot.items if i.kind == "completion"}
    inherited = {i.child for i in snapshot.items if i.extra.get("inherited")}
    for child in sorted(evidence.children.get(own.id, set()) - booked):
        yield ("unbooked-child", child, f"child {child} names it as its parent and is not in its records")
    if launches is None:
        return
    in_trail = launches.children.get(own.message, set())
    # What an external program launched is known by its message: the program has task-ids of its own.
    by_message = {c.id for c in snapshot.children.values() if c.message in launches.messages}
    for child in sorted(in_trail - booked):
        yield (
            "lost-launch",
            child,
            f"the audit trail says it launched {child}; its records do not know of it",
        )
    lacking = booked - in_trail - by_message - inherited - evidence.unwritten
    for child in sorted(lacking) if evidence.whole_trail else ():
        yield ("unaudited-launch", child, f"its records name a launch of {child} that the audit trail lacks")


def _counters(snapshot: Snapshot, owing: list[Item]) -> Iterator[Broken]:
    s = snapshot.session
    states = Counter(i.state for i in owing)
    for name, recorded, booked in (
        ("launched", s.launched, len(owing)),
        ("delivered", s.delivered, states[ItemState.DELIVERED]),
        ("dead", s.dead, states[ItemState.DEAD]),
        ("owed", s.owed, states[ItemState.OWED]),
    ):
        if recorded != booked:
            yield ("counters", name, f"says {recorded} callbacks are {name}; its records hold {booked}")


def _delivered(snapshot: Snapshot, owing: list[Item]) -> Iterator[Broken]:
    carried = Counter(i for r in snapshot.runs if r.state == RunState.COMPLETED for i in r.items)
    for item in owing:
        times = carried[item.id]
        if item.state == ItemState.DELIVERED and times == 0:
            yield ("delivered-by-none", item.id, f"{item.id} counts as delivered, by no committed run")
        elif times and item.state != ItemState.DELIVERED and not item.extra.get("rejected"):
            yield (
                "delivered-uncounted",
                item.id,
                f"a committed run carried {item.id}, which counts as {item.state}",
            )
        elif times > 1:
            yield ("delivered-twice", item.id, f"{times} committed runs carried {item.id}")
    known = {i.id for i in snapshot.items}
    for stray in sorted(carried.keys() - known):
        yield ("delivered-unknown", stray, f"a committed run carried {stray}, which its records lack")


def _item(snapshot: Snapshot, item: Item) -> Iterator[Broken]:
    run = snapshot.run
    if item.state == ItemState.OWED:
        yield from _owed(snapshot, item)
    if item.state == ItemState.QUEUED and item.id not in snapshot.queue:
        yield ("queue-lost", item.id, f"{item.id} counts as queued and is not in the queue")
    if item.state == ItemState.CLAIMED and (run is None or item.id not in run.items):
        yield ("claimed-by-none", item.id, f"{item.id} counts as claimed, by no run that is open")
    if item.state in {ItemState.QUEUED, ItemState.CLAIMED} and item.id not in snapshot.texts:
        yield ("text-lost", item.id, f"{item.id} is {item.state} and its text is gone")
    if item.state == ItemState.DEAD and item.callback and not item.reason:
        yield ("dead-without-reason", item.id, f"{item.id} is dead and nothing says why")


def _owed(snapshot: Snapshot, item: Item) -> Iterator[Broken]:
    child = snapshot.children.get(item.child)
    if child is None:
        yield ("child-gone", item.id, f"{item.id} is owed for {item.child}, which is gone")
    elif child.state == SessionState.DAMAGED:
        return  # which is said of the child
    elif child.parent_notified and not child.ended:
        yield (
            "told-too-early",
            item.id,
            f"{item.child} is marked as reported to its parent, and has not ended ({child.state})",
        )
    elif child.parent_notified or child.state in CLOSED:
        yield (
            "callback-lost",
            item.id,
            f"{item.child} has ended ({child.state}), and {item.id} still counts as owed",
        )
    elif child.parent != snapshot.session.id:
        yield (
            "child-strayed",
            item.id,
            f"{item.id} is owed for {item.child}, whose parent is {child.parent}",
        )
    if snapshot.session.state in CLOSED and "closing" not in snapshot.indexed:
        yield ("closed-owed", item.id, f"closed, and {item.id} is still owed")


def _queue(snapshot: Snapshot) -> Iterator[Broken]:
    queued = {i.id for i in snapshot.items if i.state == ItemState.QUEUED}
    for stray in sorted(snapshot.queue - queued):
        yield ("queue-stray", stray, f"{stray} is in the queue, and its records do not say so")


def _run(snapshot: Snapshot) -> Iterator[Broken]:
    s = snapshot.session
    if not s.run:
        yield from _at_rest(snapshot)
        return
    run = snapshot.run
    if run is None or run.state not in {RunState.QUEUED, RunState.RUNNING}:
        yield ("busy-with-none", s.run, f"counts as busy with {s.run}, which is not open")


def _at_rest(snapshot: Snapshot) -> Iterator[Broken]:
    """Yield a session that is not at work and counts as if it were, or that waits for nothing."""
    s = snapshot.session
    ended = s.state is SessionState.IDLE and s.ended_ms
    if s.state is SessionState.RUNNING or ended or (s.state is SessionState.PENDING and s.runs):
        yield ("state-wrong", "", f"counts as {s.state}, and {'has ended' if s.ended_ms else 'has no run'}")
    elif (
        s.state is SessionState.IDLE
        and s.pending <= 0
        and not (
            s.questions or snapshot.questions or snapshot.queue or snapshot.wakes_ms or snapshot.stop_pending
        )
        and "waiting" not in snapshot.indexed
    ):
        yield (
            "waits-for-nothing",
            "",
            "is idle with nothing outstanding, and nothing completes it",
        )
