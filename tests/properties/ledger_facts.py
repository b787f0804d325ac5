"""What must hold of every key of the ledger at every moment, derived from its records and from nothing else."""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import redis as redis_py

CLOSED = {"failed", "stopped", "deleted"}
RESOURCES = ("requests", "tokens", "nano")
RANK = {"critical": 0, "high": 1, "normal": 2, "low": 3}
#: All keys with their types and values, and whether they expire.
_READ = """
local found = {}
for i, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  local value = ''
  if kind == 'hash' then value = redis.call('HGETALL', key)
  elseif kind == 'zset' then value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'set' then value = redis.call('SMEMBERS', key)
  elseif kind == 'list' then value = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'string' then value = redis.call('GET', key)
  elseif kind == 'stream' then value = redis.call('XLEN', key) end
  found[i] = { key, kind, value, redis.call('PTTL', key) > 0 and 1 or 0 }
end
return found
"""

Change = tuple[str, str, str]


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


@dataclass
class Facts:
    """All keys of a server at one moment: the name behind the hash tag → value."""

    hashes: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    sorted: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    sets: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    lists: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    others: dict[str, Any] = field(default_factory=dict)
    expiring: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, client: redis_py.Redis) -> Facts:
        """Everything as it is now."""
        facts = cls()
        rows: Any = client.eval(_READ, 0)
        for row in rows:
            facts._take(*row)
        return facts

    def _take(self, key: bytes, kind: bytes, value: Any, expires: int) -> None:
        """Take in one key."""
        name = _text(key).partition("}:")[2] or _text(key)
        if expires:
            self.expiring.add(name)
        match kind:
            case b"hash":
                self.hashes[name] = dict(zip(map(_text, value[::2]), map(_text, value[1::2]), strict=True))
            case b"zset":
                self.sorted[name] = {_text(m): float(s) for m, s in zip(value[::2], value[1::2], strict=True)}
            case b"set":
                self.sets[name] = set(map(_text, value))
            case b"list":
                self.lists[name] = list(map(_text, value))
            case _:
                self.others[name] = value

    def after(self, emptied: bool, rows: Any) -> Facts:
        """Return everything as it is once these keys have changed, and before that all had gone or not."""
        kinds = (self.hashes, self.sorted, self.sets, self.lists, self.others)
        facts = Facts() if emptied else Facts(*(kind.copy() for kind in kinds), self.expiring.copy())
        changed = (facts.hashes, facts.sorted, facts.sets, facts.lists, facts.others)
        for row in rows:
            name = _text(row[0]).partition("}:")[2] or _text(row[0])
            for kind in changed:
                kind.pop(name, None)
            facts.expiring.discard(name)
            if row[1] != b"none":
                facts._take(*row)
        return facts

    def names(self) -> set[str]:
        """The names of all keys."""
        kinds = (self.hashes, self.sorted, self.sets, self.lists, self.others)
        return {name for kind in kinds for name, value in kind.items() if value or kind is self.others}

    def of_kind(self, kind: str) -> dict[str, dict[str, str]]:
        """Each session or run with its facts."""
        found = ((name.split(":"), value) for name, value in self.hashes.items())
        return {parts[1]: value for parts, value in found if parts[0] == kind and len(parts) == 2 and value}

    def same_as(self, other: Facts) -> list[str]:
        """What is another, but for what a repeated question may move."""
        wrong = []
        for kind in ("hashes", "sorted", "sets", "lists", "others"):
            mine, theirs = getattr(self, kind), getattr(other, kind)
            for name in {*mine, *theirs}:
                a, b = mine.get(name) or None, theirs.get(name) or None
                if name.startswith("turns:"):
                    a, b = _without(a, "woken", "wakeups"), _without(b, "woken", "wakeups")
                if a != b:
                    wrong.append(f"{name}: {a} became {b}")
        return wrong


def _without(value: dict[str, str] | None, *names: str) -> dict[str, str] | None:
    return {k: v for k, v in (value or {}).items() if k not in names} or None


def _n(text: str | None) -> int:
    return int(float(text or 0))


def problems(facts: Facts, last: Mapping[Change, str]) -> Iterator[str]:
    """Each break of what must hold, in words. ``last``: what the transitions said last of each thing."""
    book = Book(facts)
    for about in book.sessions.values():
        for check in OF_EACH:
            yield from check(book, about)
    for check_all in OF_ALL:
        yield from check_all(book)
    yield from _of_trail(book, last)


