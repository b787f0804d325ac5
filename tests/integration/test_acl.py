"""The rules that `orchestra service acl` prints, on a real server."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis as redis_py

from orchestrator.redisdb import keys
from orchestrator.redisdb.acl import KEYS, PASSWORD, acl_line, program_rules, role_rules
from orchestrator.redisdb.all_keys import REGISTRY
from tests.commands import run_command

SECRET = "a-password-of-a-test"
#: What somebody who wants what is another's would try on a key.
COMMANDS = (
    *("XADD {} * envelope x", "XREAD STREAMS {} 0", "XREADGROUP GROUP router thief STREAMS {} >"),
    *("XREADGROUP GROUP partner thief STREAMS {} >", "XACK {} router 0-1", "XACK {} audit 0-1"),
    *("XRANGE {} - +", "XDEL {} 0-1", "XTRIM {} MAXLEN 0", "XCLAIM {} router thief 0 0-1"),
    *("XAUTOCLAIM {} router thief 0 0-0", "XGROUP CREATE {} mine 0", "XGROUP SETID {} router $"),
    *("XGROUP DESTROY {} router", "XINFO STREAM {}", "XPENDING {} router", "XLEN {}", "GET {}"),
    *("SET {} x", "HGET {} x", "HGETALL {}", "HSET {} x y", "ZADD {} 1 x", "ZRANGE {} 0 -1"),
    *("ZREM {} x", "LRANGE {} 0 -1", "SMEMBERS {}", "DEL {}", "UNLINK {}", "EXPIRE {} 1"),
    *("RENAME {} elsewhere", "COPY {} elsewhere", "DUMP {}", "TYPE {}", "EXISTS {}"),
    "EVAL return(1) 1 {}",
)
#: What it would try on the server.
SERVER = (
    *("KEYS *", "SCAN 0", "FLUSHALL", "FLUSHDB", "CONFIG GET *", "ACL LIST", "MONITOR"),
    *("CLIENT LIST", "SCRIPT FLUSH", "SHUTDOWN", "SWAPDB 0 1", "PUBLISH x y", "SUBSCRIBE x", "RANDOMKEY"),
)
#: On its own streams a program may do these, and the public keys are for all to look up.
OWN = {"XADD", "XREAD", "XREADGROUP", "XACK", "HGET"}


@contextmanager
def connected(redis: redis_py.Redis, url: str, command: str) -> Iterator[redis_py.Redis]:
    """A connection of the user that a command of the server makes."""
    set_user = command.replace(PASSWORD, SECRET).split()
    name = set_user[2]
    redis.execute_command(*set_user)
    try:
        with redis_py.Redis.from_url(url, username=name, password=SECRET, protocol=2) as client:
            yield client
    finally:
        redis.execute_command("ACL", "DELUSER", name)


@pytest.fixture
def partner(redis: redis_py.Redis, redis_url: str) -> Iterator[redis_py.Redis]:
    """A connection of the external program `partner`, made as the command says."""
    printed = run_command("service", "acl", "partner")
    assert printed.exit_code == 0, printed.output
    with connected(redis, redis_url, printed.output) as client:
        yield client


def refuses(client: redis_py.Redis, commands: Iterable[str]) -> None:
    """Every command is refused for lack of permission."""
    for command in commands:
        with pytest.raises(redis_py.exceptions.NoPermissionError):
            client.execute_command(*command.split())


def example(pattern: str) -> str:
    """A key of that pattern, of somebody else."""
    return re.sub(r"<[^>]+>", "other", pattern.replace("{S}", "{00}"))


EXAMPLES = sorted({example(spec.pattern) for spec in REGISTRY})


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != keys.public_keys()])
def test_a_program_can_do_nothing_with_what_is_others(partner: redis_py.Redis, name: str) -> None:
    """Whatever the key holds, and whether or not it is there: every command is refused for lack of permission."""
    refuses(partner, (command.format(name) for command in COMMANDS))


def test_a_program_can_do_nothing_with_the_server(partner: redis_py.Redis) -> None:
    """Nor look for keys."""
    refuses(partner, SERVER)


def test_a_program_can_look_up_public_keys_and_change_none(
    partner: redis_py.Redis, redis: redis_py.Redis
) -> None:
    """What Redis 6.2 cannot keep it from trying ends at the type of the key."""
    redis.hset(keys.public_keys(), "key_1", "record")
    assert partner.hget(keys.public_keys(), "key_1") == b"record"
    for command in COMMANDS:
        if command.split()[0] == "HGET":
            continue
        try:
            answer = partner.execute_command(*command.format(keys.public_keys()).split())
        except redis_py.ResponseError:
            continue
        assert not answer, command
    assert redis.hgetall(keys.public_keys()) == {b"key_1": b"record"}


@pytest.mark.parametrize("own", [keys.outbox(0, "partner"), keys.inbox(0, "partner")])
def test_a_program_uses_its_own_streams_and_no_more(
    partner: redis_py.Redis, redis: redis_py.Redis, own: str
) -> None:
    """It appends, reads and acknowledges; groups and entries are the stack's to make and to remove."""
    redis.xgroup_create(own, "partner", id="0", mkstream=True)
    entry = partner.xadd(own, {"envelope": "x"})
    assert partner.xreadgroup("partner", "one", {own: ">"})[0][1] == [(entry, {b"envelope": b"x"})]
    assert partner.xack(own, "partner", entry) == 1
    assert partner.xread({own: "0"})
    refuses(partner, (command.format(own) for command in COMMANDS if command.split()[0] not in OWN))


