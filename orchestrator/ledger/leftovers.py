"""Leftovers of runs that have ended: journals of steps, and reservations of budgets.

Each is removed in the step that ends its run. Any that remains was written or kept by something else than the
ledger's transitions; it takes memory, or a part of a budget that nobody uses.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.ledger import decode
from orchestrator.ledger.ledger import Ledger
from orchestrator.ledger.model import RunState
from orchestrator.policy.budget import RESOURCES
from orchestrator.redisdb import ledger_keys
from orchestrator.redisdb.key_table import is_wrong_type

#: What :func:`fix` fixes.
RULES: Final = frozenset({"journal-left", "reservation-left", "reserved-wrong", "spent-wrong"})
#: Looks at the runs at work until none has begun in between.
_LOOKS: Final = 20
#: States in which a run has a journal; reservations it has while it is running only.
_OPEN: Final = frozenset({RunState.QUEUED.value, RunState.RUNNING.value})


@dataclass(frozen=True)
class Leftover:
    """A leftover, described in one sentence."""

    rule: str
    subject: str  #: the run, or the budget's key
    message: str
    session: str


def found(ledger: Ledger) -> Iterator[Leftover]:
    """Yield all leftovers that there are now. Looks through all keys of the server.

    Raises:
        redis.RedisError: Redis does not answer.
    """
    yield from _of_runs(ledger)
    yield from _reserved(ledger)


def fix(ledger: Ledger, findings: Iterable[tuple[str, str]]) -> None:
    """Fix what these rules and subjects name; what has changed meanwhile is left alone.

    Raises:
        redis.RedisError: Redis does not answer.
    """
    chosen = [(rule, subject) for rule, subject in findings if rule in RULES]
    for rule, subject in chosen:
        if rule in ("journal-left", "reservation-left"):
            ledger.scripts.run("drop_leftovers", [ledger_keys.run(subject)], [])
    # What a run had set aside is in its budgets still.
    wrong = {subject for rule, subject in chosen if rule in ("reserved-wrong", "spent-wrong")}
    if any(rule == "reservation-left" for rule, _ in chosen):
        wrong |= {finding.subject for finding in _reserved(ledger)}
    for budget in sorted(wrong):
        ledger.scripts.run("recount_reserved", [ledger_keys.running(_shard_in(budget)), budget], [])


# --- journals and reservations -----------------------------------------------------------------


def _of_runs(ledger: Ledger) -> Iterator[Leftover]:
    names = (
        decode.text(key) for key in ledger.redis.scan_iter(match=ledger_keys.any_of_runs(), count=10_000)
    )
    kept = {run for run, what in map(ledger_keys.parts_of_run, names) if what in ("steps", "reserved")}
    for run in sorted(kept):
        # Together: a run that ends between two looks takes both with it.
        pipe = ledger.redis.pipeline(transaction=True)
        pipe.exists(ledger_keys.steps(run))
        pipe.exists(ledger_keys.reserved(run))
        pipe.hmget(ledger_keys.run(run), "state", "session")
        steps, reserved, facts = pipe.execute(raise_on_error=False)
        if isinstance(facts, Exception):
            if not is_wrong_type(facts):
                raise facts
            continue  # somebody overwrote the run: that is a finding of its own
        state, session = (decode.text(value) for value in facts)
        how = f"is {state}" if state else "is gone"
        if steps and state not in _OPEN:
            journal = f"{run} {how}, and the journal of its durable steps is still there"
            yield Leftover("journal-left", run, journal, session=session)
        if reserved and state != RunState.RUNNING:
            budget = f"{run} {how}, and what it had set aside in budgets is still reserved"
            yield Leftover("reservation-left", run, budget, session=session)


# --- budgets -----------------------------------------------------------------------------------


def _reserved(ledger: Ledger) -> Iterator[Leftover]:
    """Budgets whose sums are not those of the reservations of the runs at work."""
    by_shard: dict[int, list[str]] = defaultdict(list)
    for pattern in ledger_keys.any_budget():
        for key in ledger.redis.scan_iter(match=pattern, count=10_000):
            name = decode.text(key)
            by_shard[_shard_in(name)].append(name)
    for shard, budgets in sorted(by_shard.items()):
        for budget, what, said, right in _wrong(ledger, shard, sorted(budgets)):
            session = ledger_keys.session_in(budget)
            whose = f"the budget of {session}" if session else f"the agent's budget {budget}"
            wrong = f"{whose} says that {said} {what} are reserved; the runs at work have reserved {right}"
            yield Leftover("reserved-wrong", budget, wrong, session=session)
        yield from _spent(ledger, sorted(budgets))


def _spent(ledger: Ledger, budgets: Sequence[str]) -> Iterator[Leftover]:
    """Budgets of which less counts as spent than their agents have spent."""
    pipe = ledger.redis.pipeline(transaction=False)
    for budget in budgets:
        pipe.hgetall(budget)
    for budget, raw in zip(budgets, pipe.execute(raise_on_error=False), strict=True):
        if isinstance(raw, Exception):
            continue  # another type: a finding of its own
        facts, by = decode.mapping(raw), Counter[str]()
        for name, value in facts.items():
            kind, _, what = name.rpartition(":")
            if kind.startswith("by:"):
                by[what] += _number(value)
        for what, spent in sorted(by.items()):
            if (said := _number(facts.get(f"spent:{what}", ""))) < spent:
                session = ledger_keys.session_in(budget)
                whose = f"the budget of {session}" if session else f"the agent's budget {budget}"
                wrong = f"{whose} says that {said} {what} were spent; its agents have spent {spent}"
                yield Leftover("spent-wrong", budget, wrong, session=session)


def _wrong(ledger: Ledger, shard: int, budgets: Sequence[str]) -> Iterator[tuple[str, str, int, int]]:
    """Yield budget, resource, the recorded amount and the right one."""
    running = ledger_keys.running(shard)
    runs: list[str] = []
    replies: list[Any] = []
    for _ in range(_LOOKS):
        pipe = ledger.redis.pipeline(transaction=True)
        pipe.zrange(running, 0, -1)
        for run in runs:
            pipe.hvals(ledger_keys.reserved(run))
        for budget in budgets:
            pipe.hmget(budget, [f"reserved:{what}" for what in RESOURCES])
        ids, *replies = pipe.execute(raise_on_error=False)
        now = [decode.text(run) for run in ids]
        if set(now) <= set(runs):
            break
        runs = now  # one has begun meanwhile
    else:
        return  # runs come and go too fast to be counted from here
    right: dict[tuple[str, str], int] = defaultdict(int)
    for texts in replies[: len(runs)]:
        for text in texts if isinstance(texts, list) else []:
            for budget, what, amount in _amounts(text):
                right[budget, what] += amount
    for budget, row in zip(budgets, replies[len(runs) :], strict=True):
        if isinstance(row, Exception):
            continue  # another type: a finding of its own
        for what, value in zip(RESOURCES, row, strict=True):
            if _number(value) != right[budget, what]:
                yield budget, what, _number(value), right[budget, what]


def _amounts(text: bytes) -> Iterator[tuple[str, str, int]]:
    try:
        reservation: Any = json.loads(text)
        amounts = [
            (str(budget), what, int(reservation.get(what) or 0))
            for budget in reservation["budgets"]
            for what in RESOURCES
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        return  # it can be given back by nobody; what it took is right when it is counted again
    yield from amounts


def _number(value: object) -> int:
    try:
        return int(float(decode.text(value) or 0))
    except (ValueError, OverflowError):
        return -1


def _shard_in(key: str) -> int:
    return int(key.partition("{")[2].partition("}")[0], 16)