@dataclass
class About:
    """One session."""

    id: str
    facts: dict[str, str]
    items: dict[str, dict[str, Any]]
    queue: dict[str, float]
    runs: list[str]
    tombstone: bool

    @property
    def state(self) -> str:
        return self.facts["state"]

    @property
    def closed(self) -> bool:
        return self.state in CLOSED

    @property
    def over(self) -> bool:
        return self.closed or self.state == "finished"

    @property
    def run(self) -> str:
        return self.facts["run"]

    @property
    def callbacks(self) -> list[dict[str, Any]]:
        return [r for r in self.items.values() if r["kind"] == "completion" and r["state"] != "none"]

    @property
    def keeps_deadline(self) -> bool:
        """Whether it has stopped until a time, or until what it is owed comes, and no run of it is at work."""
        policy = json.loads(self.facts.get("waiting") or "{}")
        owed = {group: self.number(f"group:{group}:owed") for group in policy if group}
        owed[""] = self.number("owed") - sum(owed.values())
        rules = ((rule, owed[group]) for group, rule in policy.items() if rule.get("deadline_ms"))
        return self.state == "idle" and not self.run and any(rule.get("parks") or n > 0 for rule, n in rules)

    @property
    def questions(self) -> set[str]:
        return {name.removeprefix("question:") for name in self.facts if name.startswith("question:")}

    def number(self, name: str) -> int:
        return _n(self.facts.get(name))


