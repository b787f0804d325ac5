"""Who launched whom in a tree, by other sources than the records of the parents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import redis

from orchestrator.audit.proof import Proof
from orchestrator.audit.reader import AuditReader, LaunchRecords, Parent
from orchestrator.ledger import Session
from orchestrator.redisdb import keys


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The launches of one tree."""

    #: By the audit trail; None: no trail is at hand, or it says nothing for certain.
    launches: LaunchRecords | None = None
    #: Parent → the sessions of the tree that name it.
    children: Mapping[str, AbstractSet[str]] = field(default_factory=dict)
    #: Whether the trail is in one database, so that a launch which it lacks was not made.
    whole_trail: bool = True


def evidence(
    client: redis.Redis, audit: AuditReader | None, proof: Proof, root: str, members: Sequence[Session]
) -> Evidence:
    """Gather the evidence about the tree of ``root``, whose sessions are ``members``."""
    children: dict[str, set[str]] = defaultdict(set)
    for member in members:
        if member.parent:
            children[member.parent].add(member.id)
    correlation = next((member.correlation for member in members if member.id == root), "")
    if audit is None or not correlation:
        return Evidence(children=children)
    parents = {
        member.message.lower(): Parent(agent=member.agent, children=children.get(member.id, set()))
        for member in members
    }
    return Evidence(
        launches=audit.launches(correlation, parents=parents, proof=proof),
        children=children,
        whole_trail=not other_trails(client, audit),
    )


def other_trails(client: redis.Redis, audit: AuditReader) -> int:
    """How many audit databases beside the one at hand hold a part of the trail."""
    heads: Any = client.hkeys(keys.audit_heads())
    return len({name.decode() for name in heads} - {audit.store.id})
