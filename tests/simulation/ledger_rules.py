"""What each transition of the ledger may do, by what was there before it: the rules that a single call is held to.

What holds at every moment is in `ledger_facts`. A rule here says of one script what must have been so for its answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tests.properties.ledger_facts import CLOSED, RANK, Facts

#: Milliseconds after which an unanswered wake-up is repeated, which double with each one, so often at most.
_WAKE_AGAIN_MS, _WAKE_CAP = 1000, 6


def _number(text: str | None) -> int:
    return int(float(text or 0))


def _id(key: Any) -> str:
    return str(key if isinstance(key, str) else key.decode()).rpartition(":")[2]


@dataclass
class Call:
    """A call that was answered, with everything before and after it."""

    key: str  #: the id that its first key is of: a session's or a run's
    asked: dict[str, Any]
    answer: list[Any]
    before: Facts
    after: Facts

    @cached_property
    def said(self) -> str:
        return _text(self.answer[0]) if self.answer else ""

    def session(self, name: str, facts: Facts | None = None) -> dict[str, str]:
        return (facts or self.before).hashes[f"session:{name}"]

    def run(self, name: str, facts: Facts | None = None) -> dict[str, str]:
        return (facts or self.before).hashes[f"run:{name}"]

    @property
    def now(self) -> int:
        return _number(str(self.asked.get("now") or 0))


def _text(raw: Any) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)


def _most(facts: Facts, tree: str) -> str:
    """How many runs of a tree may be at work; `none` or nothing: any number."""
    limits = facts.hashes["limits"]
    return limits.get(f"tree:{tree}", limits.get("trees", ""))


def _unblocked(call: Call) -> Iterator[str]:
    """Where a run of a tree works no more, the next of those that its limit kept away is ready."""
    for name, waiting in call.before.sorted.items():
        tree = name.removeprefix("blocked:")
        if tree == name or not waiting or waiting != call.after.sorted[name]:
            continue
        worked, work = (_number(f.hashes["at-work"].get(f"tree:{tree}")) for f in (call.before, call.after))
        most = _most(call.before, tree)
        if work < worked and (most in ("", "none") or work < _number(most)):
            yield f"{work} runs of {tree} are at work, {most} may be, and {sorted(waiting)} are blocked"


def _told(call: Call) -> Iterator[str]:
    """A parent is told of an end by that end alone; a failure that fails the parent holds it."""
    for name, s in call.after.of_kind("session").items():
        parent, child = s["parent"], name
        before = call.before.hashes[f"session:{parent}:items"].get(f"cb_{child[4:]}")
        after = call.after.hashes[f"session:{parent}:items"].get(f"cb_{child[4:]}")
        if not before or not after or before == after:
            continue
        was, record = json.loads(before), json.loads(after)
        said = [(one.get("status"), one.get("over")) for one in (was, record)]
        if call.session(child).get("parent_notified") == "1" and said[0] != said[1]:
            yield f"{parent} was told of {child} twice: {said}"
        if was["state"] != "owed":
            continue
        if record["state"] == "queued" and "result" in call.after.hashes[f"session:{child}:bodies"]:
            yield f"{child} has told {parent} of its end, and keeps another answer beside it"
        over = call.session(parent, call.after)
        held = over.get("stop_pending") or over["state"] in CLOSED
        if record.get("reason") == "failed its parent by policy" and not held:
            yield f"{child} has failed {parent}, which is {over['state']} and may go on"


def _taken(call: Call) -> Iterator[str]:
    """A run is taken that is queued, its session's present one, due, of no paused agent, and within the limits."""
    if call.said != "held":
        return
    run = json.loads(call.answer[2])
    name, r = run["id"], call.run(run["id"])
    s = call.session(r["session"])
    if r["state"] == "running" and r["claim"] == call.asked["claim"]:
        return  # the same claim, sent again
    if r["state"] != "queued":
        yield f"{name} was {r['state']}"
    if s["run"] != name:
        yield f"{name} is not the present run of its session, which is {s['run']}"
    if call.now and _number(r.get("not_before")) > call.now:
        yield f"{name} waits until {r['not_before']}, and it is {call.now}"
    limits, at_work = call.before.hashes["limits"], call.before.hashes["at-work"]
    agent, tree = s["agent"], s["root"]
    if f"paused:agent:{agent}" in limits:
        yield f"{agent} is paused"
    for what, most in (
        (f"agent:{agent}", limits.get(f"agent:{agent}", limits.get(f"default:{agent}"))),
        (f"tree:{tree}", _most(call.before, tree)),
    ):
        if most and most != "none" and _number(at_work.get(what)) >= _number(most):
            yield f"{what} has {at_work[what]} runs at work, and may have {most}"


def _in_turn(call: Call) -> Iterator[str]:
    """Slots that were woken have answered; the last run of a tree takes the turn of the tree with it."""
    if call.said == "held" and json.loads(call.answer[2])["claim"] == call.asked["claim"]:
        number = _number(_text(call.answer[9]))
        run = json.loads(call.answer[2])
        if call.run(run["id"])["state"] == "running":
            return  # the same claim, sent again
        agent, s = call.asked["agents"][number - 1], call.session(run["session"])
        rank = RANK.get(s["priority"], 2)
        turn = call.before.sorted[f"ready:{agent}"][run["id"]] - rank * 1e12
        left = call.after.hashes[f"turns:{agent}"].get(f"{rank}:{s['root']}")
        if left is not None and float(left) == turn:
            yield f"the turns of {agent} still have {s['root']}, which has nothing ready"
    for agent in call.asked["agents"] if call.asked.get("woken") else ():
        told = call.after.hashes[f"turns:{agent}"].get("woken")
        if told and _number(told) != call.now:
            yield f"{agent} was woken at {told}, and a slot has come since"


def _taken_in_turn(call: Call) -> Iterator[str]:
    yield from _taken(call)
    yield from _in_turn(call)


def _parked(call: Call, run: dict[str, str], session: dict[str, str]) -> Iterator[str]:
    """A run parks that nobody ends, and waits for nothing that has come."""
    if run.get("stop") or session.get("stop_pending"):
        yield "it parks, and is to stop"
    claims = {name: claim for name, claim in run.items() if claim == call.asked["claim"]}
    awaited = [name.removeprefix("awaits:") for name in claims if name.startswith("awaits:")]
    come = [item for item in awaited if item in call.before.sorted[f"session:{call.key}:queue"]]
    due = _number(call.run(call.asked["run"], call.after).get("not_before"))
    if come and due > call.now > 0:
        yield f"it parks until {due}, and {come} has come"


def _committed(call: Call) -> Iterator[str]:
    """A session finishes when nothing is said to it, asked or owed; what was asked to stop does not go on."""
    yield from _unblocked(call)
    yield from _told(call)
    name, run = call.key, call.run(call.asked["run"])
    if run.get("claim") != call.asked["claim"] and call.said not in ("lost", ""):
        yield f"the claim is {run.get('claim')}, and the answer {call.said}"
    if run.get("state") != "running":
        return
    s, later = call.session(name), call.session(name, call.after)
    if call.said == "parked":
        yield from _parked(call, run, s)
    if call.said != "done" or call.asked["status"] != "completed":
        return
    state = _text(call.answer[1])
    if state == "finished":
        queued = call.after.sorted[f"session:{name}:queue"]
        left = {n: later[n] for n in ("owed", "questions") if _number(later.get(n))}
        if queued or left or s.get("stop_pending"):
            yield f"it has finished with {queued} queued, {left}, to be ended: {s.get('stop_pending')!r}"
    elif run.get("stop") and later.get("stop_pending") != "1":
        yield f"it was asked to stop and is {later['state']}"
    for effect, text in call.before.hashes[f"run:{call.asked['run']}:effects"].items():
        made = json.loads(text)
        if not made.get("child") or made["claim"] == call.asked["claim"] or "|step:" in effect:
            continue
        record = json.loads(call.after.hashes[f"session:{name}:items"].get(made["callback"], "{}"))
        if record.get("state") in ("owed", "queued"):
            yield f"{made['callback']} of an earlier try is {record['state']}"


