"""A router from its settings and the parts of a stack."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import redis

from orchestrator import machine
from orchestrator.bootstrap import Container, build_container
from orchestrator.config.settings import Settings
from orchestrator.dispatch import Dispatcher, build_celery
from orchestrator.envelope.message_types import MESSAGE_TYPES
from orchestrator.machine import Clock
from orchestrator.policy.routing import RoutingTable
from orchestrator.redisdb.all_keys import SharedKeys
from orchestrator.redisdb.raw_pipeline import ServerClock
from orchestrator.redisdb.scripts import Scripts
from orchestrator.router.batching import Marking, Starting
from orchestrator.router.commands import ConversationLimits
from orchestrator.router.deadletters.dead_lettering import DeadLettering
from orchestrator.router.delayed.dependencies import Dependencies
from orchestrator.router.delayed.parked import DelayedMessages
from orchestrator.router.delayed.redelivery import Redelivery, Retries
from orchestrator.router.execution import Execution
from orchestrator.router.external import Outboxes
from orchestrator.router.handlers import Handlers
from orchestrator.router.router import Router
from orchestrator.router.validation.admission import Admission
from orchestrator.router.validation.validator import Validator
from orchestrator.runtime.service import shared_keys_of
from orchestrator.streams import RedisStreams, all_streams


def limits_of(settings: Settings, table: RoutingTable) -> ConversationLimits:
    """The bounds of the router's own records."""
    return ConversationLimits(
        review_ms=round(table["review-request"].timeout_s * 1000),
        max_age_ms=round(settings.message_max_age_s * 1000),
        conversation_messages=settings.conversation_max_messages,
    )


def build_execution(parts: Container, shared: SharedKeys) -> Execution:
    """Return the execution, which decides on the step for each message and carries it out."""
    settings = parts.settings
    limits = limits_of(settings, parts.routing)
    return Execution(
        parts.ledger,
        handlers=Handlers(
            parts.redis,
            parts.ledger,
            find_agent=parts.agents.get,
            table=parts.routing,
            limits=limits,
            shards=settings.shards,
            message_factory=parts.message_factory,
        ),
        starting=Starting(parts.ledger, limits, shared),
        marking=Marking(limits),
        most_in_inbox=settings.stream_max_entries,
        shared=shared,
    )


def build_router(
    client: redis.Redis,
    settings: Settings,
    *,
    consumer: str,
    types: Iterable[str] = MESSAGE_TYPES,
    dispatcher: Dispatcher | None = None,
    clock: Clock | None = None,
    reclaim_idle_ms: int | None = None,
    jitter: Callable[[], float] = machine.random,
) -> Router:
    """A router that consumes ``types``; connects to nothing but ``client`` until it has a run to send.

    Raises:
        ConfigurationError: the routing table in the settings is wrong.
    """
    parts = build_container(client, settings)
    clock = clock or ServerClock(client)
    table = parts.routing
    limits = limits_of(settings, table)
    parking = DelayedMessages(Scripts(client), shards=range(settings.shards), mark_ms=limits.max_age_ms)
    dependencies = Dependencies(
        client,
        parts.ledger,
        parking,
        clock=clock,
        keep_ms=limits.max_age_ms,
        ignore_failed=settings.failed_dependency == "ignore",
    )
    retries = Retries(
        table,
        clock=clock,
        find_agent=parts.agents.get,
        registration_s=settings.registration_patience_s,
        jitter=jitter,
    )
    validator = Validator(parts, clock)
    shared = shared_keys_of(client, settings)
    return Router(
        ledger=parts.ledger,
        streams=RedisStreams(client),
        outboxes=Outboxes(parts, read=validator.read, shared=shared),
        admission=Admission(
            client, validator=validator, retries=retries, dependencies=dependencies, shared=shared
        ),
        execution=build_execution(parts, shared),
        retries=retries,
        redelivery=Redelivery(parking, dependencies=dependencies, agents=parts.agents, clock=clock),
        dead_lettering=DeadLettering(parts),
        dispatcher=dispatcher or Dispatcher(build_celery(settings)),
        agents=parts.agents,
        consumer=consumer,
        sources=all_streams(settings.shards, types),
        shared=shared,
        # A router that holds an entry for as long as a worker may be silent is dead.
        reclaim_idle_ms=round(settings.lease_s * 1000) if reclaim_idle_ms is None else reclaim_idle_ms,
    )
