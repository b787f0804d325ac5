"""Loads the Lua scripts beside this module and runs them, one by one or in one round trip.

One file is one transition. It starts with a header (what it does, KEYS, ARGV, Returns) and may name shared parts from
``lib/`` in lines ``-- include: name``, as may these parts; only what a script uses of them is in it. Such a line that is indented
begins a branch, which ends with its margin: what nothing else uses is made there, when it is come to. What a script decides
on is one :func:`request`; KEYS names one key of the shard, and the script makes the others.
What a script that includes ``base`` changes is published for the audit trail in the same step (``lib/transition.lua``).
Every script is idempotent for the same arguments, because redis-py repeats a command whose answer was lost.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import redis
from redis.exceptions import NoScriptError

from orchestrator.redisdb.raw_pipeline import exchange

Arg = str | bytes | int | float

_SURROGATE = re.compile("[\ud800-\udfff]")
_INCLUDE = re.compile(r"^ *-- include: (\w+)\n", re.MULTILINE)
#: A branch that names a shared part, and what follows there.
_BRANCH = re.compile(r"^( +)-- include: \w+\n((?:\1.*\n|\n)*)", re.MULTILINE)
#: Where the next block of a shared part begins, and what it defines.
_BLOCK = re.compile(r"^(?=local )", re.MULTILINE)
_DEFINED = re.compile(r"local (?:function (?P<function>\w+)|(?P<names>\w+(?:, \w+)*))")
_NO_CODE = re.compile(r"--[^\n]*|\"[^\"\n]*\"|'[^'\n]*'")
_NAME = re.compile(r"(?<![.:\w])[A-Za-z_]\w*")


def _read(name: str) -> str:
    return (resources.files(__name__) / f"{name}.lua").read_text(encoding="utf-8")


@cache
def source(name: str) -> str:
    """Return the text of script ``name``: what it uses of the shared parts, then itself.

    The server makes each function of a script anew at each call, so what is not used is left out.
    """
    own = _read(name)
    parts = _parts_of(own)
    step = _INCLUDE.sub("", _place(own, [block for part in parts for block in _blocks(part)], frozenset()))
    if "base" not in parts:
        return step
    return _read("lib/transition").replace("NAME", name).replace("-- step\n", step)


def _place(text: str, blocks: Sequence[_Block], there: frozenset[str]) -> str:
    """Return a text behind what it uses of these blocks and is not there yet; a branch has what is used only in it."""
    used, known = _names_in(text), 0
    while known < len(used):
        known = len(used)
        used = used.union(*(b.uses for b in blocks if not b.defines or b.defines & used))
    new = (b.text for b in blocks if b.defines & used - there or not (b.defines or there))
    return _BRANCH.sub(lambda branch: _place(branch[2], blocks, there | used), "".join(new) + text)


def _parts_of(text: str) -> tuple[str, ...]:
    """Return the shared parts that a text includes, each behind those that it includes itself."""
    found: dict[str, None] = {}
    for part in _INCLUDE.findall(text):
        found |= dict.fromkeys([*_parts_of(_read(f"lib/{part}")), part])
    return tuple(found)


class _Block(NamedTuple):
    """A definition of a shared part, or what stands there beside definitions."""

    text: str
    defines: frozenset[str]  #: empty: it is kept in any case
    uses: frozenset[str]  #: beside what its branches use


@cache
def _blocks(part: str) -> tuple[_Block, ...]:
    """Return the blocks of a shared part in their order: each begins at the margin with ``local``."""
    found = []
    for text in _BLOCK.split(_read(f"lib/{part}")):
        defined = _DEFINED.match(text)
        names = (defined["function"] or defined["names"]).replace(",", " ").split() if defined else []
        found.append(_Block(text, frozenset(names), frozenset(_names_in(text))))
    return tuple(found)


def _names_in(text: str) -> set[str]:
    """Return the names that a text of Lua uses outside of its branches: no fields, no comments, nothing that is quoted."""
    return set(_NAME.findall(_NO_CODE.sub("''", _BRANCH.sub("", text))))


@cache
def _sha(name: str) -> str:
    return hashlib.sha1(source(name).encode(), usedforsecurity=False).hexdigest()


def names() -> list[str]:
    """Return the names of all scripts."""
    return sorted(f.name[:-4] for f in resources.files(__name__).iterdir() if f.name.endswith(".lua"))


def request(**facts: object) -> str:
    """Return what a script is asked for, as JSON. What is empty, False or 0 is left out: Lua has no word for it."""
    return json.dumps({name: fact for name, fact in facts.items() if fact}, ensure_ascii=False)


def would_write(answer: object) -> bool:
    """Return True if a rehearsed script came to its first write: it refuses nothing."""
    return isinstance(answer, redis.ResponseError) and "REHEARSED to " in str(answer)


def _fit(args: Sequence[Arg]) -> list[Arg]:
    """Arguments that can be sent: a lone surrogate, which no encoding has, becomes U+FFFD as in an envelope.

    A text has lone surrogates if it was read from bytes that are no UTF-8, such as the name of a file.
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
        return batch.answers()[0]

    def batch(self) -> Batch:
        """Return a batch of scripts and plain commands that goes out in one round trip."""
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

    def answers(self) -> list[Any]:
        """:meth:`execute`, raising the first exception among the answers."""
        answers = self.execute()
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def _send(self, calls: list[tuple[str | None, tuple[Any, ...]]], *, in_full: bool = False) -> list[Any]:
        commands = [_command(name, args, in_full=in_full) for name, args in calls]
        return exchange(self._client, commands) if commands else []


def _command(name: str | None, args: tuple[Any, ...], *, in_full: bool) -> tuple[Any, ...]:
    if name is None:
        return args
    return ("EVAL", source(name), *args) if in_full else ("EVALSHA", _sha(name), *args)
