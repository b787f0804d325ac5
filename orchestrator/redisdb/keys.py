"""Every Redis key of the project: one function each, registered with type, owner and lifetime.

No other module spells a key. Keys of one shard share a hash tag, so that a transition touches
one slot of a Redis Cluster: ``ao:{00}:…``. Keys without a shard (agents, public keys) carry none.
`docs/reference/redis-keys.md` is generated from ``REGISTRY``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ParamSpec

from orchestrator.ids import shard_of

P = ParamSpec("P")

PREFIX = "ao"


@dataclass(frozen=True, kw_only=True)
class KeySpec:
    """What the documentation says of one key."""

    name: str
    pattern: str
    #: Redis type: hash, zset, set, stream, string, list.
    type: str
    #: The part of the code that writes it.
    owner: str
    lifetime: str
    #: What it holds, in one sentence.
    holds: str


REGISTRY: list[KeySpec] = []


def _key(
    pattern: str, *, type: str, owner: str, lifetime: str
) -> Callable[[Callable[P, str]], Callable[P, str]]:
    def register(function: Callable[P, str]) -> Callable[P, str]:
        holds = (function.__doc__ or "").strip().splitlines()[0]
        REGISTRY.append(
            KeySpec(
                name=function.__name__,
                pattern=pattern,
                type=type,
                owner=owner,
                lifetime=lifetime,
                holds=holds,
            )
        )
        return function

    return register


def shard_tag(shard: int) -> str:
    """The prefix that all keys of a shard share, hash tag included."""
    return f"{PREFIX}:{{{shard:02x}}}"


# Every transition names several keys of the same few sessions and runs.
@lru_cache(maxsize=1024)
def _of(identifier: str) -> str:
    return shard_tag(shard_of(identifier))


# --- ledger: one session ---------------------------------------------------------------------


@_key("ao:{S}:session:<session>", type="hash", owner="ledger", lifetime="tree_ttl after its root has ended")
def session(session: str) -> str:
    """The session's facts: agent, parent, root, state, current run, counters, policies."""
    return f"{_of(session)}:session:{session}"


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


@_key("ao:{S}:session:<session>:items", type="hash", owner="ledger", lifetime="as its session")
def items(session: str) -> str:
    """Item id → JSON record of everything this session is owed or was sent: callbacks, questions, prompts."""
    return f"{_of(session)}:session:{session}:items"


@_key("ao:{S}:session:<session>:bodies", type="hash", owner="ledger", lifetime="as its session")
def bodies(session: str) -> str:
    """Item id → its text; also `prompt`, `task`, `result` and `state` of the session itself."""
    return f"{_of(session)}:session:{session}:bodies"


@_key("ao:{S}:session:<session>:live", type="stream", owner="ledger", lifetime="an hour after its last entry")
def live(session: str) -> str:
    """What the session is writing now, piece by piece; nothing depends on it."""
    return f"{_of(session)}:session:{session}:live"


@_key(
    "ao:{S}:session:<session>:printed",
    type="hash",
    owner="workers",
    lifetime="as its session; `tree_ttl_s` after the last print at most",
)
def printed(session: str) -> str:
    """What the agent printed in the last tries of the last runs; nothing depends on it."""
    return f"{_of(session)}:session:{session}:printed"


@_key("ao:{S}:session:<session>:queue", type="zset", owner="ledger", lifetime="as its session")
def queue(session: str) -> str:
    """Items that wait for the session's next run; score orders by priority, then by arrival."""
    return f"{_of(session)}:session:{session}:queue"


@_key("ao:{S}:session:<session>:runs", type="list", owner="ledger", lifetime="as its session")
def runs(session: str) -> str:
    """The ids of the session's runs, oldest first."""
    return f"{_of(session)}:session:{session}:runs"


@_key("ao:{S}:session:<session>:past", type="hash", owner="ledger", lifetime="as its session")
def past(session: str) -> str:
    """What its last runs found when they began: `state:<number>`, `memory:<number>` of a run; `from`, the first of them."""
    return f"{_of(session)}:session:{session}:past"


@_key("ao:{S}:session:<session>:large-texts", type="set", owner="ledger", lifetime="as its session")
def large_texts(session: str) -> str:
    """SHA-256 of each large text that this session has said; the bodies hold its beginning."""
    return f"{_of(session)}:session:{session}:large-texts"


@_key(
    "ao:{S}:session:<session>:whole:<sha256>",
    type="hash",
    owner="ledger",
    lifetime="as its session; an hour while no transition refers to it",
)
def large_text(session: str, sha256: str) -> str:
    """A large text of this session, in chunks, as a blob is kept."""
    return f"{_of(session)}:session:{session}:whole:{sha256}"


@_key("ao:{S}:run:<run>", type="hash", owner="ledger", lifetime="as its session")
def run(run: str) -> str:
    """One run: state, cause, claim id, renewal counter, attempts, the items it carries."""
    return f"{_of(run)}:run:{run}"


@_key("ao:{S}:run:<run>:effects", type="hash", owner="ledger", lifetime="as its session")
def effects(run: str) -> str:
    """Effect key → what the effect made and the claim that last took it up."""
    return f"{_of(run)}:run:{run}:effects"


@_key("ao:{S}:run:<run>:steps", type="hash", owner="ledger", lifetime="until its run ends")
def steps(run: str) -> str:
    """What the durable steps of a run gave: `h:<step>` a header, `p:<step>` a value, `v:<sha256>` a stored value."""
    return f"{_of(run)}:run:{run}:steps"


@_key(
    "ao:{S}:run:<run>:reserved", type="hash", owner="ledger", lifetime="until its run ends or is tried again"
)
def reserved(run: str) -> str:
    """What a run has set aside for calls that are not finished: reservation → JSON of amounts and budgets."""
    return f"{_of(run)}:run:{run}:reserved"


@_key("ao:{S}:session:<session>:budget", type="hash", owner="ledger", lifetime="as its session")
def budget(session: str) -> str:
    """What a session and everything below it may spend: `limit:…`, `spent:…`, `reserved:…`, `by:<agent>:…`."""
    return f"{_of(session)}:session:{session}:budget"


@_key("ao:{calls:<account>}:held", type="string", owner="providers", lifetime="until its time")
def provider_held(account: str) -> str:
    """Until when nobody calls a provider under a key, in ms since the epoch; the account names both."""
    return f"{PREFIX}:{{calls:{account}}}:held"


@_key(
    "ao:{calls:<account>}:counts:<model>",
    type="hash",
    owner="providers",
    lifetime="10 minutes after the last call",
)
def provider_counts(account: str, model: str) -> str:
    """Requests and tokens of the last minute by seconds, and the turns of the trees that wait."""
    return f"{PREFIX}:{{calls:{account}}}:counts:{model}"


@_key(
    "ao:{calls:<account>}:calls:<model>",
    type="zset",
    owner="providers",
    lifetime="until the last call is over",
)
def provider_calls(account: str, model: str) -> str:
    """Calls that are not over, scored by when they are at the latest."""
    return f"{PREFIX}:{{calls:{account}}}:calls:{model}"


@_key("ao:{calls:<account>}:waiting:<model>", type="zset", owner="providers", lifetime="until nobody waits")
def provider_waiting(account: str, model: str) -> str:
    """Runs that wait for a call, scored by their turn."""
    return f"{PREFIX}:{{calls:{account}}}:waiting:{model}"


@_key("ao:{S}:spending:<agent>", type="hash", owner="ledger", lifetime="permanent, for agents with a budget")
def spending(shard: int, agent: str) -> str:
    """What an agent with a budget of its own spent in this shard since `window`, and what is reserved."""
    return f"{shard_tag(shard)}:spending:{agent}"


@_key(
    "ao:{S}:run:<run>:steps:<sha256>",
    type="hash",
    owner="ledger",
    lifetime="until its run ends; an hour while no step refers to it",
)
def step_value(run: str, sha256: str) -> str:
    """A large value that a durable step of this run gave, in chunks, as a blob is kept."""
    return f"{_of(run)}:run:{run}:steps:{sha256}"


# --- ledger: one shard -----------------------------------------------------------------------


@_key("ao:{S}:tree:<root>", type="zset", owner="ledger", lifetime="tree_ttl after its root has ended")
def tree(root: str) -> str:
    """Every session of a tree, scored by when it was made, in the order of the launches."""
    return f"{_of(root)}:tree:{root}"


@_key("ao:{S}:roots", type="zset", owner="ledger", lifetime="permanent; one member for each kept tree")
def roots(shard: int) -> str:
    """Root sessions of the trees that are kept, scored by when they were made."""
    return f"{shard_tag(shard)}:roots"


@_key("ao:{S}:running", type="zset", owner="ledger", lifetime="permanent; one member for each running run")
def running(shard: int) -> str:
    """Runs that are held under a lease, scored by when they were claimed."""
    return f"{shard_tag(shard)}:running"


