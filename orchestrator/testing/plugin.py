"""Fixtures for pytest: put ``pytest_plugins = ["orchestrator.testing.plugin"]`` into the `conftest.py` at the top."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from orchestrator.testing.scripted import ScriptedSession
    from orchestrator.testing.stack import InProcessStack


@pytest.fixture
def scripted() -> Iterator[Callable[..., ScriptedSession]]:
    """Make scripted sessions: ``scripted(agent, prompt, …)`` takes what `ScriptedSession` takes."""
    from orchestrator.testing.scripted import ScriptedSession

    with ExitStack() as leaving:
        yield lambda *args, **given: leaving.enter_context(ScriptedSession(*args, **given))


@pytest.fixture
def in_process() -> Iterator[Callable[..., InProcessStack]]:
    """Start stacks in the process of the test: ``in_process([agents], …)`` takes what `InProcessStack` takes."""
    from orchestrator.testing.stack import InProcessStack

    with ExitStack() as leaving:
        yield lambda *args, **given: leaving.enter_context(InProcessStack(*args, **given))
