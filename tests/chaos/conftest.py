"""Stacks to be killed: forked from one process that has everything imported, each on a server of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from orchestrator.embedded.valkey import ValkeyProcess

from .stack import Stack, Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    if not sys.platform.startswith("linux"):
        pytest.skip("forks services from a process that has imported them, which is safe on Linux")
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture
def make_stack(
    zygote: Zygote, start_valkey: Callable[..., ValkeyProcess], tmp_path: Path
) -> Iterator[Callable[..., Stack]]:
    """Make stacks whose settings differ from the usual ones as told."""
    with ExitStack() as leaving:

        def make(**settings: str) -> Stack:
            server = start_valkey(durable=True)
            return leaving.enter_context(Stack(zygote, server, tmp_path / f"stack-{server.pid}", settings))

        yield make
