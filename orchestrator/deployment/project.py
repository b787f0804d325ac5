"""A new project of a user: agents, their test, settings, containers and secrets, written from templates."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final, Literal

from orchestrator.errors import InputError

Kind = Literal["python", "model", "command"]

_SUFFIX: Final = ".tmpl"
#: Templates whose name would mean something to git or to a build where they are kept.
_HIDDEN: Final = {"gitignore": ".gitignore", "env": ".env"}
_KEY_LINES: Final = (
    "# With a key the model agents ask a real model; without one a script answers.\n#ANTHROPIC_API_KEY=\n"
)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Contents of one kind of project."""

    #: What is installed.
    package: str
    #: The file that holds the agents.
    agents: str
    #: A prompt for the agent `lead`.
    prompt: str
    #: The files that are this kind's own, and what each is.
    files: Mapping[str, str]
    #: The last paragraph of the README.
    more: str = ""


KINDS: Final[Mapping[Kind, Choice]] = {
    "python": Choice(
        package="agent-orchestra",
        agents="my_agents.py",
        prompt="The fox runs. The dog sleeps. Nobody minds.",
        files={"my_agents.py": "the agents: functions of a context"},
    ),
    "model": Choice(
        package="agent-orchestra[anthropic]",
        agents="my_agents.py",
        prompt="What is a lease?",
        files={
            "my_agents.py": "the agents: models with instructions and tools",
            "my_script.py": "what answers in place of a model while there is no key",
        },
        more="\nFor a real model set one variable before `orchestra up`: `export ANTHROPIC_API_KEY=…`.\n",
    ),
    "command": Choice(
        package="agent-orchestra",
        agents="my_agents.toml",
        prompt="Greet the customer.",
        files={
            "my_agents.toml": "the agents: a lead, and a command-line program",
            "my_lead.py": "the function of the lead",
            "writer.py": "a stand-in for a command-line program",
        },
        more="\nFor a real program delete the line `command` of `my_agents.toml` and name a `preset`.\n",
    ),
}


def contents(kind: Kind) -> dict[str, str]:
    """Return the files of a new project, each with its text; the password in `.env` is new each time."""
    chosen = KINDS[kind]
    values = {
        "agents": chosen.agents,
        "package": chosen.package,
        "prompt": chosen.prompt,
        "password": secrets.token_hex(24),
        "key": _KEY_LINES if kind == "model" else "",
        "files": "\n".join(f"| `{name}` | {what} |" for name, what in chosen.files.items()),
        "more": chosen.more,
    }
    templates = files("orchestrator.deployment") / "templates"
    found: dict[str, str] = {}
    for folder in ("common", kind):
        for template in (templates / folder).iterdir():
            if not template.name.endswith(_SUFFIX):
                continue
            text = template.read_text(encoding="utf-8")
            for name, value in values.items():
                text = text.replace(f"[[{name}]]", value)
            name = template.name.removesuffix(_SUFFIX)
            found[_HIDDEN.get(name, name)] = text.rstrip("\n") + "\n"
    return found


def write_project(folder: Path, kind: Kind) -> list[str]:
    """Write a new project, and return the names of its files. `.gitignore` gets lines that it lacks; no other file is touched.

    Raises:
        InputError: some of the files exist already; nothing is written.
        OSError: a file cannot be written; what this call has written is removed.
    """
    project = contents(kind)
    ignored = project.pop(".gitignore")
    there = sorted(name for name in project if os.path.lexists(folder / name))
    if there:
        raise InputError(
            f"{folder} has {', '.join(there)} already, and no file is overwritten; "
            "give another folder: orchestra init DIR"
        )
    folder.mkdir(parents=True, exist_ok=True)
    # First, so that the secrets are at no time in a folder where git would take them.
    _ignore(folder / ".gitignore", ignored)
    written: list[Path] = []
    try:
        for name, text in project.items():
            path = folder / name
            mode = 0o600 if name == ".env" else 0o666
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            written.append(path)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
    except FileExistsError as error:
        _remove(written)
        raise InputError(f"{error.filename} came into being meanwhile, and no file is overwritten") from error
    except BaseException:
        _remove(written)
        raise
    return sorted([*project, ".gitignore"])


def _ignore(path: Path, wanted: str) -> None:
    """Have git ignore what is wanted: add the lines that a file lacks."""
    # Whatever the encoding of the names in it: they are compared, and stay as they are.
    before = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    lines = {line.strip() for line in before.splitlines()}
    missing = [line for line in wanted.splitlines() if line not in lines]
    if missing:
        gap = "\n" if before and not before.endswith("\n") else ""
        with path.open("a", encoding="utf-8") as file:
            file.write(gap + "\n".join(missing) + "\n")


def _remove(paths: list[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink()
