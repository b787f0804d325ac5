"""Loads the Lua scripts beside this module and runs them, one by one or in one round trip.

One file is one transition. A file starts with a header (what it does, KEYS, ARGV, Returns) and may
name shared parts from ``lib/`` in lines ``-- include: name``, as may these parts. :func:`keys_of` makes the KEYS that a header names. What
a script that includes ``base`` changes is published for the audit trail in the same step (``lib/transition.lua``).
Every script is idempotent for the same arguments, because redis-py repeats a command whose answer was lost.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import redis
from redis.exceptions import NoScriptError

from orchestrator.redisdb.all_keys import REGISTRY
from orchestrator.redisdb.raw_pipeline import exchange

Arg = str | bytes | int | float

_SURROGATE = re.compile("[\ud800-\udfff]")
_INCLUDE = re.compile(r"^-- include: (\w+)\n", re.MULTILINE)
#: The KEYS of a header, to the next part of it; each is a number and a name. Another header may hold the first ones.
_KEYS = re.compile(r"^-- KEYS  (.*?)(?=^-- [A-Z]|^(?!--  ))", re.MULTILINE | re.DOTALL)
_ONE_KEY = re.compile(r"\b\d+ (\S+)")
_FIRST_KEYS = re.compile(r"as in (lib/\w+)")
#: The variable part of a key's pattern.
_PART = re.compile(r"<(\w+)(?:-id)?>")
_PATTERNS = {spec.name: spec.pattern.replace("{S}", "{%(S)s}") for spec in REGISTRY}


def _read(name: str) -> str:
    return (resources.files(__name__) / f"{name}.lua").read_text(encoding="utf-8")


@cache
def source(name: str) -> str:
    """The text of script ``name``, its includes in place."""
    included: set[str] = set()

    def include(found: re.Match[str]) -> str:
        part = found[1]
        if part in included:
            return ""
        included.add(part)
        return _INCLUDE.sub(include, _read(f"lib/{part}")) + "\n"

    step = _INCLUDE.sub(include, _read(name))
    if "base" not in included:
        return step
    return _read("lib/transition").replace("NAME", name).replace("-- step\n", step)


def keys_of(script: str, ids: Mapping[str, str]) -> list[str]:
    """The KEYS of a script, in the order in which its header names them, of the sessions, runs, … in ``ids``.

    A header names a key as :mod:`~orchestrator.redisdb.keys` and :mod:`~orchestrator.redisdb.ledger_keys` do: ``items`` are those of the id ``session``, and
    ``items@parent`` those of the id ``parent``. ``run|session`` is the session where the id ``run`` is empty. What is
    the name of no key is a key itself in ``ids``. The first id names the shard.
    """
    first = next(iter(ids.values()))
    known = {"S": first.partition("_")[2][:2], **ids}
    return [(key if not needs or ids[needs] else other) % known for key, needs, other in _layout(script)]


@cache
def _layout(script: str) -> tuple[tuple[str, str, str], ...]:
    """Each key as a pattern for ``%``, the id without which it is another one, and the pattern of that."""
    found = _KEYS.search(_read(script))
    named = found[1] if found else ""
    first = _FIRST_KEYS.search(named)
    return (*(_layout(first[1]) if first else ()), *map(_key, _ONE_KEY.findall(named)))


def _key(name: str) -> tuple[str, str, str]:
    name, _, other = name.partition("|")
    name, _, whose = name.partition("@")
    pattern = _PATTERNS.get(name, f"<{name}>")
    if whose:
        pattern = _PART.sub(f"<{whose}>", pattern, count=1)
    needs = _PART.findall(pattern)[-1] if other else ""
    if "<" in _PART.sub("", pattern):
        raise ValueError(f"{name!r} names neither a key nor an id")
    return _PART.sub(r"%(\1)s", pattern), needs, _key(other)[0] if other else ""


@cache
def _sha(name: str) -> str:
    return hashlib.sha1(source(name).encode(), usedforsecurity=False).hexdigest()


def names() -> list[str]:
    """The names of all scripts."""
    return sorted(f.name[:-4] for f in resources.files(__name__).iterdir() if f.name.endswith(".lua"))


def would_write(answer: object) -> bool:
    """Whether a rehearsed script came to its first write: it refuses nothing."""
    return isinstance(answer, redis.ResponseError) and "REHEARSED to " in str(answer)


def _fit(args: Sequence[Arg]) -> list[Arg]:
    """Arguments that can be sent: a lone surrogate, which no encoding has, becomes U+FFFD as in an envelope.

    A text has lone surrogates if it was read from octets that are no UTF-8, such as the name of a file.
    """
    return [_SURROGATE.sub("\ufffd", a) if isinstance(a, str) and not a.isascii() else a for a in args]


class Scripts:
    """The scripts on one server."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client

    def run(self, name: str, names: Sequence[str], args: Sequence[Arg]) -> Any:
        """Run one script; it is loaded first if the server does not know it."""
        batch = self.batch()
        batch.script(name, names, args)
        (answer,) = batch.execute()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def call(self, name: str, args: Sequence[Arg], **ids: str) -> Any:
        """Run one script on its keys, which are made of ``ids`` as :func:`keys_of` says."""
        return self.run(name, keys_of(name, ids), args)

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

    def script(self, name: str, names: Sequence[str], args: Sequence[Arg]) -> None:
        """Add a script call."""
        self._calls.append((name, (len(names), *names, *_fit(args))))

    def rehearse(self, name: str, names: Sequence[str], args: Sequence[Arg]) -> None:
        """Add a script call that changes nothing: its answer, or what :func:`would_write` recognises."""
        self.command("EVAL", _read("lib/rehearsal") + source(name), len(names), *names, *_fit(args))

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
        # A server that was started again knows no script. It is sent the text, and cannot forget it meanwhile.
        again = self._send([self._calls[i] for i in unknown], in_full=True)
        for i, answer in zip(unknown, again, strict=True):
            answers[i] = answer
        self._calls = []
        return answers

    def _send(self, calls: list[tuple[str | None, tuple[Any, ...]]], *, in_full: bool = False) -> list[Any]:
        if not calls:
            return []
        return exchange(self._client, [_command(name, args, in_full=in_full) for name, args in calls])


def _command(name: str | None, args: tuple[Any, ...], *, in_full: bool) -> tuple[Any, ...]:
    if name is None:
        return args
    return ("EVAL", source(name), *args) if in_full else ("EVALSHA", _sha(name), *args)
