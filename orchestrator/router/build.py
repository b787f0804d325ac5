"""A router from its settings and the parts of a stack."""

from __future__ import annotations

from collections.abc import Sequence

import redis

from orchestrator.bootstrap import assemble
from orchestrator.clock import Clock, SystemClock
from orchestrator.dispatch import Dispatcher, build_celery
from orchestrator.policy.routing import RoutingTable
from orchestrator.router.acts import Acts, Limits
from orchestrator.router.intake import Intake
from orchestrator.router.service import RECLAIM_IDLE_MS, Router
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
    reclaim_idle_ms: int = RECLAIM_IDLE_MS,
) -> Router:
    """A router that consumes ``types``; connects to nothing but ``client`` until it has a run to send.

    Raises:
        ConfigurationError: the routing table in the settings is wrong.
    """
    parts = assemble(client, settings)
    table = RoutingTable()
    limits = Limits()
    intake = Intake(
        keys=parts.keyring,
        find_agent=parts.agents.get,
        table=table,
        clock=clock or SystemClock(),
        signatures_required=settings.signatures_required,
        max_bytes=settings.max_message_bytes,
        max_age_ms=limits.max_age_ms,
    )
    return Router(
        ledger=parts.ledger,
        streams=RedisStreams(client),
        intake=intake,
        acts=Acts(parts.ledger, limits=limits),
        undelivered=Undelivered(parts.ledger, parts.letters),
        dispatcher=dispatcher or Dispatcher(build_celery(settings)),
        agents=parts.agents,
        consumer=consumer,
        sources=all_streams(settings.shards, types),
        reclaim_idle_ms=reclaim_idle_ms,
    )
