"""Notices that agents files have changed, and has them judged before a worker gets them."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from orchestrator.config.settings import CONFIG_FILE, is_agents_file
from orchestrator.errors import ConfigurationError
from orchestrator.runtime.parent_death import ending_with_parent, python_module

_LOOK_EVERY_S: Final = 1.0
#: Seconds that the files may take to be loaded.
_JUDGE_WITHIN_S: Final = 60.0

#: File → what changes with its content.
Marks = dict[Path, tuple[int, int, int]]


@dataclass
class _Judgement:
    process: subprocess.Popen[bytes]
    words: IO[bytes]
    changed: str
    deadline: float

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.words.close()


class AgentsWatch:
    """Looks at agents files once a second; call :meth:`tick` again and again, from one thread.

    Args:
        sources: the modules and files that define the agents.
        env: the environment of the process that judges them.
        accept: called with the names of the changed files once the agents can be loaded.
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
    ) -> None:
        self._sources = tuple(sources)
        self._env = dict(env)
        self._accept = accept
        self._refuse = refuse
        self._marks = self._look()
        self._look_at = time.monotonic() + _LOOK_EVERY_S
        self._judgement: _Judgement | None = None
        if not self._marks:
            raise ConfigurationError(
                "--reload watches files, and no file of agents is named; give --agents FILE"
            )

    def tick(self) -> None:
        """Look whether something changed, and whether a judgement is there."""
        if self._judgement is not None:
            self._hear(self._judgement)
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _LOOK_EVERY_S
        marks = self._look()
        if marks != self._marks:
            changed = sorted(path.name for path, _ in set(marks.items()) ^ set(self._marks.items()))
            self._marks = marks
            self.close()  # a judgement of what the files were
            self._judge(", ".join(dict.fromkeys(changed)))

    def close(self) -> None:
        """End a judgement that is on its way; idempotent."""
        judgement, self._judgement = self._judgement, None
        if judgement is not None:
            judgement.end()

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
        words = tempfile.TemporaryFile()  # noqa: SIM115  (it is closed with the judgement)
        command = [*python_module("orchestrator.deployment.judge"), str(words.fileno()), *self._sources]
        process = subprocess.Popen(
            ending_with_parent(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self._env,
            pass_fds=(words.fileno(),),
            start_new_session=True,
        )
        self._judgement = _Judgement(process, words, changed, time.monotonic() + _JUDGE_WITHIN_S)

    def _hear(self, judgement: _Judgement) -> None:
        code = judgement.process.poll()
        if code is None and time.monotonic() < judgement.deadline:
            return
        os.lseek(judgement.words.fileno(), 0, os.SEEK_SET)
        reason = judgement.words.read().decode(errors="replace")
        self.close()
        if code == 0:
            self._accept(judgement.changed)
        elif code is None:
            self._refuse(f"{judgement.changed}: the agents are not loaded within {_JUDGE_WITHIN_S:g} s")
        else:
            self._refuse(reason or f"{judgement.changed}: loading the agents ends with exit code {code}")


def _file_of(source: str) -> Path | None:
    """The file of a source; None for a module that is elsewhere than in the working directory, and for an entry point."""
    if source.startswith("@"):
        return None
    if is_agents_file(source):
        return Path(source).expanduser().absolute()
    module = Path.cwd().joinpath(*source.split("."))
    return next((p for p in (module.with_suffix(".py"), module / "__init__.py") if p.is_file()), None)
