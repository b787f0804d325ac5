"""The server manager: owns the embedded server of one data folder for as long as any `orchestra up` is joined to it.

It is a process of its own, because several `up` share one server and any of them may end first, in
whatever way. Each holds a connection; when the last one closes, the server manager stops the server, removes the
sockets and ends. The next keeper makes them at the same place, so that whoever stayed connects again. If the server manager itself is killed, the server gets a signal to stop from the kernel. It starts
a server that died again, unless that cannot help (a full disk, a damaged file).

Over the connection it says one JSON object a line: ``ready`` (on joining), ``died``, ``restarted``,
``failed`` (it gives up), ``stays`` or ``stopped`` (the answers to ``leave``).
"""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from orchestrator.deployment.embedded.valkey import (
    SOCKET_NAME,
    ServerDied,
    ValkeyProcess,
    make_socket_dir,
    remove_socket_dir,
    send_command,
    socket_dir_name,
)
from orchestrator.errors import ConfigurationError, OrchestraError

CONTROL_NAME = "keeper.sock"
#: Seconds that a server manager which nobody joins waits before it ends.
_UNJOINED_S = 15.0
_TICK_S = 0.05
#: Seconds between two looks at a server that runs and a folder that is there.
_IDLE_TICK_S = 0.25
#: Seconds that a server manager waits for another one at its sockets, which notices that its folder was removed.
_OTHER_ENDS_S = 15.0
#: Deaths of the server within this many seconds of its start count as one series.
_SERIES_S = 30.0
_MAX_DEATHS_IN_SERIES = 5


@dataclass(frozen=True, kw_only=True)
class ServerManagerRecord:
    """Address of the server manager of a data folder."""

    pid: int
    socket_dir: str
    url: str

    @property
    def control(self) -> Path:
        return Path(self.socket_dir) / CONTROL_NAME


def server_folder(data: Path) -> Path:
    """Return the folder of the embedded server within a data folder."""
    return data / "valkey"


def lock_path(data: Path) -> Path:
    """Return the file that a server manager holds locked while it lives."""
    return server_folder(data) / "keeper.lock"