def test_the_boxes_of_a_program_whose_name_begins_alike_are_others(partner: redis_py.Redis) -> None:
    """Names are taken in full."""
    for name in ("partner2", "my-partner", "partner.x"):
        for box in (keys.outbox(0, name), keys.inbox(0, name), keys.outbox(1, "partner")):
            with pytest.raises(redis_py.exceptions.NoPermissionError):
                partner.xadd(box, {"envelope": "x"})


def test_a_program_has_both_its_boxes_in_each_shard() -> None:
    """And nothing else gets more with them."""
    one, four = program_rules("partner"), program_rules("partner", shards=4)
    assert set(four) - set(one) == {
        f"~{box(shard, 'partner')}" for shard in (1, 2, 3) for box in (keys.outbox, keys.inbox)
    }


@pytest.mark.parametrize("role", [*KEYS, "program"])
def test_the_rules_that_ship_are_those_that_are_printed(root: Path, role: str) -> None:
    """Write them with `orchestra service acl --file ROLE > deploy/acl/ROLE.acl`; no file holds a secret."""
    line = acl_line("NAME", program_rules("NAME")) if role == "program" else acl_line(role, role_rules(role))
    assert (root / "deploy" / "acl" / f"{role}.acl").read_text() == f"{line}\n"
    printed = run_command("service", "acl", "--file", "NAME" if role == "program" else role)
    assert printed.output == f"{line}\n"


def test_a_program_that_is_called_like_a_role_does_not_get_its_rights() -> None:
    """Where the command is told so."""
    printed = run_command("service", "acl", "--program", "--file", "worker")
    assert printed.output == acl_line("worker", program_rules("worker")) + "\n"


#: Of the classes of Redis what each role has, and nothing else of the class: who asks which connections live has `client|list`.
LISTERS = ("audit", "callbacks", "notifier", "operator", "reaper", "router")
ALLOWED: dict[str, dict[str, set[str]]] = {
    "admin": {role: {"acl|dryrun"} | ({"client|list"} if role in LISTERS else set()) for role in KEYS},
    "dangerous": {
        role: {"acl|dryrun", "info"} | ({"client|list"} if role in LISTERS else set()) for role in KEYS
    },
    # What loses keys or agents is not among these: del, unlink, rename, xgroup|destroy …
    "write": {
        "audit": {"xreadgroup", "xgroup|create", "xautoclaim", "xclaim", "xack", "hset", "setnx"},
        "notifier": {
            *("xreadgroup", "xgroup|create", "xgroup|delconsumer", "xclaim", "xack"),
            *("xadd", "xtrim", "hset", "hdel"),
            # What it gives up is a dead letter, for which older ones make room.
            *("xdel", "zadd", "zrem", "hincrby"),
        },
        "console": set(),
    },
    "pubsub": {"audit": set(), "notifier": set(), "console": set()},
    "scripting": {"console": {"eval", "evalsha"}},
}
ALLOWED["write"]["program"] = {"xreadgroup", "xadd", "xack"}


