"""The pages for people who come from elsewhere: our half of each, as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.testing import InProcessStack

PAGES = sorted((Path(__file__).parents[3] / "docs/explanation").glob("coming-from-*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_agents_of_the_page_answer_as_it_says(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    (source,) = re.findall(r"in `my_agents\.py`:\n\n```python\n(.*?)```", text, re.DOTALL)
    ((prompt, answer),) = re.findall(r'`orchestra submit lead "(.*?)" --wait` prints `(.*?)`', text)
    agents = tmp_path / "my_agents.py"
    agents.write_text(source, encoding="utf-8")
    with InProcessStack([agents]) as stack:
        assert stack.run("lead", prompt).text == answer


def test_there_is_a_page_for_each() -> None:
    assert [page.stem.rpartition("-")[2] for page in PAGES] == ["bullmq", "celery", "langgraph", "temporal"]
