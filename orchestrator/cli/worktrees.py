"""``orchestra session worktrees``: the git worktrees of this host's sessions, and why they are kept; remove some."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from orchestrator.cli.exit_codes import Refused
from orchestrator.cli.names import session_argument
from orchestrator.cli.options import SubCommands, json_option, stack_options
from orchestrator.cli.output import print_answer, print_json, say
from orchestrator.cli.stack import open_stack

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings
    from orchestrator.worker.announce import Janitor
    from orchestrator.worker.worktrees import Worktree, Worktrees


@click.group("worktrees", cls=SubCommands, invoke_without_command=True)
@json_option
@stack_options
@click.pass_context
def worktrees(context: click.Context, *, settings: Settings, as_json: bool) -> None:
    """List the worktrees of this data folder, and why each is kept."""
    if context.invoked_subcommand is not None:
        return
    with _open(settings) as (folder, janitor):
        found = [(one, _changed(folder, one), janitor.why_kept(one)) for one in folder.all()]
    if as_json:
        from orchestrator.cli.documents.stack import WorktreeDocument, WorktreeList

        documents = [
            WorktreeDocument.of(one, changed_files=changed, kept_because=kept) for one, changed, kept in found
        ]
        print_json(WorktreeList(worktrees=tuple(documents)))
        return
    for one, changed, kept in found:
        files = "?" if changed is None else changed
        say(f"{one.session}  {one.agent}, {files} changed, {one.branch}: {kept or 'it may go'}  {one.path}")
    if not found:
        say("no session has a worktree here", err=True)


def _changed(folder: Worktrees, worktree: Worktree) -> int | None:
    from orchestrator.errors import WorktreeError

    try:
        return folder.changed_files(worktree)
    except WorktreeError:
        return None


@worktrees.command("remove")
@session_argument()
@click.option("--branch", "with_branch", is_flag=True, help="Remove the branch, too, with everything on it.")
@json_option
@stack_options
def remove(*, settings: Settings, as_json: bool, session: str, with_branch: bool) -> None:
    """Remove the worktree of SESSION; what it has not committed is committed to its branch first."""
    from orchestrator.cli.documents.stack import RemovedWorktree

    with _open(settings) as (folder, janitor):
        worktree = folder.find(session)
        if worktree is None:
            raise Refused(
                f"session {session!r} has no worktree here; `orchestra session worktrees` lists those that are"
            )
        if not folder.remove(worktree, with_branch=with_branch, unless=janitor.is_at_work):
            raise Refused(
                f"session {session} is at work in its worktree; stop it first: orchestra stop {session}"
            )
    print_answer(
        RemovedWorktree(session=session, branch="" if with_branch else worktree.branch),
        f"removed; {'its branch, too' if with_branch else f'everything is on the branch {worktree.branch}'}",
        as_json=as_json,
    )


@contextmanager
def _open(settings: Settings) -> Iterator[tuple[Worktrees, Janitor]]:
    from orchestrator.worker.announce import Janitor
    from orchestrator.worker.worktrees import Worktrees

    folder = Worktrees(settings.data)
    with open_stack(settings, "worktrees") as parts:
        yield folder, Janitor(parts.ledger, folder)