def try_to_lock(file: IO[str]) -> bool:
    """Lock a file until it is closed; False if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_record(data: Path) -> ServerManagerRecord | None:
    """Return the record that the server manager of the folder wrote; that may be gone since."""
    try:
        return ServerManagerRecord(
            **json.loads((server_folder(data) / "keeper.json").read_text(encoding="utf-8"))
        )
    except (OSError, ValueError, TypeError):
        return None


def make_sockets(data: Path) -> Path:
    """Return the folder of the sockets of a data folder, where it was before, whatever this process calls temporary.

    Raises:
        ConfigurationError: it cannot be made.
    """
    memory = server_folder(data) / "sockets-in"
    try:
        before = Path(memory.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        before = None
    folder = make_socket_dir(data, first=before)
    if folder.parent != before:
        memory.write_text(str(folder.parent), encoding="utf-8")
    return folder


def _is_in_place(lock: IO[str]) -> bool:
    """Return True if a locked file still has its name: neither it nor its folder was removed."""
    try:
        return Path(lock.name).stat().st_ino == os.fstat(lock.fileno()).st_ino
    except OSError:
        return False


def hold_sockets(data: Path) -> tuple[Path, IO[str]]:
    """Return the folder of the sockets of a data folder, and a lock on it: who removes the data folder removes no
    server.

    Raises:
        ConfigurationError: it cannot be made, or the server of a data folder of this name that was removed still runs.
    """
    deadline = time.monotonic() + _OTHER_ENDS_S
    while True:
        folder = make_sockets(data)
        with suppress(FileNotFoundError):
            lock = (folder / "keeper.lock").open("w")
            if try_to_lock(lock) and _is_in_place(lock):
                return folder, lock
            lock.close()
        if time.monotonic() > deadline:
            raise ConfigurationError(
                f"the stack that ran on {data} before it was removed still runs: stop that `orchestra up` first"
            )
        time.sleep(_TICK_S)


class ServerManager:
    """Runs the server and counts who is joined; single-threaded."""

    def __init__(self, data: Path, lock: IO[str]) -> None:
        """``lock`` is the locked file of :func:`lock_path`."""
        self._data = data
        self._lock = lock
        self._selector = selectors.DefaultSelector()
        self._members: set[socket.socket] = set()
        self._leaving: list[socket.socket] = []
        self._stopping = False
        # From here on something is left that has to be cleared away.
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._deaths = 0
        self._started_at = 0.0
        self._socket_dir, self._held = hold_sockets(data)
        self._server = ValkeyProcess(server_folder(data), self._socket_dir, log=data / "logs" / "valkey.log")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def run(self) -> None:
        """Keep the server until the last member has left.

        Raises:
            OrchestraError: the server cannot be started; every member has been told.
        """
        # One that was killed before it wrote its record has left its socket; this process has the lock.
        (self._socket_dir / CONTROL_NAME).unlink(missing_ok=True)
        self._listener.bind(str(self._socket_dir / CONTROL_NAME))
        self._listener.listen(16)
        self._listener.setblocking(False)
        self._write_record()
        try:
            self._start()
            self._selector.register(self._listener, selectors.EVENT_READ)
            alone_since = time.monotonic()
            joined_once = False
            while not self._stopping:
                for key, _ in self._selector.select(_IDLE_TICK_S):
                    if key.fileobj is self._listener:
                        self._accept()
                        joined_once = True
                    else:
                        self._hear(key.fileobj)  # type: ignore[arg-type]  # only sockets are registered
                if self._members:
                    alone_since = time.monotonic()
                elif joined_once or time.monotonic() - alone_since > _UNJOINED_S:
                    break
                if not _is_in_place(self._lock):
                    raise ConfigurationError(
                        f"the data folder {self._data} was removed while its stack ran: what the server kept there is gone, and "
                        "nothing more would be kept; the stack ends"
                    )
                if self._server.poll() is not None:
                    self._revive()
        except OrchestraError as error:
            self._admit_waiting()
            self._tell_all(event="failed", reason=str(error))
            raise
        finally:
            self._close()

    def _write_record(self) -> None:
        record = ServerManagerRecord(pid=os.getpid(), socket_dir=str(self._socket_dir), url=self._server.url)
        path = server_folder(self._data) / "keeper.json"
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(record)), encoding="utf-8")
        temporary.replace(path)

    def _start(self) -> None:
        self._server.start()
        self._started_at = time.monotonic()

    def _revive(self) -> None:
        death = self._server.obituary()
        self._deaths = self._deaths + 1 if time.monotonic() - self._started_at < _SERIES_S else 1
        self._tell_all(event="died", reason=str(death))
        while True:
            if death.hopeless or self._deaths > _MAX_DEATHS_IN_SERIES:
                raise death
            time.sleep(min(2.0, 0.05 * 2**self._deaths))
            try:
                self._start()
            except ServerDied as again:
                death = again
                self._deaths += 1
            else:
                self._tell_all(event="restarted")
                return

    def _accept(self) -> None:
        with suppress(OSError):
            member, _ = self._listener.accept()
            member.settimeout(1.0)
            self._members.add(member)
            self._selector.register(member, selectors.EVENT_READ)
            self._tell(member, event="ready", url=self._server.url, server_pid=self._server.pid)

    def _admit_waiting(self) -> None:
        """Take in who connected and was not greeted, so that they hear why not."""
        with suppress(OSError):
            while True:
                member, _ = self._listener.accept()
                self._members.add(member)

    def _hear(self, member: socket.socket) -> None:
        try:
            heard = member.recv(1024)
        except OSError:
            heard = b""
        self._selector.unregister(member)
        self._members.discard(member)
        if heard and self._members:
            self._tell(member, event="stays")
            member.close()
        elif heard:
            self._leaving.append(member)
        else:
            member.close()

    def _tell_all(self, **words: Any) -> None:
        for member in self._members:
            self._tell(member, **words)

    def _tell(self, member: socket.socket, **words: Any) -> None:
        # Who does not listen is noticed when its connection closes.
        with suppress(OSError):
            member.sendall(json.dumps(words).encode() + b"\n")

    def _close(self) -> None:
        # The listener goes first: who comes now is refused and starts a server manager of its own after this one.
        self._listener.close()
        self._server.stop()
        with suppress(FileNotFoundError):
            (server_folder(self._data) / "keeper.json").unlink()
        remove_socket_dir(self._socket_dir)
        for member in [*self._leaving, *self._members]:
            self._tell(member, event="stopped")
            member.close()
        self._selector.close()

    def _on_term(self, _number: int, _frame: object) -> None:
        self._stopping = True


def sweep_leftovers(data: Path) -> None:
    """Stop what a server manager that was killed left running, and remove its sockets. Call it under the lock.

    A record that came here with a copy of another data folder is about a server that is none of ours.
    """
    record = read_record(data)
    if record is None or Path(record.socket_dir).name != socket_dir_name(data):
        return
    path = Path(record.socket_dir) / SOCKET_NAME
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            send_command(path, b"SHUTDOWN", timeout_s=2.0)
        except OSError:
            break
        time.sleep(0.02)
    remove_socket_dir(Path(record.socket_dir))


def main(data: Path) -> int:
    """Run the server manager of a data folder; report a failure as one JSON line on standard output."""
    lock = lock_path(data).open("w")
    if not try_to_lock(lock):
        return 3
    try:
        sweep_leftovers(data)
        ServerManager(data, lock).run()
    except (OrchestraError, OSError) as error:
        with suppress(OSError):
            print(json.dumps({"event": "failed", "reason": str(error)}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
