"""The place of a command-line agent: its folder or worktree, its environment, its sandbox."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.agents.definition import AgentDefinition
from orchestrator.agents.options.command import PLAIN_ENVIRONMENT, CommandOptions
from orchestrator.client.current import SOCKET_VARIABLE
from orchestrator.config.settings import Settings
from orchestrator.errors import AgentProgramError
from orchestrator.worker.context.context import Context
from orchestrator.worker.executors.command.process import AgentProcess
from orchestrator.worker.executors.command.sandbox import Guarded, sandboxed
from orchestrator.worker.scratch import scratch_folder
from orchestrator.worker.worktrees import Worktree, Worktrees


@dataclass(frozen=True, kw_only=True)
class Place:
    """Folders, environment and options of one run of an agent."""

    folder: Path  #: where the program runs
    scratch: Path  #: an empty folder that goes with the run
    env: Mapping[str, str]
    options: CommandOptions
    settings: Settings
    worktree: Worktree | None

    def start(self, command: list[str]) -> AgentProcess:
        """Start the command, in its sandbox if the agent has one.

        Raises:
            AgentProgramError: there is no such program, no sandbox can be made, or the guard cannot be started.
        """
        return AgentProcess(
            self._wrap(command),
            env=self.env,
            folder=self.folder,
            stop_grace_s=self.options.stop_grace_s,
        )

    def _wrap(self, command: list[str]) -> list[str]:
        program = shutil.which(command[0], path=self.env.get("PATH"))
        if program is None:
            raise AgentProgramError(
                command[0],
                "there is no such program on the PATH of this worker; install it, or correct the agent's command",
            )
        if self.options.sandbox is None:
            return command
        shared = [self.worktree.path / ".git", self.worktree.repository] if self.worktree is not None else []
        return sandboxed(
            [str(Path(program).absolute()), *command[1:]],
            self.options.sandbox,
            folder=self.folder,
            scratch=self.scratch,
            home=self.env.get("HOME", ""),
            guarded=Guarded.of(self.settings),
            worktree=self.worktree.path if self.worktree is not None else None,
            read_only=[*shared, Path(self.env[SOCKET_VARIABLE]).parent],
        )


@contextmanager
def place_of(definition: AgentDefinition, context: Context, worktrees: Worktrees) -> Iterator[Place]:
    """The place of one run.

    Raises:
        AgentProgramError: the folder is not there, or no worktree can be made.
    """
    options = definition.options
    assert isinstance(options, CommandOptions)
    folder = options.folder or Path.cwd()
    worktree = None
    if options.worktree is not None:
        worktree = worktrees.take(
            context.session,
            agent=context.agent,
            repository=options.worktree.repository or folder,
            base=options.worktree.base,
            keep=options.worktree.keep,
        )
        folder = worktree.path
    if not folder.is_dir():
        raise AgentProgramError(options.command[0], f"its folder {folder} is not there")
    with scratch_folder(context.settings.data / "scratch", "run-") as scratch:
        yield Place(
            folder=folder,
            scratch=scratch,
            env=environment(options, context),
            options=options,
            settings=context.settings,
            worktree=worktree,
        )


def environment(options: CommandOptions, context: Context) -> dict[str, str]:
    """The environment of a program: what is plain, what the agent's list allows, and the run that it works for.

    With it the program and its shell take part in the run: `orchestra program raise`, `delegate`, `ask`, `mcp`.
    """
    allowed = (*PLAIN_ENVIRONMENT, *options.env)
    inherited = {name: os.environ[name] for name in allowed if name in os.environ}
    return {
        **inherited,
        "TERM": "dumb",
        "NO_COLOR": "1",
        **options.set_env,
        "ORCHESTRA_AGENT": context.agent,
        "ORCHESTRA_SESSION": context.session,
        "ORCHESTRA_RUN": context.run,
        **context.environment(),
        # Inside a sandbox the host's folder for temporary files is not there.
        **({"TMPDIR": "/tmp"} if options.sandbox is not None else {}),  # noqa: S108
    }
