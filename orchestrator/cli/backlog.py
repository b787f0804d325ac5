"""``orchestra audit backlog``: how far the audit trail is behind, for people, programs and Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from orchestrator.cli.options import json_option, stack_options
from orchestrator.cli.output import print_json, say
from orchestrator.cli.stack import open_stack
from orchestrator.display.figures import span
from orchestrator.display.text import counted

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings

_METRICS: Final = """\
# HELP orchestra_audit_backlog_entries Published entries that are not in the audit trail yet.
# TYPE orchestra_audit_backlog_entries gauge
orchestra_audit_backlog_entries{{kind="messages"}} {messages}
orchestra_audit_backlog_entries{{kind="steps"}} {steps}
orchestra_audit_backlog_entries{{kind="dead_letters"}} {dead_letters}
# HELP orchestra_audit_backlog_oldest_seconds Age of the oldest of them; 0: there are none.
# TYPE orchestra_audit_backlog_oldest_seconds gauge
orchestra_audit_backlog_oldest_seconds {seconds}"""


@click.command("backlog")
@click.option("--prometheus", is_flag=True, help="Print metrics in the text format of Prometheus.")
@click.option(
    "--max-age",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Exit code 1 if the oldest entry is older than that.",
)
@json_option
@stack_options
def backlog(*, settings: Settings, prometheus: bool, max_age: float | None, as_json: bool) -> None:
    """Say how many published entries are not in the audit trail yet, and how old the oldest is.

    Only Redis is asked, so the answer comes while the audit database is away.
    """
    from orchestrator.audit.backlog import backlog as measure
    from orchestrator.cli.documents.audit import AuditBacklog

    with open_stack(settings, "audit-backlog") as parts:
        found = measure(parts.redis, settings.shards)
    if as_json:
        print_json(AuditBacklog.of(found))
    elif prometheus:
        say(_METRICS.format(**vars(found), seconds=found.oldest_ms / 1000), lines=True)
    elif not found.entries:
        say("everything published is in the audit trail")
    else:
        number = counted(found.entries, "entry is", "entries are")
        say(f"{number} not in the audit trail yet, the oldest for {span(found.oldest_ms)}")
        kinds = (
            counted(found.messages, "message"),
            counted(found.steps, "step of the ledger", "steps of the ledger"),
        )
        say(f"{kinds[0]}, {kinds[1]}, {counted(found.dead_letters, 'dead letter')}")
    if max_age is not None and found.oldest_ms > max_age * 1000:
        click.get_current_context().exit(1)
