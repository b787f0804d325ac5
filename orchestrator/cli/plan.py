"""`orchestra session plan`: has the assignments of a file carried out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.exit_codes import Refused
from orchestrator.cli.options import json_option, stack_options, text_of, wait_options
from orchestrator.cli.output import print_json, say
from orchestrator.cli.stack import open_client
from orchestrator.cli.submit import print_submitted, retry_for_s

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings
    from orchestrator.policy.plan import Plan


@click.command()
@click.argument("file", metavar="FILE")
@click.option(
    "--agent",
    default="",
    metavar="NAME",
    help="The agent that carries the plan out. Default: the only caller that it names.",
)
@click.option("--dry-run", is_flag=True, help="Print the waves and start nothing; needs no stack.")
@wait_options("Wait for the final answer and print it.")
@click.option("--key", help="Idempotency key: the same key is the same session.")
@click.option("--title", default="", help="What to call the session. Default: the number of assignments.")
@json_option
@stack_options
def plan(
    settings: Settings,
    *,
    file: str,
    dry_run: bool,
    wait: bool,
    timeout_s: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Carry out the plan in FILE (- reads standard input): a JSON array of assignments.

    An assignment has role (an agent), task, sequence (default 1) and caller (default: nobody gets its callbacks).
    Assignments of one sequence run in parallel; the next sequence waits for all of them. The plan is carried out by a
    session of the agent, and its id is printed.

    With --wait: print the final answer and exit with 0, or print the failure and exit with 1.
    """
    from orchestrator.cli.documents.sessions import PlanDocument
    from orchestrator.policy.plan import parse_plan

    text = _read(file)
    read = parse_plan(text)
    if dry_run:
        print_json(PlanDocument.of(read)) if as_json else _say_waves(read)
        return
    if not read.assignments:
        say("the plan is empty: there is nothing to do", err=True)
        sys.exit(0)
    with open_client(settings) as client:
        submitted = client.submit_plan(text, retry_for_s=retry_for_s(wait=wait), **options)
        print_submitted(client, submitted, wait=wait, timeout_s=timeout_s, as_json=as_json)


def _read(file: str) -> str:
    if file == "-":
        return text_of(file)
    try:
        return Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Refused(f"{file} is not text in UTF-8 (byte {error.start}); convert it") from error


def _say_waves(plan: Plan) -> None:
    from orchestrator.display.text import counted

    for number, wave in enumerate(plan.waves, 1):
        say(f"wave {number} (sequence {wave.sequence}): {counted(len(wave.assignments), 'assignment')}")
        width = max(len(assignment.role) for assignment in wave.assignments)
        for assignment in wave.assignments:
            to = f"  (callbacks to {assignment.caller})" if assignment.caller else ""
            say(f"  {assignment.role:<{width}}  {' '.join(assignment.task.split())}{to}")
    if not plan.waves:
        say("no waves: the plan is empty")