@pytest.mark.parametrize("role", [*sorted(KEYS), "program"])
def test_a_role_has_of_each_class_of_commands_what_it_needs(
    redis: redis_py.Redis, redis_url: str, role: str
) -> None:
    """Tried on the server, command by command: what is refused for want of a permission, before it is looked at."""
    line = (
        acl_line("partner", program_rules("partner"))
        if role == "program"
        else acl_line(role, role_rules(role))
    )
    with connected(redis, redis_url, line.replace("user", "ACL SETUSER", 1)) as client:
        for group, roles in ALLOWED.items():
            wanted = roles.get(role, set() if role == "program" else None)
            if wanted is None:
                continue
            has = {one for one in commands_of(redis, group) if may(client, one)}
            assert has == wanted & set(commands_of(redis, group)), group


def commands_of(redis: redis_py.Redis, group: str) -> list[str]:
    """The commands of a class, those that have subcommands as `command|subcommand`; none that ends the connection."""
    names = [name.decode() for name in redis.execute_command("ACL", "CAT", group)]
    spoilt = ("monitor", "psync", "sync", "shutdown", "debug", "replconf", "quit", "reset", "failover")
    containers = {name.partition("|")[0] for name in names if "|" in name}
    if not containers:  # before Redis 7 a class does not tell them apart
        containers = {
            *("acl", "client", "config", "script", "xgroup", "xinfo"),
            *("object", "memory", "cluster", "latency"),
        }
        names += [name for name in SUBCOMMANDS if name.partition("|")[0] in names]
    # Whether modules may be loaded is asked before permissions are.
    return [n for n in names if n not in containers and n not in spoilt and not n.startswith("module")]


SUBCOMMANDS = (
    *("acl|dryrun", "acl|list", "acl|setuser", "client|list", "client|kill", "config|set"),
    *("config|get", "script|flush", "xgroup|create", "xgroup|destroy", "xgroup|setid"),
    "xgroup|delconsumer",
)


def may(client: redis_py.Redis, command: str) -> bool:
    """Whether the server executes it, or refuses it for another reason than that the user may not run it."""
    for count in range(8):
        try:
            client.execute_command(*command.split("|"), *["x"] * count)
        except redis_py.exceptions.NoPermissionError as error:
            return "permissions to run" not in str(error)
        except redis_py.RedisError as error:
            if str(error).startswith("wrong number of arguments"):
                continue  # which is said before permissions are asked for
        return True
    raise AssertionError(f"{command} takes no number of arguments")


@pytest.mark.parametrize("role", sorted(KEYS))
def test_a_role_reaches_its_own_keys_and_cannot_harm_the_server(
    redis: redis_py.Redis, redis_url: str, role: str
) -> None:
    """What a role has no business with is refused; the console changes nothing."""
    line = acl_line(role, role_rules(role))
    with connected(redis, redis_url, line.replace("user", "ACL SETUSER", 1)) as client:
        for spec in REGISTRY:
            name = example(spec.pattern)
            if spec.name in KEYS[role]:
                client.exists(name)
            elif not any(spec.pattern.startswith(own) for own in ("ao:{S}:session:", "ao:{S}:run:")):
                refuses(client, [f"EXISTS {name}"])
            if role == "console":
                refuses(client, [f"DEL {name}"])
        harm = ("FLUSHALL", "CONFIG SET maxmemory 0", "ACL LIST", "SHUTDOWN", "SCRIPT FLUSH", "KEYS *")
        refuses(client, harm)
