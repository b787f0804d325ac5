"""Sends each command to a real server and to the simulated one, at one time of both, and compares the answers."""

from __future__ import annotations

import contextlib
import json
import random
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import redis as redis_py

from orchestrator.redisdb.raw_pipeline import exchange
from orchestrator.testing.simulation.link import Link, SimulatedPool
from orchestrator.testing.simulation.server import Command, Server, ServerSession

from .ledger_plays import play
from .redis_commands import Commands

#: What only a real server has in an answer: how it stores a stream.
_STORAGE = (b"radix-tree-keys", b"radix-tree-nodes")
_PROBE = ("XADD", "probe", "MAXLEN", "1", "*", "time", "now")
#: Where in a script it happened; a call that is the last thing of a function leaves no trace in Lua on tables.
_PLACE = re.compile(r"user_script:\d+")


class Differs(AssertionError):
    """The simulated server answers otherwise than the real one."""


class Mirrored(Link):
    """A link to both servers, which know no script yet: whoever uses it gets the real one's answers."""

    def __init__(self, real: redis_py.Redis) -> None:
        super().__init__(Server())
        self.real = real
        real.script_flush()
        self.answers = 0
        # Hashes and sets stay in the order of insertion, however large they are.
        for name in (
            "hash-max-listpack-entries",
            "hash-max-listpack-value",
            "zset-max-listpack-value",
            "set-max-listpack-entries",
        ):
            real.config_set(name, 1_000_000)
        real.config_set("set-max-listpack-value", 1_000_000)
        real.config_set("set-max-intset-entries", 0)

    def client(self) -> redis_py.Redis:
        """A client of both."""
        pool = SimulatedPool(self)
        return redis_py.Redis(connection_pool=pool)

    def exchange(self, session: ServerSession, commands: Sequence[Command]) -> list[Any]:
        answers: list[Any] = []
        queued: list[Any] | None = None
        for command in commands:
            match command[0].upper():
                case b"MULTI":
                    queued = []
                    answers.append(b"OK")
                case b"EXEC":
                    answers.append(queued)
                    queued = None
                case _ if queued is not None:
                    queued.append(self._both(session, command))
                    answers.append(b"QUEUED")
                case _:
                    answers.append(self._both(session, command))
        return answers

    def _both(self, session: ServerSession, command: Command) -> Any:
        name = command[0].upper()
        if name in (b"CLIENT", b"INFO", b"CONFIG"):
            return session.execute(command)
        ours, theirs = self._at_one_time(session, command)
        self.answers += 1
        if (a := alike(name, theirs)) != (b := alike(name, ours)):
            words = command[:1] + command[3:] if name == b"EVAL" else command
            raise Differs(f"{b' '.join(words)!r}{_difference(a, b)}")
        return theirs

    def _at_one_time(self, session: ServerSession, command: Command) -> tuple[Any, Any]:
        """The answers of both. A transaction has one time, and an entry that it adds says which."""
        *_, queued, done = exchange(
            self.real, [("MULTI",), _PROBE, ("DEL", "probe"), tuple(command), ("EXEC",)]
        )
        if isinstance(done, redis_py.RedisError):  # it was refused at once
            return session.execute(command), queued
        probe, _, theirs = done
        self.server.set_time(int(probe.partition(b"-")[0]) * 1000)
        return session.execute(command), theirs

    def same_keys(self) -> None:
        """Compare what both hold."""
        session = self.server.connect()
        self._both(session, [b"PING"])  # at one time
        ours = dict(
            _everything(
                lambda *command: session.execute(
                    [part.encode() if isinstance(part, str) else part for part in command]
                )
            )
        )
        theirs = dict(_everything(lambda *command: exchange(self.real, [command])[0]))
        session.close()
        if wrong := [
            f"{key!r}{_difference(theirs.get(key), ours.get(key))}"
            for key in sorted(ours.keys() | theirs.keys())
            if theirs.get(key) != ours.get(key)
        ]:
            raise Differs("\n".join(wrong))


def alike(name: bytes, answer: Any) -> Any:
    """An answer without what a server is free to choose."""
    if isinstance(answer, Exception):
        return type(answer), _PLACE.sub("user_script", str(answer))
    if not isinstance(answer, list):
        return _parsed(answer)
    if name == b"TIME":
        return None
    if name == b"SCAN":
        return sorted(answer[1])
    if name in (b"KEYS", b"SMEMBERS", b"HKEYS", b"HVALS"):
        return sorted(map(_parsed, answer), key=lambda value: json.dumps(value, sort_keys=True, default=repr))
    if name == b"HGETALL":
        return dict(zip(answer[::2], map(_parsed, answer[1::2]), strict=True))
    if name == b"EVAL" and all(
        isinstance(row, list) and len(row) == 4 and row[1] in list(_READS) for row in answer
    ):
        # All keys, with their types: which are in any order, as the fields of hashes are.
        return sorted(
            [key, kind, alike(_READS[kind][0].encode(), value), expires]
            for key, kind, value, expires in answer
        )
    if answer[:1] == [b"length"]:
        facts = dict(zip(answer[::2], answer[1::2], strict=True))
        return {fact: value for fact, value in facts.items() if fact not in _STORAGE}
    return [alike(b"", part) for part in answer]


