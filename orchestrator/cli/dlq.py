"""``orchestra dlq``: list, show, replay and drop dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.exit_codes import Exit, Refused
from orchestrator.cli.options import (
    SubCommands,
    combined,
    json_option,
    known_type,
    stack_options,
    time_option,
)
from orchestrator.cli.output import print_json, say
from orchestrator.cli.stack import open_stack

if TYPE_CHECKING:
    from orchestrator.bootstrap import Container
    from orchestrator.config.settings import Settings
    from orchestrator.router.deadletters.store import DeadLetter


#: Which dead letters are meant, as :func:`_chosen` takes them.
_selection = combined(
    click.argument("dead_ids", metavar="[ID]…", nargs=-1),
    click.option(
        "--all", "everything", is_flag=True, help="Every dead letter (that the options below select)."
    ),
    click.option("--type", "message_type", callback=known_type, help="With --all: only this message type."),
    click.option("--agent", help="With --all: only from or to this agent."),
)


@click.group("dlq", cls=SubCommands)
def dlq() -> None:
    """List, show, replay and drop dead letters: messages and notifications that are not tried again."""


@dlq.command("list")
@click.option("--type", "message_type", callback=known_type, help="Only this message type.")
@click.option("--agent", help="Only from or to this agent.")
@time_option("--since", help="Not older than this (90s, 15m, 2h, 7d), or since a time.")
@json_option
@stack_options
def list_(
    *, settings: Settings, message_type: str | None, agent: str | None, since_ms: int | None, as_json: bool
) -> None:
    """List dead letters, oldest first, each with its reason."""
    with open_stack(settings, "dlq") as parts:
        dead_letters = _select(parts, message_type=message_type, agent=agent, since_ms=since_ms or 0)
    if as_json:
        from orchestrator.cli.documents.audit import DeadLetters

        print_json(DeadLetters.of({"dead_letters": dead_letters}))
        return
    for dead_letter in dead_letters:
        say(_line(dead_letter))
    if not dead_letters:
        say("no dead letters", err=True)


@dlq.command("show")
@click.argument("dead_id", metavar="ID")
@json_option
@stack_options
def show(*, settings: Settings, dead_id: str, as_json: bool) -> None:
    """Show one dead letter with its original bytes."""
    from orchestrator.cli.documents.audit import DeadLetterDocument, FullDeadLetter

    with open_stack(settings, "dlq") as parts:
        dead_letter = _get(parts, dead_id)
    if as_json:
        print_json(FullDeadLetter.of(dead_letter))
        return
    for name, value in DeadLetterDocument.of(dead_letter).model_dump().items():
        if value not in (None, ""):
            say(f"{name:14} {value}")
    say()
    say(dead_letter.data.decode("utf-8", "replace"), lines=True)


@dlq.command("replay")
@_selection
@click.option(
    "--sign-unverified",
    is_flag=True,
    help="Sign the one dead letter named as the operator, although the signature of its sender does not verify; "
    "the audit trail says so.",
)
@json_option
@stack_options
def replay(*, settings: Settings, sign_unverified: bool, as_json: bool, **selected: Any) -> None:
    """Send dead letters again, after fixing the cause.

    The original is verified first. What does not verify is refused, and the exit code is 2.
    """
    from orchestrator.cli.documents.audit import ReplayedDocument, ReplayedMessages
    from orchestrator.errors import Refused, Unverified
    from orchestrator.notifier import NOTIFICATION
    from orchestrator.router.deadletters.replay import Replays

    if sign_unverified and (selected["everything"] or len(selected["dead_ids"]) != 1):
        raise click.UsageError("--sign-unverified takes exactly one id, after reading what it says")

    done: list[ReplayedDocument] = []
    with open_stack(settings, "dlq") as parts:
        replays = Replays(parts)
        for dead_letter in _chosen(parts, **selected):
            try:
                replayed = replays.replay(dead_letter, sign_unverified=sign_unverified)
            except Refused as error:
                rule = str(error.args[1]) if isinstance(error, Unverified) else "refused"
                done.append(
                    ReplayedDocument.made(
                        "refused", dead_letter=dead_letter.id, done=False, rule=rule, reason=str(error)
                    )
                )
                if not as_json:
                    say(str(error), err=True)
                continue
            if replayed is not None:
                done.append(ReplayedDocument.made(replayed.how, replayed.id, dead_letter=dead_letter.id))
                if not as_json:
                    what = (
                        "delivered to"
                        if replayed.how == NOTIFICATION
                        else f"replayed as a new {replayed.how}:"
                    )
                    say(f"{dead_letter.id} {what} {replayed.id}")
    refused = sum(not one.done for one in done)
    if as_json:
        print_json(ReplayedMessages(replayed=tuple(done)))
    elif refused:
        say(f"{len(done) - refused} replayed, {refused} refused", err=True)
    elif not done:
        say("no such dead letters; nothing was replayed", err=True)
    if refused:
        click.get_current_context().exit(Exit.REFUSED)


@dlq.command("drop")
@_selection
@json_option
@stack_options
def drop(*, settings: Settings, as_json: bool, **selected: Any) -> None:
    """Remove dead letters for good; the audit trail keeps them and that they were dropped."""
    from orchestrator.router.deadletters.replay import Replays

    dropped = []
    with open_stack(settings, "dlq") as parts:
        replays = Replays(parts)
        for dead_letter in _chosen(parts, **selected):
            if replays.drop(dead_letter):
                dropped.append(dead_letter.id)
                if not as_json:
                    say(f"{dead_letter.id} dropped")
    if as_json:
        from orchestrator.cli.documents.audit import Dropped

        print_json(Dropped(dropped=tuple(dropped)))
    elif not dropped:
        say("no such dead letters; nothing was dropped", err=True)


def _select(
    parts: Container, *, message_type: str | None, agent: str | None, since_ms: int = 0
) -> list[DeadLetter]:
    from orchestrator.router.deadletters.store import DeadLetters

    return [
        dead_letter
        for dead_letter in DeadLetters(parts.redis, shards=parts.settings.shards).all(since_ms=since_ms)
        if (message_type is None or dead_letter.type == message_type)
        and (agent is None or agent in {dead_letter.sender, dead_letter.recipient})
    ]


def _chosen(
    parts: Container,
    dead_ids: tuple[str, ...],
    *,
    everything: bool,
    message_type: str | None,
    agent: str | None,
) -> list[DeadLetter]:
    if everything == bool(dead_ids):
        raise click.UsageError("name dead letters, or say --all")
    if everything:
        return _select(parts, message_type=message_type, agent=agent)
    return [_get(parts, dead_id) for dead_id in dead_ids]


def _get(parts: Container, dead_id: str) -> DeadLetter:
    from orchestrator.router.deadletters.store import DeadLetters

    dead_letter = DeadLetters(parts.redis, shards=parts.settings.shards).get(dead_id)
    if dead_letter is None:
        raise Refused(f"no dead letter {dead_id!r}; `orchestra dlq list` shows what is there")
    return dead_letter


def _line(dead_letter: DeadLetter) -> str:
    from orchestrator.machine import isoformat

    who = f"{dead_letter.sender or '?'} → {dead_letter.recipient or '?'}"
    tries = f" after {dead_letter.attempts} attempts" if dead_letter.attempts > 1 else ""
    return f"{dead_letter.id}  {isoformat(dead_letter.at_ms)}  {dead_letter.type} {who}  {dead_letter.rule}{tries}: {dead_letter.reason}"
