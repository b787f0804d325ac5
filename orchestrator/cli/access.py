"""`orchestra url`, `acl` and `token`: what programs need that reach the stack by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from orchestrator.cli.names import agent_argument
from orchestrator.cli.options import json_option, stack_options, text_of
from orchestrator.cli.output import print_answer, say, write_raw
from orchestrator.cli.stack import open_client

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings


@click.command()
@click.option("--show-password", is_flag=True, help="Print passwords as they are instead of ***.")
@json_option
@stack_options
def url(settings: Settings, *, show_password: bool, as_json: bool) -> None:
    """Print the Redis URL of the stack, without its password; with --json also that of Celery's broker."""
    from orchestrator.cli.documents.stack import Address
    from orchestrator.config.stack import resolve, resolve_redis_url
    from orchestrator.config.urls import redact_url

    redis_url = resolve_redis_url(settings)
    broker_url = resolve(settings).broker_url or redis_url
    if not show_password:
        redis_url, broker_url = redact_url(redis_url), redact_url(broker_url)
    print_answer(Address(redis_url=redis_url, broker_url=broker_url), redis_url, as_json=as_json)


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
    """The number of the database that Celery uses, as far as the settings name it."""
    number = urlsplit(settings.broker_url or settings.redis_url or "").path.strip("/")
    return int(number) if number.isdecimal() else 0


@click.command()
@agent_argument()
@click.argument("prompt")
@click.option("--title", default="", help="What to call the session; the message must say the same.")
@click.option("--task-id", metavar="ID", help="The Celery task id of the message. Default: a new one.")
@click.option(
    "--expires",
    type=click.FloatRange(min=1),
    default=3600.0,
    show_default=True,
    metavar="S",
    help="Seconds within which the message must reach a worker.",
)
@stack_options
def token(
    *, settings: Settings, agent: str, prompt: str, title: str, task_id: str | None, expires: float
) -> None:
    """Print a task id and a token with which a Celery message may give AGENT this PROMPT (- reads it).

    Where `submissions` is "token" a plain `send_task` needs it:
    send_task("orchestrator.start_session", kwargs={"agent": …, "prompt": …, "token": TOKEN}, task_id=TASK_ID)
    """
    with open_client(settings) as client:
        made = client.token(agent, text_of(prompt), title=title, task_id=task_id, lifetime_s=expires)
    write_raw(f"{made.task_id} {made.text}".encode())
