"""Agents whose sessions these tests submit, and a terminal on which a command runs."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from orchestrator.worker.context.context import Context
from tests.commands import place
from tests.kit import Kit


def echo(ctx: Context) -> str:
    return ctx.prompt


def asks_two(ctx: Context) -> str:
    if ctx.cause == "start":
        for word in ("a", "b"):
            ctx.delegate("solo", word)
        ctx.wait_for("all")
        return "waiting"
    return "".join(callback.result for callback in ctx.all_results)


def in_background(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.fixture
def solo(kit: Kit) -> None:
    """The agent `solo`, which gives its prompt back."""
    kit.agent("solo")(echo)


@pytest.fixture
def lead(kit: Kit, solo: None) -> None:
    """The agent `lead`, which has two children of `solo` and joins their answers."""
    kit.agent("lead", role="coordinator")(asks_two)


def on_terminal(
    kit: Kit,
    *arguments: str,
    columns: int = 300,
    meanwhile: Callable[[str], None] = lambda shown: None,
    **variables: str,
) -> str:
    """What a command on the kit's stack, which succeeds, shows on a terminal."""
    ours, theirs = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    shape = {"COLUMNS": str(columns), "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**kept, **place(kit.settings), **shape, **variables},
    )
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # the other end was closed
        while octets := os.read(ours, 4096):
            shown += octets
            meanwhile(shown.decode(errors="ignore"))
    os.close(ours)
    assert process.wait(60) == 0
    return shown.decode().replace("\r\n", "\n")
