"""The how-to about tests: its files as printed, run by pytest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

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
