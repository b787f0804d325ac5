"""docs/protocol.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.envelope.catalogue import RULES
from orchestrator.envelope.document import BODIES
from orchestrator.envelope.message_types import MESSAGE_TYPES


def _page(root: Path) -> str:
    return (root / "docs" / "protocol.md").read_text()


def test_the_example_of_the_page_runs(root: Path) -> None:
    """The Python in it does what it says."""
    blocks = re.findall(r"```python\n(.*?)```", _page(root), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "docs/protocol.md", "exec"), {})


def test_the_page_names_every_rule_and_type(root: Path) -> None:
    """A rule that is added is documented with it."""
    page = _page(root)
    assert [name for name in (*RULES, *BODIES) if f"| `{name}` |" not in page] == []
    programs = (root / "docs" / "external-programs.md").read_text().partition("| the program sends |")[2]
    assert [name for name in BODIES if f"`{name}`" not in programs.partition("\n\n")[0]] == []
    answers = (root / "docs" / "explanation" / "text-answers.md").read_text()
    written = {name for name, row in MESSAGE_TYPES.items() if row.in_answers}
    assert [name for name in written if f"| `{name}` |" not in answers] == []
