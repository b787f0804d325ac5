"""Connection of a process's clients to the server: redis-py's own, without a socket and without its measurements.

They are made by ``SimulatedRedis(connection_pool=SimulatedPool(Link(server)))``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import hiredis
import redis

from orchestrator.testing.simulation.server import Command, Server, ServerSession


class Link:
    """Exchanges of one process with the server. Whoever inherits it decides what may happen in between."""

    def __init__(self, server: Server) -> None:
        self.server = server
        #: The connections of the process.
        self.sessions: list[ServerSession] = []

    def connect(self, name: str) -> ServerSession:
        """Open a connection; ``name`` shows in CLIENT LIST.

        Raises:
            redis.ConnectionError: the server is away.
        """
        session = self.server.connect(name)
        self.sessions = [*(known for known in self.sessions if known.is_open), session]
        return session

    def exchange(self, session: ServerSession, commands: Sequence[Command]) -> list[Any]:
        """Send commands together; their answers, an error standing where the server refused one.

        Raises:
            redis.ConnectionError: the connection broke; any of them may have been carried out.
        """
        return [session.execute(command) for command in commands]

    def close(self) -> None:
        """Close all connections, as the kernel does when a process ends."""
        for session in self.sessions:
            session.close()
        self.sessions = []


class SimulatedRedis(redis.Redis):
    """A client of redis-py that measures nothing, which takes it longer than the server takes."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command; its answer, as redis-py reads it, and sends it again where the connection broke."""
        pool = self.connection_pool
        connection = pool.get_connection()

        def once() -> Any:
            connection.send_packed_command(_packed(args))
            return self.parse_response(connection, args[0], **options)  # type: ignore[no-untyped-call]

        try:
            return connection.retry.call_with_retry(once, lambda _: connection.disconnect())
        finally:
            pool.release(connection)

    def pipeline(self, transaction: Any = True, shard_hint: Any = None) -> Any:  # noqa: FBT002
        """Return a pipeline that measures nothing."""
        return _Pipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)


class _Pipeline(redis.client.Pipeline):
    """A pipeline of redis-py; one that watches nothing and is no transaction takes a short way."""

    def execute(self, raise_on_error: bool = True) -> list[Any]:  # noqa: FBT001, FBT002
        stack = self.command_stack
        atomic: Any = self.transaction  # redis-py has a method of that name, and an attribute in its place
        if not stack or atomic or self.explicit_transaction or self.scripts or self.watching:
            return super().execute(raise_on_error)
        pool = self.connection_pool
        connection: Any = self.connection or pool.get_connection()
        self.connection = connection

        def once() -> list[Any]:
            connection.send_packed_command(b"".join(_packed(args) for args, _ in stack))
            answers: list[Any] = []
            for args, options in stack:
                try:
                    answers.append(self.parse_response(connection, args[0], **options))  # type: ignore[no-untyped-call]
                except redis.ResponseError as error:
                    answers.append(error)
            if raise_on_error:
                self.raise_first_error(stack, answers)  # type: ignore[no-untyped-call]
            return answers

        try:
            return list(connection.retry.call_with_retry(once, lambda _: connection.disconnect()))
        finally:
            self.reset()


def _packed(args: tuple[Any, ...]) -> bytes:
    """Return a command as it is sent; the name of some is two words."""
    name = args[0]
    if isinstance(name, str) and " " in name:
        args = (*name.split(), *args[1:])
    return hiredis.pack_command(args)  # type: ignore[no-any-return]


class SimulatedPool(redis.ConnectionPool):
    """The connections of one process in one thread: nothing is locked, looked after or measured."""

    def __init__(self, link: Link, **options: Any) -> None:
        super().__init__(SimulatedConnection, link=link, protocol=2, **options)
        self._free: list[Any] = []

    def get_connection(self, command_name: str | None = None, *keys: Any, **options: Any) -> Any:
        """Return a connection that is open; it is the caller's until :meth:`release`."""
        connection = self._free.pop() if self._free else self.make_connection()
        connection.connect()
        return connection

    def release(self, connection: Any) -> None:
        """Take a connection back."""
        self._free.append(connection)


class SimulatedConnection(redis.Connection):
    """A connection of redis-py whose bytes go through a :class:`Link`. It knows neither time-outs nor health checks."""

    def __init__(self, *, link: Link, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        if self.get_protocol() not in (2, "2"):
            raise redis.DataError("the simulated server speaks RESP2: say protocol=2")
        self._link = link
        self._session: ServerSession | None = None
        self._reader = hiredis.Reader()
        self._answers: deque[Any] = deque()

    @property
    def is_connected(self) -> bool:
        """True if it is open on this side."""
        return self._session is not None

    def connect(self) -> None:
        """Open it, if it is not."""
        if self._session is None:
            self._session = self._link.connect(self.client_name or "")

    def disconnect(self, *args: Any, **options: Any) -> None:
        """Close it; answers that are still to come are lost."""
        super().disconnect(*args, **options)  # type: ignore[no-untyped-call]
        self._answers.clear()
        if self._session is not None:
            self._session.close()
            self._session = None

    def check_health(self) -> None:
        """Do nothing: it breaks when the link says so."""

    def can_read(self, timeout: float = 0) -> bool:
        """Return True if answers are left; nobody waits for more."""
        return bool(self._answers)

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:  # noqa: FBT001, FBT002
        """Exchange commands that are packed; their answers are read afterwards."""
        self.connect()
        assert self._session is not None
        commands = self._unpacked([command] if isinstance(command, (str, bytes)) else command)
        try:
            self._answers.extend(self._link.exchange(self._session, commands))
        except BaseException:
            self.disconnect()
            raise

    def _unpacked(self, pieces: Iterable[Any]) -> list[Command]:
        reader = self._reader
        for piece in pieces:
            reader.feed(piece)
        commands: list[Command] = []
        while (command := reader.gets()) is not False:
            commands.append(command)
        return commands

    def read_response(self, *_: Any, **__: Any) -> Any:
        """Return the next answer, or raise it."""
        if not self._answers:
            self.disconnect()
            raise redis.ConnectionError("Connection closed by server.")
        answer = self._answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer
