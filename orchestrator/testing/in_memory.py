"""The parts of a stack on a Redis that is a Python object: the real transitions, no server, no socket, no thread."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache, cached_property
from pathlib import Path
from typing import Any, cast

from orchestrator.bootstrap import Container, ledger_limits
from orchestrator.config.settings import Settings
from orchestrator.dispatch import Dispatcher
from orchestrator.errors import ConfigurationError
from orchestrator.testing.recording import Note, RecordingLedger

#: Nobody listens there, and nothing is sent there.
_NOWHERE = "redis://scripted.invalid"


class _NoDispatcher:
    """Tells no worker of anything: the test runs the session itself."""

    def wake(self, _runs: object) -> None:
        """Do nothing."""


class InMemoryParts(Container):
    """Parts of a stack on one Redis that is a Python object, with a ledger that reports effects."""

    def __init__(self, note: Note, **settings: Any) -> None:
        super().__init__(
            _server(), Settings(**{**settings, "redis_url": _NOWHERE, "data": data_folder(), "shards": 1})
        )
        self._note = note

    @cached_property
    def ledger(self) -> RecordingLedger:
        """Sessions, runs and callbacks."""
        return RecordingLedger(
            self.redis,
            note=self._note,
            limits=ledger_limits(self.settings),
            report=self.end_reports,
            attest=self.authenticity.attest,
        )

    @cached_property
    def dispatcher(self) -> Dispatcher:
        """Sends nothing."""
        return cast("Dispatcher", _NoDispatcher())


def _server() -> Any:
    try:
        import fakeredis
        import lupa  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            "a scripted session needs fakeredis with Lua: pip install 'agent-orchestra[testing]'"
        ) from None
    return fakeredis.FakeRedis(server=fakeredis.FakeServer(), protocol=2)


@cache
def data_folder() -> Path:
    """Return the data folder of all scripted sessions of this process, with the keys of their agents; gone when it
    ends.
    """
    folder = Path(tempfile.mkdtemp(prefix="orchestra-scripted-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
