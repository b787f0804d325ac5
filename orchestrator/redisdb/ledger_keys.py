"""The keys of the ledger's records. Only the ledger names them: everybody else calls its methods."""

from __future__ import annotations

from orchestrator.redisdb.key_table import (
    PERMANENT,
    PREFIX,
    SESSION,
    TREE,
    in_shard,
    key,
    of_id,
    of_part,
    of_shard,
)

# A table: the pattern, type, owner and lifetime of each key, then what it holds.
# fmt: off
session = of_id("session", "session:<session>", "hash", "ledger", TREE,
    "The session's facts: agent, parent, root, state, current run, counters, policies.")
items = of_id("items", "session:<session>:items", "hash", "ledger", SESSION,
    "Item id → JSON record of each item of this session: callbacks, questions, messages, prompts.")
bodies = of_id("bodies", "session:<session>:bodies", "hash", "ledger", SESSION,
    "Item id → its text; also `prompt`, `task`, `result` and `state` of the session itself, the last with its proof on the first line. What a parent was told of a child's end is in the child's, under the callback's id, and in the parent's once the child is deleted.")
live = of_id("live", "session:<session>:live", "stream", "ledger", "an hour after its last entry",
    "What the session is writing now, piece by piece; nothing depends on it.")
printed = of_id("printed", "session:<session>:printed", "hash", "workers",
    "as its session; `tree_ttl_s` after the last print at most",
    "What the agent printed in the last tries of the last runs; nothing depends on it.")
queue = of_id("queue", "session:<session>:queue", "zset", "ledger", SESSION,
    "Items that wait for the session's next run; score orders by priority, then by arrival.")
runs = of_id("runs", "session:<session>:runs", "list", "ledger", SESSION,
    "The ids of the session's runs, oldest first.")
past = of_id("past", "session:<session>:past", "hash", "ledger", SESSION,
    "What its last runs found when they began: `state:<number>`, `memory:<number>` of a run; `from`, the first of them.")
large_texts = of_id("large_texts", "session:<session>:large-texts", "set", "ledger", SESSION,
    "SHA-256 of each large text of this session; the bodies hold its beginning.")
large_text = of_part("large_text", "session:<session>:whole:<sha256>", "hash", "ledger",
    "as its session; an hour while no transition refers to it",
    "A large text of this session, in chunks, as a blob is kept.")
run = of_id("run", "run:<run>", "hash", "ledger", SESSION,
    "One run: state, cause, claim id, renewal counter, attempts, the items it carries.")
effects = of_id("effects", "run:<run>:effects", "hash", "ledger", SESSION,
    "Effect key → what the effect made and the claim that last took it up; `account:<attempt>` refers to what was said in that try.")
steps = of_id("steps", "run:<run>:steps", "hash", "ledger", "until its run ends",
    "What the durable steps of a run gave: `h:<step>` a header, `p:<step>` a value, `v:<sha256>` a stored value.")
reserved = of_id("reserved", "run:<run>:reserved", "hash", "ledger", "until its run ends or is tried again",
    "What a run has set aside for calls that are not finished: reservation → JSON of amounts and budgets.")
budget = of_id("budget", "session:<session>:budget", "hash", "ledger", SESSION,
    "What a session and everything below it may spend: `limit:…`, `spent:…`, `reserved:…`, `by:<agent>:…`.")
spending = in_shard("spending", "spending:<agent>", "hash", "ledger", "permanent, for agents with a budget",
    "What an agent with a budget of its own spent in this shard since `window`, and what is reserved.")
step_value = of_part("step_value", "run:<run>:steps:<sha256>", "hash", "ledger",
    "until its run ends; an hour while no step refers to it",
    "A large value that a durable step of this run gave, in chunks, as a blob is kept.")
tree = of_id("tree", "tree:<root>", "zset", "ledger", TREE,
    "Every session of a tree, scored by when it was made, in the order of the launches.")
roots = of_shard("roots", "roots", "zset", "ledger", PERMANENT,
    "Root sessions of the trees that are kept, scored by when they were made.")
running = of_shard("running", "running", "zset", "ledger", PERMANENT,
    "Runs that are held under a lease, scored by when they were claimed.")
queued = of_shard("queued", "queued", "zset", "ledger", PERMANENT,
    "Runs that no worker has claimed yet, scored by when the sweep looks at them; a retry is not ready before that.")
ready = in_shard("ready", "ready:<agent>", "zset", "ledger", PERMANENT,
    "An agent's queued runs that a slot may take now, by priority, then turns of the trees.")
turns = in_shard("turns", "turns:<agent>", "hash", "ledger", "as long as the agent has ready runs",
    "The last turn of each tree among an agent's ready runs, and when workers were last notified of them.")
