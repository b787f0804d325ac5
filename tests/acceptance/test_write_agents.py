"""An agent that runs a program: the code of docs/howto/agents.md as printed, with a program in place of the model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.acceptance.conftest import Terminal, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(480)]

#: Says what it was given, fails when told to, or takes its time.
PROGRAM = """\
#!/bin/sh
prompt=$(cat)
case "$prompt" in
fail) echo "no credit left" >&2; exit 3 ;;
wait) exec sleep 600 ;;
esac
printf '{"session_id": "c0ffee", "result": "%s: %s"}' "$*" "$prompt"
"""


@pytest.fixture
def stack(terminal: Terminal, root: Path) -> Terminal:
    """A terminal beside a running stack with the agent `writer`."""
    text = (root / "docs/howto/agents.md").read_text(encoding="utf-8")
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "Popen" in block)
    (terminal.folder / "my_agents.py").write_text(code, encoding="utf-8")
    programs = terminal.folder / "bin"
    programs.mkdir()
    (programs / "claude").write_text(PROGRAM, encoding="utf-8")
    (programs / "claude").chmod(0o755)
    terminal.env["PATH"] = f"{programs}:{terminal.env['PATH']}"
    terminal.up("--agents my_agents.py")
    return terminal


def test_an_agent_runs_a_program_in_one_conversation_and_ends_it_when_stopped(stack: Terminal) -> None:
    submitted = stack.must("orchestra submit writer -- --resume").strip()
    assert stack.must(f"orchestra result {submitted} --wait") == "-p --output-format json: --resume\n"
    assert (
        stack.must(f"orchestra resume {submitted} 'and more' --wait")
        == "-p --output-format json --resume c0ffee: and more\n"
    )

    failed = stack.run("orchestra submit writer fail --wait")
    assert failed.returncode == 1
    assert "RuntimeError: claude ended with 3: no credit left" in failed.stderr

    session = stack.must("orchestra submit writer wait").strip()
    wait_until(lambda: any("sleep 600" in line for line in stack.processes().values()), "the program")
    stopped = stack.run(f"orchestra stop {session}")
    assert f"{session} is stopped" in stopped.stdout
    assert "killed" not in stopped.stdout
    wait_until(lambda: not any("sleep 600" in line for line in stack.processes().values()), "its end")
