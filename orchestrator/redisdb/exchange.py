"""One way to the server and back, over a connection of redis-py.

What redis-py does around each command, to measure it for whoever may ask, takes longer than most of our scripts
take the server. Connections, what is sent again when one breaks, and what answers mean stay redis-py's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hiredis
import redis


def exchange(client: redis.Redis, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Send commands together; their answers in order, an error standing where the server refused one.

    They are sent again when the connection breaks under them, as :func:`~orchestrator.redisdb.client.connect` says.

    Raises:
        redis.ConnectionError, redis.TimeoutError: the server is out of reach; any of them may have been carried out.
    """
    packed = b"".join([hiredis.pack_command(command) for command in commands])
    pool = client.connection_pool
    connection = pool.get_connection()

    def once() -> list[Any]:
        connection.send_packed_command([packed])
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
