"""Evidence of launches in a tree, from other sources than the records of the parents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final

import redis

from orchestrator.audit.proof import Proof
from orchestrator.audit.reader import AuditReader, LaunchRecords, Parent
from orchestrator.envelope.message_types import SESSION_STARTING
from orchestrator.ids import shard_of
from orchestrator.ledger import Session
from orchestrator.redisdb import keys
from orchestrator.streams import AUDIT_GROUP, RedisStreams, all_streams

#: Milliseconds that the times of a session and of its launch may differ, which one step has written.
_APART_MS: Final = 1000


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The launches of one tree."""

    #: By the audit trail; None: no trail is at hand, or it says nothing for certain.
    launches: LaunchRecords | None = None
    #: Parent → the sessions of the tree that name it.
    children: Mapping[str, AbstractSet[str]] = field(default_factory=dict)
    #: Whether the trail is in one database, so that a launch which it lacks was not made.
    whole_trail: bool = True
    #: Sessions of the tree whose launch no audit writer may have written yet.
    unwritten: AbstractSet[str] = frozenset()


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
    launches = audit.launches(correlation, parents=parents, proof=proof)
    known = launches.messages if launches is not None else frozenset()
    return Evidence(
        launches=launches,
        children=children,
        whole_trail=not other_trails(client, audit),
        unwritten=_unwritten(
            client, root, [m for m in members if m.parent and m.message.lower() not in known]
        ),
    )


def _unwritten(client: redis.Redis, root: str, lacking: Sequence[Session]) -> set[str]:
    """Return those of the sessions that were launched when, or after, the oldest launch was that no audit writer has
    written.
    """
    if not lacking:
        return set()
    shard = shard_of(root)
    streams = [one for one in all_streams(shard + 1, sorted(SESSION_STARTING)) if one.shard == shard]
    rows = RedisStreams(client).backlog(AUDIT_GROUP, streams)
    since = [ms for row in rows for ms in (row.unread_since_ms, row.pending_since_ms) if ms is not None]
    return {one.id for one in lacking if since and one.created_ms + _APART_MS >= min(since)}


def other_trails(client: redis.Redis, audit: AuditReader) -> int:
    """Return how many other audit databases hold a part of the trail."""
    heads: Any = client.hkeys(keys.audit_heads())
    return len({name.decode() for name in heads} - {audit.store.id})
