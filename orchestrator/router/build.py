"""A router from its settings and the parts of a stack."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import redis

from orchestrator.bootstrap import assemble
from orchestrator.clock import Clock, SystemClock
from orchestrator.dispatch import Dispatcher, build_celery
from orchestrator.envelope.payload import BlobStore
from orchestrator.envelope.sealing import Opener
from orchestrator.redisdb.scripts import Scripts
from orchestrator.router.acts import Acts
from orchestrator.router.conversations import Conversations
from orchestrator.router.foreign import ForeignActs
from orchestrator.router.intake import Intake
from orchestrator.router.parking import Parking
from orchestrator.router.retries import Retries
from orchestrator.router.service import Router
from orchestrator.router.steps import Limits
from orchestrator.router.undelivered import Undelivered
from orchestrator.settings import Settings
from orchestrator.streams import MESSAGE_TYPES, RedisStreams, all_streams


def build_router(
    client: redis.Redis,
    settings: Settings,
    *,
    consumer: str,
    types: Sequence[str] = MESSAGE_TYPES,
    dispatcher: Dispatcher | None = None,
    clock: Clock | None = None,
    reclaim_idle_ms: int | None = None,
    jitter: Callable[[], float] = random.random,
) -> Router:
    """A router that consumes ``types``; connects to nothing but ``client`` until it has a run to send.

    Raises:
        ConfigurationError: the routing table in the settings is wrong.
    """
    parts = assemble(client, settings)
    clock = clock or SystemClock()
    table = parts.routing
    limits = Limits(
        max_age_ms=round(settings.message_max_age_s * 1000),
        conversation_messages=settings.conversation_max_messages,
    )
    conversations = Conversations(client, shards=settings.shards, keep_ms=limits.max_age_ms)
    intake = Intake(
        keys=parts.keyring,
        opener=Opener(BlobStore(client), find_key=parts.keyring.decryption_key),
        find_agent=parts.agents.get,
        table=table,
        clock=clock,
        signatures_required=settings.signatures_required,
        max_bytes=settings.max_message_bytes,
        max_age_ms=limits.max_age_ms,
        max_chain=settings.conversation_max_depth,
    )
    return Router(
        ledger=parts.ledger,
        streams=RedisStreams(client),
        intake=intake,
        acts=Acts(
            parts.ledger,
            conversations,
            ForeignActs(parts.ledger, conversations, table=table, limits=limits),
            find_agent=parts.agents.get,
            limits=limits,
        ),
        undelivered=Undelivered(
            parts.ledger,
            parts.letters,
            table=table,
            find_agent=parts.agents.get,
            conversations=conversations,
        ),
        retries=Retries(table, clock=clock, find_agent=parts.agents.get, jitter=jitter),
        parking=Parking(Scripts(client), shards=range(settings.shards), mark_ms=limits.max_age_ms),
        dispatcher=dispatcher or Dispatcher(build_celery(settings)),
        agents=parts.agents,
        consumer=consumer,
        sources=all_streams(settings.shards, types),
        clock=clock,
        # A router that holds an entry for as long as a worker may be silent is dead.
        reclaim_idle_ms=round(settings.lease_s * 1000) if reclaim_idle_ms is None else reclaim_idle_ms,
    )
