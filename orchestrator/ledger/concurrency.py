"""Limits on the runs of an agent or a tree that execute at once, and pauses of agents and queues.

The ledger keeps both. The script that hands out runs reads them, so a change applies from the next run on; running
runs go on. A limit of an agent is divided among the shards, because a transition sees only one of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

import redis

from orchestrator import machine
from orchestrator.errors import InputError
from orchestrator.ids import shard_of
from orchestrator.ledger.decode import mapping, text
from orchestrator.machine import isoformat
from orchestrator.redisdb import ledger_keys
from orchestrator.redisdb.scripts import Arg, Scripts

#: What may be paused.
Kind = Literal["agent", "queue"]
#: A limit: so many runs at once, any number, or what the agent's definition or the settings say.
Most = int | Literal["none", "default"]

#: Blocked runs of one tree that one call makes ready again.
_UNBLOCKED_AT_ONCE: Final = 1_000
#: Fields of what definitions want, which workers say again and again.
_BY_WORKERS: Final = ("default-", "default:", "queue:")


@dataclass(frozen=True, kw_only=True)
class HeldBack:
    """The reason why the ready runs of an agent, or of a tree, are not taken now."""

    waits_for: str
    mover: str


@dataclass(frozen=True, kw_only=True)
class AgentLimit:
    """Limit, running runs and pause of one agent."""

    #: The agent.
    agent: str
    #: How many are.
    at_work: int
    #: How many may be; null: any number.
    limit: int | None
    #: `operator`: by `orchestra agents limit`; `definition`: by the agent or the settings; empty: nobody.
    set_by: Literal["", "operator", "definition"]
    #: Whether the agent or its queue is paused; null: neither is.
    paused: Kind | None
    since_ms: int  #: since when; 0: it is not


@dataclass(frozen=True, kw_only=True)
class TreeLimit:
    """Limit, running and blocked runs of one tree."""

    #: The root session of the tree.
    root: str
    #: How many are.
    at_work: int
    #: How many may be; null: any number.
    limit: int | None
    #: Ready runs that wait for one of these to end.
    blocked: int


class Concurrency:
    """The limits and pauses of one stack. Safe to share between threads."""

    def __init__(self, client: redis.Redis, *, shards: int = 1) -> None:
        self._redis = client
        self._scripts = Scripts(client)
        self._shards = range(shards)

    def announce(self, agents: Mapping[str, tuple[str, int | None]]) -> None:
        """Announce what a worker's definitions ask for: for each agent its queue and how many runs at once."""
        for shard in self._shards:
            facts: list[Arg] = []
            for agent, (queue, most) in agents.items():
                share = "" if most is None else max(1, self._share(most, shard))
                facts += [f"queue:{agent}", queue, f"default:{agent}", share]
            self._scripts.run("set_limit", _limits_keys(shard), ["[]", *facts])

    def limit_agent(self, agent: str, most: Most) -> None:
        """Limit the runs of an agent that are at work at once, from now on.

        Raises:
            InputError: it is less than one, or less than there are shards.
        """
        if isinstance(most, int) and most < len(self._shards):
            raise InputError(
                f"a limit of {most} cannot be kept: it is divided among the {len(self._shards)} shards of the ledger; "
                f"give at least {len(self._shards)}, or pause the agent"
                if most > 0
                else f"a limit is at least 1; to let nothing of {agent!r} run: orchestra agents pause {agent}"
            )
        for shard in self._shards:
            value = self._share(most, shard) if isinstance(most, int) else most
            self._set(shard, f"agent:{agent}", value, wake=[agent])

    def limit_tree(self, root: str, most: Most) -> list[str]:
        """Limit the runs of one tree that are at work at once, from now on; return the agents whose workers to
        notify.

        Raises:
            InputError: it is less than one.
        """
        _check_tree_limit(most)
        self._set(shard_of(root), f"tree:{root}", most)
        return self.unblock(shard_of(root))

    def limit_trees(self, most: Most) -> list[str]:
        """The same for each tree that has no limit of its own.

        Raises:
            InputError: it is less than one.
        """
        _check_tree_limit(most)
        for shard in self._shards:
            self._set(shard, "trees", most)
        return [agent for shard in self._shards for agent in self.unblock(shard)]

    def pause(self, kind: Kind, name: str) -> bool:
        """Take no ready run of an agent, or of the agents of a queue, until it goes on; False: it is paused already."""
        since = round(machine.time() * 1000)
        field = f"paused:{kind}:{name}"
        known = self._redis.hexists(ledger_keys.run_limits(self._shards[0]), field)
        for shard in self._shards:
            if not self._redis.hexists(ledger_keys.run_limits(shard), field):
                self._set(shard, field, since)
        return not known

    def unpause(self, kind: Kind, name: str, *, agents: Sequence[str]) -> bool:
        """Let ready runs be taken again; False if it was not paused. ``agents``: those whose notifications begin
        again.
        """
        changed = [self._set(shard, f"paused:{kind}:{name}", "", wake=agents) for shard in self._shards]
        return any(changed)

    def unblock(self, shard: int) -> list[str]:
        """Make blocked runs of each tree ready again, as far as there is room; return the agents whose workers to
        notify.
        """
        told: list[str] = []
        for root in map(text, sorted(self._redis.smembers(ledger_keys.blocked_trees(shard)))):
            reply = self._scripts.run("unblock", [ledger_keys.running(shard)], ["", root, _UNBLOCKED_AT_ONCE])
            told += map(text, reply)
        return told

    def forget_slots(self, shard: int, *, recount: bool) -> tuple[int, int]:
        """Forget slots that have no run any more; with ``recount`` also count the runs at work anew.

        Returns:
            How many slots were forgotten, and how many counts were wrong.
        """
        names = [ledger_keys.running(shard), ledger_keys.slots(shard)]
        forgotten, wrong = self._scripts.run("recount", names, ["1" if recount else ""])
        return int(forgotten), int(wrong)

    def held_back(self, agent: str, *, shard: int, root: str = "") -> HeldBack | None:
        """Return why a ready run of ``agent``, in the tree of ``root``, is not taken now; None if nothing holds it
        back.
        """
        limits = mapping(self._redis.hgetall(ledger_keys.run_limits(shard)))
        queue = limits.get(f"queue:{agent}", "")
        for kind, name in (("agent", agent), ("queue", queue)):
            since = limits.get(f"paused:{kind}:{name}")
            if since is not None:
                return HeldBack(
                    waits_for=f"{kind} {name!r} is paused since {isoformat(int(since))}",
                    mover=f"you: orchestra agents unpause {name}",
                )
        most = _number(limits.get(f"agent:{agent}", limits.get(f"default:{agent}")))
        at_work = self._at_work(shard, f"agent:{agent}")
        if most is not None and at_work >= most:
            return HeldBack(
                waits_for=f"agent {agent!r} has {at_work} of at most {self._whole(agent, most)} runs at work",
                mover=f"the end of one of them; or you: orchestra agents limit {agent} N",
            )
        most = _tree_limit(limits, root)
        at_work = self._at_work(shard, f"tree:{root}") if root else 0
        if root and most is not None and at_work >= most:
            return HeldBack(
                waits_for=f"its tree has {at_work} of at most {most} runs at work",
                mover=f"the end of one of them; or you: orchestra agents limit {root} N",
            )
        return None

    def agents(self, names: Sequence[str]) -> list[AgentLimit]:
        """Return limit, running runs and pause of each of these agents."""
        limits = [mapping(self._redis.hgetall(ledger_keys.run_limits(shard))) for shard in self._shards]
        working = [mapping(self._redis.hgetall(ledger_keys.at_work(shard))) for shard in self._shards]
        first = limits[0]
        found = []
        for name in names:
            own = [_number(of.get(f"agent:{name}", of.get(f"default:{name}"))) for of in limits]
            queue = first.get(f"queue:{name}", "")
            paused: Kind | None = None
            if f"paused:agent:{name}" in first:
                paused = "agent"
            elif f"paused:queue:{queue}" in first:
                paused = "queue"
            since = first.get(f"paused:{paused}:{name if paused == 'agent' else queue}", "0")
            numbers = [share for share in own if share is not None]
            by: Literal["operator", "definition"] = "operator" if f"agent:{name}" in first else "definition"
            found.append(
                AgentLimit(
                    agent=name,
                    at_work=sum(int(of.get(f"agent:{name}", 0)) for of in working),
                    limit=sum(numbers) if numbers else None,
                    set_by=by if numbers else "",
                    paused=paused,
                    since_ms=int(since),
                )
            )
        return found

    def trees(self) -> list[TreeLimit]:
        """The trees that have a limit of their own, or blocked runs."""
        found = []
        for shard in self._shards:
            limits = mapping(self._redis.hgetall(ledger_keys.run_limits(shard)))
            own = {name.removeprefix("tree:") for name in limits if name.startswith("tree:")}
            own |= {text(root) for root in self._redis.smembers(ledger_keys.blocked_trees(shard))}
            found += [
                TreeLimit(
                    root=root,
                    at_work=self._at_work(shard, f"tree:{root}"),
                    limit=_tree_limit(limits, root),
                    blocked=int(self._redis.zcard(ledger_keys.blocked(root))),
                )
                for root in sorted(own)
            ]
        return found

    def of_each_tree(self) -> int | None:
        """Return how many runs of a tree without its own limit may execute at once; None if any number."""
        return _tree_limit(mapping(self._redis.hgetall(ledger_keys.run_limits(self._shards[0]))), "")

    def paused(self) -> dict[tuple[str, str], int]:
        """Each kind and name that is paused, and since when in milliseconds."""
        found = {}
        for field, since in mapping(self._redis.hgetall(ledger_keys.run_limits(self._shards[0]))).items():
            if field.startswith("paused:"):
                _, kind, name = field.split(":", 2)
                found[kind, name] = int(since)
        return found

    def copies(self) -> dict[str, dict[str, str]]:
        """Return the operator's settings for each key of limits, read from its copy; unreadable copies are left out."""
        found = {}
        for shard in self._shards:
            for key, other in (_limits_keys(shard), _limits_keys(shard)[::-1]):
                with suppress(redis.ResponseError):
                    said = mapping(self._redis.hgetall(other)).items()
                    found[key] = {field: value for field, value in said if not field.startswith(_BY_WORKERS)}
        return found

    def lost(self) -> dict[str, str]:
        """Return the operator's settings that are missing among the limits in force."""
        lost: dict[str, str] = {}
        for shard in self._shards:
            limits, said = (mapping(self._redis.hgetall(key)) for key in _limits_keys(shard))
            lost |= {field: value for field, value in said.items() if field not in limits}
        return lost

    def put_back(self) -> None:
        """Restore limits and pauses that were lost, unless they were lifted meanwhile."""
        for shard in self._shards:
            for field, value in self.copies().get(ledger_keys.run_limits(shard), {}).items():
                self._redis.hsetnx(ledger_keys.run_limits(shard), field, value)

    def _set(self, shard: int, field: str, value: Arg, *, wake: Sequence[str] = ()) -> bool:
        value = "" if value == "default" else value
        changed = self._scripts.run("set_limit", _limits_keys(shard), [json.dumps(list(wake)), field, value])
        return bool(changed)

    def _share(self, most: int, shard: int) -> int:
        return most // len(self._shards) + (shard < most % len(self._shards))

    def _whole(self, agent: str, share: int) -> int:
        """The limit that a share of a shard is of."""
        if len(self._shards) == 1:
            return share
        found = self.agents([agent])[0].limit
        return share if found is None else found

    def _at_work(self, shard: int, whose: str) -> int:
        return int(self._redis.hget(ledger_keys.at_work(shard), whose) or 0)


def _limits_keys(shard: int) -> list[str]:
    return [ledger_keys.run_limits(shard), ledger_keys.limits_said(shard)]


def _check_tree_limit(most: Most) -> None:
    if isinstance(most, int) and most < 1:
        raise InputError("a limit is at least 1")


def _tree_limit(limits: Mapping[str, str], root: str) -> int | None:
    for field in (f"tree:{root}", "trees"):
        if field in limits:
            return _number(limits[field])
    return None


def _number(value: str | None) -> int | None:
    return int(value) if value is not None and value.isdigit() else None
