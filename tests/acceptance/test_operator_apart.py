"""deploy/make-keys: a stack runs without the operator's key, which stays where the keys are made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.deployment.embedded.valkey import ValkeyProcess
from tests.acceptance.conftest import Terminal

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(480)]

AGENTS = """
from orchestrator import agent

@agent("lead", role="coordinator")
def lead(ctx):
    return ctx.call("shouter", ctx.prompt).result

@agent("shouter")
def shouter(ctx):
    return ctx.prompt.upper()
"""


def test_a_stack_runs_without_the_operators_key(
    terminal: Terminal, root: Path, start_valkey: Callable[..., ValkeyProcess]
) -> None:
    (terminal.folder / "mine.py").write_text(AGENTS)
    terminal.env |= {
        "ORCHESTRA_REDIS_URL": start_valkey(durable=False).url,
        "ORCHESTRA_DATA": str(terminal.folder / "data"),
        "ORCHESTRA_AGENTS": "mine.py",
        "OPERATOR_DATA": str(terminal.folder / "operator"),
    }
    script = root / "deploy" / "make-keys"
    for _ in range(2):  # it may be run again
        made = terminal.run(f"sh '{script}'")
        assert made.returncode == 0, made.stderr
    assert (terminal.folder / "operator" / "keys" / "operator.pem").exists()

    stack = terminal.start("orchestra up --concurrency 1")
    stack.wait_for("agents: lead, shouter")
    done = terminal.run("orchestra submit lead quiet --wait")
    assert done.stdout == "QUIET\n", done.stderr
    assert not (terminal.folder / "data" / "keys" / "operator.pem").exists()
    refused = terminal.run("orchestra keys generate mallory")
    assert refused.returncode == 1
    assert "are vouched for on its operator's host" in refused.stderr
    assert stack.interrupt() == 0
