"""Names on the command line: sessions by the beginning of their ids and as ``@last``, and what a shell completes.

The argument is read before the options that name the stack, so it only notes what is to be looked up; the wrapper of
:func:`orchestrator.cli.options.stack_options` looks it up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from orchestrator.cli.stack import open_stack
from orchestrator.display.text import visible
from orchestrator.ids import is_beginning_of_session_id, is_session_id

if TYPE_CHECKING:
    from orchestrator.bootstrap import Container
    from orchestrator.config.settings import Settings
    from orchestrator.ledger import Session

#: The root session that was made last.
LAST: Final = "@last"
#: Seconds that a shell waits for the stack to say what it completes.
COMPLETE_S: Final = 1.0
#: Completions and candidates that are offered.
_COMPLETIONS, _CANDIDATES = 50, 5

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Reference(str):
    """A name of a session that is still to be looked up."""

    __slots__ = ()


def session_argument(
    name: str = "session", *, bare: bool = True, **options: Any
) -> Callable[[_Command], _Command]:
    """Return an argument that takes a session: its id, the beginning of it, or ``@last``.

    With ``bare`` the beginning may lack the ``ses_``; an argument that takes other names as well does not allow that.
    """
    return click.argument(
        name, callback=partial(_noted, bare=bare), shell_complete=complete_sessions, **options
    )


def session_option(*names: str, **options: Any) -> Callable[[_Command], _Command]:
    """Return an option that takes a session, as :func:`session_argument`, or another name."""
    return click.option(
        *names, callback=partial(_noted, bare=False), shell_complete=complete_sessions, **options
    )


def agent_argument(name: str = "agent", **options: Any) -> Callable[[_Command], _Command]:
    """Return an argument that takes the name of an agent."""
    return click.argument(name, shell_complete=complete_agents, **options)


def _noted(
    _context: click.Context, _parameter: click.Parameter, value: str | None, *, bare: bool
) -> str | None:
    if not value or is_session_id(value):
        return value
    if value == LAST or (value.startswith("ses_") and is_beginning_of_session_id(value)):
        return Reference(value)
    if bare and is_beginning_of_session_id(f"ses_{value}"):
        return Reference(f"ses_{value}")
    return value


def look_up(settings: Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a command with the ids of the sessions that they refer to.

    A beginning that no id has stays as it is, for the command to say so.

    Raises:
        AmbiguousSession: several ids begin so.
        InputError: there is no last session.
    """
    references = [value for value in values.values() if isinstance(value, Reference)]
    if not references:
        return dict(values)
    with open_stack(settings, "names") as parts:
        full = {reference: _found(parts, reference) for reference in references}
    return {name: full[value] if isinstance(value, Reference) else value for name, value in values.items()}


def _found(parts: Container, reference: Reference) -> str:
    from orchestrator.errors import AmbiguousSession, InputError

    if reference == LAST:
        latest = _latest(parts, 1)
        if not latest:
            raise InputError(
                'there is no last session, as there is none yet; submit one: orchestra submit AGENT "PROMPT"'
            )
        return latest[0].id
    ids = parts.ledger.beginning_with(reference)
    if len(ids) > 1:
        shown = [f"{one.id} ({one.agent})" for one in parts.ledger.find(ids[:_CANDIDATES])]
        more = f" and {len(ids) - len(shown)} more" if len(ids) > len(shown) else ""
        raise AmbiguousSession(str(reference), len(ids), ", ".join(shown) + more)
    return ids[0] if ids else str(reference)


def _latest(parts: Container, limit: int) -> list[Session]:
    shards = range(parts.settings.shards)
    roots = [root for shard in shards for root in parts.ledger.roots(shard, limit=limit)]
    return sorted(roots, key=lambda root: root.created_ms, reverse=True)[:limit]


def complete_sessions(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Sessions whose ids begin as typed, newest first while little is typed. Never raises, and waits a second at most."""
    return _in_time(partial(_sessions, dict(context.params), incomplete))


def complete_agents(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Registered agents whose names begin as typed. Never raises, and waits a second at most."""
    return _in_time(partial(_agents, dict(context.params), incomplete))


def _in_time(find: Callable[[], list[CompletionItem]]) -> list[CompletionItem]:
    completions: list[CompletionItem] = []

    def look() -> None:
        with suppress(Exception):  # a shell shows nothing instead of a traceback
            completions.extend(find())

    # What is imported takes its time on a busy machine, and cannot hang: the second is for the stack.
    with suppress(Exception):
        import_module("orchestrator.bootstrap")
    # The thread may hang in a connection; it ends with the process.
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(COMPLETE_S)
    return list(completions)


def _sessions(options: Mapping[str, Any], incomplete: str) -> list[CompletionItem]:
    bare = bool(incomplete) and not incomplete.startswith(("s", "@"))
    beginning = f"ses_{incomplete}" if bare else incomplete
    if LAST.startswith(incomplete) and incomplete:
        return [CompletionItem(LAST, help="the newest root session")]
    if not ("ses_".startswith(beginning) or is_beginning_of_session_id(beginning)):
        return []
    with open_stack(_settings(options), "names") as parts:
        if "ses_".startswith(beginning):
            sessions: Sequence[Session] = _latest(parts, _COMPLETIONS)
        else:
            sessions = parts.ledger.find(parts.ledger.beginning_with(beginning)[:_COMPLETIONS])
    return [
        CompletionItem(
            one.id.removeprefix("ses_") if bare else one.id,
            help=visible(f"{one.agent}, {one.state}: {one.title}"),
        )
        for one in sessions
    ]


def _agents(options: Mapping[str, Any], incomplete: str) -> list[CompletionItem]:
    with open_stack(_settings(options), "names") as parts:
        records = parts.agents.all()
    return [
        CompletionItem(record.name, help=visible(record.description) or None)
        for record in records
        if record.name.startswith(incomplete)
    ]


def _settings(options: Mapping[str, Any]) -> Settings:
    from orchestrator.config.settings import load_settings

    return load_settings(redis_url=options.get("redis_url"), data=options.get("data"))
