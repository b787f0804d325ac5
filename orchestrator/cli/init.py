"""`orchestra init`: a project that is ready to run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from orchestrator.cli.options import json_option
from orchestrator.cli.output import print_json, say

if TYPE_CHECKING:
    from orchestrator.deployment.project import Kind

#: As `orchestrator.deployment.project` has them, which is imported only when it is used.
_KINDS = ("python", "model", "command")
_QUESTION = "What are your agents: python functions, models (model), or command-line programs (command)?"


@click.command()
@click.argument(
    "folder", metavar="[DIR]", default=".", type=click.Path(file_okay=False, path_type=Path), required=False
)
@click.option(
    "--kind",
    type=click.Choice(_KINDS),
    help="What the agents are: Python functions, models, or command-line programs. Without it you are asked.",
)
@json_option
def init(*, folder: Path, kind: str | None, as_json: bool) -> None:
    """Write a project that is ready to run: agents, their test, settings, a compose file, secrets, a README.

    It is written into DIR, by default the folder you are in. No file is overwritten; a `.gitignore` that is there gets
    the lines that it lacks.
    """
    from orchestrator.deployment.project import KINDS, write_project

    chosen = cast("Kind", kind or _ask())
    names = write_project(folder, chosen)
    choice = KINDS[chosen]
    commands = (
        *([] if folder == Path() else [f"cd {shlex.quote(str(folder))}"]),
        f"pip install '{choice.package}' pytest",
        "orchestra up",
        f'orchestra submit lead "{choice.prompt}" --wait',
        "pytest",
    )
    if as_json:
        from orchestrator.cli.documents.stack import ProjectDocument

        print_json(
            ProjectDocument(folder=str(folder.absolute()), kind=chosen, files=tuple(names), next=commands)
        )
        return
    say(f"{folder.absolute()}: {', '.join(names)}")
    say(
        "Next, one command after the other (`orchestra up` in a terminal of its own):\n  "
        + "\n  ".join(commands),
        lines=True,
    )


def _ask() -> str:
    """Return the kind that the user chooses.

    Raises:
        click.UsageError: there is nobody to ask.
    """
    try:
        answer: str = click.prompt(_QUESTION, type=click.Choice(_KINDS), default="python", err=True)
    except click.Abort:
        raise click.UsageError("nobody answers; give --kind python, --kind model or --kind command") from None
    return answer
