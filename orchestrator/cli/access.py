"""`orchestra service acl`: what a part of the stack may do on its Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from orchestrator.cli.options import stack_options
from orchestrator.cli.output import say

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings


@click.command("acl")
@click.argument("user", metavar="ROLE|AGENT")
@click.option(
    "--queue",
    "queues",
    metavar="NAME",
    multiple=True,
    default=("orchestra",),
    show_default=True,
    help="A Celery queue of the stack's agents; may be repeated.",
)
@click.option(
    "--program", is_flag=True, help="It is an external program, even if its name is that of a role."
)
@click.option("--file", "as_file", is_flag=True, help="Print a line for an `aclfile` instead of a command.")
@stack_options
def acl(*, settings: Settings, user: str, queues: tuple[str, ...], program: bool, as_file: bool) -> None:
    """Print the command that makes a Redis user with the least that a ROLE or an external program needs.

    Roles are router, callbacks, reaper, worker, audit, notifier, flower, operator and console (reads only). Any other name is
    that of an external program. Replace PASSWORD with a password. Needs no server.
    """
    from orchestrator.agents.definition import check_name
    from orchestrator.redisdb.acl import KEYS, acl_line, program_rules, role_rules

    check_name(user)
    if user in KEYS and not program:
        rules = role_rules(user, queues=queues, database=_database(settings))
    else:
        rules = program_rules(user, shards=settings.shards)
    line = acl_line(user, rules)
    say(line if as_file else line.replace("user ", "ACL SETUSER ", 1).replace(" on ", " reset on ", 1))


def _database(settings: Settings) -> int:
    """Return the number of the database that Celery uses, as far as the settings name it."""
    number = urlsplit(settings.broker_url or settings.redis_url or "").path.strip("/")
    return int(number) if number.isdecimal() else 0
