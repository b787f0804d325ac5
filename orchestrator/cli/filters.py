"""Which sessions or messages a list shows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from orchestrator.cli.names import complete_agents, session_option
from orchestrator.cli.options import combined, known_type, period_options

if TYPE_CHECKING:
    from orchestrator.ledger import Session

_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class SessionFilter:
    """The conditions under which a session is shown; an empty condition holds for all."""

    states: frozenset[str] = frozenset()
    agents: frozenset[str] = frozenset()
    since_ms: int | None = None
    until_ms: int | None = None

    def __call__(self, session: Session) -> bool:
        """Return True if the session is shown."""
        return (
            (not self.states or session.state.value in self.states)
            and (not self.agents or session.agent in self.agents)
            and (self.since_ms is None or session.created_ms >= self.since_ms)
            and (self.until_ms is None or session.created_ms <= self.until_ms)
        )

    def __bool__(self) -> bool:
        return self != SessionFilter()

    def of_tree(self, sessions: Sequence[Session]) -> list[Session]:
        """Return those of a tree that are shown, with the sessions above them."""
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
        @period_options
        @functools.wraps(command)
        def wrapper(
            *args: Any,
            states: tuple[str, ...],
            agents: tuple[str, ...],
            since_ms: int | None,
            until_ms: int | None,
            **kwargs: Any,
        ) -> _Result:
            only = SessionFilter(
                states=frozenset(states), agents=frozenset(agents), since_ms=since_ms, until_ms=until_ms
            )
            return command(*args, only=only, **kwargs)

        return wrapper

    return add


#: What a message can have come to.
OUTCOMES = ("dead", "success", "partial-success", "failed", "completed", "in-progress", "blocked")

#: The conditions of a search in the audit trail, under the names that its reader takes.
search_options = combined(
    click.option("--type", "message_type", callback=known_type, help="Message type."),
    click.option("--sender", help="Name of the sender."),
    click.option("--recipient", help="Name of the recipient."),
    click.option("--priority", help="Priority of the stream."),
    click.option("--correlation", help="Correlation-id of a conversation."),
    session_option("--task", "--session", "task_id", help="Task-id or session id."),
    click.option("--message", "message_id", help="Message-id."),
    click.option("--attempt", type=click.IntRange(1), help="Number of the attempt to deliver it."),
    click.option("--rule", help="Rule by which it became a dead letter."),
    click.option(
        "--outcome",
        type=click.Choice(OUTCOMES),
        help="dead: it became a dead letter; else how the task stands, by a message that did not.",
    ),
    period_options,
    click.option("--dead", is_flag=True, help="Only messages that became dead letters."),
)
