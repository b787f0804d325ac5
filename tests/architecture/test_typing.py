"""The public surface in a user's project, as a strict type checker sees it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PROJECT = """
from typing import assert_type

from orchestrator import AsyncClient, Callback, Client, Context, Session, agent


@agent("counter")
def counter(ctx: Context) -> str:
    return str(len(ctx.prompt.split()))


@agent("lead", role="coordinator")
def lead(ctx: Context) -> str | None:
    if not ctx.callbacks:
        assert_type(ctx.delegate("counter", ctx.prompt), str)
        return None
    assert_type(ctx.callbacks, tuple[Callback, ...])
    return ctx.callbacks[0].result


def use() -> None:
    with Client() as client:
        handle = client.submit("lead", "To be. Or not to be.")
        assert_type(handle.result(timeout_s=60), str)
        assert_type(client.tree(handle.id), list[Session])


async def use_it_from_asyncio() -> str:
    async with AsyncClient() as client:
        handle = await client.submit("lead", "To be.")
        return await handle.result(timeout_s=60)
"""


def check(folder: Path, text: str) -> str:
    (folder / "project.py").write_text(text, encoding="utf-8")
    (folder / "mypy.ini").write_text(f"[mypy]\nstrict = True\nmypy_path = {ROOT}\nfollow_imports = silent\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(ROOT / ".mypy_cache" / "user"), "project.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_a_project_passes_strict_checking_and_a_mistake_does_not(tmp_path: Path) -> None:
    assert "Success" in (said := check(tmp_path, PROJECT)), said
    wrong = PROJECT.replace('client.submit("lead", "To be. Or not to be.")', 'client.submit("lead", 3)')
    assert "arg-type" in check(tmp_path, wrong)
