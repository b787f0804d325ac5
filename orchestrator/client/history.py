"""History of one session, in order, from the ledger."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.display.text import counted
from orchestrator.errors import PayloadError
from orchestrator.ids import approval_of
from orchestrator.ledger import Item, ItemState, Ledger, Run, Session, StepHeader, Try
from orchestrator.ledger.journal import read_headers
from orchestrator.ledger.reader import Printed
from orchestrator.machine import isoformat

#: Seconds that nobody means as a time: the run waits for a person.
_FOREVER_S = 10 * 365 * 86_400


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened."""

    #: When, ISO 8601, UTC.
    at: str
    #: `launched`, `run`, `attempt` (one that gave no answer), `step` (a durable step, without what it gave),
    #: `run ended`, `delegated`, `callback`, `prompt`, `answer` (with `--text`), `ended`, ….
    what: str
    #: What happened, in words.
    text: str
    #: The run concerned; else empty.
    run: str = ""
    #: The other session concerned; else empty.
    about: str = ""
    #: More lines, such as the traceback of a failed attempt, or with `--text` the text; else empty.
    detail: str = ""


#: An event with its time in milliseconds since the epoch.
_Timed = tuple[int, Event]


def history(ledger: Ledger, session: str, *, texts: bool = False) -> list[Event]:
    """Return every event of a session, oldest first; with ``texts`` also the texts that the ledger holds.

    Raises:
        UnknownSession: there is no such session.
    """
    about = ledger.session(session)
    items = ledger.items(session)
    said = texts_of(ledger, about, items) if texts else {}
    timed = [_launched(about, said.get("prompt", "")), *_ended(about)]
    for run in ledger.runs(session):
        timed += _of_run(run)
        steps = read_headers(run.last_steps) if run.ended_ms else ledger.journal.headers(run.id)
        timed += [_of_step(run, step) for step in steps]
    for child in ledger.find([item.child for item in items if item.kind == "completion"]):
        text = f"{child.agent}: {child.title}, as {child.id}"
        timed.append(_event(child.created_ms, "delegated", text, about=child.id))
    # A callback may die without ever having been queued.
    timed += [
        _of_item(item, said.get(item.id, ""))
        for item in items
        if item.seq or (item.callback and item.state is ItemState.DEAD)
    ]
    if texts:
        timed += [_of_printed(one) for one in ledger.printed.read(session)]
    if "result" in said:
        answered_ms = max((ms for ms, event in timed if event.what == "run ended"), default=about.updated_ms)
        timed.append(_event(answered_ms, "answer", "the latest", detail=said["result"]))
    # Sorting is stable: events of one millisecond stay in the order in which they were collected.
    return [event for _, event in sorted(timed, key=lambda pair: pair[0])]


def _event(at_ms: int, what: str, text: str, *, run: str = "", about: str = "", detail: str = "") -> _Timed:
    return at_ms, Event(at=isoformat(at_ms), what=what, text=text, run=run, about=about, detail=detail)


def texts_of(ledger: Ledger, session: Session, items: Sequence[Item]) -> dict[str, str]:
    """Return the task, the texts of items by their ids, and the latest answer; of an encrypted text only that it is
    encrypted.
    """
    said = ledger.texts(session.id, ["prompt", "result", *(item.id for item in items)])
    if "result" in said:
        try:
            said["result"] = ledger.result(session.id)[1] or said["result"]
        except PayloadError as error:
            said["result"] += f"\n[{error}]"
    sealed = [item.id for item in items if item.extra.get("sealed")]
    sealed += ["prompt"] if session.sealed else []
    return {**said, **{name: f"[encrypted for {session.agent}]" for name in sealed if name in said}}


def _launched(session: Session, prompt: str) -> _Timed:
    by = f"by {session.parent}" if session.parent else "as a root"
    given = f", with {session.options}" if session.options else ""
    text = f"{session.agent}: {session.title}, {by}{given}"
    return _event(session.created_ms, "launched", text, about=session.parent, detail=prompt)


def _ended(session: Session) -> list[_Timed]:
    if not session.ended_ms:
        return []
    return [
        _event(session.ended_ms, "ended", f"{session.state}{f': {session.reason}' if session.reason else ''}")
    ]


