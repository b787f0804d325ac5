"""The clock of the machine is set back by ten minutes while a stack is at work: no session fails by it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S, wait_until

pytestmark = [
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="the clock is moved by a preloaded library"
    ),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]

SHIM = Path(__file__).parents[1] / "shifted_clock.c"
BACK_S = -600
ROOTS = 6
AGENTS = """
import time
from orchestrator import agent

@agent("lead", role="coordinator")
def lead(ctx):
    if ctx.cause == "start":
        for name in ("one", "two"):
            ctx.delegate("helper", name)
        ctx.wait_for("all")
        return ""
    return f"{len(ctx.callbacks)} parts"

@agent("helper")
def helper(ctx):
    time.sleep(0.5)
    return ctx.prompt
"""


@dataclass
class Shifted:
    """A whole stack, its server included, whose keys are younger than the step of its clock."""

    folder: Path

    def __post_init__(self) -> None:
        library = self.folder / "clock.so"
        compiler = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SHIM)]
        subprocess.run(compiler, check=True, timeout=PATIENCE_S)
        (self.folder / "agents.py").write_text(AGENTS)
        (self.folder / "shift").write_bytes(bytes(8))
        own = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRA_")}
        self.env = {
            **own,
            "LD_PRELOAD": str(library),
            "SHIFTED_CLOCK": str(self.folder / "shift"),
            "ORCHESTRA_DATA": str(self.folder / "data"),
        }

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )


@pytest.fixture
def shifted(tmp_path: Path) -> Iterator[Shifted]:
    stack = Shifted(tmp_path)
    log = tmp_path / "up.log"
    with log.open("wb") as out:
        command = [sys.executable, "-m", "orchestrator", "up", "--agents", "agents.py"]
        up = subprocess.Popen(command, env=stack.env, cwd=tmp_path, stdout=out, stderr=out)
    try:
        wait_until(lambda: "ready after" in log.read_text(), "the stack", explain=log.read_text)
        yield stack
    finally:
        up.send_signal(signal.SIGINT)
        try:
            up.wait(60)
        except subprocess.TimeoutExpired:
            up.kill()
            up.wait()


#: One process, so that the clock is set back in the life of a client, too.
CLIENT = f"""
import time
from pathlib import Path
from orchestrator import Client

began = time.time()
with Client() as client:
    roots = []
    for number in range({ROOTS}):
        if number == {ROOTS // 2}:
            with Path("shift").open("r+b") as shift:
                shift.write(({BACK_S}).to_bytes(8, "{sys.byteorder}", signed=True))
        roots.append(client.submit("lead", f"job {{number}}"))
    assert time.time() < began
    for root in roots:
        print(client.result(root.id, timeout_s={PATIENCE_S}))
"""


def test_no_session_fails_when_the_clock_is_set_back(shifted: Shifted) -> None:
    said = shifted.run("-c", CLIENT)
    assert (said.returncode, said.stdout.split("\n")) == (0, ["2 parts"] * ROOTS + [""]), said.stderr
    examined = shifted.run("-m", "orchestrator", "doctor", "--quick")
    assert f"{3 * ROOTS} sessions in {ROOTS} trees" in examined.stdout, examined.stdout
    assert "all accounted for" in examined.stdout