def _released(call: Call) -> Iterator[str]:
    """A run is taken from the holder that was seen to be gone, and not more often than it may lose one."""
    yield from _unblocked(call)
    yield from _told(call)
    if call.said not in ("queued", "ended"):
        return
    name, asked = call.asked["run"], call.asked
    before, after = call.run(name), call.run(name, call.after)
    if (before["claim"], before["lease_version"]) != (asked.get("claim", ""), asked.get("lease", "")):
        yield f"{name} was renewed or is another's: {before['claim']} {before['lease_version']}"
    if call.said == "queued" and (
        _number(after.get("lost")) > asked.get("most_lost", 0)
        or _number(after.get("died")) >= asked.get("most_died", 0)
    ):
        yield f"{name} was lost {after.get('lost')} times and has died {after.get('died')} times"
    for text in call.before.hashes[f"run:{name}:reserved"].values():
        made = json.loads(text)
        for budget in made["budgets"]:
            key = budget.partition("}:")[2]
            spent = [_number(f.hashes[key].get("spent:tokens")) for f in (call.before, call.after)]
            if made["tokens"] and call.after.hashes[key] and spent[0] == spent[1]:
                yield f"{key} has spent {spent}, although {name} had reserved {made['tokens']}"


def _renewed(call: Call) -> Iterator[str]:
    name = call.key
    versions = [_number(call.run(name, facts).get("lease_version")) for facts in (call.before, call.after)]
    if call.said == "held" and versions[1] != versions[0] + 1:
        yield f"{name} was renewed, and its lease has the versions {versions}"


def _flushed(call: Call) -> Iterator[str]:
    """A run is made for a session that nobody ends, with one prompt or with callbacks, as many as it may carry."""
    if call.said != "run":
        return
    s, after = call.session(call.key), call.run(call.asked["run"], call.after)
    if s.get("flushed") == call.asked["call"]:
        told = _text(call.answer[1])
        if told != s["run"] or call.run(told)["state"] != "queued":
            yield f"{call.key} is told of {told}, and has {s['run']}"
        return  # the same call, sent again
    if s.get("stop_pending") or s["state"] in ("pending", "scheduled"):
        yield f"{call.key} is {s['state']}, to be ended: {s.get('stop_pending')!r}"
    if call.run(call.asked["run"]) or _number(s.get("runs")) + 1 != call.asked["number"]:
        yield f"{call.asked['run']} is number {call.asked['number']} of {s.get('runs')} runs"
    records = call.after.hashes[f"session:{call.key}:items"]
    kinds = [json.loads(records[item])["kind"] for item in json.loads(after["items"])]
    if len(kinds) > max(1, call.asked["max_items"]) or ("prompt" in kinds and len(kinds) > 1):
        yield f"{call.asked['run']} carries {kinds}"


def _rejected(call: Call) -> Iterator[str]:
    """Whoever put a question is told at once that it was rejected."""
    timer = f"rejected|{call.asked['item']}"
    due = call.after.sorted["timers"].get(timer, float("inf"))
    if call.said == "rejected" and call.asked["item"].startswith("ask_") and due > call.now > 0:
        yield f"{timer} is due at {due}"


def _started(call: Call) -> Iterator[str]:
    """The router makes the first run of a session that waits for it, by the message that launched that session, and once."""
    for launch, (said, *_) in zip(call.asked["launches"], call.answer, strict=True):
        s = call.session(launch["session"])
        if said == b"started" and (s["state"], s["message"]) != ("pending", launch["message"]):
            yield f"{launch} has started a session that is {s['state']} and was launched by {s['message']}"
        entry, _, digest = _text(call.before.others.get(launch["seen"], b"")).partition(" ")
        right = b"duplicate" if digest in ("", launch["digest"]) else b"other"
        if entry and entry != launch["entry"] and said not in (right, b"error"):
            yield f"{launch} is {said}, and {entry} had its effect"


def _made_ready(call: Call) -> Iterator[str]:
    r = call.run(call.key)
    if call.said == "ready" and _text(call.answer[1]) == "1":
        turns = call.before.hashes[f"turns:{call.session(r['session'])['agent']}"]
        waited = call.now - _number(turns.get("woken"))
        if turns.get("woken") and 0 <= waited < _WAKE_AGAIN_MS * 2 ** min(
            _number(turns.get("wakeups")), _WAKE_CAP
        ):
            yield f"workers are told of {call.key} {waited} ms after they were told last: {turns}"
    if call.said == "ready" and (r["state"] != "queued" or _number(r.get("not_before")) > call.now > 0):
        yield f"{call.key} is {r['state']} and waits until {r.get('not_before')}"


