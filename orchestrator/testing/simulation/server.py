"""A Redis in this process: the commands that the project uses, on the tables of Lua 5.1, which runs its scripts, too.

It has one clock, which is set, and no chance: the same commands give the same answers in each process, and what has no
order in Redis comes in the order of insertion. A command that it does not have is refused by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Final

import hiredis
import redis
from redis.connection import DefaultParser

from orchestrator.errors import ConfigurationError

#: The parts of the server, each of which builds on those before it.
_PARTS: Final = (
    *("values", "keys", "strings", "hashes", "sets", "lists", "sorted_sets", "streams", "groups"),
    *("json", "scripts", "answers"),
)
#: When its clock begins, in microseconds since the epoch.
_BEGINS_US: Final = 1_700_000_000_000_000
#: What it says of itself: the Redis whose commands it has, and that it keeps nothing on disk and has no replicas.
_INFO: Final = {
    "server": {"redis_version": "7.2.4", "redis_mode": "standalone", "run_id": "0" * 40, "tcp_port": "0"},
    "persistence": {"loading": "0", "aof_enabled": "0", "rdb_last_bgsave_status": "ok"},
    "replication": {"role": "master", "connected_slaves": "0"},
    "stats": {"evicted_keys": "0", "expired_keys": "0"},
    "memory": {"used_memory": "0", "maxmemory": "0", "maxmemory_policy": "noeviction"},
}

#: The error that redis-py makes of its text.
_error: Final[Callable[[str], Exception]] = DefaultParser.parse_error

Command = Sequence[bytes]


@cache
def _texts() -> list[tuple[str, bytes]]:
    folder = resources.files(__package__ or __name__) / "lua"
    return [(part, (folder / f"{part}.lua").read_bytes()) for part in _PARTS]


def _interpreter() -> Any:
    """Lua 5.1 as in Redis, and not LuaJIT, where the order of `pairs` differs from process to process."""
    try:
        from lupa.lua51 import LuaRuntime
    except ImportError:
        raise ConfigurationError("the simulator needs Lua: pip install 'agent-orchestra[testing]'") from None
    return LuaRuntime(encoding=None, unpack_returned_tuples=True)


def _load_parts(lua: Any) -> Any:
    """Run the files of the server, all on one table; return what the last one returns."""
    load = lua.eval(b"function(name, text) return assert(loadstring(text, '=simulated server/' .. name)) end")
    shared = lua.table()
    last = None
    for name, text in _texts():
        last = load(name.encode(), text)(shared)
    return last


class Server:
    """The server. Clients talk to it over a :class:`ServerSession`."""

    def __init__(self) -> None:
        functions = _load_parts(_interpreter())
        (
            self._command,
            self._run,
            self._load,
            self._set_time,
            self._added,
            self._added_to,
            self._copy,
            self._restore,
            self._changed,
        ) = (
            functions[name]
            for name in (
                *(b"command", b"run", b"load", b"set_time", b"added", b"added_to", b"copy", b"restore"),
                b"changed",
            )
        )
        self._reader = hiredis.Reader(replyError=_error, protocolError=redis.InvalidResponse)
        #: The scripts that clients may name, and those that are compiled.
        self._known: set[bytes] = set()
        self._compiled: set[bytes] = set()
        self._shas: dict[bytes, bytes] = {}
        #: Those who are connected, by their number.
        self.sessions: dict[int, ServerSession] = {}
        self._numbered = 0
        #: Called with the SHA-1 of each script that has run, and its answer.
        self.on_answer: Callable[[bytes, Any], None] = lambda *_: None
        self._now_us = 0
        self.set_time(_BEGINS_US)

    # --- time and state ---------------------------------------------------------------------------

    @property
    def now_us(self) -> int:
        """Its clock, in microseconds since the epoch."""
        return self._now_us

    def set_time(self, us: int) -> None:
        """Set the clock, which stands still until it is set again."""
        self._now_us = us
        self._set_time(us)

    @property
    def added(self) -> int:
        """The number of entries added to streams so far: a BLOCK may end when there are more."""
        return int(self._added())

    def added_to(self, streams: Sequence[bytes]) -> int:
        """Return how many entries were ever added to these streams."""
        return int(self._added_to(*streams))

    def copy(self) -> Any:
        """All keys of this moment, for :meth:`restart`."""
        return self._copy()

    def changed(self) -> tuple[bool, list[Any]]:
        """Return whether all keys had gone since the last call, and each key that may have changed.

        A key comes with its type (``none``: it is gone), its value and whether it expires.
        """
        emptied, *rows = self._read(self._changed())
        return bool(emptied), rows

    @property
    def scripts(self) -> frozenset[bytes]:
        """The scripts that clients may name."""
        return frozenset(self._known)

    def restart(self, keys: Any, *, scripts: frozenset[bytes] = frozenset()) -> None:
        """Start again with the keys of another moment: all connections are closed, and scripts but these are forgotten."""
        self._restore(keys)
        self._known = set(scripts)
        self.sessions.clear()
        self._numbered = 0

    def forget_scripts(self) -> None:
        """Refuse the name of each script until its text was sent again."""
        self._known.clear()

    # --- commands ---------------------------------------------------------------------------------

    def connect(self, name: str = "") -> ServerSession:
        """Open a connection."""
        self._numbered += 1
        session = ServerSession(self, self._numbered, name.encode(), self._now_us)
        self.sessions[session.id] = session
        return session

    def execute(self, command: Command) -> Any:
        """Carry out one command that is about no connection: bytes, a number, a list, None, or an error, which is not raised.

        A command that would block answers at once that nothing is there.
        """
        name = command[0]
        special = _SPECIAL.get(name) or _SPECIAL.get(name.upper())
        if special is not None:
            return special(self, command)
        answer = self._command(name if name.isupper() else name.upper(), *command[1:])
        return self._read(answer) if type(answer) is tuple else answer

    def _read(self, answer: tuple[Any, ...]) -> Any:
        if answer[0] == 3:
            return [None if part is False else part for part in answer[1:]]
        octets, how = answer
        if how != 1:
            return _error(octets.decode(errors="replace"))
        self._reader.feed(octets)
        return self._reader.gets()

    def _evalsha(self, sha: bytes, command: Command) -> Any:
        if sha not in self._known:
            return _error("NOSCRIPT No matching script.")
        answer = self._run(sha, *command[2:])
        answer = self._read(answer) if type(answer) is tuple else answer
        self.on_answer(sha, answer)
        return answer

    def _eval_known(self, command: Command) -> Any:
        if len(command) < 3:
            return _error("ERR wrong number of arguments for 'evalsha' command")
        return self._evalsha(command[1].lower(), command)

    def _eval(self, command: Command) -> Any:
        if len(command) < 3:
            return _error("ERR wrong number of arguments for 'eval' command")
        sha = self._learn(command[1])
        return sha if isinstance(sha, Exception) else self._evalsha(sha, command)

    def _learn(self, text: bytes) -> Any:
        """The SHA-1 of a script, which is known from now on; an error if it cannot be compiled."""
        sha = self._shas.get(text)
        if sha is None:
            sha = self._shas[text] = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
        if sha not in self._compiled:
            if wrong := self._load(sha, text):
                return _error(wrong.decode(errors="replace"))
            self._compiled.add(sha)
        self._known.add(sha)
        return sha

    def _script(self, command: Command) -> Any:
        match [part.upper() if i == 0 else part for i, part in enumerate(command[1:])]:
            case [b"LOAD", text]:
                return self._learn(text)
            case [b"EXISTS", *shas]:
                return [int(sha.lower() in self._known) for sha in shas]
            case [b"FLUSH", *_]:
                self.forget_scripts()
                return b"OK"
        return _error(f"ERR the simulated server has no {_text(command)}")

    def _info(self, command: Command) -> Any:
        wanted = [part.decode().lower() for part in command[1:]] or list(_INFO)
        lines = [
            f"{name}:{value}" for part in wanted for name, value in self._facts(part).items() if part in _INFO
        ]
        return "".join(f"{line}\r\n" for line in lines).encode()

    def _facts(self, part: str) -> dict[str, str]:
        up_s = str((self._now_us - _BEGINS_US) // 1_000_000)
        return {**_INFO.get(part, {}), **({"uptime_in_seconds": up_s} if part == "server" else {})}

    def _config(self, command: Command) -> Any:
        if len(command) < 3 or command[1].upper() != b"GET":
            return _error(f"ERR the simulated server has no {_text(command)}")
        known = {
            b"maxmemory": b"0",
            b"maxmemory-policy": b"noeviction",
            b"appendonly": b"no",
            b"save": b"",
            b"databases": b"1",
        }
        return [part for name in command[2:] if name in known for part in (name, known[name])]

    def _select(self, command: Command) -> Any:
        if command[1:] != [b"0"]:
            return _error("ERR DB index is out of range")
        return b"OK"


_SPECIAL: Final[dict[bytes, Callable[[Server, Command], Any]]] = {
    b"EVALSHA": Server._eval_known,  # noqa: SLF001
    b"EVAL": Server._eval,  # noqa: SLF001
    b"SCRIPT": Server._script,  # noqa: SLF001
    b"INFO": Server._info,  # noqa: SLF001
    b"CONFIG": Server._config,  # noqa: SLF001
    b"SELECT": Server._select,  # noqa: SLF001
}


def _text(command: Command) -> str:
    return " ".join(part.decode(errors="replace") for part in command)


@dataclass(eq=False)
class ServerSession:
    """The server's end of one connection: its name, and the transaction that it has begun."""

    server: Server
    id: int
    name: bytes
    since_us: int
    _queued: list[Command] | None = field(default=None, init=False)

    @property
    def is_open(self) -> bool:
        """True if neither side has closed it."""
        return self.server.sessions.get(self.id) is self

    def close(self) -> None:
        """Close it."""
        if self.is_open:
            del self.server.sessions[self.id]

    def execute(self, command: Command) -> Any:
        """Carry out one command; an error is answered, and not raised.

        Raises:
            redis.ConnectionError: the connection is closed.
        """
        if not self.is_open:
            raise redis.ConnectionError("Connection closed by server.")
        own = _OF_SESSION.get(command[0]) or _OF_SESSION.get(command[0].upper())
        if own is not None:
            return own(self, command)
        if self._queued is not None:
            self._queued.append(command)
            return b"QUEUED"
        return self.server.execute(command)

    def _multi(self, _: Command) -> Any:
        if self._queued is not None:
            return _error("ERR MULTI calls can not be nested")
        self._queued = []
        return b"OK"

    def _exec(self, _: Command) -> Any:
        if self._queued is None:
            return _error("ERR EXEC without MULTI")
        queued, self._queued = self._queued, None
        return [self.server.execute(command) for command in queued]

    def _discard(self, _: Command) -> Any:
        if self._queued is None:
            return _error("ERR DISCARD without MULTI")
        self._queued = None
        return b"OK"

    def _client(self, command: Command) -> Any:
        match [part.upper() if i == 0 else part for i, part in enumerate(command[1:])]:
            case [b"ID"]:
                return self.id
            case [b"GETNAME"]:
                return self.name or None
            case [b"SETNAME", name]:
                self.name = name
                return b"OK"
            case [b"SETINFO", _, _] | [b"NO-EVICT", _] | [b"NO-TOUCH", _]:
                return b"OK"
            case [b"INFO"]:
                return self._line()
            case [b"LIST", *_]:
                return b"".join(session._line() for session in self.server.sessions.values())  # noqa: SLF001
            case [b"KILL", b"ID", number, *_] if number.isdigit():
                session = self.server.sessions.get(int(number))
                if session is not None:
                    session.close()
                return int(session is not None)
        return _error(f"ERR the simulated server has no {_text(command)}")

    def _line(self) -> bytes:
        age_s = (self.server.now_us - self.since_us) // 1_000_000
        name = self.name.decode(errors="replace")
        return f"id={self.id} addr=simulated:{self.id} name={name} age={age_s} idle=0 flags=N db=0 resp=2\n".encode()


_OF_SESSION: Final[dict[bytes, Callable[[ServerSession, Command], Any]]] = {
    b"MULTI": ServerSession._multi,  # noqa: SLF001
    b"EXEC": ServerSession._exec,  # noqa: SLF001
    b"DISCARD": ServerSession._discard,  # noqa: SLF001
    b"CLIENT": ServerSession._client,  # noqa: SLF001
}
