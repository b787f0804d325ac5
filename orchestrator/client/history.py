"""What happened in one session, in order, as the ledger tells it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.clock import isoformat
from orchestrator.display.text import counted
from orchestrator.errors import PayloadError
from orchestrator.ids import approval_of
from orchestrator.ledger import Item, ItemState, Ledger, Run, Session, StepHeader, Try
from orchestrator.ledger.journal import read_headers
from orchestrator.ledger.printed import Printed

#: Seconds that nobody means as a time: the run waits for a person.
_FOREVER_S = 10 * 365 * 86_400


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened."""

    at: str  #: ISO 8601, UTC
    what: str  #: `launched`, `run`, `delegated`, `callback`, `prompt`, `ended`, …
    text: str  #: the line that says it
    run: str = ""  #: the run, if it is about one
    about: str = ""  #: the other session, if there is one
    detail: str = ""  #: more lines: the traceback of a failed try, or what was said

    def saying(self, text: str) -> Event:
        """This event with the text that it was about."""
        return replace(self, detail=text)


def history(ledger: Ledger, session: str, *, texts: bool = False) -> list[Event]:
    """Every event of a session, oldest first; with ``texts`` also what was said, as the ledger holds it.

    Raises:
        UnknownSession: there is no such session.
    """
    about = ledger.session(session)
    items = ledger.items(session)
    said = _said(ledger, about, items) if texts else {}
    launched_ms, launched = _launched(about)
    timed = [(launched_ms, launched.saying(said.get("prompt", ""))), *_ended(about)]
    for run in ledger.runs(session):
        timed += _of_run(run)
        steps = read_headers(run.last_steps) if run.ended_ms else ledger.journal.headers(run.id)
        timed += [(step.at_ms, _of_step(run, step)) for step in steps]
    for child in ledger.find([item.child for item in items if item.kind == "completion"]):
        timed.append(
            (
                child.created_ms,
                Event(
                    at="",
                    what="delegated",
                    text=f"{child.agent}: {child.title}, as {child.id}",
                    about=child.id,
                ),
            )
        )
    # A callback may die without ever having been queued.
    for item in items:
        if item.seq or (item.callback and item.state is ItemState.DEAD):
            at_ms, event = _of_item(item)
            timed.append((at_ms, event.saying(said.get(item.id, ""))))
    timed += [(one.at_ms, _of_printed(one)) for one in ledger.printed.read(session) if texts]
    if "result" in said:
        answered_ms = max((ms for ms, event in timed if event.what == "run ended"), default=about.updated_ms)
        timed.append((answered_ms, Event(at="", what="answer", text="the latest").saying(said["result"])))
    # Sorting is stable: what happened in one millisecond stays in the order in which it was collected.
    return [replace(event, at=isoformat(ms)) for ms, event in sorted(timed, key=lambda pair: pair[0])]


def _said(ledger: Ledger, session: Session, items: Sequence[Item]) -> dict[str, str]:
    """The task, the texts of items by their ids, and the latest answer; in place of what is encrypted, that it is."""
    said = ledger.texts(session.id, ["prompt", "result", *(item.id for item in items)])
    if "result" in said:
        try:
            said["result"] = ledger.result(session.id)[1] or said["result"]
        except PayloadError as error:
            said["result"] += f"\n[{error}]"
    sealed = [item.id for item in items if item.extra.get("sealed")]
    sealed += ["prompt"] if session.sealed else []
    return {**said, **{name: f"[encrypted for {session.agent}]" for name in sealed if name in said}}


def _launched(session: Session) -> tuple[int, Event]:
    by = f"by {session.parent}" if session.parent else "as a root"
    text = f"{session.agent}: {session.title}, {by}"
    return session.created_ms, Event(at="", what="launched", text=text, about=session.parent)


def _ended(session: Session) -> list[tuple[int, Event]]:
    if not session.ended_ms:
        return []
    text = f"{session.state}{f': {session.reason}' if session.reason else ''}"
    return [(session.ended_ms, Event(at="", what="ended", text=text))]


def _of_run(run: Run) -> list[tuple[int, Event]]:
    """Its tries, and its end. Only the last tries of many are kept, and the present one is as the run says."""
    events = [
        event for number, tried in enumerate(run.tries) for event in _of_try(run, tried, first=number == 0)
    ]
    told = bool(run.tries) and run.tries[-1].attempt == run.attempt
    if run.started_ms and not told:
        again = f", attempt {run.attempt}" if run.attempt > 1 else ""
        text = f"{_why(run)} on {run.worker}{again}"
        events.append((run.started_ms, Event(at="", what="run", text=text, run=run.id)))
    if run.ended_ms:
        took = f" after {(run.ended_ms - run.started_ms) / 1000:.3f} s" if run.started_ms else ""
        text = f"{run.state}{took}{f': {run.reason}' if run.reason else ''}"
        events.append((run.ended_ms, Event(at="", what="run ended", text=text, run=run.id)))
    return events


def _of_try(run: Run, tried: Try, *, first: bool) -> list[tuple[int, Event]]:
    events = []
    if first and tried.attempt > 1:
        text = f"{tried.attempt - 1} earlier tries are not kept"
        events.append((tried.started_ms, Event(at="", what="run", text=text, run=run.id)))
    again = f", attempt {tried.attempt}" if tried.attempt > 1 else ""
    text = f"{_why(run)} on {tried.worker}{again}"
    events.append((tried.started_ms, Event(at="", what="run", text=text, run=run.id)))
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
    event = Event(at="", what="attempt", text=text, run=run.id, detail=tried.traceback)
    return [*events, (tried.ended_ms, event)]


def _of_printed(printed: Printed) -> Event:
    """What a try of a run printed, or the end of it."""
    kept = len(printed.text.encode(errors="replace"))
    cut = f"; the last {kept} are kept" if printed.size > kept else ""
    text = f"attempt {printed.attempt}: {counted(printed.size, 'byte')}{cut}"
    return Event(at="", what="printed", text=text, run=printed.run, detail=printed.text)


def _of_step(run: Run, step: StepHeader) -> Event:
    """A durable step: how it ended, and never what it gave."""
    calls = f"{counted(step.tries, 'call')}, the last of " if step.tries > 1 else ""
    took = f" after {calls}{step.took_ms / 1000:.3f} s"
    left = f"; {counted(step.left, 'retry', 'retries')} left" if step.how == "retry" else ""
    how = "done" if step.how == "done" else "failed"
    note = f": {step.note}" if step.note else ""
    return Event(at="", what="step", text=f"{step.key} {how}{took}{note}{left}", run=run.id)


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


def _of_item(item: Item) -> tuple[int, Event]:
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
    return item.at_ms, Event(at="", what=what, text=f"{text}{reason}", run=item.run, about=item.child)
