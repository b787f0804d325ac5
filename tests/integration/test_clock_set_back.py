"""The clock of the machine is set back by ten minutes while a stack is at work: no session fails by it."""

from __future__ import annotations

import json
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
        self.set(0)
        own = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRA_")}
        self.env = {
            **own,
            "LD_PRELOAD": str(library),
            "SHIFTED_CLOCK": str(self.folder / "shift"),
            "ORCHESTRA_DATA": str(self.folder / "data"),
        }

    def set(self, seconds: int) -> None:
        """Move the clock from what it is by so many seconds; who has the file mapped sees it at once."""
        file = self.folder / "shift"
        with file.open("r+b" if file.exists() else "wb") as shift:
            shift.write(seconds.to_bytes(8, sys.byteorder, signed=True))

    def orchestra(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "orchestrator", *words]
        return subprocess.run(
            command,
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def now(self) -> float:
        code = "import time; print(time.time())"
        said = subprocess.run([sys.executable, "-c", code], env=self.env, capture_output=True, check=True)
        return float(said.stdout)


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


def test_no_session_fails_when_the_clock_is_set_back(shifted: Shifted) -> None:
    began = shifted.now()
    roots = []
    for number in range(ROOTS):
        if number == ROOTS // 2:
            shifted.set(BACK_S)
        said = shifted.orchestra("submit", "lead", f"job {number}", "--json")
        assert said.returncode == 0, said.stderr
        roots.append(json.loads(said.stdout)["session"])
    assert shifted.now() < began
    for root in roots:
        said = shifted.orchestra("result", root, "--wait")
        assert (said.returncode, said.stdout.strip()) == (0, "2 parts"), said.stderr
    examined = shifted.orchestra("doctor", "--quick")
    assert f"{3 * ROOTS} sessions in {ROOTS} trees" in examined.stdout, examined.stdout
    assert "all accounted for" in examined.stdout
