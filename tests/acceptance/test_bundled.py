"""The bundled agents on a stack: there when they are asked for, and blind to all but the sources that were named."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import Terminal

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(480)]


def test_they_read_the_named_sources_and_nothing_else(terminal: Terminal) -> None:
    (terminal.folder / "tree").mkdir()
    (terminal.folder / "tree" / "fine.py").write_text('"""Fine."""\n')
    (terminal.folder / "secret.py").write_text("# TODO: hunter2\n")
    (terminal.folder / "tree" / "link.py").symlink_to(terminal.folder / "secret.py")
    stack = terminal.start("orchestra up --review tree")
    stack.wait_for("agents: lead, reviewer")
    done = terminal.run("orchestra submit lead tree --wait")
    assert (done.returncode, "1 of 1 modules reviewed" in done.stdout) == (0, True), done.stdout + done.stderr
    for agent in ("lead", "reviewer"):
        for path in ("secret.py", "/etc/passwd", "/no/such.py", "tree/link.py"):
            done = terminal.run(f"orchestra submit {agent} {path} --wait")
            said = done.stdout + done.stderr
            assert done.returncode == 1, said
            assert "is not below a folder whose sources may be reviewed" in said
            assert "hunter2" not in said
    assert stack.interrupt() == 0
