"""The how-to about tests: its files as printed, run by pytest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.testing import InProcessStack

pytest.importorskip("anthropic", reason="the extra `anthropic` is not installed")

PAGE = Path(__file__).parents[3] / "docs/howto/testing.md"


def test_the_files_of_the_page_pass(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    files = re.findall(r"^`(\w+\.py)`:\n\n```python\n(.*?)```", text, re.DOTALL | re.MULTILINE)
    assert [name for name, _ in files] == [
        "my_lead.py",
        "test_my_lead.py",
        "my_reporter.py",
        "test_my_reporter.py",
        "my_agents.py",
        "test_my_agents.py",
    ]
    for name, content in files:
        (tmp_path / name).write_text(content, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 passed" in done.stdout


# --- The pages for people who come from elsewhere: our half of each, as printed.


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
