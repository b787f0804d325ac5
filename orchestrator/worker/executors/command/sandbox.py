"""A sandbox of bubblewrap: read-only system, one folder to write in, no network, and nothing else of the host.

There is no fallback: where no sandbox can be made the agent does not start.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from orchestrator.agents.options.command import SandboxOptions
from orchestrator.errors import AgentProgramError

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


def sandboxed(
    command: Sequence[str],
    options: SandboxOptions,
    *,
    folder: Path,
    scratch: Path,
    home: str,
    read_only: Sequence[Path] = (),
) -> list[str]:
    """The command line that runs ``command`` in a sandbox.

    Args:
        command: the program, by its absolute path, and its arguments.
        options: what it may reach beside that.
        folder: its working folder, which it may change.
        scratch: the folder of this run, which it may read.
        home: its home folder: empty inside, but for what the options name.
        read_only: what it may read and not change, also below its folder.

    Raises:
        AgentProgramError: bubblewrap is missing, or cannot make a sandbox here; or the program is not in it.
    """
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
    for path in map(Path, _SYSTEM):
        if path.is_symlink():
            line += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            line += ["--ro-bind", str(path), str(path)]
    for name in _SETTINGS:
        line += ["--ro-bind-try", name, name]
    if Path(home) not in (Path(), Path("/")):  # the root of a sandbox is empty anyway
        line += ["--tmpfs", home]
    for path in (scratch, *options.read):
        line += ["--ro-bind", str(path), str(path)]
    for path in (*options.write, folder):
        line += ["--bind", str(path), str(path)]
    for path in read_only:
        line += ["--ro-bind", str(path), str(path)]
    # What was made for the mounts is no place to write either.
    line += ["--remount-ro", "/"]
    _check_paths((scratch, *options.read, *options.write, folder), command[0])
    _check_program(Path(command[0]), (scratch, *options.read, *options.write, folder))
    return [*line, "--chdir", str(folder), "--", *command]


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
    """Why no sandbox can be made on this machine; empty if one can."""
    if not program:
        return "the program bwrap (bubblewrap) is not installed"
    trial = [program, "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    done = subprocess.run(trial, capture_output=True, check=False, timeout=30)
    return done.stderr.decode(errors="replace").strip() or "bwrap failed" if done.returncode else ""