@_key("ao:{S}:queued", type="zset", owner="ledger", lifetime="permanent; one member for each queued run")
def queued(shard: int) -> str:
    """Runs that no worker has claimed yet, scored by when the sweep looks at them; a retry is not ready before that."""
    return f"{shard_tag(shard)}:queued"


@_key(
    "ao:{S}:ready:<agent>", type="zset", owner="ledger", lifetime="permanent; one member for each ready run"
)
def ready(shard: int, agent: str) -> str:
    """An agent's queued runs that a slot may take now, by priority, then turns of the trees; `<agent>@<version>`: those that only a worker with that version may."""
    return f"{shard_tag(shard)}:ready:{agent}"


@_key("ao:{S}:turns:<agent>", type="hash", owner="ledger", lifetime="as long as the agent has ready runs")
def turns(shard: int, agent: str) -> str:
    """The last turn of each tree among an agent's ready runs, and when workers were last told that there are some."""
    return f"{shard_tag(shard)}:turns:{agent}"


@_key("ao:{S}:limits", type="hash", owner="ledger", lifetime="permanent; a few fields for each agent")
def run_limits(shard: int) -> str:
    """Runs at once: `agent:<name>`, `tree:<root>`, `trees`, with `default:<name>`, `default-trees` and `queue:<name>` by workers; `paused:agent:<name>`, `paused:queue:<name>` since when."""
    return f"{shard_tag(shard)}:limits"


@_key("ao:{S}:at-work", type="hash", owner="ledger", lifetime="permanent; two fields for each run at work")
def at_work(shard: int) -> str:
    """`agent:<name>`, `tree:<root>` → runs that are held and do not stand still in a call."""
    return f"{shard_tag(shard)}:at-work"


@_key("ao:{S}:blocked", type="set", owner="ledger", lifetime="permanent; trees that have blocked runs")
def blocked_trees(shard: int) -> str:
    """Trees with ready runs that wait because the tree has as many at work as it may."""
    return f"{shard_tag(shard)}:blocked"


@_key("ao:{S}:blocked:<root>", type="zset", owner="ledger", lifetime="while the tree has blocked runs")
def blocked(root: str) -> str:
    """The blocked runs of a tree; score orders as among the ready ones."""
    return f"{_of(root)}:blocked:{root}"


@_key("ao:{S}:slots", type="hash", owner="ledger", lifetime="permanent; one field for each slot at work")
def slots(shard: int) -> str:
    """Slot of a worker → the claim under which it took its run, and that run."""
    return f"{shard_tag(shard)}:slots"


@_key(
    "ao:{S}:waiting", type="zset", owner="ledger", lifetime="permanent; one member for each waiting session"
)
def waiting(shard: int) -> str:
    """Sessions with something in their queue, scored by since when."""
    return f"{shard_tag(shard)}:waiting"


@_key(
    "ao:{S}:closing", type="zset", owner="ledger", lifetime="permanent; one member for each closing session"
)
def closing(shard: int) -> str:
    """Sessions that failed, were stopped or deleted and whose children are not all dealt with yet."""
    return f"{shard_tag(shard)}:closing"


@_key("ao:{S}:timers", type="zset", owner="ledger", lifetime="permanent; one member for each timer")
def timers(shard: int) -> str:
    """`kind|id` of what is due at a time in milliseconds: run limits, grace periods, deadlines, approvals, expiry."""
    return f"{shard_tag(shard)}:timers"


@_key(
    "ao:{S}:approvals", type="zset", owner="ledger", lifetime="permanent; one member for each open approval"
)
def approvals(shard: int) -> str:
    """Approvals that no person has answered yet, scored by since when; each is a question of its session."""
    return f"{shard_tag(shard)}:approvals"


@_key("ao:{S}:sweep", type="string", owner="ledger", lifetime="permanent")
def sweep(shard: int) -> str:
    """When the last reconciliation sweep began, in milliseconds by the server's clock."""
    return f"{shard_tag(shard)}:sweep"


@_key("ao:{S}:results", type="zset", owner="ledger", lifetime="permanent; one member for each owed result")
def results(shard: int) -> str:
    """Root sessions whose Celery result is owed, scored by since when."""
    return f"{shard_tag(shard)}:results"


@_key(
    "ao:{S}:session-events",
    type="stream",
    owner="ledger",
    lifetime="permanent; trimmed below what was acknowledged",
)
def session_events(shard: int) -> str:
    """One entry for each `session_stop` that can move somebody, and for each thing put into a session's queue."""
    return f"{shard_tag(shard)}:session-events"


