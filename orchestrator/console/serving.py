"""The console as a process: it listens, says where, and lets `orchestra open` find it."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import uvicorn

from orchestrator.config.settings import Settings
from orchestrator.console import application
from orchestrator.console.access import Access, Role, Rules, check_exposure, is_loopback
from orchestrator.console.application import Console, mounted
from orchestrator.console.stack import Stack
from orchestrator.errors import ConfigurationError, NoStack
from orchestrator.log import get_logger

#: Names of a console that only this machine reaches: a page elsewhere cannot make a browser call it by another one.
_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
#: Seconds between two looks at whether the process is to stop.
_LOOK_EVERY_S: Final = 0.2
_GRACE_S: Final = 1


@dataclass(frozen=True)
class Place:
    """The place of a console that runs."""

    url: str
    pid: int
    host: str
    port: int


def rules_of(settings: Settings, host: str, *, read_only: bool = False) -> Rules:
    """Return who may use a console that listens on this address.

    Raises:
        ConfigurationError: anybody could: it is not loopback, and there is neither a token nor a proxy.
    """
    own = is_loopback(host) and not settings.console_proxies
    rules = replace(
        application.rules_of(settings), read_only=read_only, hosts=(*_LOOPBACK, host) if own else ()
    )
    check_exposure(host, rules)
    return rules


class ConsoleService:
    """A console that serves until it is told to stop."""

    def __init__(
        self, settings: Settings, access: Access, sock: socket.socket, place: Place, *, prefix: str = ""
    ) -> None:
        self._settings = settings
        self._place = place
        self._socket = sock
        self._console = Console(Stack(lambda: settings), lambda: access)
        config = uvicorn.Config(
            mounted(prefix, self._console.application()),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=_GRACE_S,
            # Who a proxy names is decided by `Access`, from the peer's own address.
            proxy_headers=False,
        )
        self._server = uvicorn.Server(config)

    def run(self, stop: threading.Event) -> None:
        """Serve until ``stop`` is set."""
        thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="console", daemon=True
        )
        thread.start()
        with announced(self._settings.data, self._place):
            get_logger().info("console-listens", url=self._place.url)
            while not stop.wait(_LOOK_EVERY_S) and thread.is_alive():
                pass
            self._server.should_exit = True
            thread.join(_GRACE_S + 2)
            self._console.probes.close()


def listen(host: str, port: int, *, or_any: bool = False) -> socket.socket:
    """Return a socket that listens; with ``or_any`` on a free port if that one is in use.

    Raises:
        ConfigurationError: the address or the port cannot be used.
    """
    try:
        return _bound(host, port)
    except OSError as error:
        if or_any and port:
            return listen(host, 0)
        reason = error.strerror or str(error)
        raise ConfigurationError(
            f"the console cannot listen on {host} port {port}: {reason}; choose another with --port"
        ) from error


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(128)
    except OSError:
        sock.close()
        raise
    sock.set_inheritable(False)
    return sock


def place_of(sock: socket.socket, host: str, prefix: str = "") -> Place:
    """Return the place of a console that listens on a socket."""
    port = sock.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    path = f"/{prefix.strip('/')}".rstrip("/")
    return Place(f"http://{shown}:{port}{path}", os.getpid(), host, port)


@contextmanager
def announced(data: Path, place: Place) -> Iterator[None]:
    """Let `orchestra open` find a console while it runs."""
    folder = data / "console"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"at-{place.pid}.json"
    path.write_text(json.dumps(asdict(place)), encoding="utf-8")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def running(data: Path) -> list[Place]:
    """Return the consoles that run on a data folder, the latest first."""
    found = []
    for path in (data / "console").glob("at-*.json"):
        with suppress(OSError, ValueError, TypeError):
            place = Place(**json.loads(path.read_text(encoding="utf-8")))
            found.append((path.stat().st_mtime, place))
    return [place for _, place in sorted(found, key=lambda pair: pair[0], reverse=True) if _answers(place)]


def _answers(place: Place) -> bool:
    host = "127.0.0.1" if place.host in ("0.0.0.0", "") else "::1" if place.host == "::" else place.host  # noqa: S104
    try:
        socket.create_connection((host, place.port), timeout=1).close()
    except OSError:
        return False
    return True


def address(data: Path, name: str, role: Role) -> str:
    """Return the address of the console that runs on a data folder, with a token of one use.

    Raises:
        NoStack: none does.
    """
    places = running(data)
    if not places:
        raise NoStack(
            f"no console is running on {data}; start `orchestra console`, or `orchestra up`, which runs one where the extra "
            "`console` is installed"
        )
    token = Access(Rules(folder=data / "console")).make_token(name, role)
    return f"{places[0].url}/?token={token}"
