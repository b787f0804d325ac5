"""Run the example: with ANTHROPIC_API_KEY against Anthropic, without it against a scripted server on loopback."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from agents import Report  # noqa: E402
from script import QUESTION, SCRIPT  # noqa: E402

from orchestrator.testing import InProcessStack, WireServer  # noqa: E402


def main() -> None:
    question = " ".join(sys.argv[1:]) or QUESTION
    with ExitStack() as leaving:
        if "ANTHROPIC_API_KEY" not in os.environ:
            os.environ.update(leaving.enter_context(WireServer(SCRIPT)).environment())
            sys.stdout.write("no ANTHROPIC_API_KEY: a scripted server answers\n")
        stack = leaving.enter_context(InProcessStack([HERE / "agents.py"]))
        answer = stack.run("lead", question, timeout_s=600)
        report = stack.client.result(answer.session, type=Report)
        answer.tree.assert_settled()
    sys.stdout.write(f"\n{report.question}\n{report.answer}\n\n")
    for finding in report.findings:
        sys.stdout.write(f"  {finding.claim} ({finding.source})\n")
    for doubt in report.doubts:
        sys.stdout.write(f"  doubt: {doubt.removeprefix('- ')}\n")
    agents = ", ".join(f"{count} {name}" for name, count in answer.tree.agents.items())
    sys.stdout.write(f"\nsessions: {agents}\n")


if __name__ == "__main__":
    main()
