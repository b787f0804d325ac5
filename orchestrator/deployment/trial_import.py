"""Trial import of agents: another process loads them, before any worker of theirs is started."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.config.settings import load_settings
from orchestrator.deployment.forks import ForkServer, start_module
from orchestrator.errors import ConfigurationError
from orchestrator.runtime.service import READY_VARIABLE

#: Seconds that the files may take to be loaded.
WITHIN_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.02


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Result of a trial import."""

    fine: bool
    reason: str = ""  #: why they cannot be loaded
    named: str = ""  #: the same, where it names the file
    warning: str = ""  #: what they can be loaded with, and is not what was meant


class TrialImport:
    """Loads agents in another process. End it with :meth:`end`.

    Args:
        sources: the modules and files that define the agents.
        env: the environment of the process.
        forks: what forks it; None: it is started.
    """

    def __init__(
        self, sources: Iterable[str], *, env: Mapping[str, str], forks: ForkServer | None = None
    ) -> None:
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  (it is closed by `end`)
        module = ("orchestrator.deployment.trial_import", *sources)
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123  (no file)
            self._process = start_module(
                module, forks=forks, env=env, log=nowhere.fileno(), ready=self._words.fileno()
            )
        self._deadline = time.monotonic() + WITHIN_S

    def look(self) -> Verdict | None:
        """Return the result; None if there is none yet."""
        code = self._process.poll()
        if code is None and time.monotonic() < self._deadline:
            return None
        os.lseek(self._words.fileno(), 0, os.SEEK_SET)
        named = self._words.read().decode(errors="replace")
        if code == 0:
            return Verdict(fine=True, warning=named)
        if code is None:
            return Verdict(fine=False, reason=f"the agents are not loaded within {WITHIN_S:g} s")
        return Verdict(
            fine=False, reason=named or f"loading the agents ends with exit code {code}", named=named
        )

    def end(self) -> None:
        """End the process, if it is still at work; idempotent."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        self._words.close()


def see_that_agents_load(
    sources: Iterable[str], *, env: Mapping[str, str], forks: ForkServer | None = None
) -> str:
    """Have another process load these agents; ``forks`` forks it. Returns a warning, or ''.

    Raises:
        ConfigurationError: they cannot be loaded.
    """
    named = tuple(sources)
    if forks is not None:
        forks.wait_ready()
    trial = TrialImport(named, env=env, forks=forks)
    try:
        while (verdict := trial.look()) is None:
            time.sleep(_LOOK_EVERY_S)
    finally:
        trial.end()
    if not verdict.fine:
        raise ConfigurationError(
            verdict.named or f"cannot load agents from {', '.join(named)}: {verdict.reason}"
        )
    return verdict.warning


def main(descriptor: int, sources: list[str]) -> int:
    """Load agents on trial; return 0 if all is well."""
    from orchestrator.agents.loader import choose_served, load_agents
    from orchestrator.worker.executors import check_models

    try:
        settings = load_settings()
        idle = check_models(choose_served(load_agents(sources), settings.serve).values(), settings)
    except ConfigurationError as error:
        os.write(descriptor, " ".join(str(error).split()).encode(errors="backslashreplace"))
        return 1
    os.write(descriptor, idle.encode(errors="backslashreplace"))
    return 0


if __name__ == "__main__":
    sys.exit(main(int(os.environ.pop(READY_VARIABLE)), sys.argv[1:]))
