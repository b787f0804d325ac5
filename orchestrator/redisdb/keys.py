"""Every Redis key of the project: one function each, registered with type, owner and lifetime.

No other module spells a key. Keys of one shard share a hash tag, so that a transition touches
one slot of a Redis Cluster: ``ao:{00}:…``. Keys without a shard (agents, public keys) carry none.
`docs/reference/redis-keys.md` is generated from ``REGISTRY``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec

from orchestrator.ids import shard_of

P = ParamSpec("P")

PREFIX = "ao"


@dataclass(frozen=True, kw_only=True)
class KeySpec:
    """What the documentation says of one key."""

    name: str
    pattern: str
    #: Redis type: hash, zset, set, stream, string, list.
    type: str
    #: The part of the code that writes it.
    owner: str
    lifetime: str
    #: What it holds, in one sentence.
    holds: str


REGISTRY: list[KeySpec] = []


def _key(
    pattern: str, *, type: str, owner: str, lifetime: str
) -> Callable[[Callable[P, str]], Callable[P, str]]:
    def register(function: Callable[P, str]) -> Callable[P, str]:
        holds = (function.__doc__ or "").strip().splitlines()[0]
        REGISTRY.append(
            KeySpec(
                name=function.__name__, pattern=pattern, type=type, owner=owner, lifetime=lifetime, holds=holds
            )
        )
        return function

    return register


def shard_tag(shard: int) -> str:
    """The prefix that all keys of a shard share, hash tag included."""
    return f"{PREFIX}:{{{shard:02x}}}"


def _of(identifier: str) -> str:
    return shard_tag(shard_of(identifier))
