"""Waiting policies of a session that is not busy: for which groups it waits, and until when. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.ledger import Item, ItemState
from orchestrator.ledger.snapshot import Snapshot
from orchestrator.machine import isoformat


@dataclass(frozen=True, kw_only=True)
class Group:
    """The delegations of one group, and the rule that they are under."""

    name: str
    rule: Mapping[str, Any]
    launched: int
    owed: int
    queued: int
    dead: int

    @property
    def met(self) -> bool:
        """True if the queued callbacks of the group may resume the session."""
        mode = self.rule.get("mode", "any")
        if mode == "any" or self.owed == 0:
            return True
        k = int(self.rule.get("k") or 1)
        out_of_reach = self.back + self.owed < k <= self.back + self.owed + self.dead
        return mode == "quorum" and (self.back >= k or out_of_reach)

    @property
    def back(self) -> int:
        """Callbacks that are back; of a quorum those that came under it, and none that died by policy."""
        if self.rule.get("mode") != "quorum":
            return self.launched - self.owed
        return self.launched - self.owed - self.dead - int((self.rule.get("base") or {}).get(self.name, 0))

    def __str__(self) -> str:
        mode = self.rule.get("mode", "any")
        wanted = f"a quorum of {self.rule.get('k')}" if mode == "quorum" else mode
        of = f"group {self.name!r}" if self.name else "its children"
        due = self.rule.get("deadline_ms")
        until = f", until {isoformat(int(due))}" if due else ""
        return (
            f"{wanted} of {of}: {self.back} {_are(self.back)} back, {self.owed} {_are(self.owed)} not{until}"
        )


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def groups(snapshot: Snapshot) -> list[Group]:
    """Return every group of delegations that a session has launched for callbacks, by name."""
    policies = snapshot.session.waiting or {}
    launched, owed, queued, dead = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for item in snapshot.items:
        if item.kind == "completion" and item.callback:
            name = str(item.extra.get("group", ""))
            launched[name] += 1
            owed[name] += item.state == ItemState.OWED
            queued[name] += item.state == ItemState.QUEUED
            dead[name] += item.state == ItemState.DEAD
    return [
        Group(
            name=name,
            rule=policies.get(name) or policies.get("") or {},
            launched=launched[name],
            owed=owed[name],
            queued=queued[name],
            dead=dead[name],
        )
        for name in sorted(launched)
    ]


def is_ready(snapshot: Snapshot) -> bool:
    """Return True if anything queued may resume the session now, apart from an open window."""
    queued = [i for i in snapshot.items if i.state == ItemState.QUEUED]
    if any(i.kind != "completion" for i in queued):
        return True
    return any(group.met for group in groups(snapshot) if group.queued)


def still_out(snapshot: Snapshot) -> list[Item]:
    """Return the children that the groups whose policy is not met wait for, in the order of launch."""
    waiting = {group.name for group in groups(snapshot) if group.owed and not group.met}
    return [
        item
        for item in snapshot.items
        if item.kind == "completion"
        and item.callback
        and item.state == ItemState.OWED
        and str(item.extra.get("group", "")) in waiting
    ]


def outstanding(snapshot: Snapshot) -> list[Group]:
    """Return the groups with outstanding callbacks, whatever rule they are under."""
    return [group for group in groups(snapshot) if group.owed]
