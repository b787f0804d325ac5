"""Which processes are connected to the server: those that hold runs, and the services.

The kernel closes the connections of a process that is killed, however little time the process has had. A connection
that is there says nothing about work: that is what leases are for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import redis

from orchestrator.redisdb.client import connect, is_outage

_PREFIX: Final = "orchestra-"


def connection_name(part: str, mark: str) -> str:
    """Return the name of a connection by which a process shows that it lives; ``part`` is its part of the stack."""
    return f"{_PREFIX}{part}@{mark}"


@dataclass(frozen=True)
class Connected:
    """The holders that the server knows at one moment."""

    #: The mark of each, as it stands behind the ``@`` of its claims, or of its name as a consumer.
    holders: frozenset[str] = frozenset()
    #: Seconds since the oldest of all connections was made: no more than since the server was started.
    oldest_s: float = 0


def connect_holder(url: str, mark: str, *, timeout_s: float) -> redis.Redis:
    """Return the one connection by which a process shows that it is there."""
    return connect(
        url, check=False, name=connection_name("holder", mark), max_connections=1, timeout_s=timeout_s
    )


def connected_holders(client: redis.Redis) -> Connected:
    """Return the connected processes; none if the server does not tell, as some proxies and rights forbid the
    question.

    Raises:
        redis.RedisError: the server is away.
    """
    try:
        rows: Any = client.client_list()
    except redis.ResponseError as error:
        if is_outage(error):
            raise
        return Connected()
    names = (str(row.get("name", "")) for row in rows)
    return Connected(
        frozenset(name.rpartition("@")[2] for name in names if name.startswith(_PREFIX) and "@" in name),
        max((float(row.get("age", 0)) for row in rows), default=0),
    )
