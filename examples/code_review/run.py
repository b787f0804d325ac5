"""Run the example: with ANTHROPIC_API_KEY against Anthropic, without it against a scripted server on loopback."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from agents import Verdict  # noqa: E402
from script import SCRIPT  # noqa: E402

from orchestrator.testing import InProcessStack, WireServer  # noqa: E402


def main() -> None:
    folder = Path(
        sys.argv[1] if len(sys.argv) > 1 else HERE.parent.parent / "orchestrator" / "demo"
    ).resolve()
    with ExitStack() as leaving:
        if "ANTHROPIC_API_KEY" not in os.environ:
            os.environ.update(leaving.enter_context(WireServer(SCRIPT)).environment())
            sys.stdout.write("no ANTHROPIC_API_KEY: a scripted server answers\n")
        # The demo's agents read only below the folders that this setting names.
        os.environ["ORCHESTRA_REVIEW_ROOTS"] = str(folder)
        agents = [HERE / "agents.py", "orchestrator.demo"]
        stack = leaving.enter_context(InProcessStack(agents))
        answer = stack.run("judge", f"Judge this folder:\n{folder}", timeout_s=600)
        verdict = stack.client.result(answer.session, type=Verdict)
        answer.tree.assert_settled()
    sys.stdout.write(f"\n{verdict.verdict}: {verdict.reason}\n")
    for module in verdict.worst:
        sys.stdout.write(f"  {module}\n")
    agents_of_tree = ", ".join(f"{count} {name}" for name, count in answer.tree.agents.items())
    sys.stdout.write(f"\nsessions: {agents_of_tree}\n")


if __name__ == "__main__":
    main()
