"""Which sessions a list shows: by state, agent and age."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from orchestrator.cli.names import complete_agents

if TYPE_CHECKING:
    from orchestrator.ledger import Session

_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class SessionFilter:
    """What a session must be to be shown; what is empty says nothing."""

    states: frozenset[str] = frozenset()
    agents: frozenset[str] = frozenset()
    since_ms: int | None = None
    until_ms: int | None = None

    def __call__(self, session: Session) -> bool:
        """Whether it is shown."""
        return (
            (not self.states or session.state.value in self.states)
            and (not self.agents or session.agent in self.agents)
            and (self.since_ms is None or session.created_ms >= self.since_ms)
            and (self.until_ms is None or session.created_ms <= self.until_ms)
        )

    def __bool__(self) -> bool:
        return self != SessionFilter()

    def of_tree(self, sessions: Sequence[Session]) -> list[Session]:
        """Those of a tree that are shown, with the sessions above them."""
        parents = {session.id: session.parent for session in sessions}
        kept: set[str] = set()
        for session in filter(self, sessions):
            above = session.id
            while above in parents and above not in kept:
                kept.add(above)
                above = parents[above]
        return [session for session in sessions if session.id in kept]


def filter_options(*states: str) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """Add ``--state``, ``--agent``, ``--since`` and ``--until``; the command gets the filter as ``only``."""

    def add(command: Callable[..., _Result]) -> Callable[..., _Result]:
        @click.option(
            "--state",
            "states",
            type=click.Choice(states),
            multiple=True,
            help="Only those in this state; may be repeated."
            + (" `scheduled`: those that begin later, the next one first." if "scheduled" in states else ""),
        )
        @click.option(
            "--agent",
            "agents",
            metavar="AGENT",
            multiple=True,
            shell_complete=complete_agents,
            help="Only those of this agent; may be repeated.",
        )
        @click.option("--since", help="Only younger ones: how long ago (15m, 2h, 7d) or a time.")
        @click.option("--until", help="Only older ones: the same.")
        @functools.wraps(command)
        def wrapper(
            *args: Any,
            states: tuple[str, ...],
            agents: tuple[str, ...],
            since: str | None,
            until: str | None,
            **kwargs: Any,
        ) -> _Result:
            from orchestrator.cli.audit import parse_time

            only = SessionFilter(
                states=frozenset(states),
                agents=frozenset(agents),
                since_ms=parse_time(since),
                until_ms=parse_time(until),
            )
            return command(*args, only=only, **kwargs)

        return wrapper

    return add
