"""Reads every key of a Redis, for tests that look for what must not be there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import redis as redis_py


def everything(client: redis_py.Redis) -> Iterator[tuple[str, bytes]]:
    """The name of each key, with its name and each value in it."""
    server: Any = client
    for name in server.scan_iter(count=1000):
        key = name.decode()
        yield key, name
        match server.type(name).decode():
            case "string":
                yield key, server.get(name) or b""
            case "hash":
                yield from ((key, field + b" " + value) for field, value in server.hgetall(name).items())
            case "list":
                yield from ((key, value) for value in server.lrange(name, 0, -1))
            case "set":
                yield from ((key, value) for value in server.smembers(name))
            case "zset":
                yield from ((key, value) for value in server.zrange(name, 0, -1))
            case "stream":
                for _, fields in server.xrange(name):
                    yield from ((key, field + b" " + value) for field, value in fields.items())
            case "none":
                pass  # it has expired
            case other:
                raise AssertionError(f"{key} is a {other}")


def leaks(client: redis_py.Redis, word: str) -> list[str]:
    """The keys that have a word in clear."""
    return sorted({key for key, value in everything(client) if word.encode() in value})
