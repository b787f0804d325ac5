"""The stack as a whole: services that are silent, entries that nobody takes, leases that stand still, weak set-ups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import redis

from orchestrator.bootstrap import Container
from orchestrator.config.settings import Settings
from orchestrator.display.text import counted
from orchestrator.doctor.findings import Problem, Severity, stuck, warning
from orchestrator.ids import is_session_id
from orchestrator.ledger import Lease, Ledger, RunState, decode
from orchestrator.ledger.snapshot import Snapshot
from orchestrator.redisdb import keys
from orchestrator.redisdb.client import replay_fault
from orchestrator.runtime.service import hung_services, live_services, shared_keys_of
from orchestrator.streams import (
    AUDIT_GROUP,
    GROUPS,
    INBOX,
    OUTBOX,
    ROUTER_GROUP,
    TRANSITIONS,
    RedisStreams,
    all_streams,
    boxes,
    ledger_streams,
    stream_key,
)
from orchestrator.streams.pressure import SOFT

#: The services without which nothing moves, and what stands still without them.
NEEDED: Mapping[str, str] = {
    "router": "no message is acted upon: start one with `orchestra service router`",
    "callbacks": "resumes wait for the reaper's sweep: start one with `orchestra service callbacks`",
    "reaper": "nothing lost is found again: start one with `orchestra service reaper`",
    "audit": "nothing is written to the audit trail: start one with `orchestra service audit`",
}
#: Milliseconds that an entry may be held before somebody should have taken it over.
LATE_MS = 60_000
_DAY_MS = 86_400_000


def hung(client: redis.Redis) -> Iterator[Problem]:
    """Services and workers that are connected and give no sign of life."""
    for record, silent_s in hung_services(client):
        yield stuck(
            "service-hung",
            f"{record.service} {record.host}/{record.pid}",
            f"{record.service} on {record.host}, process {record.pid}, is connected and has given no sign of life for "
            f"{silent_s:.0f} s more than it may: it hangs or was stopped. A service that hangs ends by itself and writes in its "
            "log where it stood, `orchestra up` ends others and starts them again; if nobody does, kill it",
        )


def services(client: redis.Redis) -> Iterator[Problem]:
    """Services that hang, and kinds of service of which no copy gave a sign of life."""
    alive = {record.service for record in live_services(client)}
    yield from hung(client)
    for name, consequence in NEEDED.items():
        if name not in alive:
            yield stuck("service-silent", name, f"no {name} service is alive: {consequence}")


def overwritten(client: redis.Redis, settings: Settings) -> Iterator[Problem]:
    """Keys that all sessions share and that another program has overwritten with another type."""
    for wrong in shared_keys_of(client, settings).wrong():
        yield Problem(Severity.BREAK, "key-overwritten", wrong.key, str(wrong))


def keys_unregistered(parts: Container) -> Iterator[Problem]:
    """Yield signing keys of this data folder that the registry lacks: what they sign is not accepted."""
    registry = parts.keyring.registry
    for record in parts.keyring.store.list():
        if registry.certificate(record.key_id) is None:
            yield stuck(
                "key-unregistered",
                record.key_id,
                f"the key {record.key_id} of {record.agent!r} is not in {keys.public_keys()}: what it signs waits, and is "
                "refused in the end; `orchestra doctor --fix` registers it, as every process does that signs with it",
            )


def dropped_dead_letters(client: redis.Redis, shards: int) -> Iterator[Problem]:
    """Dead letters that were dropped in the last day because they were too many or too old."""
    seconds, _ = client.time()
    for shard in range(shards):
        usage: Any = client.hmget(keys.dead_usage(shard), "dropped", "dropped-ms")
        dropped, last_ms = (int(value or 0) for value in usage)
        if dropped and int(seconds) * 1000 - last_ms < _DAY_MS:
            yield warning(
                "dead-letters-dropped",
                keys.dead(shard),
                f"{counted(dropped, 'dead letter')} dropped from {keys.dead(shard)} so far, as there were too many or "
                "they were too old; the audit trail has their messages: `orchestra audit search --dead`, and "
                "`orchestra dlq list` shows who sends what is left",
            )


def streams(client: redis.Redis, shards: int, programs: Sequence[str]) -> Iterator[Problem]:
    """Yield entries that a consumer took and never acknowledged, and entries that none takes, in outboxes, too."""
    port = RedisStreams(client)
    seconds, _ = client.time()
    for group in GROUPS:
        outboxes = boxes(OUTBOX, programs, shards) if group == ROUTER_GROUP else []
        ledger = ledger_streams(TRANSITIONS, shards) if group == AUDIT_GROUP else []
        read = [*all_streams(shards), *outboxes, *ledger]
        for backlog in port.backlog(group, read):
            stream, since_ms = backlog.stream, backlog.unread_since_ms
            waited_s = int(seconds) - since_ms // 1000 if since_ms is not None else 0
            if waited_s * 1000 > LATE_MS:
                yield stuck(
                    "entries-unread",
                    f"{group}/{stream}",
                    f"no {_service(group)} has read what is in {stream} for {waited_s} s: they are behind, or none "
                    f"consumes messages of type {stream.type}; start another one",
                )
            if backlog.oldest_pending_ms > LATE_MS:
                yield stuck(
                    "entries-held",
                    f"{group}/{stream}",
                    f"{backlog.pending} entries of {stream} are held in group {group}, the oldest for "
                    f"{backlog.oldest_pending_ms // 1000} s: a living {_service(group)} takes them over",
                )


def inboxes(client: redis.Redis, shards: int, programs: Sequence[str], most: int) -> Iterator[Problem]:
    """Inboxes of external programs that fill up, and messages that left one because it was full."""
    for stream in boxes(INBOX, programs, shards):
        key, program = stream_key(stream), stream.priority
        length: Any = client.xlen(key)
        if length >= most * SOFT:
            yield warning(
                "inbox-full",
                key,
                f"{counted(length, 'message')} are in the inbox of {program!r}, which holds {most} "
                f"(stream_max_entries): it is away, or does not acknowledge what it reads in group {program!r}; "
                "start it, or withdraw it with `orchestra agents withdraw`",
            )
        dropped: Any = client.hget(keys.totals(stream.shard), f"inbox-dropped:{program}")
        if dropped:
            yield warning(
                "inbox-dropped",
                key,
                f"{counted(int(dropped), 'message')} left the inbox of {program!r} unread so far, as it was full; the "
                "audit trail has them: `orchestra audit search --recipient` of its name",
            )


def strays(client: redis.Redis, shards: int) -> Iterator[Problem]:
    """Yield streams that look like ours and that nobody reads: programs outside the stack write their names by hand."""
    known = {stream_key(stream) for stream in all_streams(shards)}
    found = {
        name.decode("utf-8", "backslashreplace")
        for name in client.scan_iter(match=keys.any_messages(), count=10_000)
    } - known
    for name in sorted(found):
        yield stuck(
            "stream-unknown",
            name,
            f"nobody reads {name}: its shard, type or priority does not exist; append what is in it (`redis-cli "
            f"XRANGE` shows it) to one like {stream_key(all_streams()[0])}, then delete it",
        )


def results(ledger: Ledger, shards: Iterable[int]) -> Iterator[Problem]:
    """Yield results in the index that nobody waits for: the session is gone, or is the child of another one."""
    for shard in shards:
        owed = ledger.sweep.unpublished_results(shard)
        roots = {
            session.id
            for session in ledger.find(list(filter(is_session_id, owed)))
            if session.root == session.id
        }
        for stray in sorted(set(owed) - roots):
            yield stuck(
                "result-owed-to-nobody",
                stray,
                f"a result of {stray} is in the index of unpublished results, and it is not a root: the sweep removes it",
            )


def _service(group: str) -> str:
    return {ROUTER_GROUP: "router", AUDIT_GROUP: "audit writer"}.get(group, group)


def leases(before: list[Lease], after: list[Lease], lease_s: float) -> Iterator[Problem]:
    """Leases that did not move between two looks that were more than a heartbeat apart."""
    seen = {(lease.run, lease.claim): lease.lease_version for lease in before}
    for lease in after:
        if seen.get((lease.run, lease.claim)) == lease.lease_version:
            yield stuck(
                "lease-still",
                lease.run,
                f"{lease.run} on {lease.worker} gave no sign of life while it was watched: "
                f"the reaper gives it to another worker {lease_s:g} s after its last one",
                session=lease.session,
            )


def claims(ledger: Ledger, shards: Iterable[int]) -> Iterator[Problem]:
    """Runs that are held under another claim than the one that a slot took them under."""
    for shard in shards:
        taken: dict[str, set[str]] = defaultdict(set)
        for run, claim in ledger.sweep.slots(shard):
            taken[run].add(claim)
        for lease in ledger.sweep.leases(shard):
            if lease.run in taken and lease.claim not in taken[lease.run]:
                yield stuck(
                    "claim-altered",
                    lease.run,
                    f"{lease.run} is held under another claim than the one under which {lease.worker} took it, so that "
                    "its end would be refused; `orchestra doctor --fix` gives it to another worker at once, the reaper when its "
                    "lease has stood still",
                    session=lease.session,
                )


def deaths(snapshot: Snapshot) -> Iterator[Problem]:
    """Runs during which worker processes died, unless they came to an answer in the end."""
    session = snapshot.session
    for run in snapshot.runs:
        if run.died and run.state is not RunState.COMPLETED:
            times = "once" if run.died == 1 else f"{run.died} times"
            yield warning(
                "process-died",
                run.id,
                f"{run.id} of agent {session.agent!r} is {run.state}, and its worker process died {times}: "
                f"{run.reason}; see `orchestra logs {session.id}`",
                session=session.id,
            )


def setup(client: redis.Redis, settings: Settings) -> Iterator[Problem]:
    """Yield weaknesses of the set-up: they break nothing now."""
    for rule, message in _weaknesses(client, settings):
        yield warning(rule, "", message)


def _weaknesses(client: redis.Redis, settings: Settings) -> Iterator[tuple[str, str]]:
    if not settings.signatures_required:
        who = "anybody who can write to Redis can speak as any agent"
        yield "signatures-optional", f"signatures are optional (signatures_required = false): {who}"
    config = _config(client, "appendonly", "appendfsync", "maxmemory", "maxmemory-policy")
    if config.get("appendonly") == "no":
        yield (
            "no-append-only-file",
            "the server keeps no append-only file: a restart loses everything; set appendonly yes, and appendfsync always",
        )
    elif config and (fsync := config.get("appendfsync")) != "always":
        loss = "a server that is killed can take back about a second of acknowledged transitions"
        yield "fsync-not-always", f"appendfsync is {fsync}: {loss}"
    try:
        replay_fault(client)
    except redis.exceptions.NoPermissionError:
        loss = "a restart of the server loses the ledger if its user `default` may not change our keys"
        yield "restart-unchecked", f"{loss}; this user lacks +acl|dryrun (`orchestra service acl`)"
    replication: Any = client.info("replication")
    replicas = int(replication.get("connected_slaves", 0))
    if replicas and not settings.replicas:
        loss = "a failover can lose what they had not got"
        waits = f"{replicas} replicas are connected and claims do not wait for them (replicas = 0)"
        yield "replicas-not-waited-for", f"{waits}: {loss}"
    if replicas < settings.replicas:
        waits = f"{replicas} of replicas = {settings.replicas} are connected"
        loss = "each claim, step and commit waits a second for them without success, and a failover can lose it; start them"
        yield "replicas-missing", f"{waits}: {loss}"
    policy = config.get("maxmemory-policy")
    if config.get("maxmemory", "0") != "0" and policy != "noeviction":
        loss = "a full server drops keys of the ledger; set it to noeviction"
        yield "eviction", f"maxmemory-policy is {policy}: {loss}"


def _config(client: redis.Redis, *names: str) -> dict[str, str]:
    try:
        return decode.mapping(client.config_get(*names))
    except redis.ResponseError:  # a managed server does not say
        return {}