def _of_run(run: Run) -> list[_Timed]:
    """Return the tries of a run, and its end. A run keeps its last tries; the present try is in the run itself."""
    events = []
    if run.tries and run.tries[0].attempt > 1:
        text = f"{run.tries[0].attempt - 1} earlier tries are not kept"
        events.append(_event(run.tries[0].started_ms, "run", text, run=run.id))
    for tried in run.tries:
        events += [_began(run, tried.started_ms, tried.attempt, tried.worker), _of_try(run, tried)]
    if run.started_ms and not (run.tries and run.tries[-1].attempt == run.attempt):
        events.append(_began(run, run.started_ms, run.attempt, run.worker))
    if run.ended_ms:
        took = f" after {(run.ended_ms - run.started_ms) / 1000:.3f} s" if run.started_ms else ""
        text = f"{run.state}{took}{f': {run.reason}' if run.reason else ''}"
        events.append(_event(run.ended_ms, "run ended", text, run=run.id))
    return events


def _began(run: Run, at_ms: int, attempt: int, worker: str) -> _Timed:
    again = f", attempt {attempt}" if attempt > 1 else ""
    return _event(at_ms, "run", f"{_why(run)} on {worker}{again}", run=run.id)


def _of_try(run: Run, tried: Try) -> _Timed:
    how = {
        "failed": "failed",
        "died": "ended with its worker process",
        "lost": "was lost with its worker",
        "parked": "was parked",
    }
    took = (tried.ended_ms - tried.started_ms) / 1000
    wait_s = (tried.again_ms - tried.ended_ms) / 1000
    next_one = "; tried again" if tried.again_ms else ""
    if 0 < wait_s < _FOREVER_S:
        next_one += f" in {wait_s:.3g} s"
    text = f"attempt {tried.attempt} {how[tried.how]} after {took:.3f} s: {tried.reason}{next_one}"
    return _event(tried.ended_ms, "attempt", text, run=run.id, detail=tried.traceback)


def _of_printed(printed: Printed) -> _Timed:
    """Return the event for the output of a try of a run, or for the end of that output."""
    kept = len(printed.text.encode(errors="replace"))
    cut = f"; the last {kept} are kept" if printed.size > kept else ""
    text = f"attempt {printed.attempt}: {counted(printed.size, 'byte')}{cut}"
    return _event(printed.at_ms, "printed", text, run=printed.run, detail=printed.text)


def _of_step(run: Run, step: StepHeader) -> _Timed:
    """Return a durable step: how it ended, without its result."""
    calls = f"{counted(step.tries, 'call')}, the last of " if step.tries > 1 else ""
    took = f" after {calls}{step.took_ms / 1000:.3f} s"
    left = f"; {counted(step.left, 'retry', 'retries')} left" if step.how == "retry" else ""
    how = "done" if step.how == "done" else "failed"
    note = f": {step.note}" if step.note else ""
    return _event(step.at_ms, "step", f"{step.key} {how}{took}{note}{left}", run=run.id)


def _why(run: Run) -> str:
    match run.cause:
        case "start":
            return "start"
        case "user":
            return "resumed by a user"
    many = len(run.items)
    # What a blocking call took into the run counts with what the run was made for.
    return f"resumed with {counted(many, 'item')}" if many else "resumed, with nothing new"


def _verdict(item: Item) -> str:
    try:
        said = json.loads(item.extra.get("context") or "{}")
    except ValueError:
        said = {}
    if said.get("expired"):
        return f"nobody answered in time, the default counts: {said.get('default', 'deny')}"
    comment = f": {said['comment']}" if said.get("comment") else ""
    return (
        f"{'approved' if said.get('approved') is True else 'denied'} by {said.get('by') or 'nobody'}{comment}"
    )


def _of_item(item: Item, detail: str) -> _Timed:
    if item.kind == "completion":
        text = f"{item.agent}: {item.title}{f' {item.status}' if item.status else ''}, {item.state}"
    else:
        by = f" of {item.agent}" if item.agent else ""
        text = f"{item.id}{by}, {'closed' if item.reason.startswith('answered') else item.state}"
        if item.kind == "approval":
            text = f"{item.id}{by}, asked for{' and closed' if item.state is ItemState.DEAD else ''}"
        elif approval_of(item.id):
            text = f"{item.id}, {_verdict(item)}"
    what = "callback" if item.kind == "completion" else item.kind
    reason = f": {item.reason}" if item.reason else ""
    return _event(item.at_ms, what, f"{text}{reason}", run=item.run, about=item.child, detail=detail)
