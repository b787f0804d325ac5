"""The stage of the worker tests, seen through the client and the commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from orchestrator.cli import main
from orchestrator.client.client import Client
from tests.documents import hold_to_models
from tests.integration.workers.conftest import StackHarness, stage

__all__ = ["stage"]

Orchestra = Callable[..., Result]


@pytest.fixture
def client(stage: StackHarness) -> Iterator[Client]:
    """A client of the stage."""
    with Client(stage.settings) as opened:
        yield opened


@pytest.fixture
def orchestra(stage: StackHarness) -> Orchestra:
    """Run a command on the stage: its result has exit_code, stdout and stderr."""

    def run(*arguments: str, text: str | bytes | None = None) -> Result:
        place = {"REDIS_URL": str(stage.settings.redis_url), "DATA": str(stage.settings.data)}
        env = {f"ORCHESTRA_{name}": value for name, value in place.items()}
        done = CliRunner().invoke(main, arguments, input=text, env=env)
        hold_to_models(arguments, done.stdout)
        return done

    return run
