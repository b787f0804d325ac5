"""A single round trip to Redis, over a connection of redis-py, and the time of its server.

The measurements that redis-py makes around each command take about as long as a short script takes the server.
Connections, what is sent again when one breaks, and what answers mean stay redis-py's own.

A thread keeps the connection that it used last: redis-py's pool asks the kernel each time whether a connection is in
order, which a round trip shows by itself. A connection that broke meanwhile is opened again, as redis-py does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any, Final

import hiredis
import redis

from orchestrator import machine

#: Bytes from which on they are sent without waiting for more.
PIECE: Final = 65_536


class _Kept:
    """The connection that a thread keeps between its round trips; it goes back to its pool when the thread ends."""

    def __init__(self) -> None:
        self._free: list[tuple[int, redis.ConnectionPool, redis.Connection]] = []

    def take(self, pool: redis.ConnectionPool) -> Any:
        """Return the thread's connection of this pool, or another one. It is the caller's until :meth:`put`."""
        # Nothing is free for a round trip within another one of the thread: one of a signal handler.
        if self._free:
            pid, kept_pool, connection = self._free.pop()
            if pid == os.getpid():
                if kept_pool is pool:
                    return connection
                kept_pool.release(connection)
            # A fork leaves its parent's alone: another thread may have held the lock of that pool when it was made.
        return pool.get_connection()

    def put(self, pool: redis.ConnectionPool, connection: Any) -> None:
        """Keep a connection, if the thread keeps none."""
        if self._free:
            pool.release(connection)
        else:
            self._free.append((os.getpid(), pool, connection))

    def __del__(self) -> None:
        for pid, pool, connection in self._free:
            if pid == os.getpid():
                pool.release(connection)


class _OfThread(threading.local):
    """The connection that the current thread keeps."""

    def __init__(self) -> None:
        self.kept = _Kept()


_of_thread = _OfThread()


def exchange(client: redis.Redis, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Send commands together; their answers in order, an error standing where the server refused one.

    They are sent again when the connection breaks under them, as :func:`~orchestrator.redisdb.client.connect` says.

    Raises:
        redis.ConnectionError, redis.TimeoutError: the server is out of reach; any of them may have been carried out.
        redis.DataError: one of them holds a value that is neither text nor bytes nor a number; none was sent.
    """
    packed = _packed(commands)
    pool = client.connection_pool
    kept = _of_thread.kept
    connection = kept.take(pool)

    def once() -> list[Any]:
        connection.send_packed_command(packed)
        answers: list[Any] = []
        for _ in commands:
            try:
                answers.append(connection.read_response())
            except redis.ResponseError as error:
                answers.append(error)
        return answers

    try:
        return list(connection.retry.call_with_retry(once, lambda _: connection.disconnect()))
    except BaseException:
        # An answer that is still to come would be taken for that of the next command.
        connection.disconnect()
        raise
    finally:
        kept.put(pool, connection)


def _packed(commands: Sequence[tuple[Any, ...]]) -> list[bytes]:
    """Return the bytes of commands, in pieces: each piece may take as long to send as one command."""
    pieces: list[bytes] = []
    small: list[bytes] = []
    size = 0
    for command in commands:
        try:
            octets = hiredis.pack_command(command)
        except TypeError as error:
            raise redis.DataError(f"{command[0]} cannot be sent: {error}") from error
        small.append(octets)
        size += len(octets)
        if size >= PIECE:
            pieces.append(b"".join(small))
            small, size = [], 0
    return [*pieces, b"".join(small)] if small else pieces


#: Seconds for which the answer of the server is carried on by the monotonic clock of this process.
ASK_EVERY_S = 1.0


def server_ms(client: redis.Redis) -> int:
    """Redis `TIME` in milliseconds since the epoch."""
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000


class ServerClock:
    """Redis `TIME`, asked once a second. The ids of stream entries are of the same clock and can be compared with it.

    A machine that slept, or whose clock was set, asks at once: the monotonic clock does not know of it.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._asked_at = 0.0
        #: How far the wall clock of this machine was ahead of its monotonic clock when it asked, in seconds.
        self._ahead_s = 0.0
        self._server_ms: int | None = None

    def now_ms(self) -> int:
        """Return the server's time in milliseconds since the epoch.

        Raises:
            redis.RedisError: it has to be asked and does not answer.
        """
        now = machine.monotonic()
        ahead_s = machine.time() - now
        jumped = abs(ahead_s - self._ahead_s) > ASK_EVERY_S
        if self._server_ms is None or jumped or now - self._asked_at > ASK_EVERY_S:
            self._server_ms, self._asked_at, self._ahead_s = server_ms(self._redis), now, ahead_s
        return self._server_ms + int((now - self._asked_at) * 1000)

    def monotonic(self) -> float:
        """Return the seconds that only go forward, of this process."""
        return machine.monotonic()
