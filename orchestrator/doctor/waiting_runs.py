"""Queued runs that no worker takes: nobody serves their agent, or it is paused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from orchestrator.bootstrap import Container
from orchestrator.display.text import counted
from orchestrator.doctor.findings import Problem, stuck, warning
from orchestrator.doctor.terms import TermsReader
from orchestrator.ledger import CLOSED, Run, Session, SessionState
from orchestrator.machine import isoformat
from orchestrator.policy.versions import split_lane


def pinned(session: Session, terms: TermsReader) -> Iterator[Problem]:
    """A session that nobody can take: it is pinned to a version of its agent that no living worker has."""
    ended = session.state in CLOSED or (session.state == SessionState.FINISHED and not session.busy)
    if session.pinned and not ended and (nobody := terms.of(session.lane).nobody):
        yield stuck(
            "version-unserved",
            session.lane,
            f"{session.id} is pinned to the version that it began with, and {nobody}: start a worker that has "
            f"it, or let any version go on with it: orchestra unpin {session.id}",
            session=session.id,
        )


def unserved(waiting: Mapping[str, Sequence[Run]], terms: TermsReader) -> Iterator[Problem]:
    """Agents that no living worker serves, of the queued runs of each lane."""
    for agent, runs in sorted(waiting.items()):
        if split_lane(agent)[1]:
            continue  # each session that is pinned is named by itself
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
    """What an operator has limited or paused, and what does not hold any more: its key was deleted."""
    for field, value in sorted(parts.concurrency.lost().items()):
        what, _, name = field.removeprefix("paused:").partition(":")
        was = (
            f"{what} {name!r} was paused at {isoformat(int(value))}, and is not any more"
            if field.startswith("paused:")
            else f"the limit {field} {value} does not hold any more"
        )
        yield stuck(
            "limits-lost", field, f"{was}: the key was deleted; `orchestra doctor --fix` puts it back"
        )


def paused(waiting: Mapping[str, Sequence[Run]], parts: Container) -> Iterator[Problem]:
    """What is paused, and how many runs wait for it to go on."""
    queued = Counter[tuple[str, str]]()
    for lane, runs in waiting.items():
        agent, _ = split_lane(lane)
        record = parts.agents.get(agent)
        queued["agent", agent] += len(runs)
        queued["queue", record.queue if record is not None else ""] += len(runs)
    for (kind, name), since_ms in sorted(parts.concurrency.paused().items()):
        count = queued[kind, name]
        yield warning(
            "paused",
            name,
            f"{kind} {name!r} is paused since {isoformat(since_ms)}, and {counted(count, 'queued run')} "
            f"wait{'s' if count == 1 else ''} for it: orchestra unpause {name}",
        )
