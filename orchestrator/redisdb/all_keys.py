"""Every Redis key of the stack, for rights, scripts, the doctor and the reference."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import redis

from orchestrator.redisdb import keys, ledger_keys
from orchestrator.redisdb.key_table import is_wrong_type, registered

REGISTRY: Final = registered(ledger_keys, keys)
#: The variable parts of keys of which there are a few, which all sessions share: see :func:`shared_keys`.
_NAMED: Final = frozenset({"agent", "name", "program"})


class WrongType(NamedTuple):
    """A key that somebody has overwritten."""

    key: str
    type: str
    wanted: str

    def __str__(self) -> str:
        return (
            f"{self.key} is a {self.type} and has to be a {self.wanted}: another program has overwritten it; "
            "`orchestra doctor --fix` sets it aside and rebuilds what the ledger's records still say"
        )


def shared_keys(shards: int, names: Iterable[str] = (), streams: Iterable[str] = ()) -> dict[str, str]:
    """Return the keys that sessions share, each with its type: those of the stack and of its shards.

    Also those of the agents and external programs in ``names``, and of messages the ``streams``.
    """
    found = dict.fromkeys(streams, "stream")
    parts = list(names)
    for spec in REGISTRY:
        for shard in range(shards if "{S}" in spec.pattern else 1):
            pattern = spec.pattern.replace("{S}", f"{{{shard:02x}}}")
            before, part, after = [*re.split("<(.+?)>", pattern, maxsplit=1), "", ""][:3]
            if not part:
                found[pattern] = spec.type
            elif part in _NAMED and "<" not in after:
                found |= {f"{before}{name}{after}": spec.type for name in parts}
    return found


def wrong_types(client: redis.Redis, wanted: dict[str, str]) -> list[WrongType]:
    """Return those of the keys that are neither missing nor of the type that they are to have, as far as this user
    may ask.
    """
    pipe = client.pipeline(transaction=False)
    for key in wanted:
        pipe.type(key)
    found = []
    for (key, type_), answer in zip(wanted.items(), pipe.execute(raise_on_error=False), strict=True):
        if isinstance(answer, Exception):
            if not isinstance(answer, redis.exceptions.NoPermissionError):
                raise answer
            continue
        is_now = answer.decode()
        if is_now not in ("none", type_):
            found.append(WrongType(key, is_now, type_))
    return found


class SharedKeys:
    """Tells whether a command was refused because a key that sessions share was overwritten.

    ``names`` are asked for the agents and programs whose keys are among them.
    """

    def __init__(
        self,
        client: redis.Redis,
        shards: int,
        *,
        names: Callable[[], Iterable[str]] = tuple,
        streams: Iterable[str] = (),
    ) -> None:
        self._client = client
        self._shards = shards
        self._names = names
        self._streams = tuple(streams)

    def hinder(self, error: BaseException) -> bool:
        """Return True if that caused the error; then nothing that was sent is at fault, and the request can succeed
        later.
        """
        return is_wrong_type(error) and bool(self.wrong())

    def wrong(self) -> list[WrongType]:
        """Return the keys of another type than theirs."""
        return wrong_types(self._client, shared_keys(self._shards, self._names(), self._streams))