run_limits = of_shard("run_limits", "limits", "hash", "ledger", "permanent; a few fields for each agent",
    "Runs at once: `agent:<name>`, `tree:<root>`, `trees`, with `default:<name>` and `queue:<name>` by workers; `paused:agent:<name>`, `paused:queue:<name>` since when.")
limits_said = of_shard("limits_said", "limits-said", "hash", "ledger", "permanent; a field for each limit and pause of an operator",
    "The settings of an operator in `limits`, once more: the doctor puts them back where `limits` was overwritten or deleted.")
at_work = of_shard("at_work", "at-work", "hash", "ledger", "permanent; two fields for each run at work",
    "`agent:<name>`, `tree:<root>` → runs that are held and do not stand still in a call.")
blocked_trees = of_shard("blocked_trees", "blocked", "set", "ledger",
    PERMANENT,
    "Trees with ready runs that wait because the tree has as many at work as it may.")
blocked = of_id("blocked", "blocked:<root>", "zset", "ledger", "while the tree has blocked runs",
    "The blocked runs of a tree; score orders as among the ready ones.")
slots = of_shard("slots", "slots", "hash", "ledger", PERMANENT,
    "Slot of a worker → the claim under which it took its run, and that run.")
waiting = of_shard("waiting", "waiting", "zset", "ledger", PERMANENT,
    "Sessions with something in their queue, scored by since when.")
closing = of_shard("closing", "closing", "zset", "ledger", PERMANENT,
    "Sessions that failed, were stopped or deleted and whose children are not all dealt with yet.")
timers = of_shard("timers", "timers", "zset", "ledger", PERMANENT,
    "`kind|id` of what is due at a time in milliseconds: run limits, grace periods, deadlines, approvals, expiry.")
approvals = of_shard("approvals", "approvals", "zset", "ledger",
    PERMANENT,
    "Approvals that no person has answered yet, scored by since when; each is a question of its session.")
sweep = of_shard("sweep", "sweep", "string", "ledger", PERMANENT,
    "When the last reconciliation sweep began, in milliseconds by the server's clock.")
replicated = of_shard("replicated", "replicated", "string", "ledger", PERMANENT,
    "The run whose claim, step or commit was last waited for on the replicas; written so that `WAIT` has something to wait for.")
results = of_shard("results", "results", "zset", "ledger", PERMANENT,
    "Root sessions whose Celery result is to be published, scored by since when.")
# fmt: on


@key("{calls:<account>}:held", "string", "providers", "until its time")
def provider_held(account: str) -> str:
    """Until when nobody calls a provider under a key, in ms since the epoch, and why; the account names both."""
    return f"{PREFIX}:{{calls:{account}}}:held"


@key("{calls:<account>}:counts:<model>", "hash", "providers", "10 minutes after the last call")
def provider_counts(account: str, model: str) -> str:
    """Requests and tokens of the last minute by seconds, and the turns of the trees that wait."""
    return f"{PREFIX}:{{calls:{account}}}:counts:{model}"


@key("{calls:<account>}:calls:<model>", "zset", "providers", "until the last call has ended")
def provider_calls(account: str, model: str) -> str:
    """Calls that are not over, scored by when they are at the latest."""
    return f"{PREFIX}:{{calls:{account}}}:calls:{model}"


@key("{calls:<account>}:waiting:<model>", "zset", "providers", "until nobody waits")
def provider_waiting(account: str, model: str) -> str:
    """Runs that wait for a call, scored by their turn."""
    return f"{PREFIX}:{{calls:{account}}}:waiting:{model}"


def any_session() -> str:
    """Return a pattern that the keys of sessions match, and those of their records."""
    return f"{PREFIX}:{{*}}:session:ses_*"


def any_session_beginning(beginning: str) -> str:
    """Return a pattern that the keys of sessions match whose ids begin so, and those of their records."""
    return f"{PREFIX}:{{*}}:session:{beginning}*"


def any_of_runs() -> str:
    """Return a pattern that journals of steps and reservations match, and none of the other keys beside runs."""
    return f"{PREFIX}:{{*}}:run:run_*:[rs]*"


def parts_of_run(name: str) -> tuple[str, str]:
    """Return the run to which a key belongs, and which part of it the key holds; empty for the run itself."""
    run, _, what = name.partition(":run:")[2].partition(":")
    return run, what


def any_budget() -> tuple[str, str]:
    """Patterns that the keys of budgets match: those of sessions, and those of agents."""
    return f"{PREFIX}:{{*}}:session:ses_*:budget", f"{PREFIX}:{{*}}:spending:*"


def session_in(name: str) -> str:
    """Return the session to which a key belongs; empty if it belongs to none."""
    return name.partition(":session:")[2].partition(":")[0]
