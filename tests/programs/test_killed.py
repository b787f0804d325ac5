"""A worker that is killed while the real programs think: each is started again, and nothing is left of the first try."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from tests.acceptance.conftest import open_terminal, wait_until
from tests.programs.conftest import BIN, PROGRAMS, proxies
from tests.programs.server import Ask, ModelServer


@pytest.mark.timeout(150)
def test_a_killed_worker_takes_its_programs_with_it_and_their_runs_are_tried_again(
    model: ModelServer,
) -> None:
    killed = threading.Event()

    def work(_: Ask) -> str:
        if killed.is_set():
            return "<response>after</response>"
        killed.wait(100)
        return "<response>before</response>"

    model.script = work
    with open_terminal() as terminal:
        home = terminal.folder / "home"
        terminal.env |= {"HOME": str(home), "PATH": f"{BIN}:{terminal.env['PATH']}", **proxies(model)}
        text = ""
        for name, program in PROGRAMS.items():
            terminal.env |= program.env(model.url)
            for file, content in program.files.items():
                (home / file).parent.mkdir(parents=True, exist_ok=True)
                (home / file).write_text(content)
            args = ", ".join(f"'''{one}'''" for one in program.args(model.url))
            text += f'[agents.{name}]\nexecutor = "command"\npreset = "{name}"\nargs = [{args}]\n'
            text += f"env = {list(proxies(model))}\n"
            text += "".join(f'set_env.{key} = "{value}"\n' for key, value in program.set_env.items()) + "\n"
        (terminal.folder / "crew.toml").write_text(text)
        short = {"ORCHESTRA_LEASE_S": "3", "ORCHESTRA_HEARTBEAT_S": "0.5", "ORCHESTRA_CONCURRENCY": "3"}
        up = terminal.start("orchestra up --agents crew.toml", **short)
        up.wait_for("ready after")
        sessions = [terminal.must(f"orchestra submit {name} think").strip() for name in PROGRAMS]
        kinds = ("messages", "input", "contents")
        wait_until(
            lambda: all(any(kind in one.body for one in model.asked) for kind in kinds), "all at work", 80
        )
        before = {pid for pid, line in terminal.processes().items() if any(name in line for name in PROGRAMS)}
        assert len(before) >= len(PROGRAMS)
        for pid in terminal.workers():
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not before & terminal.processes().keys(), "the end of the first try")
        killed.set()
        for session in sessions:
            assert "after" in terminal.must(f"orchestra result {session} --wait"), up.output
        assert terminal.run("orchestra doctor").returncode == 0
        assert up.interrupt() == 0
        wait_until(lambda: not terminal.processes(), f"the end of {terminal.processes()}")