@_key(
    "ao:{S}:transitions",
    type="stream",
    owner="ledger",
    lifetime="permanent; trimmed below what the audit writer has acknowledged",
)
def transitions(shard: int) -> str:
    """What each step of a script changed in the ledger, for the audit trail: the script, and a line for each change."""
    return f"{shard_tag(shard)}:transitions"


@_key(
    "ao:{S}:notices",
    type="stream",
    owner="ledger",
    lifetime="permanent; an entry leaves when every target was told or has given it up; about 100,000 at most",
)
def notices(shard: int) -> str:
    """What the notifier tells people of: questions, approvals, ends of roots, dead callbacks; there since a notifier first ran."""
    return f"{shard_tag(shard)}:notices"


@_key(
    "ao:{S}:notices-dead",
    type="stream",
    owner="ledger",
    lifetime="permanent; an entry leaves by a retry or a drop; about 10,000 at most",
)
def dead_notices(shard: int) -> str:
    """Notifications that were given up: the event as JSON, its target, attempts, the last error."""
    return f"{shard_tag(shard)}:notices-dead"


@_key("ao:{S}:totals", type="hash", owner="ledger", lifetime="permanent")
def totals(shard: int) -> str:
    """Counters of the shard: envelopes published for each stream, messages dropped from each inbox that was full."""
    return f"{shard_tag(shard)}:totals"


# --- streams ---------------------------------------------------------------------------------


@_key(
    "ao:{S}:msg:<type>:<priority>",
    type="stream",
    owner="streams",
    lifetime="permanent; trimmed below what every group has acknowledged",
)
def messages(shard: int, message_type: str, priority: str) -> str:
    """Envelopes of one type and priority; field `envelope` holds the XML."""
    return f"{shard_tag(shard)}:msg:{message_type}:{priority}"


def any_messages() -> str:
    """A pattern that the streams of messages match, and what somebody took for one."""
    return f"{PREFIX}:{{*}}:msg:*"


@_key(
    "ao:{S}:out:<program>",
    type="stream",
    owner="external programs",
    lifetime="permanent; an entry leaves when a router takes it over",
)
def outbox(shard: int, program: str) -> str:
    """What an external program says: the only key that it writes; routers move it to the streams of messages."""
    return f"{shard_tag(shard)}:out:{program}"


@_key(
    "ao:{S}:quota:<program>",
    type="string",
    owner="router",
    lifetime="a minute",
)
def quota(shard: int, program: str) -> str:
    """How many messages routers have taken from an external program's outbox in this minute."""
    return f"{shard_tag(shard)}:quota:{program}"


@_key(
    "ao:{S}:in:<program>",
    type="stream",
    owner="router",
    lifetime="permanent; trimmed below what the program has acknowledged, and to stream_max_entries",
)
def inbox(shard: int, program: str) -> str:
    """What was routed to an external program: field `envelope` holds the XML; its consumer group bears its name."""
    return f"{shard_tag(shard)}:in:{program}"


@_key("ao:{S}:replayed:<message>", type="string", owner="router", lifetime="seven days")
def replayed(shard: int, message_id: str) -> str:
    """The entry of a message that a replay of the audit trail has published, by its new message-id."""
    return f"{shard_tag(shard)}:replayed:{message_id}"


@_key(
    "ao:{S}:seen:<message-id>:<sender>",
    type="string",
    owner="router",
    lifetime="as long as the message may live",
)
def seen(shard: int, sender: str, message_id: str) -> str:
    """The duplicate mark of a message of this sender (a hash of its name): entry id, digest of what was signed."""
    return f"{shard_tag(shard)}:seen:{message_id}:{_short(sender)}"


@lru_cache(maxsize=1024)
def _short(name: str) -> str:
    # A hash, because a name may be of any length.
    return hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:16]


@_key(
    "ao:{S}:dead",
    type="stream",
    owner="router",
    lifetime="permanent; entries leave by replay or drop, after dead_letter_ttl_s, or where there are too many",
)
def dead(shard: int) -> str:
    """Dead letters: reason, rule, attempts, original bytes, time."""
    return f"{shard_tag(shard)}:dead"


@_key("ao:{S}:dead-index", type="zset", owner="router", lifetime="permanent; one member for each dead letter")
def dead_index(shard: int) -> str:
    """Dead letters by sender and age, with their size; those whose signature did not count are of the sender ''."""
    return f"{shard_tag(shard)}:dead-index"


