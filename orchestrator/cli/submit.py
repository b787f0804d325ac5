"""`orchestra submit`, `orchestra plan` and `orchestra result`: work in, answers out."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from orchestrator.cli.exit_codes import Exit, NotYet, Refused
from orchestrator.cli.names import agent_argument, session_argument
from orchestrator.cli.options import VerbCommand, given, json_option, stack_options, text_of, wait_options
from orchestrator.cli.output import print_json, say, write_raw
from orchestrator.cli.stack import open_client
from orchestrator.errors import SessionFailed

if TYPE_CHECKING:
    from orchestrator.client.client import Client, SessionHandle
    from orchestrator.config.settings import Settings
    from orchestrator.policy.plan import Plan


@click.command(cls=VerbCommand, verb="submit", but=("prompt", "task", "at", "retry_for_s"))
@agent_argument()
@click.argument("prompt", default="")
@click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A task in .xml, .json or .toml, with objectives, criteria and context.",
)
@wait_options("Wait for the final answer and print it.")
@click.option(
    "--at",
    metavar="WHEN",
    help="Begin then, ISO 8601, such as 2026-12-01T09:00 (local time) or 2026-12-01T09:00Z.",
)
@click.option("--in", "after", metavar="DURATION", help="Begin after this time, such as 90s, 2h30m or 1d.")
@json_option
@stack_options
def submit(
    settings: Settings,
    *,
    agent: str,
    prompt: str,
    wait: bool,
    path: Path | None,
    at: str | None,
    after: str | None,
    timeout_s: float | None,
    as_json: bool,
    **fields: Any,
) -> None:
    """Give AGENT a PROMPT (- reads it from standard input) or the task of a FILE; print the id of its session.

    With --wait: print the final answer and exit with 0, or print the failure and exit with 1. With --at or --in the
    session begins later; `orchestra sessions --state scheduled` lists it, `orchestra stop` cancels it.
    """
    from orchestrator.policy.moments import parse_duration, parse_moment

    if not prompt and path is None:
        raise click.UsageError("Missing argument 'PROMPT'; or name a file with --file")
    if at is not None and after is not None:
        raise click.UsageError("--at and --in both say when it begins: give one of them")
    when = parse_moment(at) if at is not None else parse_duration(after) if after is not None else None
    options: dict[str, Any] = {}
    if path is not None:
        from orchestrator.client.task_file import read_task_file

        options.update(read_task_file(path))
    options |= given(fields)
    with open_client(settings) as client:
        submitted = client.submit(
            agent, text_of(prompt), retry_for_s=retry_for_s(wait=wait), at=when, **options
        )
        key = options.get("key")
        if key is not None and not submitted.new:
            say(f"key {key!r} was used before, by the same submit: this is its session", err=True)
        if not client.serves(agent):
            say(
                f"Warning: no living worker serves {agent!r}: the session waits until one does, "
                "for example: orchestra up --agents my_agents.py",
                err=True,
            )
        print_submitted(client, submitted, wait=wait, timeout_s=timeout_s, as_json=as_json)


def retry_for_s(*, wait: bool) -> float:
    """Return the seconds of a Redis outage that a submit outlasts: a user who does not wait learns of it at once."""
    from orchestrator.redisdb.client import RETRY_FOR_S

    return RETRY_FOR_S if wait else 0


def print_submitted(
    client: Client, submitted: SessionHandle, *, wait: bool, timeout_s: float | None, as_json: bool
) -> None:
    """Print the id of a session that was submitted; with ``wait`` its final answer, as :func:`wait_and_print`."""
    session = submitted.id
    if wait:
        wait_and_print(client, session, timeout_s=timeout_s, as_json=as_json)
    elif as_json:  # the agent of an old key is asked for
        from orchestrator.cli.documents.sessions import Submitted

        print_json(Submitted(session=session, agent=submitted.session().agent, new=submitted.new))
    else:
        say(session)


@click.command()
@session_argument()
@wait_options("Wait for the final answer.")
@click.option(
    "--attachment", metavar="NAME", default="", help="Print what it attached under this name instead."
)
@json_option
@stack_options
def result(
    settings: Settings, *, session: str, wait: bool, attachment: str, timeout_s: float | None, as_json: bool
) -> None:
    """Print the final answer of SESSION; exit with 1 if it failed, with 3 if it has none yet.

    A program that an agent started reads the answers of that agent's children, as long as its run goes on.
    """
    from orchestrator.client.current import TOKEN_VARIABLE, RemoteSession
    from orchestrator.client.waiting import is_over

    if TOKEN_VARIABLE in os.environ and not wait:
        try:
            text = RemoteSession.from_environment().read_result(session, attachment)
        except SessionFailed as error:
            _fail(session, error.state, error, str(error.args[1]), as_json=as_json)
        _print_answer(session, text, as_json=as_json)
        return
    with open_client(settings) as client:
        if attachment:
            if wait:
                _wait(client, session, timeout_s=timeout_s, as_json=as_json)
            attached = client.attachment(session, attachment)
            if attached is None:
                raise Refused(f"session {session} has attached nothing under {attachment!r}")
            _print_answer(session, attached, as_json=as_json)
        elif wait or is_over(about := client.session(session)):
            wait_and_print(client, session, timeout_s=timeout_s, as_json=as_json)
        else:
            not_yet = NotYet(f"session {session} is {about.state}; wait for its answer with --wait")
            _fail(session, about.state, not_yet, as_json=as_json)


def wait_and_print(
    client: Client, session: str, *, timeout_s: float | None, as_json: bool, item: str = ""
) -> None:
    """Print the final answer of a session, or its failure and exit with 1; on a terminal, show how far its tree is."""
    answer = _wait(client, session, timeout_s=timeout_s, as_json=as_json, item=item)
    _print_answer(session, answer, as_json=as_json, incomplete=client.incomplete(session))


def _wait(client: Client, session: str, *, timeout_s: float | None, as_json: bool, item: str = "") -> str:
    from orchestrator.cli.render import tree_progress

    try:
        answering = client.answering(session, timeout_s=timeout_s, item=item)
        with tree_progress(client, session) as look:
            while (answer := client.step(answering)) is None:
                look()
    except SessionFailed as error:
        _fail(session, error.state, error, str(error.args[1]), as_json=as_json)
    except TimeoutError as error:
        not_yet = NotYet(f"{error}; the session continues: orchestra result {session} --wait")
        _fail(session, client.session(session).state, not_yet, str(error), as_json=as_json)
    except KeyboardInterrupt:
        say(f"Stopped waiting; the session continues: orchestra result {session} --wait", err=True)
        sys.exit(Exit.INTERRUPTED)
    return answer


def _print_answer(session: str, answer: str, *, as_json: bool, incomplete: str = "") -> None:
    if as_json:
        from orchestrator.cli.documents.sessions import Answer

        print_json(Answer(session=session, state="finished", result=answer, incomplete=incomplete or None))
        return
    write_raw(answer)
    if incomplete:
        say(f"This is a part of an answer: {incomplete}", err=True)


def _fail(
    session: str, state: str, error: SessionFailed | NotYet, why: str | None = None, *, as_json: bool
) -> NoReturn:
    """Say why a session has no answer, and exit with 1; with 3 if it has none yet."""
    if as_json:
        from orchestrator.cli.documents.sessions import Answer

        print_json(Answer(session=session, state=state, error=why))
        sys.exit(Exit.NOT_YET if isinstance(error, NotYet) else Exit.NO)
    raise error


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
