"""Making and registering of Redis keys: :mod:`~orchestrator.redisdb.keys`, :mod:`~orchestrator.redisdb.ledger_keys`.

No other module spells a key. Keys of one shard share a hash tag, so that a transition touches
one slot of a Redis Cluster: ``ao:{00}:…``. Keys without a shard (agents, public keys) carry none.
`docs/reference/redis-keys.md` is generated from ``REGISTRY``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Final, ParamSpec

import redis

from orchestrator.ids import shard_of

P = ParamSpec("P")
PREFIX: Final = "ao"


@dataclass(frozen=True)
class KeySpec:
    """Specification of one key."""

    name: str
    pattern: str
    type: str  #: in Redis: hash, zset, set, stream, string, list
    owner: str  #: the part of the code that writes it
    lifetime: str
    holds: str  #: what it holds, in one sentence


REGISTRY: Final[list[KeySpec]] = []


def shard_tag(shard: int) -> str:
    """Return the prefix that all keys of a shard share, hash tag included."""
    return f"{PREFIX}:{{{shard:02x}}}"


def in_its_shard(key: str) -> str:
    """Return a key without what all keys of its shard begin with, as a script is asked about it."""
    return key.partition("}:")[2]


# Every transition names several keys of the same few sessions and runs.
@lru_cache(maxsize=1024)
def _of(identifier: str) -> str:
    return shard_tag(shard_of(identifier))


def of_id(name: str, pattern: str, *facts: str) -> Callable[[str], str]:
    """Return a key of one session, run or tree, whose id names the shard."""
    before, after = re.split("<.+>", pattern)

    def make(identifier: str) -> str:
        return f"{_of(identifier)}:{before}{identifier}{after}"

    REGISTRY.append(KeySpec(name, f"{PREFIX}:{{S}}:{pattern}", *facts))
    return make


def of_part(name: str, pattern: str, *facts: str) -> Callable[[str, str], str]:
    """Return a key of a part of one session or run."""
    before, between, _ = re.split("<[^>]+>", pattern)

    def make(identifier: str, part: str) -> str:
        return f"{_of(identifier)}:{before}{identifier}{between}{part}"

    REGISTRY.append(KeySpec(name, f"{PREFIX}:{{S}}:{pattern}", *facts))
    return make


def of_shard(name: str, pattern: str, *facts: str) -> Callable[[int], str]:
    """Return a key that each shard has once."""

    def make(shard: int) -> str:
        return f"{shard_tag(shard)}:{pattern}"

    REGISTRY.append(KeySpec(name, f"{PREFIX}:{{S}}:{pattern}", *facts))
    return make


def in_shard(name: str, pattern: str, *facts: str) -> Callable[[int, str], str]:
    """Return a key of something that has a name in its shard."""
    before = pattern.partition("<")[0]

    def make(shard: int, part: str) -> str:
        return f"{shard_tag(shard)}:{before}{part}"

    REGISTRY.append(KeySpec(name, f"{PREFIX}:{{S}}:{pattern}", *facts))
    return make


def of_stack(name: str, pattern: str, *facts: str) -> Callable[[], str]:
    """Return a key that the stack has once."""

    def make() -> str:
        return f"{PREFIX}:{pattern}"

    REGISTRY.append(KeySpec(name, f"{PREFIX}:{pattern}", *facts))
    return make


def key(pattern: str, type: str, owner: str, lifetime: str) -> Callable[[Callable[P, str]], Callable[P, str]]:
    """Return a key of any other form; the docstring of its function says what it holds."""

    def register(make: Callable[P, str]) -> Callable[P, str]:
        name, holds = make.__name__, make.__doc__ or ""
        REGISTRY.append(KeySpec(name, f"{PREFIX}:{pattern}", type, owner, lifetime, holds))
        return make

    return register


TREE: Final = "tree_ttl after its root has ended"
SESSION: Final = "as its session"
PERMANENT: Final = "permanent"


def registered(*tables: ModuleType) -> tuple[KeySpec, ...]:
    """Return all keys of these modules, in this order, whichever was imported first."""
    return tuple(spec for table in tables for spec in REGISTRY if spec.name in vars(table))


def is_wrong_type(error: BaseException) -> bool:
    """Return True if a key has another type than the command is for: it was written by somebody else."""
    return isinstance(error, redis.ResponseError) and "WRONGTYPE Operation against" in str(error)
