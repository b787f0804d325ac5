"""Random commands of those that the simulated server has, on few keys, so that they meet."""

from __future__ import annotations

import random
from collections.abc import Callable

Word = str
_MEMBERS = ["a", "b", "c", "d", "é\n", "", "12", "x" * 70]
_NUMBERS = ["0", "1", "-3", "7", "2.5", "1e12", "1700000000123", "0.1", "-1.5e-9", "1e30"]
_WRONG = ["x", "", "1.5.2", "--1", "nan", "9" * 30]
_IDS = ["1-1", "2-0", "2-5", "3-0", "7-1", "9", "12-3"]
_RANGES = [("-", "+"), ("(1-1", "+"), ("2", "3"), ("2-0", "2-5"), ("1-1", "(3-0"), ("+", "-"), ("x", "+")]
_SCORES = [("-inf", "+inf"), ("0", "7"), ("(1", "(7"), ("1", "inf"), ("7", "0"), ("2.5", "1e12"), ("x", "1")]
_NAMES = [("-", "+"), ("[a", "(c"), ("(a", "[d"), ("[b", "+"), ("+", "-"), ("a", "+")]


class Commands:
    """Makes one command after the other; what has a type mostly meets keys of this type."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        groups = (
            self._keys,
            self._strings,
            self._hashes,
            self._sets,
            self._sorted_sets,
            self._lists,
            self._streams,
        )
        # Each sequence has a few kinds often, so that they come far.
        self._groups = [*self._chance.sample(groups, self._chance.randint(1, 4)), self._keys, self._streams]

    def next(self) -> list[Word]:
        """A command; now and then with a word too many, too few or wrong."""
        command = self._chance.choice(self._chance.choice(self._groups)())()
        roll = self._chance.random()
        if roll < 0.02 and len(command) > 1:
            command.pop()
        elif roll < 0.04:
            command.append(self._of(_WRONG))
        elif roll < 0.07 and len(command) > 2:
            command[self._chance.randrange(2, len(command))] = self._of(_WRONG)
        elif roll < 0.1:
            command[0] = command[0].lower()
        return command

    # --- words ------------------------------------------------------------------------------------

    def _of(self, values: list[Word]) -> Word:
        return self._chance.choice(values)

    def _key(self, kind: str) -> Word:
        return f"{kind if self._chance.random() < 0.95 else self._of(['h', 's', 'z', 'l', 'x', 't'])}{self._chance.randint(1, 2)}"

    def _any(self) -> Word:
        return self._key(self._of(["h", "s", "z", "l", "x", "t"]))

    def _m(self) -> Word:
        return self._of(_MEMBERS)

    def _n(self) -> Word:
        return self._of(_NUMBERS)

    def _int(self) -> Word:
        return str(self._chance.randint(-5, 5))

    def _id(self) -> Word:
        return self._of(_IDS)

    def _some(self, make: Callable[[], Word]) -> list[Word]:
        return [make() for _ in range(self._chance.choice([1, 1, 2, 3, 6]))]

    def _pairs(self, first: Callable[[], Word], second: Callable[[], Word]) -> list[Word]:
        return [word for _ in range(self._chance.choice([1, 1, 2, 4])) for word in (first(), second())]

    def _perhaps(self, *options: list[Word]) -> list[Word]:
        return self._chance.choice([[], *options])

    # --- commands, by what they are for -----------------------------------------------------------

    def _keys(self) -> list[Callable[[], list[Word]]]:
        k = self._any
        return [
            lambda: ["DEL", *self._some(k)],
            lambda: ["UNLINK", k()],
            lambda: ["EXISTS", *self._some(k)],
            lambda: ["TYPE", k()],
            lambda: ["RENAME", k(), k()],
            lambda: [
                "PEXPIRE",
                k(),
                self._of(["80000", "90000000", "0", "-5"]),
                *self._perhaps(["NX"], ["XX"], ["GT"], ["LT"]),
            ],
            lambda: ["PEXPIRE", k(), "1"],
            lambda: ["EXPIRE", k(), "80"],
            lambda: ["PEXPIREAT", k(), self._of(["1", "99999999999999"])],
            lambda: ["EXPIREAT", k(), "99999999999"],
            lambda: ["PERSIST", k()],
            lambda: ["PTTL", k()],
            lambda: ["TTL", k()],
            lambda: ["KEYS", self._of(["*", "h?", "[hs]1", "[^h]*", "\\x1", "z*", "*1*"])],
            lambda: ["SCAN", "0", "COUNT", "1000", *self._perhaps(["MATCH", "?1"], ["TYPE", "hash"])],
            lambda: ["PING"],
            lambda: ["PUBLISH", "channel", "text"],
        ]

    def _strings(self) -> list[Callable[[], list[Word]]]:
        k = lambda: self._key("t")  # noqa: E731
        options: list[list[Word]] = [
            ["NX"],
            ["XX"],
            ["PX", "90000"],
            ["PX", "1"],
            ["EX", "90", "NX"],
            ["KEEPTTL"],
            ["GET"],
            ["PX", "0"],
            ["NX", "XX"],
        ]
        return [
            lambda: ["SET", k(), self._of([*_MEMBERS, "5", "-7"]), *self._perhaps(*options)],
            lambda: ["SETNX", k(), self._m()],
            lambda: ["SETEX", k(), self._of(["10", "0", "x"]), self._m()],
            lambda: ["GET", k()],
            lambda: ["MGET", *self._some(k)],
            lambda: ["INCR", k()],
            lambda: ["DECR", k()],
            lambda: ["INCRBY", k(), self._int()],
            lambda: ["DECRBY", k(), self._int()],
            lambda: ["STRLEN", k()],
            lambda: ["APPEND", k(), self._m()],
        ]

    def _hashes(self) -> list[Callable[[], list[Word]]]:
        k = lambda: self._key("h")  # noqa: E731
        return [
            lambda: ["HSET", k(), *self._pairs(self._m, self._n)],
            lambda: ["HSET", k(), *self._pairs(self._m, self._m)],
            lambda: ["HMSET", k(), *self._pairs(self._m, self._n)],
            lambda: ["HSETNX", k(), self._m(), self._n()],
            lambda: ["HGET", k(), self._m()],
            lambda: ["HMGET", k(), *self._some(self._m)],
            lambda: ["HGETALL", k()],
            lambda: ["HKEYS", k()],
            lambda: ["HVALS", k()],
            lambda: ["HLEN", k()],
            lambda: ["HEXISTS", k(), self._m()],
            lambda: ["HSTRLEN", k(), self._m()],
            lambda: ["HDEL", k(), *self._some(self._m)],
            lambda: ["HINCRBY", k(), self._m(), self._int()],
            lambda: ["HSCAN", k(), "0", *self._perhaps(["MATCH", "*a*"], ["COUNT", "100"])],
        ]

    def _sets(self) -> list[Callable[[], list[Word]]]:
        k = lambda: self._key("s")  # noqa: E731
        return [
            lambda: ["SADD", k(), *self._some(self._m)],
            lambda: ["SREM", k(), *self._some(self._m)],
            lambda: ["SISMEMBER", k(), self._m()],
            lambda: ["SMISMEMBER", k(), *self._some(self._m)],
            lambda: ["SCARD", k()],
            lambda: ["SMEMBERS", k()],
            lambda: ["SSCAN", k(), "0", *self._perhaps(["MATCH", "*a*"])],
        ]

    def _sorted_sets(self) -> list[Callable[[], list[Word]]]:
        k = lambda: self._key("z")  # noqa: E731
        options: list[list[Word]] = [
            ["NX"],
            ["XX"],
            ["GT"],
            ["LT"],
            ["CH"],
            ["XX", "CH"],
            ["NX", "XX"],
            ["GT", "LT"],
        ]
        limit: list[list[Word]] = [
            ["LIMIT", "1", "2"],
            ["LIMIT", "0", "-1"],
            ["WITHSCORES"],
            ["WITHSCORES", "LIMIT", "0", "1"],
        ]
        return [
            lambda: ["ZADD", k(), *self._perhaps(*options), *self._pairs(self._n, self._m)],
            lambda: ["ZADD", k(), "0", self._m()],
            lambda: ["ZADD", k(), *self._perhaps(["NX"], ["XX"], ["GT"]), "INCR", self._n(), self._m()],
            lambda: ["ZINCRBY", k(), self._of(["1", "0.5", "-2"]), self._m()],
            lambda: ["ZREM", k(), *self._some(self._m)],
            lambda: ["ZCARD", k()],
            lambda: ["ZSCORE", k(), self._m()],
            lambda: ["ZMSCORE", k(), *self._some(self._m)],
            lambda: ["ZRANK", k(), self._m()],
            lambda: ["ZREVRANK", k(), self._m()],
            lambda: [
                "ZRANGE",
                k(),
                self._int(),
                self._int(),
                *self._perhaps(["WITHSCORES"], ["REV"], ["REV", "WITHSCORES"], ["LIMIT", "0", "1"]),
            ],
            lambda: ["ZREVRANGE", k(), self._int(), self._int(), *self._perhaps(["WITHSCORES"])],
            lambda: [
                "ZRANGE",
                k(),
                *self._chance.choice(_SCORES),
                "BYSCORE",
                *self._perhaps(*limit, ["REV"]),
            ],
            lambda: ["ZRANGEBYSCORE", k(), *self._chance.choice(_SCORES), *self._perhaps(*limit)],
            lambda: ["ZREVRANGEBYSCORE", k(), *self._chance.choice(_SCORES), *self._perhaps(*limit)],
            lambda: ["ZADD", "z3", "0", self._m()],
            lambda: [
                "ZRANGEBYLEX",
                "z3",
                *self._chance.choice(_NAMES),
                *self._perhaps(["LIMIT", "0", "1"], ["LIMIT", "1", "3"]),
            ],
            lambda: [
                "ZRANGE",
                "z3",
                *self._chance.choice(_NAMES),
                "BYLEX",
                *self._perhaps(["REV"], ["LIMIT", "0", "2"]),
            ],
            lambda: ["ZLEXCOUNT", "z3", *self._chance.choice(_NAMES)],
            lambda: ["ZCOUNT", k(), *self._chance.choice(_SCORES)],
            lambda: ["ZREMRANGEBYSCORE", k(), *self._chance.choice(_SCORES)],
            lambda: ["ZREMRANGEBYRANK", k(), self._int(), self._int()],
            lambda: ["ZREMRANGEBYLEX", "z3", *self._chance.choice(_NAMES)],
            lambda: ["ZSCAN", k(), "0"],
        ]

    def _lists(self) -> list[Callable[[], list[Word]]]:
        k = lambda: self._key("l")  # noqa: E731
        return [
            lambda: ["RPUSH", k(), *self._some(self._m)],
            lambda: ["LPUSH", k(), *self._some(self._m)],
            lambda: ["LRANGE", k(), self._int(), self._int()],
            lambda: ["LINDEX", k(), self._int()],
            lambda: ["LPOS", k(), self._m()],
            lambda: ["LLEN", k()],
            lambda: [self._of(["LPOP", "RPOP"]), k(), *self._perhaps(["2"], ["0"])],
            lambda: [self._of(["BLPOP", "BRPOP"]), k(), k(), "1"],
            lambda: ["LREM", k(), self._int(), self._m()],
            lambda: ["LTRIM", k(), self._int(), self._int()],
        ]

    def _streams(self) -> list[Callable[[], list[Word]]]:
        k, i = lambda: self._key("x"), self._id
        g = lambda: self._of(["g", "g", "g2"])  # noqa: E731
        c = lambda: self._of(["b", "a", "c"])  # noqa: E731
        trims: list[list[Word]] = [["MAXLEN", "2"], ["MINID", "2-0"], ["NOMKSTREAM"], ["MAXLEN", "=", "3"]]
        return [
            lambda: [
                "XADD",
                k(),
                *self._perhaps(*trims),
                self._of([*_IDS, "*", "*", "3-*"]),
                *self._pairs(self._m, self._n),
            ],
            lambda: ["XADD", k(), self._of(_IDS), "f", "v"],
            lambda: ["XLEN", k()],
            lambda: ["XDEL", k(), *self._some(i)],
            lambda: [
                "XTRIM",
                k(),
                *self._chance.choice([["MAXLEN", "1"], ["MINID", "2-1"], ["MAXLEN", "5"]]),
            ],
            lambda: [
                "XRANGE",
                k(),
                *self._chance.choice(_RANGES),
                *self._perhaps(["COUNT", "1"], ["COUNT", "0"]),
            ],
            lambda: [
                "XREVRANGE",
                k(),
                *reversed(self._chance.choice(_RANGES)),
                *self._perhaps(["COUNT", "2"]),
            ],
            lambda: [
                "XREAD",
                *self._perhaps(["COUNT", "2"], ["BLOCK", "1"]),
                "STREAMS",
                k(),
                self._of(["0", "1-1", "$", "x"]),
            ],
            lambda: ["XREAD", "STREAMS", k(), k(), "0", "2"],
            lambda: [
                "XGROUP",
                "CREATE",
                k(),
                g(),
                self._of(["0", "$", "2-0"]),
                *self._perhaps(["MKSTREAM"], ["MKSTREAM"], ["ENTRIESREAD", "1"]),
            ],
            lambda: ["XGROUP", "DELCONSUMER", k(), g(), c()],
            lambda: ["XGROUP", "CREATECONSUMER", k(), g(), c()],
            lambda: ["XGROUP", self._of(["DESTROY", "DELCONSUMER"]), k(), "g2", *self._perhaps(["a"])],
            lambda: [
                "XREADGROUP",
                "GROUP",
                g(),
                c(),
                *self._perhaps(["COUNT", "1"], ["COUNT", "2"]),
                "STREAMS",
                k(),
                self._of([">", ">", ">", "0", "2-0"]),
            ],
            lambda: ["XREADGROUP", "GROUP", "g", c(), "STREAMS", k(), k(), ">", ">"],
            lambda: ["XACK", k(), g(), *self._some(i)],
            lambda: ["XPENDING", k(), g()],
            lambda: [
                "XPENDING",
                k(),
                g(),
                *self._perhaps(["IDLE", "90000"], ["IDLE", "0"]),
                *self._chance.choice(_RANGES),
                "5",
                *self._perhaps(["a"]),
            ],
            lambda: [
                "XCLAIM",
                k(),
                g(),
                c(),
                self._of(["0", "0", "90000"]),
                *self._some(i),
                *self._perhaps(["JUSTID"], ["RETRYCOUNT", "3"], ["FORCE"], ["IDLE", "7"], ["FOO"]),
            ],
            lambda: [
                "XAUTOCLAIM",
                k(),
                g(),
                c(),
                self._of(["0", "0", "90000"]),
                self._of(["0", "0-0", "2-0"]),
                *self._perhaps(["COUNT", "1"], ["JUSTID"], ["COUNT", "0"]),
            ],
            lambda: ["XINFO", self._of(["GROUPS", "STREAM"]), k()],
            lambda: ["XINFO", "CONSUMERS", k(), g()],
        ]
