"""One round trip to Redis, over a connection of redis-py.

What redis-py does around each command, to measure it for whoever may ask, takes about as long as a short script
takes the server. Connections, what is sent again when one breaks, and what answers mean stay redis-py's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import hiredis
import redis

#: Octets from which on they are sent without waiting for more.
PIECE: Final = 65_536


def exchange(client: redis.Redis, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Send commands together; their answers in order, an error standing where the server refused one.

    They are sent again when the connection breaks under them, as :func:`~orchestrator.redisdb.client.connect` says.

    Raises:
        redis.ConnectionError, redis.TimeoutError: the server is out of reach; any of them may have been carried out.
        redis.DataError: one of them holds a value that is neither text nor octets nor a number; none was sent.
    """
    packed = _packed(commands)
    pool = client.connection_pool
    connection = pool.get_connection()

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
        pool.release(connection)


def _packed(commands: Sequence[tuple[Any, ...]]) -> list[bytes]:
    """The octets of commands, in pieces: each piece may take as long to send as one command."""
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