def _posted(call: Call) -> Iterator[str]:
    """Only a person answers an approval; a run that waits for the answer waits no more."""
    answers = call.asked.get("answers")
    if not answers or call.said not in ("queued", "done"):
        return
    if answers.startswith("apr_") and (call.asked.get("run") or call.asked.get("mark")):
        yield f"{call.asked.get('run', 'a program')} has answered {answers}"
    run = call.run(call.session(call.key).get("run", ""))
    if run.get("state") == "queued" and run.get(f"awaits:{call.asked['id']}"):
        due = _number(call.run(run["id"], call.after).get("not_before"))
        if due > call.now > 0:
            yield f"{run['id']} waits until {due} for what has come"


def _stopped(call: Call) -> Iterator[str]:
    """What is to be deleted is deleted; a program outside is not asked, as it would not hear it."""
    yield from _unblocked(call)
    yield from _told(call)
    run = call.run(call.session(call.key).get("run", ""))
    if call.said == "asked":
        later = call.run(run["id"], call.after)
        if run["claim"] == "external":
            yield f"the program that has {run['id']} was asked"
        if run.get("stop_state") == "deleted" != later.get("stop_state"):
            yield f"{run['id']} was to be deleted, and is to be {later.get('stop_state')}"


def _inherited(call: Call) -> Iterator[str]:
    """Nobody waits for its own end."""
    above = call.asked["heir"]
    while call.said == "handed" and above:
        if above == call.asked["child"]:
            yield f"{call.asked['heir']} waits for {above}, which is it or is above it"
        above = call.session(above).get("parent", "")


def _restored(call: Call) -> Iterator[str]:
    """What is there stays as it is."""
    if call.said == "nothing" or f"cb_{call.key[4:]}" in call.before.hashes[f"session:{call.key}:bodies"]:
        yield from call.before.same_as(call.after)


def _retired(call: Call) -> Iterator[str]:
    """No tree goes of which somebody is told something."""
    for name, s in call.before.of_kind("session").items():
        gone = call.said == "retired" and call.session(name, call.after)["state"] == "deleted" != s["state"]
        used = s["state"] not in (*CLOSED, "pending") and call.before.sorted[f"session:{name}:queue"]
        if gone and (
            used or (s["run"] and call.run(s["run"])["claim"] != "external" and s["state"] != "pending")
        ):
            yield f"{name} was {s['state']} with {s['run']} and {used}, and is removed"


def _cleaned(call: Call) -> Iterator[str]:
    s = call.session(call.key)
    seen = (call.asked.get("seen_as"), s.get("seen_to"))
    if call.said in ("kept", "tombstone") and s and s["state"] not in seen:
        yield f"{call.key} is {s['state']}, and was gone through as {seen}"


def _stored(call: Call) -> Iterator[str]:
    """What stays for good still does."""
    before, after = call.before, call.after
    if ending := (before.names() - before.expiring) & after.expiring:
        yield f"{ending} are to go"


RULES: dict[str, Callable[[Call], Iterator[str]]] = {
    "claim": _taken,
    "claim_next": _taken_in_turn,
    "claim_item": _unblocked,
    "commit": _committed,
    "release": _released,
    "renew": _renewed,
    "flush": _flushed,
    "reject": _rejected,
    "start": _started,
    "make_ready": _made_ready,
    "post": _posted,
    "stop": _stopped,
    "inherit": _inherited,
    "restore_text": _restored,
    "close_tree": _retired,
    "finish_cleanup": _cleaned,
    "store_blob": _stored,
}


def broken(name: str, words: Sequence[Any], answer: Any, before: Facts, after: Facts) -> list[str]:
    """What a call of this script broke, in words; ``words`` are the number of its keys, these, and its arguments."""
    if name not in RULES or not isinstance(answer, list):
        return []
    try:
        asked = json.loads(words[1 + int(words[0])])
    except (ValueError, TypeError):
        asked = {}
    return list(
        RULES[name](Call(_id(words[1]), asked if isinstance(asked, dict) else {}, answer, before, after))
    )
