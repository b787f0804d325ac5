"""A sandbox of bubblewrap: read-only system, one folder to write in, no network, and nothing else of the host.

There is no fallback: where no sandbox can be made the agent does not start.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

from orchestrator.agents.definition import AgentDefinition
from orchestrator.agents.options.command import PLAIN_ENVIRONMENT, CommandOptions, SandboxOptions
from orchestrator.client.current import SOCKET_VARIABLE
from orchestrator.config.settings import CONFIG_FILE, Settings, config_file, is_agents_file
from orchestrator.errors import AgentProgramError
from orchestrator.worker.context.context import Context
from orchestrator.worker.executors.command.process import AgentProcess
from orchestrator.worker.git import scratch_folder
from orchestrator.worker.worktrees import Worktree, Worktrees

#: The system's programs and libraries, as far as they are there.
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store")
#: What programs read of the system's settings: names, certificates, libraries, the time zone. No keys, no passwords.
_SETTINGS: Final = (
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ca-certificates.conf",
    "/etc/crypto-policies",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/pki/tls/certs",
    "/etc/pki/ca-trust/extracted",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/timezone",
)

#: How each path gets into a sandbox.
_Mounts: TypeAlias = dict[Path, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """Paths that no sandboxed agent may see or change, whatever folders it is given."""

    data: Path  #: the data folder: what the sandbox is given may hold it, and not lie in it
    hidden: tuple[Path, ...]
    kept: tuple[Path, ...]

    @classmethod
    def of(cls, settings: Settings) -> Guarded:
        """The stack's keys and data; its settings and agents, and whatever else this worker's programs come from."""
        settings_file = config_file() or Path(CONFIG_FILE).absolute()
        files = (name for name in settings.agents if is_agents_file(name))
        loaded = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        modules = {Path(file).parent for file in loaded if file}
        names: tuple[str | Path, ...] = (*files, *modules, *sys.path, *os.get_exec_path(), sys.prefix)
        kept = {Path(name).absolute() for name in names if name != ""}
        kept |= {settings_file, settings.data} | ({settings.prompts} if settings.prompts else set())
        audit = settings.audit_file
        files_of_audit = (audit.with_name(audit.name + suffix) for suffix in ("", "-wal", "-shm"))
        data = settings.data.resolve()
        hidden = [path.resolve() for path in (*files_of_audit, settings.notify_secret_path) if path.exists()]
        return cls(
            data=data,
            hidden=(data, *(path for path in hidden if not path.is_relative_to(data))),
            # What is a link could be replaced by a file.
            kept=tuple(
                {path.resolve() for path in kept}
                | {path.parent.resolve() for path in kept if path.is_symlink()}
            ),
        )


def _keep(mounts: _Mounts, above: Path, kept: Iterable[Path]) -> None:
    """Make each of these read-only where it is below ``above``."""
    for real in sorted(kept, key=lambda path: len(path.parts)):
        for path in _below(above, real):
            if real.name == CONFIG_FILE and not real.exists():
                # Every command in this folder would read it. An empty one is made, so that no agent makes one.
                with suppress(OSError), real.open("x") as file:
                    file.write("# Made by a sandbox, so that no agent writes settings here. Write yours.\n")
            if real.exists() and _hold(mounts, above, path):
                mounts[path] = ("--ro-bind", str(path), str(path))


def _hide(mounts: _Mounts, above: Path, hidden: Iterable[Path]) -> None:
    """Put something empty in the place of each of these where it is below ``above``."""
    for real in hidden:
        for path in _below(above, real):
            _hold(mounts, above, path)
            mounts[path] = ("--tmpfs", str(path)) if real.is_dir() else ("--ro-bind", "/dev/null", str(path))


def _below(above: Path, real: Path) -> list[Path]:
    """Return the path in the sandbox of ``real`` if it is at ``above`` or below it; else nothing."""
    root = above.resolve()
    return [above / real.relative_to(root)] if real.is_relative_to(root) else []


def _hold(mounts: _Mounts, above: Path, path: Path) -> bool:
    """See to it that nothing above the path can be renamed, so that something else is put there; False: it is read-only."""
    folders = [folder for folder in path.parents if folder == above or above in folder.parents]
    if any(mounts.get(folder, ("--bind",))[0] != "--bind" for folder in folders) or above not in mounts:
        return False
    for folder in folders:  # nobody can rename what something is mounted on
        mounts.setdefault(folder, ("--bind", str(folder), str(folder)))
    return True


def _check_data(paths: Sequence[Path], data: Path, name: str) -> None:
    for path in paths:
        if path.resolve().is_relative_to(data):
            raise AgentProgramError(
                name, f"its sandbox names {path}, in the data folder of the stack, which no agent may see"
            )


def _check_paths(paths: Sequence[Path], name: str) -> None:
    for path in paths:
        if not path.exists():
            raise AgentProgramError(name, f"its sandbox names {path}, which is not there")


def _check_program(program: Path, shown: Sequence[Path]) -> None:
    for path in {program, program.resolve()}:
        inside = [*map(Path, _SYSTEM), *shown]
        if not any(root == path or root in path.parents for root in inside):
            raise AgentProgramError(
                str(program), f"{path} is outside of its sandbox; add its folder to sandbox.read"
            )


def _program() -> str:
    return shutil.which("bwrap") or ""


@cache
def _why_not(program: str) -> str:
    """Return why no sandbox can be made on this machine; empty if one can."""
    if not program:
        return "the program bwrap (bubblewrap) is not installed"
    trial = [program, "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    done = subprocess.run(trial, capture_output=True, check=False, timeout=30)
    return done.stderr.decode(errors="replace").strip() or "bwrap failed" if done.returncode else ""


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
        return self._sandboxed([str(Path(program).absolute()), *command[1:]], self.options.sandbox)

    def _sandboxed(self, command: Sequence[str], options: SandboxOptions) -> list[str]:
        """The command line that runs ``command``, a program by its absolute path and its arguments, in a sandbox.

        It may change its folder and read that of the run; its home is empty inside, but for what the options name.

        Raises:
            AgentProgramError: bubblewrap is missing, or cannot make a sandbox here; or the program is not in it; or it
                would be given what is in the data folder.
        """
        guarded, home = Guarded.of(self.settings), self.env.get("HOME", "")
        # What it may read and not change, also below its folder.
        read_only = [Path(self.env[SOCKET_VARIABLE]).parent]
        worktree = None
        if self.worktree is not None:
            worktree = self.worktree.path
            read_only = [worktree / ".git", self.worktree.repository, *read_only]
        program = _program()
        why = _why_not(program)
        if why:
            raise AgentProgramError(
                command[0],
                f"its sandbox cannot be had here: {why}; it does not run without, unless sandbox = false",
            )
        line = [program, "--unshare-all", "--die-with-parent", "--hostname", "sandbox"]
        if options.network:
            line.append("--share-net")
        line += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/run"]  # noqa: S108  (inside it)
        system = [path for path in map(Path, _SYSTEM) if path.is_dir()]
        for path in system:
            if path.is_symlink():
                line += ["--symlink", str(path.readlink()), str(path)]
            else:
                line += ["--ro-bind", str(path), str(path)]
        for name in _SETTINGS:
            line += ["--ro-bind-try", name, name]
        if Path(home) not in (Path(), Path("/")):  # the root of a sandbox is empty anyway
            line += ["--tmpfs", home]
        given = (*options.read, *options.write, self.folder)
        _check_paths((self.scratch, *given), command[0])
        _check_program(Path(command[0]), (self.scratch, *given))
        _check_data([path for path in given if path != worktree], guarded.data, command[0])
        mounts: _Mounts = {path: ("--ro-bind", str(path), str(path)) for path in (*options.read, *read_only)}
        mounts |= {path: ("--bind", str(path), str(path)) for path in (*options.write, self.folder)}
        for path in (*options.write, self.folder):
            kept = (*guarded.kept, *(one.resolve() for one in (*read_only, path / ".git")))
            _keep(mounts, path, [one for one in kept if one not in options.write])
        for path in (*given, *system):
            _hide(mounts, path, guarded.hidden)
        mounts[self.scratch] = ("--ro-bind", str(self.scratch), str(self.scratch))
        for path in sorted(mounts, key=lambda path: len(path.parts)):
            line += mounts[path]
        # What was made for the mounts, or stands in the place of what is hidden, is no place to write either.
        for path in (Path("/"), *(path for path, mount in mounts.items() if mount[0] == "--tmpfs")):
            line += ["--remount-ro", str(path)]
        return [*line, "--chdir", str(self.folder), "--", *command]


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
