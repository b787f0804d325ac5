"""Loads the Lua scripts beside this module and runs them, one by one or in one round trip.

One file is one transition. A file starts with a header (what it does, KEYS, ARGV, Returns) and may
name shared parts from ``lib/`` in lines ``-- include: name``. What a script that includes ``base`` changes is
published for the audit trail in the same step (``lib/transition.lua``). Every script is idempotent for the same
arguments, because redis-py repeats a command whose answer was lost.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

import redis
from redis.exceptions import NoScriptError

from orchestrator.redisdb.raw_pipeline import exchange

Arg = str | bytes | int | float

_SURROGATE = re.compile("[\ud800-\udfff]")
_INCLUDE = re.compile(r"^-- include: (\w+)\n", re.MULTILINE)


@cache
def source(name: str) -> str:
    """The text of script ``name``, its includes in place."""
    folder = resources.files(__name__)

    def part(name: str) -> str:
        return (folder / "lib" / f"{name}.lua").read_text(encoding="utf-8")

    text = (folder / f"{name}.lua").read_text(encoding="utf-8")
    step = _INCLUDE.sub(lambda found: part(found[1]) + "\n", text)
    if "base" not in _INCLUDE.findall(text):
        return step
    return part("transition").replace("NAME", name).replace("-- step\n", step)


@cache
def _sha(name: str) -> str:
    return hashlib.sha1(source(name).encode(), usedforsecurity=False).hexdigest()


def names() -> list[str]:
    """The names of all scripts."""
    return sorted(f.name[:-4] for f in resources.files(__name__).iterdir() if f.name.endswith(".lua"))


def _fit(args: Sequence[Arg]) -> list[Arg]:
    """Arguments that can be sent: a lone surrogate, which no encoding has, becomes U+FFFD as in an envelope.

    One is in every text that is made of octets which are no UTF-8, a file's name for one; an answer with it
    is an answer, and must not cost its run.
    """
    return [_SURROGATE.sub("\ufffd", a) if isinstance(a, str) and not a.isascii() else a for a in args]


class Scripts:
    """The scripts on one server."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client

    def run(self, name: str, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """Run one script; it is loaded first if the server does not know it."""
        batch = self.batch()
        batch.script(name, keys, args)
        (answer,) = batch.execute()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def batch(self) -> Batch:
        """A batch of scripts and plain commands that goes out in one round trip."""
        return Batch(self.client)


class Batch:
    """Scripts and commands, sent together; each answers or fails for itself."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._calls: list[tuple[str | None, tuple[Any, ...]]] = []

    def __len__(self) -> int:
        return len(self._calls)

    def script(self, name: str, keys: Sequence[str], args: Sequence[Arg]) -> None:
        """Add a script call."""
        self._calls.append((name, (len(keys), *keys, *_fit(args))))

    def command(self, *args: Any) -> None:
        """Add a plain command, for example ``command("XACK", key, group, entry)``."""
        self._calls.append((None, args))

    def execute(self) -> list[Any]:
        """Send all; the answers in order, an exception standing where its call failed.

        Raises:
            redis.ConnectionError: the server is out of reach; any of the calls may have been carried out.
        """
        answers = self._send(self._calls)
        unknown = [i for i, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        # A server that was started again knows none. Told the whole text, it cannot have forgotten it again.
        again = self._send([self._calls[i] for i in unknown], whole=True)
        for i, answer in zip(unknown, again, strict=True):
            answers[i] = answer
        self._calls = []
        return answers

    def _send(self, calls: list[tuple[str | None, tuple[Any, ...]]], *, whole: bool = False) -> list[Any]:
        if not calls:
            return []
        return exchange(self._client, [_command(name, args, whole=whole) for name, args in calls])


def _command(name: str | None, args: tuple[Any, ...], *, whole: bool) -> tuple[Any, ...]:
    if name is None:
        return args
    return ("EVAL", source(name), *args) if whole else ("EVALSHA", _sha(name), *args)
