"""The targets of notifications: a URL and a command, both of the settings. No agent can choose either."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import os
import secrets
import shlex
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

from orchestrator import machine
from orchestrator.config.settings import ENV_PREFIX, Settings
from orchestrator.errors import ConfigurationError
from orchestrator.keyring.files import write_whole

#: Seconds that one delivery may take.
TIMEOUT_S: Final = 10.0
#: Characters of what went wrong that are kept.
_REASON_CHARS: Final = 300
_KEY_PREFIX: Final = "whsec_"


class Target(Protocol):
    """A receiver of notifications."""

    @property
    def name(self) -> str:
        """Its name in logs, and that of its consumer group."""
        ...

    def deliver(self, event_id: str, body: bytes) -> str:
        """Deliver one event within the time limit; returns why it was not taken, or an empty text."""
        ...


class Webhook:
    """A POST of the event, signed as Standard Webhooks has it: HMAC-SHA256 over id, time and body.

    Redirects are not followed: the answer of a server does not choose another receiver.
    """

    name = "webhook"

    def __init__(
        self, url: str, secret: bytes, *, timeout_s: float, now: Callable[[], float] = machine.time
    ) -> None:
        parts = urlsplit(url)
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._secret = secret
        self._timeout_s = timeout_s
        self._now = now
        self._authorization = ""
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._authorization = f"Basic {base64.b64encode(login).decode()}"

    def deliver(self, event_id: str, body: bytes) -> str:
        """See :class:`Target`."""
        stamp = str(int(self._now()))
        headers = {
            "Content-Type": "application/cloudevents+json",
            "User-Agent": "agent-orchestra",
            "webhook-id": event_id,
            "webhook-timestamp": stamp,
            "webhook-signature": f"v1,{signature(self._secret, event_id, stamp, body)}",
        }
        if self._authorization:
            headers["Authorization"] = self._authorization
        connection: http.client.HTTPConnection
        if self._secure:
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=self._timeout_s, context=context
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        # The socket's own limit begins anew with every byte that a slow server sends.
        late = threading.Timer(self._timeout_s, _abort, [connection])
        late.daemon = True
        late.start()
        try:
            connection.request("POST", self._path, body, headers)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException, ValueError) as error:
            if late.finished.is_set():
                return f"no answer within {self._timeout_s:g} s"
            return f"{type(error).__name__}: {error}"[:_REASON_CHARS]
        finally:
            late.cancel()
            connection.close()
        return "" if 200 <= status < 300 else f"HTTP status {status}"


def _abort(connection: http.client.HTTPConnection) -> None:
    if connection.sock is not None:
        with suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)


def signature(secret: bytes, event_id: str, stamp: str, body: bytes) -> str:
    """Return the signature of an event in base64; the receiver computes it likewise and compares."""
    signed = f"{event_id}.{stamp}.".encode() + body
    return base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()


class CommandTarget:
    """A command that gets the event on its standard input; it has taken it when it ends with 0."""

    name = "command"

    def __init__(self, command: str, *, timeout_s: float) -> None:
        self._arguments = shlex.split(command)
        self._timeout_s = timeout_s

    def deliver(self, event_id: str, body: bytes) -> str:
        """See :class:`Target`."""
        # The command gets none of the stack's settings, which include passwords.
        env = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
        env["EVENT_ID"] = event_id
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(
                    self._arguments,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=output,
                    env=env,
                    start_new_session=True,
                )
            except OSError as error:
                return f"it cannot be started: {error}"[:_REASON_CHARS]
            try:
                process.communicate(body, timeout=self._timeout_s)
            except subprocess.TimeoutExpired:
                return f"it did not end within {self._timeout_s:g} s and was killed"
            finally:
                # Its children end with it.
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if process.returncode == 0:
                return ""
            output.seek(0)
            text = output.read(_REASON_CHARS).decode(errors="replace").strip()
        return f"exit code {process.returncode}{f': {text}' if text else ''}"


def targets_of(settings: Settings) -> list[Target]:
    """Return the targets that the settings name.

    Raises:
        ConfigurationError: the file of the secret cannot be used.
    """
    found: list[Target] = []
    if settings.notify_url:
        secret = read_secret(settings.notify_secret_path)
        found.append(Webhook(settings.notify_url, secret, timeout_s=TIMEOUT_S))
    if settings.notify_command:
        found.append(CommandTarget(settings.notify_command, timeout_s=TIMEOUT_S))
    return found


def _make_secret(path: Path) -> None:
    """Write a new secret, unless there is one; never a part of it."""
    if path.exists():
        return
    scratch = path.with_name(f".{path.name}.{machine.token_hex(8)}")
    write_whole(scratch, f"{_KEY_PREFIX}{base64.b64encode(secrets.token_bytes(32)).decode()}\n".encode())
    try:
        with suppress(FileExistsError):  # another notifier was first
            path.hardlink_to(scratch)
    finally:
        scratch.unlink()


def read_secret(path: Path) -> bytes:
    """Return the secret that signs webhooks; the first call makes it.

    Raises:
        ConfigurationError: the file cannot be read or written, others may read it, or it is empty.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_secret(path)
        if path.stat().st_mode & 0o077:
            raise ConfigurationError(f"others may read {path}; run: chmod 600 {path}")
        text = path.read_text(encoding="utf-8").strip()
        secret = (
            base64.b64decode(text.removeprefix(_KEY_PREFIX), validate=True)
            if text.startswith(_KEY_PREFIX)
            else text.encode()
        )
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the secret of notifications in {path} cannot be used: {error}") from error
    if len(secret) < 16:
        raise ConfigurationError(f"the secret of notifications in {path} is shorter than 16 bytes")
    return secret
