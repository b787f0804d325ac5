"""Expected entries of a session in the shard's indexes, counters and texts, by its records. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from orchestrator.doctor import approvals
from orchestrator.doctor.findings import Broken
from orchestrator.ledger import CLOSED, ItemState, RunState, SessionState
from orchestrator.ledger.snapshot import Snapshot
from orchestrator.machine import isoformat


def breaks(snapshot: Snapshot) -> Iterator[Broken]:
    """Yield everything that is derived from the records of a session, or belongs to them, and is wrong or missing."""
    yield from _run(snapshot)
    yield from of_tree(snapshot)
    yield from _groups(snapshot)
    yield from _questions(snapshot)
    yield from _timers(snapshot)
    yield from approvals.breaks(snapshot)
    yield from _texts(snapshot)


def of_tree(snapshot: Snapshot) -> Iterator[Broken]:
    """Yield those of the breaks that apply to a deleted session, too."""
    yield from _session(snapshot)
    yield from _root(snapshot)
    yield from _schedule(snapshot)


def _run(snapshot: Snapshot) -> Iterator[Broken]:
    run = snapshot.run
    if run is None:
        return
    if run.state is RunState.QUEUED and "dispatch" not in snapshot.indexed:
        yield (
            "run-unindexed",
            run.id,
            f"{run.id} is queued and not in the dispatch index: it is not sent to a worker again",
        )
    if run.state is RunState.RUNNING and not run.external and "running" not in snapshot.indexed:
        yield (
            "run-unindexed",
            run.id,
            f"{run.id} is running and not in the index of running runs: the loss of its worker would not be noticed",
        )


def _session(snapshot: Snapshot) -> Iterator[Broken]:
    s = snapshot.session
    for wanted, name, consequence in (
        (True, "tree", f"the index of the tree of {s.root}: `orchestra tree` does not show it"),
        (s.root == s.id, "roots", "the index of roots: `orchestra sessions` does not show its tree"),
        (
            bool(snapshot.queue) and s.state not in CLOSED,
            "waiting",
            "the index of waiting sessions: the sweep does not see what is queued for it",
        ),
    ):
        if wanted and name not in snapshot.indexed:
            yield ("session-unindexed", name, f"is not in {consequence}")


def _schedule(snapshot: Snapshot) -> Iterator[Broken]:
    if snapshot.session.state is SessionState.SCHEDULED and "schedule" not in snapshot.indexed:
        yield ("schedule-lost", "", "is scheduled, and no timer begins it when its time has come")


def _root(snapshot: Snapshot) -> Iterator[Broken]:
    s = snapshot.session
    ended = s.state in CLOSED or (s.state is SessionState.FINISHED and not s.busy)
    if s.root != s.id or not ended or "results" in snapshot.indexed:
        return
    if not snapshot.settled:
        yield (
            "result-unindexed",
            "",
            f"is {s.state}, and its result is neither stored for its caller nor in the index of unpublished results",
        )
    elif "expire" not in snapshot.indexed:
        yield ("expiry-lost", "", f"is {s.state}, and no timer removes its tree after its lifetime")


def _groups(snapshot: Snapshot) -> Iterator[Broken]:
    """Yield the counters by which waiting policies are checked; nothing resumes a closed session."""
    if snapshot.session.state in CLOSED:
        return
    booked = Counter[tuple[str, str]]()
    for item in snapshot.items:
        if item.kind == "completion" and item.callback:
            group = str(item.extra.get("group") or "")
            booked[group, "launched"] += 1
            if item.state in {ItemState.OWED, ItemState.DELIVERED, ItemState.DEAD}:
                booked[group, item.state.value] += 1
    counters = snapshot.groups
    for group, what in sorted(booked.keys() | counters.keys()):
        if counters.get((group, what), 0) != booked[group, what]:
            of = f"of group {group!r}" if group else "without a group"
            recorded, known = counters.get((group, what), 0), booked[group, what]
            yield (
                "counters",
                f"{group}:{what}",
                f"says {recorded} callbacks {of} are {what}; its records hold {known}",
            )


def _questions(snapshot: Snapshot) -> Iterator[Broken]:
    s = snapshot.session
    if snapshot.questions != len(s.questions):
        yield (
            "counters",
            "questions",
            f"says {snapshot.questions} questions are open; its record names {len(s.questions)}",
        )
    if s.state in CLOSED:
        return
    for question in sorted(snapshot.unasked):
        yield (
            "question-lost",
            question,
            f"waits for a reply to {question}, which is not in the records of the session that was asked",
        )
    for question in sorted(snapshot.unknown_questions):
        yield (
            "question-half",
            question,
            f"is asked {question}, and the session that asks it does not wait for the reply",
        )


def _timers(snapshot: Snapshot) -> Iterator[Broken]:
    for timer, due_ms in sorted(snapshot.lost_timers.items()):
        kind, _, subject = timer.partition("|")
        what = {
            "flush": "is to go on with what has come by then",
            "rejected": f"is to be told that no reply to {subject} will come",
            "question": f"waits for a reply to {subject} until then",
        }.get(kind, "has to have ended by then")
        yield ("timer-lost", timer, f"{what} ({isoformat(due_ms)}), and no timer sees to it")


def _texts(snapshot: Snapshot) -> Iterator[Broken]:
    s = snapshot.session
    if s.state is SessionState.DELETED:
        return
    if s.state is SessionState.FINISHED and "result" not in snapshot.texts:
        yield ("result-gone", "", "has finished, and the text of its answer is gone")
    elif snapshot.unkept:
        yield ("result-gone", "", "has finished, and all but the beginning of its answer is gone")
    if s.state not in CLOSED and "prompt" not in snapshot.texts:
        yield ("prompt-gone", "", "the text of its task is gone")
