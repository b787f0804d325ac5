"""Every Redis key of the project: a function each, registered with type, owner, lifetime and meaning.

No other module spells a key. Keys of one shard share a hash tag, so that a transition touches
one slot of a Redis Cluster: ``ao:{00}:…``. Keys without a shard (agents, public keys) carry none.
`docs/reference/redis-keys.md` is generated from ``REGISTRY``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, ParamSpec

from orchestrator.ids import shard_of

P = ParamSpec("P")

PREFIX: Final = "ao"


@dataclass(frozen=True)
class KeySpec:
    """What is known of one key."""

    name: str
    pattern: str
    type: str  #: in Redis: hash, zset, set, stream, string, list
    owner: str  #: the part of the code that writes it
    lifetime: str
    holds: str  #: what it holds, in one sentence


REGISTRY: Final[list[KeySpec]] = []


def shard_tag(shard: int) -> str:
    """The prefix that all keys of a shard share, hash tag included."""
    return f"{PREFIX}:{{{shard:02x}}}"


# Every transition names several keys of the same few sessions and runs.
@lru_cache(maxsize=1024)
def _of(identifier: str) -> str:
    return shard_tag(shard_of(identifier))


def _of_id(name: str, pattern: str, *facts: str) -> Callable[[str], str]:
    """A key of one session, run or tree, whose id names the shard."""
    before, after = re.split("<.+>", pattern)

    def make(identifier: str) -> str:
        return f"{_of(identifier)}:{before}{identifier}{after}"

    REGISTRY.append(KeySpec(name, f"{PREFIX}:{{S}}:{pattern}", *facts))
    return make


def _of_part(name: str, pattern: str, *facts: str) -> Callable[[str, str], str]:
    """A key of a part of one session or run."""
    before, between, _ = re.split("<[^>]+>", pattern)

    def make(identifier: str, part: str) -> str:
        return f"{_of(identifier)}:{before}{identifier}{between}{part}"

    REGISTRY.append(KeySpec(name, f"{PREFIX}:{{S}}:{pattern}", *facts))
    return make


def _of_shard(name: str, pattern: str, *facts: str) -> Callable[[int], str]:
    """A key that each shard has once."""

    def make(shard: int) -> str:
        return f"{shard_tag(shard)}:{pattern}"

    REGISTRY.append(KeySpec(name, f"{PREFIX}:{{S}}:{pattern}", *facts))
    return make


def _in_shard(name: str, pattern: str, *facts: str) -> Callable[[int, str], str]:
    """A key of something that has a name in its shard."""
    before = pattern.partition("<")[0]

    def make(shard: int, part: str) -> str:
        return f"{shard_tag(shard)}:{before}{part}"

    REGISTRY.append(KeySpec(name, f"{PREFIX}:{{S}}:{pattern}", *facts))
    return make


def _of_stack(name: str, pattern: str, *facts: str) -> Callable[[], str]:
    """A key that the stack has once."""

    def make() -> str:
        return f"{PREFIX}:{pattern}"

    REGISTRY.append(KeySpec(name, f"{PREFIX}:{pattern}", *facts))
    return make


def _key(
    pattern: str, type: str, owner: str, lifetime: str
) -> Callable[[Callable[P, str]], Callable[P, str]]:
    """A key of any other form; the docstring of its function says what it holds."""

    def register(make: Callable[P, str]) -> Callable[P, str]:
        name, holds = make.__name__, make.__doc__ or ""
        REGISTRY.append(KeySpec(name, f"{PREFIX}:{pattern}", type, owner, lifetime, holds))
        return make

    return register


_TREE: Final = "tree_ttl after its root has ended"
_SESSION: Final = "as its session"
_PERMANENT: Final = "permanent"

# A table: the pattern, type, owner and lifetime of each key, then what it holds.
# fmt: off
# --- ledger: one session
session = _of_id("session", "session:<session>", "hash", "ledger", _TREE,
    "The session's facts: agent, parent, root, state, current run, counters, policies.")
items = _of_id("items", "session:<session>:items", "hash", "ledger", _SESSION,
    "Item id → JSON record of everything this session is owed or was sent: callbacks, questions, prompts.")
bodies = _of_id("bodies", "session:<session>:bodies", "hash", "ledger", _SESSION,
    "Item id → its text; also `prompt`, `task`, `result` and `state` of the session itself.")
live = _of_id("live", "session:<session>:live", "stream", "ledger", "an hour after its last entry",
    "What the session is writing now, piece by piece; nothing depends on it.")
printed = _of_id("printed", "session:<session>:printed", "hash", "workers",
    "as its session; `tree_ttl_s` after the last print at most",
    "What the agent printed in the last tries of the last runs; nothing depends on it.")
queue = _of_id("queue", "session:<session>:queue", "zset", "ledger", _SESSION,
    "Items that wait for the session's next run; score orders by priority, then by arrival.")
runs = _of_id("runs", "session:<session>:runs", "list", "ledger", _SESSION,
    "The ids of the session's runs, oldest first.")
past = _of_id("past", "session:<session>:past", "hash", "ledger", _SESSION,
    "What its last runs found when they began: `state:<number>`, `memory:<number>` of a run; `from`, the first of them.")
large_texts = _of_id("large_texts", "session:<session>:large-texts", "set", "ledger", _SESSION,
    "SHA-256 of each large text that this session has said; the bodies hold its beginning.")
large_text = _of_part("large_text", "session:<session>:whole:<sha256>", "hash", "ledger",
    "as its session; an hour while no transition refers to it",
    "A large text of this session, in chunks, as a blob is kept.")
run = _of_id("run", "run:<run>", "hash", "ledger", _SESSION,
    "One run: state, cause, claim id, renewal counter, attempts, the items it carries.")
effects = _of_id("effects", "run:<run>:effects", "hash", "ledger", _SESSION,
    "Effect key → what the effect made and the claim that last took it up.")
steps = _of_id("steps", "run:<run>:steps", "hash", "ledger", "until its run ends",
    "What the durable steps of a run gave: `h:<step>` a header, `p:<step>` a value, `v:<sha256>` a stored value.")
reserved = _of_id("reserved", "run:<run>:reserved", "hash", "ledger", "until its run ends or is tried again",
    "What a run has set aside for calls that are not finished: reservation → JSON of amounts and budgets.")
budget = _of_id("budget", "session:<session>:budget", "hash", "ledger", _SESSION,
    "What a session and everything below it may spend: `limit:…`, `spent:…`, `reserved:…`, `by:<agent>:…`.")
spending = _in_shard("spending", "spending:<agent>", "hash", "ledger", "permanent, for agents with a budget",
    "What an agent with a budget of its own spent in this shard since `window`, and what is reserved.")
step_value = _of_part("step_value", "run:<run>:steps:<sha256>", "hash", "ledger",
    "until its run ends; an hour while no step refers to it",
    "A large value that a durable step of this run gave, in chunks, as a blob is kept.")

# --- ledger: one shard
tree = _of_id("tree", "tree:<root>", "zset", "ledger", _TREE,
    "Every session of a tree, scored by when it was made, in the order of the launches.")
roots = _of_shard("roots", "roots", "zset", "ledger", "permanent; one member for each kept tree",
    "Root sessions of the trees that are kept, scored by when they were made.")
running = _of_shard("running", "running", "zset", "ledger", "permanent; one member for each running run",
    "Runs that are held under a lease, scored by when they were claimed.")
queued = _of_shard("queued", "queued", "zset", "ledger", "permanent; one member for each queued run",
    "Runs that no worker has claimed yet, scored by when the sweep looks at them; a retry is not ready before that.")
ready = _in_shard("ready", "ready:<agent>", "zset", "ledger", "permanent; one member for each ready run",
    "An agent's queued runs that a slot may take now, by priority, then turns of the trees; `<agent>@<version>`: those that only a worker with that version may.")
turns = _in_shard("turns", "turns:<agent>", "hash", "ledger", "as long as the agent has ready runs",
    "The last turn of each tree among an agent's ready runs, and when workers were last told that there are some.")
run_limits = _of_shard("run_limits", "limits", "hash", "ledger", "permanent; a few fields for each agent",
    "Runs at once: `agent:<name>`, `tree:<root>`, `trees`, with `default:<name>`, `default-trees` and `queue:<name>` by workers; `paused:agent:<name>`, `paused:queue:<name>` since when.")
at_work = _of_shard("at_work", "at-work", "hash", "ledger", "permanent; two fields for each run at work",
    "`agent:<name>`, `tree:<root>` → runs that are held and do not stand still in a call.")
blocked_trees = _of_shard("blocked_trees", "blocked", "set", "ledger",
    "permanent; trees that have blocked runs",
    "Trees with ready runs that wait because the tree has as many at work as it may.")
blocked = _of_id("blocked", "blocked:<root>", "zset", "ledger", "while the tree has blocked runs",
    "The blocked runs of a tree; score orders as among the ready ones.")
slots = _of_shard("slots", "slots", "hash", "ledger", "permanent; one field for each slot at work",
    "Slot of a worker → the claim under which it took its run, and that run.")
waiting = _of_shard("waiting", "waiting", "zset", "ledger", "permanent; one member for each waiting session",
    "Sessions with something in their queue, scored by since when.")
closing = _of_shard("closing", "closing", "zset", "ledger", "permanent; one member for each closing session",
    "Sessions that failed, were stopped or deleted and whose children are not all dealt with yet.")
timers = _of_shard("timers", "timers", "zset", "ledger", "permanent; one member for each timer",
    "`kind|id` of what is due at a time in milliseconds: run limits, grace periods, deadlines, approvals, expiry.")
approvals = _of_shard("approvals", "approvals", "zset", "ledger",
    "permanent; one member for each open approval",
    "Approvals that no person has answered yet, scored by since when; each is a question of its session.")
sweep = _of_shard("sweep", "sweep", "string", "ledger", _PERMANENT,
    "When the last reconciliation sweep began, in milliseconds by the server's clock.")
results = _of_shard("results", "results", "zset", "ledger", "permanent; one member for each owed result",
    "Root sessions whose Celery result is owed, scored by since when.")
session_events = _of_shard("session_events", "session-events", "stream", "ledger",
    "permanent; trimmed below what was acknowledged",
    "One entry for each `session_stop` that can move somebody, and for each thing put into a session's queue.")
transitions = _of_shard("transitions", "transitions", "stream", "ledger",
    "permanent; trimmed below what the audit writer has acknowledged",
    "What each step of a script changed in the ledger, for the audit trail: the script, and a line for each change.")
notices = _of_shard("notices", "notices", "stream", "ledger",
    "permanent; an entry leaves when every target was told or has given it up; about 100,000 at most",
    "What the notifier tells people of: questions, approvals, ends of roots, dead callbacks; there since a notifier first ran.")
dead_notices = _of_shard("dead_notices", "notices-dead", "stream", "ledger",
    "permanent; an entry leaves by a retry or a drop; about 10,000 at most",
    "Notifications that were given up: the event as JSON, its target, attempts, the last error.")
totals = _of_shard("totals", "totals", "hash", "ledger", _PERMANENT,
    "Counters of the shard: envelopes published for each stream, messages dropped from each inbox that was full.")

# --- streams
outbox = _in_shard("outbox", "out:<program>", "stream", "external programs",
    "permanent; an entry leaves when a router takes it over",
    "What an external program says: the only key that it writes; routers move it to the streams of messages.")
quota = _in_shard("quota", "quota:<program>", "string", "router", "a minute",
    "How many messages routers have taken from an external program's outbox in this minute.")
inbox = _in_shard("inbox", "in:<program>", "stream", "router",
    "permanent; trimmed below what the program has acknowledged, and to stream_max_entries",
    "What was routed to an external program: field `envelope` holds the XML; its consumer group bears its name.")
replayed = _in_shard("replayed", "replayed:<message>", "string", "router", "seven days",
    "The entry of a message that a replay of the audit trail has published, by its new message-id.")
dead = _of_shard("dead", "dead", "stream", "router",
    "permanent; entries leave by replay or drop, after dead_letter_ttl_s, or where there are too many",
    "Dead letters: reason, rule, attempts, original bytes, time.")
dead_index = _of_shard("dead_index", "dead-index", "zset", "router",
    "permanent; one member for each dead letter",
    "Dead letters by sender and age, with their size; those whose signature did not count are of the sender ''.")
dead_usage = _of_shard("dead_usage", "dead-usage", "hash", "router",
    "permanent; a field for each sender in the index",
    "Bytes of dead letters, of all and of each sender; how many were dropped or unaudited, and when.")

# --- agents
format_version = _of_stack("format_version", "format", "string", "ledger", _PERMANENT,
    "The format of the ledger's keys; a program of another format refuses to work on them.")
agents = _of_stack("agents", "agents", "zset", "workers", "permanent; one member for each agent name",
    "Names of registered agents, scored by when a worker last announced them.")

# --- keys of agents
public_keys = _of_stack("public_keys", "keys", "hash", "keyring", "permanent; one field for each public key",
    "Key id → JSON record of a public key: agent, use, algorithm, PEM, times, the operator's signature.")
operator_key = _of_stack("operator_key", "operator-key", "string", "keyring", _PERMANENT,
    "The operator's public key in PEM, as the first data folder of the stack published it.")

# --- services
services = _of_stack("services", "services", "hash", "service",
    "permanent; a field leaves when its service stops, or an hour after its last sign of life",
    "Instance → JSON of a running service or worker: name, host, pid, until when it counts as alive, agents it serves.")

# --- large payloads
blob = _in_shard("blob", "blob:<sha256>", "hash", "payload", "blob_ttl after it was last referenced",
    "A large body under the SHA-256 of its octets: chunks `0`…`n-1`, and `facts` (JSON: size, stored size, chunks).")
upload = _in_shard("upload", "upload:<upload>", "hash", "payload", "10 minutes after its last chunk",
    "A blob that is being written and has no name yet.")

# --- router
conversation = _in_shard("conversation", "conversation:<correlation-id>", "hash", "router",
    "as long as a duplicate mark after its last message",
    "One conversation: `root` (message-id of its first message), `count` of messages, `task:<task-id>` → session.")
parked = _of_shard("parked", "parked", "zset", "router", "permanent; one member for each message that waits",
    "Messages that wait for their next attempt or for other tasks, scored by when to look at them again.")
parked_message = _in_shard("parked_message", "parked:<type>:<priority>:<entry>", "hash", "router",
    "until the message is back in its stream or is a dead letter",
    "One message that waits: its bytes, its stream, which attempt comes next, and why it waits.")
waiters = _of_id("waiters", "session:<session>:waiters", "set", "router",
    "a week after a task was last held for it",
    "Tasks that are held until this session is completed: shard and id of each parked message.")

# --- audit
audit_heads = _of_stack("audit_heads", "audit-heads", "hash", "audit",
    "permanent; one field for each audit database",
    "Audit database → its signed head: number and chain of the last row of both its tables.")
# fmt: on


@_key("{calls:<account>}:held", "string", "providers", "until its time")
def provider_held(account: str) -> str:
    """Until when nobody calls a provider under a key, in ms since the epoch; the account names both."""
    return f"{PREFIX}:{{calls:{account}}}:held"


@_key("{calls:<account>}:counts:<model>", "hash", "providers", "10 minutes after the last call")
def provider_counts(account: str, model: str) -> str:
    """Requests and tokens of the last minute by seconds, and the turns of the trees that wait."""
    return f"{PREFIX}:{{calls:{account}}}:counts:{model}"


@_key("{calls:<account>}:calls:<model>", "zset", "providers", "until the last call is over")
def provider_calls(account: str, model: str) -> str:
    """Calls that are not over, scored by when they are at the latest."""
    return f"{PREFIX}:{{calls:{account}}}:calls:{model}"


@_key("{calls:<account>}:waiting:<model>", "zset", "providers", "until nobody waits")
def provider_waiting(account: str, model: str) -> str:
    """Runs that wait for a call, scored by their turn."""
    return f"{PREFIX}:{{calls:{account}}}:waiting:{model}"


@_key(
    "{S}:msg:<type>:<priority>",
    "stream",
    "streams",
    "permanent; trimmed below what every group has acknowledged",
)
def messages(shard: int, message_type: str, priority: str) -> str:
    """Envelopes of one type and priority; field `envelope` holds the XML."""
    return f"{shard_tag(shard)}:msg:{message_type}:{priority}"


@_key("{S}:seen:<message-id>:<sender>", "string", "router", "as long as the message may live")
def seen(shard: int, sender: str, message_id: str) -> str:
    """The duplicate mark of a message of this sender (a hash of its name): entry id, digest of what was signed."""
    return f"{shard_tag(shard)}:seen:{message_id}:{_short(sender)}"


@_key("agent:<name>", "string", "workers", "24 h after a worker last served it")
def agent(name: str) -> str:
    """JSON of a registered agent: role, tier, executor, queue, limits."""
    return f"{PREFIX}:agent:{name}"


@lru_cache(maxsize=1024)
def _short(name: str) -> str:
    # A hash, because a name may be of any length.
    return hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:16]


# Patterns that keys match, and what a key says.


def any_session() -> str:
    """A pattern that the keys of sessions match, and those of their records."""
    return f"{PREFIX}:{{*}}:session:ses_*"


def any_session_beginning(beginning: str) -> str:
    """A pattern that the keys of sessions match whose ids begin so, and those of their records."""
    return f"{PREFIX}:{{*}}:session:{beginning}*"


def any_of_runs() -> str:
    """A pattern that journals of steps and reservations match, and none of the other keys beside runs."""
    return f"{PREFIX}:{{*}}:run:run_*:[rs]*"


def parts_of_run(name: str) -> tuple[str, str]:
    """The run that a key belongs to, and what it holds of it; empty for the run itself."""
    run, _, what = name.partition(":run:")[2].partition(":")
    return run, what


def any_budget() -> tuple[str, str]:
    """Patterns that the keys of budgets match: those of sessions, and those of agents."""
    return f"{PREFIX}:{{*}}:session:ses_*:budget", f"{PREFIX}:{{*}}:spending:*"


def session_in(name: str) -> str:
    """The session that a key belongs to; empty if it belongs to none."""
    return name.partition(":session:")[2].partition(":")[0]


def any_provider_calls() -> str:
    """A pattern that the keys of calls at work match."""
    return f"{PREFIX}:{{calls:*}}:calls:*"


def any_messages() -> str:
    """A pattern that the streams of messages match, and what somebody took for one."""
    return f"{PREFIX}:{{*}}:msg:*"
