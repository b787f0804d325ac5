"""The Redis keys of everything but the ledger's records, and the streams on which the ledger publishes."""

from __future__ import annotations

import hashlib
from functools import lru_cache

from orchestrator.redisdb.key_table import (
    PERMANENT,
    PREFIX,
    in_shard,
    key,
    of_id,
    of_shard,
    of_stack,
    shard_tag,
)

# A table: the pattern, type, owner and lifetime of each key, then what it holds.
# fmt: off
session_events = of_shard("session_events", "session-events", "stream", "ledger",
    "permanent; trimmed below what was acknowledged",
    "One entry for each `session_stop` that can move somebody, and for each thing put into a session's queue.")
transitions = of_shard("transitions", "transitions", "stream", "ledger",
    "permanent; trimmed below what the audit writer has acknowledged",
    "What each step of a script changed in the ledger, for the audit trail: the script, and a line for each change.")
notices = of_shard("notices", "notices", "stream", "ledger",
    "permanent; an entry leaves when every target got it or has given it up; about 100,000 at most",
    "What the notifier tells people of: questions, approvals, ends of roots, dead callbacks; there since a notifier first ran.")
totals = of_shard("totals", "totals", "hash", "ledger", PERMANENT,
    "Counters of the shard: envelopes published for each stream, messages dropped from each inbox that was full.")
outbox = in_shard("outbox", "out:<program>", "stream", "external programs",
    "permanent; an entry leaves when a router takes it over",
    "What an external program says: the only key that it writes; routers move it to the streams of messages.")
quota = in_shard("quota", "quota:<program>", "string", "router", "a minute",
    "How many messages routers have taken from an external program's outbox in this minute.")
inbox = in_shard("inbox", "in:<program>", "stream", "router",
    "permanent; trimmed below what the program has acknowledged, and to stream_max_entries",
    "What was routed to an external program: field `envelope` holds the XML; its consumer group bears its name.")
replayed = in_shard("replayed", "replayed:<message>", "string", "router", "seven days",
    "The entry of a message that a replay of the audit trail has published, by its new message-id.")
dead = of_shard("dead", "dead", "stream", "router",
    "permanent; entries leave by replay or drop, after 30 days, or where there are too many",
    "Dead letters: reason, rule, attempts, original bytes, time.")
dead_index = of_shard("dead_index", "dead-index", "zset", "router",
    PERMANENT,
    "Dead letters by sender and age, with their size; those whose signature did not count are of the sender ''.")
dead_usage = of_shard("dead_usage", "dead-usage", "hash", "router",
    "permanent; a field for each sender in the index",
    "Bytes of dead letters, of all and of each sender; how many were dropped or unaudited, and when.")
format_version = of_stack("format_version", "format", "string", "ledger", PERMANENT,
    "The format of the ledger's keys; a program of another format refuses to work on them.")
agreed = of_stack("agreed", "agreed", "hash", "service", PERMANENT,
    "Settings that all parts have the same: `shards`, `lease_s`; and `at`, when a part began last, in ms since the epoch.")
agents = of_stack("agents", "agents", "zset", "workers", "permanent; a member for each name, until withdrawn",
    "Names of registered agents, scored by when a worker last announced them.")
public_keys = of_stack("public_keys", "keys", "hash", "keyring", PERMANENT,
    "Key id → certificate (X.509, PEM) that the operator has issued; `crl` → the operator's list of revocations (PEM).")
operator_key = of_stack("operator_key", "operator-key", "string", "keyring", PERMANENT,
    "The operator's certificate in PEM, as the first data folder of the stack published it.")
services = of_stack("services", "services", "hash", "service",
    "permanent; a field leaves when its service stops, or an hour after its last sign of life",
    "Instance → JSON of a running service or worker: name, host, pid, until when it counts as alive, agents it serves.")
blob = in_shard("blob", "blob:<sha256>", "hash", "payload", "blob_ttl after it was last referenced",
    "A large body under the SHA-256 of its bytes: chunks `0`…`n-1`, and `facts` (JSON: size, stored size, chunks).")
upload = in_shard("upload", "upload:<upload>", "hash", "payload", "10 minutes after its last chunk",
    "A blob that is being written and has no name yet.")
conversation = in_shard("conversation", "conversation:<correlation-id>", "hash", "router",
    "as long as a duplicate mark after its last message",
    "One conversation: `root` (message-id of its first message), `count` of messages, `task:<task-id>` → session.")
parked = of_shard("parked", "parked", "zset", "router", PERMANENT,
    "Messages that wait for their next attempt or for other tasks, scored by when to look at them again.")
parked_message = in_shard("parked_message", "parked:<type>:<priority>:<entry>", "hash", "router",
    "until the message is back in its stream or is a dead letter",
    "One message that waits: its bytes, its stream, which attempt comes next, and why it waits.")
waiters = of_id("waiters", "session:<session>:waiters", "set", "router",
    "a week after a task was last held for it",
    "Tasks that are held until this session is completed: shard and id of each parked message.")
audit_heads = of_stack("audit_heads", "audit-heads", "hash", "audit",
    PERMANENT,
    "Audit database → its signed head: number and chain of the last row of both its tables.")
# fmt: on


@key(
    "{S}:msg:<type>:<priority>",
    "stream",
    "streams",
    "permanent; trimmed below what every group has acknowledged",
)
def messages(shard: int, message_type: str, priority: str) -> str:
    """Envelopes of one type and priority; field `envelope` holds the XML."""
    return f"{shard_tag(shard)}:msg:{message_type}:{priority}"


@key("{S}:seen:<message-id>:<sender>", "string", "router", "as long as the message may live")
def seen(shard: int, sender: str, message_id: str) -> str:
    """The duplicate mark of a message of this sender (a hash of its name): entry id, digest of what was signed."""
    return f"{shard_tag(shard)}:seen:{message_id}:{_short(sender)}"


@key(
    "agent:<name>",
    "string",
    "workers",
    "until withdrawn, or registration_ttl_s after a worker last served it",
)
def agent(name: str) -> str:
    """JSON of a registered agent: role, tier, executor, queue, limits."""
    return f"{PREFIX}:agent:{name}"


@lru_cache(maxsize=1024)
def _short(name: str) -> str:
    # A hash, because a name may be of any length.
    return hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:16]


@key("aside:<key>", "any", "doctor", "30 days after it was set aside")
def aside(name: str) -> str:
    """Content that another program put in the place of a shared key, moved by `orchestra doctor --fix`."""
    return f"{PREFIX}:aside:{name}"


def any_messages() -> str:
    """Return a pattern that the streams of messages match, and what somebody took for one."""
    return f"{PREFIX}:{{*}}:msg:*"
