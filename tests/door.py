"""A socket before a server's own, which hangs up on some requests, swallows them, or answers them itself."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal, TypeAlias

from orchestrator.deployment.embedded.valkey import ValkeyProcess, make_socket_dir, remove_socket_dir

#: What becomes of a request; bytes are the answer.
Verdict: TypeAlias = Literal["pass", "hang up", "swallow"] | bytes
#: A verdict by the number of a request, counted from one, and its bytes.
Rule = Callable[[int, bytes], Verdict]


class FaultProxy:
    """Lets everything pass until it is told otherwise."""

    def __init__(self, listener: socket.socket, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        #: How many connections there were, and up to which of them nothing is carried any more.
        self._guests = self._forgotten = 0
        self.open()
        self._socket = listener
        self._socket.listen(64)
        threading.Thread(target=self._let_in, daemon=True).start()

    def keep(self, rule: Rule) -> None:
        """Deal with every request from now on as a rule says; requests are counted from now on."""
        self._asked, self._rule = 0, rule

    def open(self) -> None:
        """Let everything pass."""
        self.keep(lambda _number, _request: "pass")

    def forget(self) -> None:
        """Carry nothing any more over the connections that there are, and say nothing; others may come in."""
        self._forgotten = self._guests

    def close(self) -> None:
        """Let nobody else in."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _let_in(self) -> None:
        with suppress(OSError):
            while True:
                guest, _ = self._socket.accept()
                host = self._connect()
                self._guests += 1
                asked, answered = (
                    self._of(self._guests, self._judge),
                    self._of(self._guests, lambda _: "pass"),
                )
                for direction in ((guest, host, asked), (host, guest, answered)):
                    threading.Thread(target=_carry, args=direction, daemon=True).start()

    def _of(self, guest: int, judge: Callable[[bytes], Verdict]) -> Callable[[bytes], Verdict]:
        """What becomes of what is said over one connection."""
        return lambda said: "swallow" if guest <= self._forgotten else judge(said)

    def _judge(self, request: bytes) -> Verdict:
        self._asked += 1
        return self._rule(self._asked, request)


def _carry(source: socket.socket, target: socket.socket, judge: Callable[[bytes], Verdict]) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            verdict = judge(data)
            if verdict == "hang up":
                break
            if isinstance(verdict, bytes):
                source.sendall(verdict)
            elif verdict == "pass":
                target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def door_to(server: ValkeyProcess) -> Iterator[tuple[FaultProxy, str]]:
    """A door, and the URL that leads through it."""
    folder = make_socket_dir()
    own = server.url.removeprefix("unix://").partition("?")[0]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "door"))

    def connect() -> socket.socket:
        host = socket.socket(socket.AF_UNIX)
        host.connect(own)
        return host

    made = FaultProxy(listener, connect)
    try:
        yield made, server.url.replace(own, str(folder / "door"))
    finally:
        made.close()
        remove_socket_dir(folder)


@contextmanager
def door_to_port(port: int) -> Iterator[tuple[FaultProxy, int]]:
    """A door to a server on loopback, and the port that leads through it."""
    listener = socket.create_server(("127.0.0.1", 0))
    made = FaultProxy(listener, lambda: socket.create_connection(("127.0.0.1", port)))
    try:
        yield made, listener.getsockname()[1]
    finally:
        made.close()
