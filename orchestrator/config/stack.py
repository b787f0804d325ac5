"""The stack on a data folder: announced by each `orchestra up`, found by everybody else.

Each `up` keeps one file in ``<data>/up/`` under an exclusive lock for as long as it lives. The lock, not the
file, says that the stack is there: the kernel drops it however the process ends, so a stale file is
recognised for certain and swept away by the next reader.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from dataclasses import fields as fields_of
from pathlib import Path
from typing import IO, Any

from orchestrator.config.settings import Settings
from orchestrator.errors import ConfigurationError, NoStack


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The servers and agents of one `orchestra up`."""

    redis_url: str
    broker_url: str | None
    #: Modules and files of agents; files are absolute paths.
    agents: tuple[str, ...]
    pid: int
    started_ms: int
    #: Which one of the data folder it is: no two that run have logs of the same name.
    number: int = 1


class Announcement:
    """A stack made known to whoever looks into the data folder, until it is closed."""

    def __init__(self, data: Path, stack: Stack) -> None:
        folder = data / "up"
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{stack.pid}-{uuid.uuid4().hex[:8]}.json"
        # Locked before it gets its name, so that no reader can take it for stale. The URL may hold a password.
        handle, temporary = tempfile.mkstemp(prefix=".", dir=folder)
        self._file: IO[str] | None = os.fdopen(handle, "w", encoding="utf-8")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        json.dump(asdict(stack), self._file)
        self._file.flush()
        Path(temporary).replace(self._path)

    def close(self) -> None:
        """Take the announcement back; idempotent."""
        file, self._file = self._file, None
        if file is not None:
            self._path.unlink(missing_ok=True)
            file.close()


def running_stacks(data: Path) -> list[Stack]:
    """Return every stack that runs on this data folder now, oldest first."""
    found: list[Stack] = []
    for path in (data / "up").glob("*.json"):
        with suppress(FileNotFoundError, PermissionError), path.open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(_parse(json.load(file)))
            else:
                path.unlink(missing_ok=True)
    return sorted(found, key=lambda stack: (stack.started_ms, stack.pid))


def _parse(fields: dict[str, Any]) -> Stack:
    # Another version may announce more, or less.
    known = {field.name: fields[field.name] for field in fields_of(Stack) if field.name in fields}
    return Stack(**{**known, "agents": tuple(fields["agents"])})


def resolve_redis_url(settings: Settings) -> str:
    """Return the ledger's Redis: the one that is set, else that of the stack that runs on the data folder.

    Raises:
        NoStack: neither is there.
    """
    url = resolve(settings).redis_url
    if url is None:
        raise NoStack(
            f"no stack is running on {settings.data}; start `orchestra up` (or name its folder with --data), "
            "or set ORCHESTRA_REDIS_URL"
        )
    return url


def resolve(settings: Settings) -> Settings:
    """Return the settings with what is not set taken from the stack that runs on the data folder, if one does.

    A worker that joins a stack so serves the agents that the stack was started with.
    """
    if settings.redis_url is not None:
        return settings
    stacks = running_stacks(settings.data)
    if not stacks:
        return settings
    latest = stacks[-1]
    update: dict[str, Any] = {"redis_url": latest.redis_url}
    if settings.broker_url is None and latest.broker_url is not None:
        update["broker_url"] = latest.broker_url
    if not settings.agents:
        update["agents"] = tuple(dict.fromkeys(name for stack in stacks for name in stack.agents))
    return settings.model_copy(update=update)


def prepare_data_folder(data: Path) -> None:
    """Make the data folder, closed to others also if it was there, and see that it can be written to.

    Raises:
        ConfigurationError: it cannot, or it is somebody else's and open to everybody.
    """
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = data.stat()
        if facts.st_uid == os.getuid() and facts.st_mode & 0o077:
            data.chmod(0o700)
        elif facts.st_mode & 0o007:
            raise ConfigurationError(
                f"the data folder {data} belongs to somebody else and is open to everybody on this machine, and keys "
                "would be in it; have its owner close it (chmod o-rwx), or choose another with --data DIR"
            )
        with tempfile.TemporaryFile(dir=data) as file:
            file.write(b"x")
    except OSError as error:
        raise ConfigurationError(
            f"cannot write to the data folder {data}: {error.strerror or error}; choose another with --data DIR"
        ) from error
