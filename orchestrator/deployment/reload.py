"""Notices that agents files have changed, and has them loaded on trial before a worker gets them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from orchestrator.config.settings import CONFIG_FILE, is_agents_file
from orchestrator.deployment.forks import ForkServer
from orchestrator.deployment.trial_import import TrialImport
from orchestrator.errors import ConfigurationError

_LOOK_EVERY_S: Final = 1.0

#: File → what changes with its content.
Marks = dict[Path, tuple[int, int, int]]


class AgentsWatch:
    """Looks at agents files once a second; call :meth:`tick` again and again, from one thread.

    Args:
        sources: the modules and files that define the agents.
        env: the environment of the process that checks them.
        forks: what forks that process; None: it is started.
        accept: called with what changed, and a warning about it, once the agents can be loaded.
        refuse: called with the reason why they cannot.

    Raises:
        ConfigurationError: none of the sources is a file.
    """

    def __init__(
        self,
        sources: Iterable[str],
        *,
        env: Mapping[str, str],
        accept: Callable[[str], None],
        refuse: Callable[[str], None],
        forks: ForkServer | None = None,
    ) -> None:
        self._sources = tuple(sources)
        self._env = dict(env)
        self._forks = forks
        self._accept = accept
        self._refuse = refuse
        self._marks = self._look()
        self._look_at = time.monotonic() + _LOOK_EVERY_S
        self._trial: TrialImport | None = None
        self._changed = ""
        if not self._marks:
            raise ConfigurationError(
                "--reload watches files, and no file of agents is named; give --agents FILE"
            )

    def tick(self) -> None:
        """Look for changed files, and for the result of a trial import."""
        if self._trial is not None:
            self._hear(self._trial)
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _LOOK_EVERY_S
        marks = self._look()
        if marks != self._marks:
            changed = sorted(path.name for path, _ in set(marks.items()) ^ set(self._marks.items()))
            self._marks = marks
            self.close()  # a check of what the files were
            self._judge(", ".join(dict.fromkeys(changed)))

    def close(self) -> None:
        """End a trial import that is under way; idempotent."""
        trial, self._trial = self._trial, None
        if trial is not None:
            trial.end()

    def _look(self) -> Marks:
        named = [path for source in self._sources if (path := _file_of(source)) is not None]
        found = set(named)
        for folder in {path.parent for path in named}:
            beside = (*folder.glob("*.py"), *folder.glob("*.toml"))
            # The stack's own settings are read once, and no worker reads a test.
            found |= {p for p in beside if p.name != CONFIG_FILE and not p.name.startswith("test_")}
        marks: Marks = {}
        for path in found:
            try:
                state = path.stat()
            except OSError:
                continue  # it is being replaced, or gone
            marks[path] = (state.st_mtime_ns, state.st_size, state.st_ino)
        return marks

    def _judge(self, changed: str) -> None:
        self._trial = TrialImport(self._sources, env=self._env, forks=self._forks)
        self._changed = changed

    def _hear(self, trial: TrialImport) -> None:
        verdict = trial.look()
        if verdict is None:
            return
        self.close()
        if verdict.fine:
            self._accept("; ".join(filter(None, (f"{self._changed} changed", verdict.warning))))
        else:
            self._refuse(verdict.named or f"{self._changed}: {verdict.reason}")


def _file_of(source: str) -> Path | None:
    """Return the file of a source; None for a module that is elsewhere than in the working directory, and for an
    entry point.
    """
    if source.startswith("@"):
        return None
    if is_agents_file(source):
        return Path(source).expanduser().absolute()
    module = Path.cwd().joinpath(*source.split("."))
    return next((p for p in (module.with_suffix(".py"), module / "__init__.py") if p.is_file()), None)
