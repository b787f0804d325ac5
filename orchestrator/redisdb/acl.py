"""Rights of each part of a stack on its Redis: the rules of one user for each role and each external program.

Rules are made for Redis 6.2, where a key that may be read may be written by every command that is allowed. The names of
keys come from :mod:`orchestrator.redisdb.all_keys`, so that a new key belongs to somebody or to nobody, and a test says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final

from orchestrator.redisdb import keys
from orchestrator.redisdb.all_keys import REGISTRY

#: What stands for the password; no rule ever holds one.
PASSWORD: Final = "PASSWORD"  # noqa: S105  (a placeholder)

_LEDGER: Final = frozenset(spec.name for spec in REGISTRY if spec.owner == "ledger")
#: What every part reads, or writes about itself: agents, public keys, signs of life, large bodies, messages.
_COMMON: Final = frozenset(
    {
        "agent",
        "agents",
        "public_keys",
        "operator_key",
        "format_version",
        "agreed",
        "services",
        "blob",
        "upload",
        "messages",
        "totals",
    }
)
_PROVIDERS: Final = frozenset(spec.name for spec in REGISTRY if spec.owner == "providers")
_DEAD: Final = frozenset({"dead", "dead_index", "dead_usage"})
_WAITING: Final = frozenset({"parked", "parked_message", "waiters", "seen", "conversation"})
_EVERYTHING: Final = frozenset(spec.name for spec in REGISTRY)

#: Role → names of the keys that it works with.
KEYS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "router": _LEDGER | _COMMON | _DEAD | _WAITING | {"outbox", "inbox", "quota"},
        "callbacks": _LEDGER | _COMMON | {"conversation"},
        "reaper": _LEDGER | _COMMON | _DEAD | {"conversation", "inbox", "seen"},
        "worker": _LEDGER | _COMMON | _PROVIDERS | {"conversation"},
        "notifier": _DEAD
        | frozenset(
            {
                *("notices", "totals", "services", "format_version", "agreed"),
                *("session", "items", "bodies"),
            }
        ),
        "audit": frozenset(
            {
                *("messages", "dead", "transitions", "blob", "totals", "audit_heads"),
                *("public_keys", "operator_key", "services", "format_version", "agreed"),
            }
        ),
        # It shows Celery's tasks and knows nothing of the ledger.
        "flower": frozenset(),
        "operator": _EVERYTHING,
        "console": _EVERYTHING,
    }
)
#: Roles that put runs into Celery's queues, or take them out.
_CELERY: Final = frozenset({"router", "callbacks", "reaper", "worker", "flower", "operator"})
#: What Celery and kombu name their keys and channels, beside the queues; `*.celery.pidbox*` are answers to remote control.
_CELERY_KEYS: Final = ("_kombu.*", "unacked*", "celery*", "ev.*", "*.celery.pidbox*")
_CELERY_CHANNELS: Final = ("celery*", "/*.celery*", "/*.reply.celery*")
#: What workers and Flower subscribe to: remote control, events. A pattern that is subscribed to has to be named as it is.
_CELERY_PATTERNS: Final = (
    *("/{0}.celery.pidbox", "/{0}.reply.celery.pidbox"),
    *("/{0}.celeryev/*", "/{0}.celeryev/worker.*", "/{0}.celeryev/worker.#"),
)

#: `acl|dryrun` says whether a restart of the server keeps the ledger; it changes nothing and shows no password.
_CONNECTION: Final = ("+ping", "+echo", "+select", "+client|setname", "+time", "+info", "+acl|dryrun")
_SERVICE: Final = (
    *("+@read", "+@write", "+@transaction", "-@dangerous", "-@admin"),
    *("+eval", "+evalsha", "+script|load", "+script|exists", "+publish", "+xinfo", "+wait"),
    *_CONNECTION,
)
#: It reads streams in a group of its own, keeps the heads of its trail and tells that it is alive, and deletes nothing.
_AUDIT: Final = (
    *("+xreadgroup", "+xgroup|create", "+xautoclaim", "+xclaim", "+xpending", "+xack", "+xinfo", "+xrange"),
    *("+xlen", "+get", "+exists", "+hget", "+hmget", "+hgetall", "+hkeys", "+hset", "+setnx", "+type"),
    *("+multi", "+exec", "+discard", "+eval", "+evalsha", "+script|load", "+script|exists"),
    *_CONNECTION,
)
#: Its own stream, the dead letters, and what it says of a session; `hset` and `hdel` are for its signs of life, too.
_NOTIFIER: Final = (
    *(
        "+xdel",
        "+xrange",
        "+hlen",
        "+hkeys",
        "+hincrby",
        "+zadd",
        "+zcard",
        "+zrange",
        "+zrem",
        "+zlexcount",
        "+zrangebylex",
    ),
    *("+xreadgroup", "+xack", "+xpending", "+xclaim", "+xadd", "+xtrim", "+xlen", "+xinfo"),
    *(
        "+xgroup|create",
        "+xgroup|delconsumer",
        "+get",
        "+exists",
        "+hget",
        "+hmget",
        "+hgetall",
        "+hset",
        "+hdel",
    ),
    *("+multi", "+exec", "+discard", "+eval", "+evalsha"),
    *_CONNECTION,
)
#: A script may run what its caller may: it reads.
_CONSOLE: Final = ("+@read", "+@transaction", "-@dangerous", "+eval", "+evalsha", "+xinfo", *_CONNECTION)
_PROGRAM: Final = ("+ping", "+xadd", "+xread", "+xreadgroup", "+xack", "+hget")


def role_rules(role: str, *, queues: tuple[str, ...] = ("orchestra",), database: int = 0) -> list[str]:
    """Return the rules of a role; ``queues`` are those of the agents, ``database`` is the number of Celery's."""
    found = {_pattern(spec.pattern) for spec in REGISTRY if spec.name in KEYS[role]}
    # One that says `…:*` covers those below it.
    patterns = sorted(p for p in found if not any(p != q and fnmatchcase(p, q) for q in found))
    channels: list[str] = []
    listed = {"audit": _AUDIT, "console": _CONSOLE, "notifier": _NOTIFIER}
    commands = list(listed.get(role, _SERVICE))
    if role in {"router", "callbacks", "audit", "reaper", "notifier", "operator"}:
        # Which holders of runs, and which consumers of groups, are connected.
        commands.append("+client|list")
    if role in _CELERY:
        patterns += [*_CELERY_KEYS, *(f"{queue}*" for queue in queues)]
        channels = [f"&{name.format(database)}" for name in (*_CELERY_CHANNELS, *_CELERY_PATTERNS)]
        commands += ["+subscribe", "+psubscribe", "+unsubscribe", "+punsubscribe"]
    return ["resetchannels", *channels, *(f"~{name}" for name in patterns), "-@all", *commands]


def program_rules(program: str, *, shards: int = 1) -> list[str]:
    """Return the rules of an external program: append to its outbox, read and acknowledge its inbox, look up public
    keys.

    Its own two streams are named in full, as a pattern could match what is another's.
    """
    own = [box(shard, program) for shard in range(shards) for box in (keys.outbox, keys.inbox)]
    return ["resetchannels", *(f"~{name}" for name in [*own, keys.public_keys()]), "-@all", *_PROGRAM]


def acl_line(user: str, rules: list[str]) -> str:
    """Return a line for an `aclfile`; what stands behind `user` is also what `ACL SETUSER` takes."""
    return " ".join(["user", user, "on", f">{PASSWORD}", *rules])


def _pattern(name: str) -> str:
    return re.sub(r"<[^>]+>", "*", name.replace("{S}", "{*}"))
