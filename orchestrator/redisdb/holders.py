"""Which processes that hold runs are connected to the server.

The kernel closes the connections of a process that is killed, however little time the process has had. A connection
that is there says nothing about work: that is what leases are for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import redis

from orchestrator.redisdb.client import connect, is_outage

_PREFIX: Final = "orchestra-holder-"


@dataclass(frozen=True)
class Connected:
    """The holders that the server knows at one moment."""

    #: The mark of each, as it stands behind the ``@`` of its claims.
    holders: frozenset[str] = frozenset()
    #: Seconds since the oldest of all connections was made: no more than since the server was started.
    oldest_s: float = 0


def connect_holder(url: str, mark: str, *, timeout_s: float) -> redis.Redis:
    """The one connection by which a process shows that it is there."""
    return connect(url, check=False, name=f"{_PREFIX}{mark}", max_connections=1, timeout_s=timeout_s)


def connected_holders(client: redis.Redis) -> Connected:
    """Who is connected. Nobody, if the server does not tell: some proxies and rights do not allow the question.

    Raises:
        redis.RedisError: the server is away.
    """
    try:
        rows: Any = client.client_list(_type="normal")
    except redis.ResponseError as error:
        if is_outage(error):
            raise
        return Connected()
    names = (str(row.get("name", "")) for row in rows)
    return Connected(
        frozenset(name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX)),
        max((float(row.get("age", 0)) for row in rows), default=0),
    )
