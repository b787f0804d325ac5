"""``orchestra audit replay``: send messages of the trail again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.conversation import messages_about, open_trail
from orchestrator.cli.exit_codes import Exit, Refused
from orchestrator.cli.filters import search_options
from orchestrator.cli.names import session_argument
from orchestrator.cli.options import json_option, stack_options
from orchestrator.cli.output import print_json, say
from orchestrator.cli.progress import progress_bar
from orchestrator.cli.stack import open_stack
from orchestrator.display.text import counted

if TYPE_CHECKING:
    from orchestrator.audit import AuditReader, MessageRecord
    from orchestrator.config.settings import Settings
    from orchestrator.router.deadletters.again import Result

#: Messages that one look into the trail takes.
_PAGE = 500


@click.command("replay")
@session_argument("identifier", bare=False, metavar="[ID|CORRELATION-ID|SESSION]", required=False)
@search_options
@click.option("--text", help="Words that follow each other in what a message says.")
@click.option("--dry-run", is_flag=True, help="Only say what would become of each message.")
@click.option(
    "--rate", default=50.0, show_default=True, type=click.FloatRange(0), help="Messages a second; 0: any."
)
@click.option("--limit", default=1000, show_default=True, type=click.IntRange(1), help="Messages at most.")
@click.option(
    "--label",
    default="1",
    show_default=True,
    help="Name of this replay: with the same one a message is replayed once, so that a replay that was "
    "interrupted goes on; with another one, once more.",
)
@click.option(
    "--sign-unverified",
    is_flag=True,
    help="Sign one message as the operator, although the signature of its sender does not verify; the audit trail says so.",
)
@json_option
@stack_options
def replay(
    *,
    settings: Settings,
    identifier: str | None,
    dry_run: bool,
    rate: float,
    limit: int,
    label: str,
    sign_unverified: bool,
    as_json: bool,
    **conditions: Any,
) -> None:
    """Say messages once more, as new ones of the operator's that name the old; a task begins again as a root session.

    Give a message, a conversation, a session, or conditions as for `search`. Oldest first; what followed upon a task that is
    replayed is skipped. Each original is verified first, and refused if its sender is not known to have said it.
    Exit code 2: one was refused.
    """
    from orchestrator.cli.documents.messages import ReplayedDocument, ReplayedMessages
    from orchestrator.router.deadletters.again import TrailReplay

    reader = open_trail(settings)
    records = _chosen(reader, settings, identifier, conditions, limit)
    alone = identifier is not None and len({record.message_id for record in records}) == 1
    if sign_unverified and not alone:
        raise click.UsageError("--sign-unverified takes one message-id: read the message first")
    results: list[Result] = []
    with (
        open_stack(settings, "audit-replay") as parts,
        progress_bar("replay", shown=len(records) > 1 and not alone and not as_json) as show,
    ):
        replays = TrailReplay(
            parts,
            reader,
            label=label,
            sign_unverified=sign_unverified,
            dry_run=dry_run,
            pause=_pause(rate),
        )
        for result in replays.run(records):
            results.append(result)
            if not alone and not as_json:
                say(_line(result, dry_run=dry_run))
            show("replay", len(results), len(records))
    refused = sum(result.how == "refused" for result in results)
    if alone and refused:
        raise Refused(results[0].reason)
    if as_json:
        documents = tuple(
            ReplayedDocument.made(
                result.how,
                result.id,
                replays=result.record.message_id,
                done=result.done,
                rule=result.rule,
                reason=result.reason,
            )
            for result in results
        )
        print_json(documents[0] if alone else ReplayedMessages(replayed=documents))
    elif alone:
        say(_line(results[0], dry_run=dry_run))
    else:
        done = sum(result.done for result in results)
        skipped = sum(result.how == "skipped" for result in results)
        would = len(results) - refused - skipped
        first = f"{counted(would, 'message')} would be replayed" if dry_run else f"{done} replayed"
        say(f"{first}, {skipped} skipped, {refused} refused", err=True)
    if refused:
        click.get_current_context().exit(Exit.REFUSED)


def _chosen(
    reader: AuditReader, settings: Settings, identifier: str | None, conditions: dict[str, Any], limit: int
) -> list[MessageRecord]:
    """Return the messages that are to be replayed, oldest first."""
    asked = {name: value for name, value in conditions.items() if value not in (None, False)}
    if (identifier is None) == (not asked):
        raise click.UsageError("give an id, or conditions as for `orchestra audit search`, and not both")
    if identifier is not None:
        records = messages_about(reader, identifier, settings)
        if len(records) > limit:
            raise Refused(
                f"{identifier} stands for {counted(len(records), 'message')}; raise --limit to replay all of them"
            )
        return records
    found: list[MessageRecord] = []
    while len(found) < limit:
        page = reader.search(
            **asked, limit=min(_PAGE, limit - len(found)), before=found[-1].seq if found else None
        )
        found += page
        if not page:
            break
    return sorted(found, key=lambda record: (record.published_ms, record.seq))


def _pause(rate: float) -> Callable[[], None]:
    """Waits so long after each message that no more than ``rate`` of them are sent in a second."""
    due = time.monotonic()

    def pause() -> None:
        nonlocal due
        if rate:
            due = max(due, time.monotonic() - 1) + 1 / rate
            time.sleep(max(0.0, due - time.monotonic()))

    return pause


def _line(result: Result, *, dry_run: bool) -> str:
    old = result.record.message_id or result.record.entry_id
    if result.how in ("refused", "skipped"):
        return f"{old} {result.how}: {result.reason}"
    what = "session" if result.how == "task" else "message"
    made = f"would be replayed as a new {what}" if dry_run else f"replayed as a new {what}"
    return f"{old} {made}: {result.id}"
