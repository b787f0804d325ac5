"""The reaper and the callback service of a stack, each with everything that it needs of the stack."""

from __future__ import annotations

from itertools import count

import redis

from orchestrator.agents.registry import REAPER
from orchestrator.bootstrap import Container
from orchestrator.config.settings import Settings
from orchestrator.reconciler.callbacks import CallbackService
from orchestrator.reconciler.reaper import Reaper
from orchestrator.redisdb.holders import connected_holders
from orchestrator.router.deadletters.store import DeadLetters
from orchestrator.streams import (
    AUDIT_GROUP,
    GROUPS,
    INBOX,
    TRANSITIONS,
    DeadLimits,
    RedisStreams,
    all_streams,
    boxes,
    consumer_name,
    ledger_streams,
)
from orchestrator.streams.consumer import GONE_MS

#: Sweeps between two looks for audit writers that are gone.
_TIDY_EVERY = 1000


def build_callbacks(
    client: redis.Redis, settings: Settings, *, parts: Container | None = None, consumer: str = ""
) -> CallbackService:
    """Return a callback service; ``consumer`` is its name in its group."""
    parts = parts or Container(client, settings)
    parts.keyring.require(REAPER)
    return CallbackService(
        client,
        parts.delivery,
        consumer=consumer or consumer_name("callbacks"),
        shards=settings.shards,
        # Handling a batch takes far less than what a lease allows an agent.
        take_over_ms=round(settings.lease_s * 1000 / 3),
    )


def build_reaper(client: redis.Redis, settings: Settings, *, parts: Container | None = None) -> Reaper:
    """Return a reaper that also trims the streams of messages, of the ledger and of external programs."""
    parts = parts or Container(client, settings)
    parts.keyring.require(REAPER)
    streams, known = RedisStreams(client), all_streams(settings.shards)
    dead, limits = DeadLetters(client, shards=settings.shards), DeadLimits.of(settings)
    sweeps = count()

    def trim() -> int:
        if next(sweeps) % _TIDY_EVERY == 0:
            # An audit writer may not: to remove a consumer is to lose what it holds, in whichever group.
            written = [*known, *ledger_streams(TRANSITIONS, settings.shards)]
            streams.forget(AUDIT_GROUP, written, idle_ms=GONE_MS)
        programs = [record.name for record in parts.agents.all() if record.external]
        # What a program's own group has not read yet stays, in the streams of messages as in its inbox.
        dropped = streams.trim(GROUPS, known, also=programs)
        dropped += streams.trim([AUDIT_GROUP], ledger_streams(TRANSITIONS, settings.shards))
        for program in programs:
            dropped += streams.trim([program], boxes(INBOX, [program], settings.shards))
        return dropped + dead.expire(limits)

    return Reaper(
        parts.ledger,
        parts.delivery,
        settle=parts.settle,
        trim=trim,
        ring=parts.ring,
        agents=lambda: [record.name for record in parts.agents.all() if not record.external],
        concurrency=parts.concurrency,
        connected=lambda: connected_holders(client),
        shards=settings.shards,
        lease_s=settings.lease_s,
        interval_s=settings.sweep_interval_s,
    )