class Book:
    """All sessions and runs at one moment, beside the keys they were read from."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.runs = facts.of_kind("run")
        self.sessions = {name: self._about(name, s) for name, s in facts.of_kind("session").items()}
        self.timers = facts.sorted["timers"]

    def _about(self, name: str, s: dict[str, str]) -> About:
        facts, key = self.facts, f"session:{name}"
        return About(
            id=name,
            facts=s,
            items={i: json.loads(text) for i, text in facts.hashes[f"{key}:items"].items()},
            queue=facts.sorted[f"{key}:queue"],
            runs=facts.lists[f"{key}:runs"],
            tombstone=s["state"] == "deleted" and not facts.hashes[f"{key}:bodies"],
        )

    def state(self, run: str) -> str:
        return self.runs.get(run, {}).get("state", "gone")


def _parted(timer: str) -> tuple[str, str, str]:
    return timer.partition("|")


def _compare(what: str, has: Collection[Any], right: Collection[Any]) -> Iterator[str]:
    if has != right:
        yield f"{what} is {has}, and should be {right}"


# --- one session ----------------------------------------------------------------------------------


def _run(book: Book, s: About) -> Iterator[str]:
    """A session is busy exactly with its one run that has not ended."""
    busy = {run for run in s.runs if book.state(run) in ("queued", "running")}
    yield from _compare(f"the runs at work of {s.id}, which is {s.state}", busy, {s.run} - {""})
    if s.run and (s.closed or s.state == "scheduled"):
        yield f"{s.id} is {s.state} and has {s.run}"
    if s.state == "running" and not s.run:
        yield f"{s.id} is running without a run"
    if not s.tombstone:
        yield from _compare(f"the number of runs of {s.id}", [s.number("runs")], [len(s.runs)])


def _counters(book: Book, s: About) -> Iterator[str]:
    """launched = delivered + pending + dead, by the counters and by the items."""
    count = Counter(r["state"] for r in s.callbacks)
    pending = count["queued"] + count["claimed"]
    said = {name: s.number(name) for name in ("launched", "delivered", "dead", "owed")}
    if said["launched"] != said["delivered"] + said["dead"] + said["owed"] + pending:
        yield f"{s.id} counts {said}, and {pending} are queued or claimed"
    right = {name: count[name] for name in said} | {"launched": len(s.callbacks)}
    if not s.tombstone:
        yield from _compare(f"what {s.id} counts", said, right)
    yield from _compare(f"the number of questions of {s.id}", [s.number("questions")], [len(s.questions)])


def _groups(book: Book, s: About) -> Iterator[str]:
    right: Counter[str] = Counter()
    for r in s.callbacks:
        for what in {"launched", r["state"]} & {"launched", "owed", "delivered", "dead"}:
            right[f"group:{r.get('group', '')}:{what}"] += 1
    said = {name: _n(value) for name, value in s.facts.items() if name.startswith("group:") and _n(value)}
    if not s.closed:  # it is resumed by nothing
        yield from _compare(f"what {s.id} counts of its groups", said, dict(right))


def _queue(book: Book, s: About) -> Iterator[str]:
    queued = {i: r for i, r in s.items.items() if r["state"] == "queued"}
    right = {i: RANK.get(r.get("priority", ""), 2) * 1e12 + r["seq"] for i, r in queued.items()}
    yield from _compare(f"the queue of {s.id}", s.queue, right)
    if right and s.closed:
        yield f"{s.id} is {s.state} and has queued {right}"


def _items(book: Book, s: About) -> Iterator[str]:
    """What is claimed is its run's, what is delivered one run's that has ended, and what is dead says why."""
    carried = {run: json.loads(book.runs[run]["items"]) for run in s.runs if run in book.runs}
    delivered = Counter(i for run, ids in carried.items() if book.state(run) == "completed" for i in ids)
    external = any(book.runs[run]["claim"] == "external" for run in carried)
    for i, r in s.items.items():
        if r["state"] == "claimed" and (r["run"] != s.run or carried[s.run].count(i) != 1):
            yield f"{i} of {s.id} is claimed by {r['run']}, and its run {s.run} carries {carried.get(s.run)}"
        by_run = r["state"] == "delivered" and r["kind"] != "approval" and not external and not s.tombstone
        if by_run and delivered[i] != 1:
            yield f"{i} of {s.id} was delivered by {delivered[i]} runs"
        if r["state"] == "dead" and not r["reason"]:
            yield f"{i} of {s.id} is dead without a reason"


def _questions(book: Book, s: About) -> Iterator[str]:
    """Whoever was asked knows of it, or is about to refuse: closed, or with a timer that tells of the rejection."""
    for question in set() if s.closed else s.questions:
        asked = book.sessions.get(s.facts[f"question:{question}"])
        record = asked.items.get(question) if asked else None
        dead = record and record["state"] == "dead" and f"rejected|{question}" not in book.timers
        if record is None and not (asked and asked.state == "deleted"):
            yield f"{s.id} has asked {question}, of which nobody knows"
        elif dead and asked and not asked.closed and asked is not s:
            yield f"{s.id} waits for {question}, which is dead: {record['reason']}"


def _parent(book: Book, s: About) -> Iterator[str]:
    """A parent is told exactly of an end."""
    parent, told = book.sessions.get(s.facts["parent"]), s.facts.get("parent_notified") == "1"
    if not s.facts["parent"]:
        return
    if s.over and not told:
        yield f"{s.id} is {s.state} and its parent was not told"
    if parent is None:
        if not s.over:
            yield f"{s.id} is {s.state} and its parent is gone"
        return
    record = parent.items.get(f"cb_{s.id[4:]}")
    if record is None and parent.state != "deleted":
        yield f"{s.id} is not in the records of {parent.id}"
    elif record and told == (record["state"] == "owed") and (told or record["state"] in TOLD):
        yield f"{s.id}, which has told its parent: {told}, is {record['state']} there"


def _children(book: Book, s: About) -> Iterator[str]:
    for i, r in s.items.items():
        child = book.sessions.get(r["child"]) if r["kind"] == "completion" else None
        if (
            r["kind"] == "completion"
            and r["state"] == "owed"
            and (not child or child.facts["parent"] != s.id)
        ):
            yield f"{i} is owed to {s.id}, and its child is another's: {child}"


def _ends(book: Book, s: About) -> Iterator[str]:
    """What is to be done for a session that has ended: its callbacks, its result, its timers."""
    facts = book.facts
    if s.closed and s.number("owed") and s.id not in facts.sorted["closing"]:
        yield f"closing lacks {s.id}, to which {s.facts['owed']} are owed"
    owed = s.id in facts.sorted["results"]
    if s.facts["root"] != s.id and owed:
        yield f"results has {s.id}, which is no root"
    if s.facts["root"] == s.id and (s.number("ended_ms") or s.closed) and owed == ("settled_ms" in s.facts):
        yield f"the result of {s.id} is {'settled and owed' if owed else 'neither settled nor owed'}"
    if s.over and not s.run and {f"limit|{s.id}", f"review|{s.id}"} & set(book.timers):
        yield f"{s.id} is {s.state}, and its time is still limited"
    if (s.state == "scheduled") != (f"submit|{s.id}" in book.timers):
        yield f"{s.id} is {s.state}, and begins at {book.timers.get(f'submit|{s.id}')}"


def _texts(book: Book, s: About) -> Iterator[str]:
    """A large text is kept as long as somebody may read it."""
    facts, key = book.facts, f"session:{s.id}"
    bodies = facts.hashes[f"{key}:bodies"]
    refs = [json.loads(bodies[name]) for name in ("whole", "memory", "fork") if bodies.get(name)]
    refs += json.loads(s.facts.get("attachments") or "{}").values()
    for r in s.items.values():
        if r["state"] in ("queued", "claimed", "delivered"):
            refs += [r["whole"]] if r.get("whole") else []
            refs += (r.get("attachments") or {}).values()
    for ref in [] if s.state == "deleted" else refs:
        name = f"session:{ref['session']}:whole:{ref['sha256']}"
        if not facts.hashes[name] or name in facts.expiring:
            yield f"{s.id} refers to {name}, which is {'expiring' if name in facts.expiring else 'gone'}"
    kept = facts.sets[f"{key}:large-texts"]
    there = {name.rpartition(":")[2] for name in facts.hashes if name.startswith(f"{key}:whole:")}
    lasting = {
        sha
        for sha in there
        if f"{key}:whole:{sha}" not in facts.expiring and facts.hashes[f"{key}:whole:{sha}"]
    }
    # A deleted session keeps what others read of it, and its list goes with it.
    if lasting != kept and not (s.state == "deleted" and lasting <= kept):
        yield f"{s.id} keeps {lasting}, and lists {kept}"


def _ends_once(book: Book, s: About) -> Iterator[str]:
    """What a parent was told of an end is kept once: with the child, and with the parent where the child keeps no texts."""
    for i, r in s.items.items():
        child = book.sessions.get(r["child"]) if r["kind"] == "completion" else None
        if child is None or r["state"] not in TOLD or (r.get("inherited") and child.facts["parent"] != s.id):
            continue
        has = [name for name in (s.id, r["child"]) if i in book.facts.hashes[f"session:{name}:bodies"]]
        right = [s.id if child.tombstone else child.id]
        if s.state != "deleted" and has != right:
            yield f"what {s.id} was told of {child.id} is kept by {has}, and should be by {right}"
    told = f"cb_{s.id[4:]}" in book.facts.hashes[f"session:{s.id}:bodies"]
    if s.state == "finished" and not told and "result" not in book.facts.hashes[f"session:{s.id}:bodies"]:
        yield f"{s.id} has finished and keeps no answer"


TOLD = ("queued", "claimed", "delivered")
OF_EACH = (
    _run,
    _counters,
    _groups,
    _queue,
    _items,
    _questions,
    _parent,
    _children,
    _ends,
    _texts,
    _ends_once,
)

# --- a shard --------------------------------------------------------------------------------------


def _indexes(book: Book) -> Iterator[str]:
    index, sessions = book.facts.sorted, book.sessions.values()
    queued = {run for run, r in book.runs.items() if r["state"] == "queued"}
    held = {run for run, r in book.runs.items() if r["state"] == "running" and r["claim"] != "external"}
    yield from _compare("queued", set(index["queued"]), queued)
    yield from _compare("running", set(index["running"]), held)
    yield from _compare("roots", set(index["roots"]), {s.id for s in sessions if s.facts["root"] == s.id})
    for root in {s.facts["root"] for s in sessions}:
        members = {s.id for s in sessions if s.facts["root"] == root}
        yield from _compare(f"tree {root}", set(index[f"tree:{root}"]), members)
    if missing := {s.id for s in sessions if s.queue and not s.closed} - set(index["waiting"]):
        yield f"waiting lacks {missing}"
    alarms = set(index["waiting"]) | {
        which for kind, _, which in map(_parted, book.timers) if kind == "flush"
    }
    if missing := {s.id for s in sessions if s.keeps_deadline} - alarms:
        yield f"nobody but a message knows of the deadlines of {missing}"
    for name in ("waiting", "closing"):
        if beyond := set(index[name]) - set(book.sessions):
            yield f"{name} has {beyond}, which are gone"
    approvals = {q for s in sessions if not s.closed for q in s.questions if q.startswith("apr_")}
    yield from _compare("approvals", set(index["approvals"]), approvals)
    for kind, _, which in map(_parted, book.timers):
        if (kind == "approval" and which not in approvals) or (
            kind == "expire" and which not in book.sessions
        ):
            yield f"the timer {kind} of {which} is set, and that is gone"


def _ready(book: Book) -> Iterator[str]:
    for key, runs in book.facts.sorted.items():
        for run in runs if key.startswith(("ready:", "blocked:")) else ():
            r = book.runs.get(run)
            s = book.sessions.get(r["session"]) if r else None
            if s is None:
                yield f"{key} has {run}, which is gone"
            elif book.state(run) != "queued":
                yield f"{key} has {run}, which is {book.state(run)}"
            elif key.startswith("ready:"):
                yield from _compare(f"the queue of {run}", key, f"ready:{s.facts['agent']}")
    for key, turns in book.facts.hashes.items():
        if (
            key.startswith("turns:")
            and set(turns) - {"woken", "wakeups"}
            and not book.facts.sorted[f"ready:{key[6:]}"]
        ):
            yield f"{key} has {turns}, and nothing is ready"


def _at_work(book: Book) -> Iterator[str]:
    right: Counter[str] = Counter()
    for run, r in book.runs.items():
        if r["state"] != "running" or r["claim"] == "external":
            continue
        stands = any(name.startswith("awaits:") and value == r["claim"] for name, value in r.items())
        yield from _compare(f"whether {run} stands still", [r["standing"] == "1"], [stands])
        s = book.sessions[r["session"]].facts
        right.update(() if stands else (f"agent:{s['agent']}", f"tree:{s['root']}"))
    said = {name: _n(value) for name, value in book.facts.hashes["at-work"].items()}
    yield from _compare("at-work", said, dict(right))
    blocked = {key[8:] for key, lane in book.facts.sorted.items() if key.startswith("blocked:") and lane}
    yield from _compare("blocked", book.facts.sets["blocked"], blocked)


def _budgets(book: Book) -> Iterator[str]:
    right: Counter[tuple[str, str]] = Counter()
    for key, value in book.facts.hashes.items():
        run, what = key.split(":")[1:] if key.startswith("run:") and key.count(":") == 2 else ("", "")
        if what == "reserved" and value:
            if book.state(run) != "running":
                yield f"{key} is there, and its run is {book.state(run)}"
            for one in map(json.loads, value.values()):
                for budget, resource in itertools.product(one["budgets"], RESOURCES):
                    right[budget.partition("}:")[2], resource] += int(one[resource])
        if what == "steps" and value:
            if book.state(run) not in ("running", "queued"):
                yield f"{key} is there, and its run is {book.state(run)}"
            steps = sum(1 for name in value if name.startswith("h:"))
            yield from _compare(f"the number of steps of {run}", [_n(book.runs[run].get("steps"))], [steps])
    for key, value in book.facts.hashes.items():
        for resource in RESOURCES if key.endswith(":budget") or key.startswith("spending:") else ():
            said = _n(value.get(f"reserved:{resource}"))
            yield from _compare(f"the {resource} reserved of {key}", [said], [right[key, resource]])


def _owners(book: Book) -> Iterator[str]:
    """Every key that does not expire belongs to a session that is there."""
    for name in book.facts.names() - book.facts.expiring:
        kind, _, rest = name.partition(":")
        which = rest.partition(":")[0]
        if kind == "run" and which in book.runs:
            which = book.runs[which]["session"]
        if kind in ("session", "run", "tree", "blocked") and rest and which not in book.sessions:
            yield f"{name} is there, and its session is gone"


OF_ALL = (_indexes, _ready, _at_work, _budgets, _owners)


def _of_trail(book: Book, last: Mapping[Change, str]) -> Iterator[str]:
    now: dict[Change, str] = {("session", s.id, "-"): s.state for s in book.sessions.values()}
    now |= {("run", r["session"], run): r["state"] for run, r in book.runs.items()}
    for s in book.sessions.values():
        for i, r in s.items.items():
            kind = "callback" if r["kind"] == "completion" else "approval" if i.startswith("apr_") else "item"
            now[kind, s.id, i] = r["state"]
    for thing, state in now.items():
        # A person's answer leaves the record of the question as it is.
        if last.get(thing) not in (state, "answered"):
            yield f"{thing} is {state}, and {last.get(thing)} in the trail"
    for thing, state in last.items():
        if thing[0] == "session" and thing not in now and state != "removed":
            yield f"{thing} is gone, and {state} in the trail"
