"""A sandbox of bubblewrap: what is outside of it cannot be written, read or reached, and there is no fallback."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.runtime.process import is_alive
from orchestrator.worker.executors.command import sandbox as sandboxes
from orchestrator.worker.worktrees import Worktrees
from tests.crew import FAKE, ROOT, Crew
from tests.kit import Kit

from .test_command_worktrees import empty_repository


@pytest.fixture
def kit(kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kit:
    """A stack that was started in the folder in which its agent works, with everything of its own below it."""
    work = tmp_path / "work"
    (work / "conf").mkdir(parents=True)
    (work / "conf" / "agents.toml").write_text("# agents\n")
    (work / ".git").mkdir()
    (work / ".git" / "config").write_text("# git\n")
    (work / "helpers").mkdir()
    (work / "helpers" / "one.py").write_text("# Python\n")
    monkeypatch.chdir(work)
    monkeypatch.syspath_prepend(work / "helpers")
    return kit.beside(
        data=work / "deep" / ".orchestra",
        audit_path=work / "trail.sqlite",
        agents=(str(work / "conf" / "agents.toml"),),
    )


@pytest.fixture
def boxed(crew: Crew, program: Callable[[str], str], tmp_path: Path) -> Callable[..., Crew]:
    """The fake agent in a sandbox."""
    why = sandboxes._why_not(program("bwrap"))
    if why:
        pytest.skip(f"bubblewrap makes no sandbox here: {why}")
    work = tmp_path / "work"

    def make(folder: Path = work, **sandbox: Any) -> Crew:
        python = {Path(FAKE[0]).parent.parent, Path(FAKE[0]).resolve().parent.parent}
        read = (*python, ROOT / "examples", *sandbox.pop("read", ()))
        worktree, home = sandbox.pop("worktree", None), sandbox.pop("home", "/home/agent")
        crew.agent(
            folder=folder,
            worktree=worktree,
            sandbox={"read": read, **sandbox},
            set_env={"FAKE_AGENT_HOME": "/tmp/conversations", "HOME": home},
        )
        return crew

    return make


def test_it_works_in_its_folder(boxed: Callable[..., Crew], tmp_path: Path) -> None:
    assert "done" in boxed().ask("!write made.txt hello\n!say done")
    assert (tmp_path / "work" / "made.txt").read_text() == "hello\n"


def test_a_home_that_is_the_root_hides_nothing_of_the_system(boxed: Callable[..., Crew]) -> None:
    """As of a container's user without a home."""
    assert "done" in boxed(home="/").ask("!say done")


@pytest.mark.parametrize("given", ["its folder", "read", "write", "a link", "a folder above"])
def test_keys_and_data_of_the_stack_are_never_there(
    given: str, boxed: Callable[..., Crew], tmp_path: Path
) -> None:
    work, link, out = tmp_path / "work", tmp_path / "link", tmp_path / "out"
    link.symlink_to(work)
    out.mkdir()
    (work / "trail.sqlite").write_text("private words")
    ways: dict[str, tuple[Path, dict[str, Any]]] = {
        "its folder": (work, {}),
        "read": (work, {"folder": out, "read": (work,)}),
        "write": (work, {"folder": out, "write": (work,)}),
        "a link": (link, {"folder": link}),
        "a folder above": (work, {"folder": tmp_path}),
    }
    at, sandbox = ways[given]
    crew = boxed(**sandbox)
    (key,) = crew.kit.settings.keys_dir.glob("operator.pem")
    data = at / "deep" / ".orchestra"
    answer = crew.ask(
        f"!run ls -A {data}; cat {data}/keys/* {at}/trail.sqlite; echo x > {data}/x; mv {at}/deep {at}/other; echo seen"
    )
    assert "seen" in answer
    assert "PRIVATE" not in answer
    assert "private words" not in answer
    assert "No such file" in answer  # below an empty folder
    assert key.is_file()
    assert not (crew.kit.settings.data / "x").exists()
    assert not (work / "other").exists()


@pytest.mark.parametrize(
    "change",
    [
        "echo x >> conf/agents.toml",
        "rm -f conf/agents.toml; echo x > conf/agents.toml",
        "mv conf old; mkdir conf; echo x > conf/agents.toml",
        "echo x > orchestra.toml",
        "ln -s conf/agents.toml orchestra.toml",
        "echo x >> .git/config",
        "mv .git old; mkdir .git; echo x > .git/config",
        "echo x >> helpers/one.py",
        "echo x > helpers/another.py",
        "mv helpers old; mkdir helpers; echo x > helpers/one.py",
    ],
)
def test_settings_agents_and_what_programs_come_from_cannot_be_changed(
    change: str, boxed: Callable[..., Crew], tmp_path: Path
) -> None:
    crew, work = boxed(), tmp_path / "work"
    answer = crew.ask(f"!run ({change}) 2>&1; echo done; touch made")
    assert "done" in answer
    assert (work / "made").exists()
    contents = [work / name for name in ("conf/agents.toml", ".git/config", "helpers/one.py")]
    assert [file.read_text() for file in contents] == ["# agents\n", "# git\n", "# Python\n"]
    assert (work / "orchestra.toml").read_text().startswith("# Made by a sandbox")
    assert sorted(file.name for file in (work / "helpers").iterdir()) == ["one.py"]


