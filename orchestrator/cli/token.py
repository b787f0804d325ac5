"""`orchestra token`: lets a program that only speaks Celery begin one session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from orchestrator.cli.names import agent_argument
from orchestrator.cli.options import stack_options, text_of
from orchestrator.cli.output import write_raw
from orchestrator.cli.stack import open_client

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings


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