@_key(
    "ao:{S}:dead-usage",
    type="hash",
    owner="router",
    lifetime="permanent; a field for each sender in the index",
)
def dead_usage(shard: int) -> str:
    """Bytes of dead letters, of all and of each sender; how many were dropped or unaudited, and when."""
    return f"{shard_tag(shard)}:dead-usage"


# --- agents ----------------------------------------------------------------------------------


@_key("ao:agent:<name>", type="string", owner="workers", lifetime="24 h after a worker last served it")
def agent(name: str) -> str:
    """JSON of a registered agent: role, tier, executor, queue, limits."""
    return f"{PREFIX}:agent:{name}"


@_key("ao:format", type="string", owner="ledger", lifetime="permanent")
def format_version() -> str:
    """The format of the ledger's keys; a program of another format refuses to work on them."""
    return f"{PREFIX}:format"


@_key("ao:agents", type="zset", owner="workers", lifetime="permanent; one member for each agent name")
def agents() -> str:
    """Names of registered agents, scored by when a worker last announced them."""
    return f"{PREFIX}:agents"


# --- keys of agents --------------------------------------------------------------------------


@_key("ao:keys", type="hash", owner="keyring", lifetime="permanent; one field for each public key")
def public_keys() -> str:
    """Key id → JSON record of a public key: agent, use, algorithm, PEM, times, the operator's signature."""
    return f"{PREFIX}:keys"


@_key("ao:operator-key", type="string", owner="keyring", lifetime="permanent")
def operator_key() -> str:
    """The operator's public key in PEM, as the first data folder of the stack published it."""
    return f"{PREFIX}:operator-key"


# --- services --------------------------------------------------------------------------------


@_key(
    "ao:services",
    type="hash",
    owner="service",
    lifetime="permanent; a field leaves when its service stops, or an hour after its last sign of life",
)
def services() -> str:
    """Instance → JSON of a running service or worker: name, host, pid, until when it counts as alive, agents it serves."""
    return f"{PREFIX}:services"


# --- large payloads --------------------------------------------------------------------------


@_key("ao:{S}:blob:<sha256>", type="hash", owner="payload", lifetime="blob_ttl after it was last referenced")
def blob(shard: int, sha256: str) -> str:
    """A large body under the SHA-256 of its octets: chunks `0`…`n-1`, and `facts` (JSON: size, stored size, chunks)."""
    return f"{shard_tag(shard)}:blob:{sha256}"


@_key("ao:{S}:upload:<upload>", type="hash", owner="payload", lifetime="10 minutes after its last chunk")
def upload(shard: int, upload: str) -> str:
    """A blob that is being written and has no name yet."""
    return f"{shard_tag(shard)}:upload:{upload}"


# --- router ----------------------------------------------------------------------------------


@_key(
    "ao:{S}:conversation:<correlation-id>",
    type="hash",
    owner="router",
    lifetime="as long as a duplicate mark after its last message",
)
def conversation(shard: int, correlation: str) -> str:
    """One conversation: `root` (message-id of its first message), `count` of messages, `task:<task-id>` → session."""
    return f"{shard_tag(shard)}:conversation:{correlation}"


@_key(
    "ao:{S}:parked", type="zset", owner="router", lifetime="permanent; one member for each message that waits"
)
def parked(shard: int) -> str:
    """Messages that wait for their next attempt or for other tasks, scored by when to look at them again."""
    return f"{shard_tag(shard)}:parked"


@_key(
    "ao:{S}:parked:<type>:<priority>:<entry>",
    type="hash",
    owner="router",
    lifetime="until the message is back in its stream or is a dead letter",
)
def parked_message(shard: int, parked_id: str) -> str:
    """One message that waits: its bytes, its stream, which attempt comes next, and why it waits."""
    return f"{shard_tag(shard)}:parked:{parked_id}"


@_key(
    "ao:{S}:session:<session>:waiters",
    type="set",
    owner="router",
    lifetime="a week after a task was last held for it",
)
def waiters(session: str) -> str:
    """Tasks that are held until this session is completed: shard and id of each parked message."""
    return f"{_of(session)}:session:{session}:waiters"


# --- audit -----------------------------------------------------------------------------------


@_key("ao:audit-heads", type="hash", owner="audit", lifetime="permanent; one field for each audit database")
def audit_heads() -> str:
    """Audit database → its signed head: number and chain of the last row of both its tables."""
    return f"{PREFIX}:audit-heads"