def _parsed(text: Any) -> Any:
    """JSON without the order of its fields, which is the server's own, also where it stands in JSON."""
    if isinstance(text, (bytes, str)) and text[:1] in (b"{", b"[", "{", "["):
        with contextlib.suppress(ValueError):
            return _parsed(json.loads(text))
    if isinstance(text, dict):
        return {name: _parsed(value) for name, value in text.items()}
    return [_parsed(value) for value in text] if isinstance(text, list) else text


def _difference(real: Any, ours: Any, where: str = "") -> str:
    """The first place where two answers differ, for people."""
    if isinstance(real, list) and isinstance(ours, list) and len(real) == len(ours):
        for i, (a, b) in enumerate(zip(real, ours, strict=True)):
            if a != b:
                return _difference(a, b, f"{where}[{i}]")
    if isinstance(real, dict) and isinstance(ours, dict) and real.keys() == ours.keys():
        for name in real:
            if real[name] != ours[name]:
                return _difference(real[name], ours[name], f"{where}[{name!r}]")
    return f"{where}\n real {real!r}\n ours {ours!r}"


_READS = {
    b"string": ("GET",),
    b"hash": ("HGETALL",),
    b"set": ("SMEMBERS",),
    b"zset": ("ZRANGE", "0", "-1", "WITHSCORES"),
    b"list": ("LRANGE", "0", "-1"),
    b"stream": ("XRANGE", "-", "+"),
}


def _everything(execute: Any) -> Iterator[tuple[bytes, Any]]:
    """Each key with its type, what it holds, whether it expires, and what its groups know."""
    for key in execute("KEYS", "*"):
        kind = execute("TYPE", key)
        if kind == b"none":
            continue  # it has expired meanwhile
        name, *more = _READS[kind]
        groups = []
        if kind == b"stream":
            for row in execute("XINFO", "GROUPS", key):
                pending = execute("XPENDING", key, row[1], "-", "+", "1000")
                groups.append((row, [(entry, who, times) for entry, who, _, times in pending]))
        yield key, (kind, alike(name.encode(), execute(name, key, *more)), execute("PTTL", key) > 0, groups)


#: A script that calls what it is given. The call is not the last thing that it does, which would leave no trace in Lua.
_CALLS = (
    "local answer = redis.call(unpack(ARGV)) return answer",
    "local answer = redis.call(unpack(ARGV)) return { answer }",
    "local answer = redis.pcall(unpack(ARGV)) return answer",
    "local done, answer = pcall(redis.call, unpack(ARGV)) return { tostring(done), answer }",
)
#: Whose answers are put in order before they are compared, so that no script may have them.
_IN_NO_ORDER = ("KEYS", "SCAN")


def random_commands(mirrored: Mirrored, seed: int) -> None:
    """Send a sequence of random commands to both, about half of them by a script, and compare all keys at the end.

    Raises:
        Differs: an answer or a key differs.
    """
    chance, commands, client = random.Random(seed), Commands(seed), mirrored.client()
    client.flushall()
    sent: list[list[str]] = []
    try:
        for _ in range(chance.choice([20, 60, 150])):
            command = commands.next()
            sent.append(command)
            ends = command[0].upper() in ("SET", "PEXPIRE") and command[2:3] == ["1"]
            if command[0].upper() not in _IN_NO_ORDER and chance.random() < 0.5:
                command = ["EVAL", chance.choice(_CALLS), "0", *command]
            exchange(client, [tuple(command)])
            if ends or command[-2:] == ["PX", "1"]:
                time.sleep(0.003)  # until the key has expired, whichever server is asked
        mirrored.same_keys()
    except Differs as error:
        raise Differs(f"seed {seed}, after {sent[-8:]}\n{error}") from error
    finally:
        client.close()


def whole_play(mirrored: Mirrored, seed: int, *, steps: int) -> None:
    """Play the ledger on both, and compare all keys at the end.

    Raises:
        Differs: an answer or a key differs.
        Broken: what must hold does not, on either.
    """
    client = mirrored.client()
    play(client, seed, steps=steps)
    mirrored.same_keys()
    client.close()