def test_a_folder_that_python_imports_from_is_read_only_but_for_what_is_named(
    boxed: Callable[..., Crew], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    (work / "out").mkdir()
    monkeypatch.syspath_prepend(work)
    boxed(write=(work / "out",)).ask("!run echo x > planted.py; echo x > conf/agents.toml; echo x > out/made")
    assert (work / "out" / "made").is_file()
    assert not (work / "planted.py").exists()
    assert (work / "conf" / "agents.toml").read_text() == "# agents\n"


@pytest.mark.parametrize("option", ["read", "write", "folder"])
def test_nothing_in_the_data_folder_can_be_given(option: str, boxed: Callable[..., Crew]) -> None:
    crew = boxed()
    keys = crew.kit.settings.keys_dir
    answer = boxed(**{option: keys if option == "folder" else (keys,)}).ask("!say hi")
    assert "in the data folder of the stack, which no agent may see" in answer


@pytest.mark.parametrize("place", ["/usr/made.txt", "/etc/made.txt", "{outside}/made.txt"])
def test_a_write_outside_is_refused(boxed: Callable[..., Crew], tmp_path: Path, place: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    path = place.format(outside=outside)
    answer = boxed().ask(f"!run echo x > {path}")
    assert "[0]" not in answer
    assert not Path(path).exists()


def test_a_key_cannot_be_read_unless_it_is_listed(boxed: Callable[..., Crew], tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_text("private words")
    assert "private words" not in boxed().ask(f"!run cat {key}")
    assert "private words" not in boxed().ask(f"!run cat {tmp_path}/*.pem /etc/shadow")
    assert "private words" in boxed(read=(key,)).ask(f"!run cat {key}")


def test_the_systems_passwords_are_not_there(boxed: Callable[..., Crew]) -> None:
    answer = boxed().ask("!run cat /etc/shadow; ls /var")
    assert "root:x" not in answer
    assert "$" not in answer
    assert "No such file" in answer


@pytest.mark.parametrize("network", [False, True])
def test_a_connection_out_is_refused_unless_allowed(boxed: Callable[..., Crew], network: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = f'import socket; socket.create_connection((\\"127.0.0.1\\", {port}), 5); print(\\"thr\\" + \\"ough\\")'
        answer = boxed(network=network).ask(f'!run {shlex.quote(FAKE[0])} -c "{script}"')
    assert ("through" in answer) == network


def test_it_sees_no_other_process_and_leaves_none(boxed: Callable[..., Crew], tmp_path: Path) -> None:
    answer = boxed().ask("!run ls /proc | grep -c '^[0-9]'")
    assert int(answer.split(">")[1].split()[0]) < 8
    file = tmp_path / "work" / "daemon"
    assert "left" in boxed().ask(f"!fork {file}\n!say left")
    # Its number is one inside of the sandbox, whose first process has ended: nothing of it is left.
    assert file.exists()


def test_it_reads_the_environment_of_no_other_process(boxed: Callable[..., Crew], stranger: str) -> None:
    answer = boxed().ask("!run cat /proc/[0-9]*/environ | tr '\\0' '\\n'")
    assert "ORCHESTRA_SESSION=" in answer
    assert stranger not in answer


def test_without_bubblewrap_the_agent_does_not_start(
    boxed: Callable[..., Crew], monkeypatch: pytest.MonkeyPatch
) -> None:
    crew = boxed()
    monkeypatch.setattr(sandboxes, "_program", lambda: "")
    assert "its sandbox cannot be had here: the program bwrap (bubblewrap) is not installed" in crew.ask(
        "!say hi"
    )


def test_a_bubblewrap_that_cannot_is_no_bubblewrap(
    boxed: Callable[..., Crew], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    crew, fake = boxed(), tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sandboxes, "_program", lambda: str(fake))
    answer = crew.ask("!say hi")
    assert "its sandbox cannot be had here: No permissions to create new namespace" in answer


def test_a_program_outside_of_its_sandbox_is_said(
    crew: Crew, program: Callable[[str], str], tmp_path: Path
) -> None:
    program("bwrap")
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    crew.agent(command=(str(tool),), sandbox=True)
    assert "is outside of its sandbox; add its folder to sandbox.read" in crew.ask("go")


def test_a_stopped_run_ends_its_sandbox(boxed: Callable[..., Crew]) -> None:
    crew = boxed()
    crew.kit.catalogue["coder"].options.__dict__["silence_limit_s"] = 0.3
    answer = crew.ask("!hang")
    assert "printed nothing" in answer
    assert is_alive(1)


def test_its_shell_takes_part_in_the_run_from_inside(boxed: Callable[..., Crew]) -> None:
    """The socket of the run is the one thing of the host that it is shown without being told."""
    crew = boxed(read=(ROOT,))
    crew.kit.agent("helper")(lambda _: "helped")
    root = crew.kit.begin(
        "coder", f"!run {shlex.quote(FAKE[0])} -m orchestrator program delegate helper 'the dishes'"
    )
    assert [child.agent for child in crew.kit.children(root)] == ["helper"], crew.answer(root)


def test_a_worktree_can_be_changed_and_its_repository_cannot(
    boxed: Callable[..., Crew], program: Callable[[str], str], tmp_path: Path
) -> None:
    program("git")
    repository = empty_repository(tmp_path / "repository")
    crew = boxed(worktree={"repository": repository})
    hook = repository / ".git" / "hooks" / "post-checkout"
    answer = crew.ask(
        f"!write made.txt two\n!run git log --oneline; git status --short; echo x > {hook}; rm .git"
    )
    assert "first" in answer
    assert "?? made.txt" in answer
    assert not hook.exists()
    (worktree,) = Worktrees(crew.kit.settings.data).all()
    assert (worktree.path / ".git").is_file()
    assert "+two" in Worktrees(crew.kit.settings.data).diff(worktree)
