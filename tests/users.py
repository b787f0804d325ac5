"""The users of a server that `orchestra service acl` prints, one for each part of a stack."""

from __future__ import annotations

from functools import cache

import redis as redis_py

from orchestrator.redisdb.acl import PASSWORD, acl_line, role_rules
from orchestrator.redisdb.client import connect


@cache
def _rules(role: str) -> list[str]:
    """What `ACL SETUSER` takes for a role."""
    return acl_line(role, role_rules(role)).replace(PASSWORD, "for-tests").split()[1:]


def connect_as(role: str, redis: redis_py.Redis, url: str) -> redis_py.Redis:
    """A connection of the user of a role, who is made on the server of ``redis``."""
    redis.execute_command("ACL", "SETUSER", *_rules(role))
    return connect(f"{url}&username={role}&password=for-tests", check=False)
