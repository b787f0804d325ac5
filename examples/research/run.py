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

from orchestrator.testing import InProcessStack, Tree, WireServer  # noqa: E402


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
    sys.stdout.write(f"\n{costs(answer.tree)}\n")


def costs(tree: Tree) -> str:
    """What each agent of the tree took: sessions, requests, tokens and US dollars."""
    rows = []
    for name in [*tree.agents, ""]:
        used = [session.used for session in tree.sessions if name in ("", session.agent)]
        requests, tokens = sum(one.requests for one in used), sum(one.tokens for one in used)
        usd = sum(one.nano_usd for one in used) / 1e9
        rows.append(f"  {name or 'all':12}{len(used):>9}{requests:>10}{tokens:>9}{usd:>10.5f}")
    return "\n".join([f"  {'costs':12}{'sessions':>9}{'requests':>10}{'tokens':>9}{'USD':>10}", *rows])


if __name__ == "__main__":
    main()
