"""Queued runs that no worker takes: nobody serves their agent, or it is paused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from orchestrator.bootstrap import Container
from orchestrator.display.text import counted
from orchestrator.doctor.findings import Problem, stuck, warning
from orchestrator.doctor.terms import TermsReader
from orchestrator.ledger import Run
from orchestrator.machine import isoformat


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
