"""A router from its settings and the parts of a stack."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import redis

from orchestrator.bootstrap import Parts, assemble
from orchestrator.clock import Clock
from orchestrator.config.settings import Settings
from orchestrator.dispatch import Dispatcher, build_celery
from orchestrator.policy.routing import RoutingTable
from orchestrator.redisdb.scripts import Scripts
from orchestrator.redisdb.server_clock import ServerClock
from orchestrator.router.already_applied import Marking
from orchestrator.router.commands import Limits
from orchestrator.router.conversations import Conversations
from orchestrator.router.deadletters.dead_lettering import Undelivered
from orchestrator.router.deadletters.store import dead_limits
from orchestrator.router.delayed.dependencies import Dependencies
from orchestrator.router.delayed.parked import Parking
from orchestrator.router.delayed.redelivery import Redelivery
from orchestrator.router.delayed.retries import Retries
from orchestrator.router.execution import Execution
from orchestrator.router.external import Inboxes, Outboxes
from orchestrator.router.handlers import Acts
from orchestrator.router.report_buffer import Aside
from orchestrator.router.service import Router
from orchestrator.router.starting import Starting
from orchestrator.router.validation.admission import Admission
from orchestrator.router.validation.validator import Intake
from orchestrator.streams import MESSAGE_TYPES, RedisStreams, all_streams


def limits_of(settings: Settings, table: RoutingTable | None = None) -> Limits:
    """The bounds of the router's own books."""
    return Limits(
        review_ms=round((table or RoutingTable())["review-request"].timeout_s * 1000),
        max_age_ms=round(settings.message_max_age_s * 1000),
        conversation_messages=settings.conversation_max_messages,
    )


def build_intake(parts: Parts, clock: Clock) -> Intake:
    """What judges messages one by one."""
    settings = parts.settings
    return Intake(
        keys=parts.keyring,
        opener=parts.opener,
        find_agent=parts.agents.get,
        names=parts.agents.names,
        table=parts.routing,
        clock=clock,
        signatures_required=settings.signatures_required,
        max_bytes=settings.max_message_bytes,
        max_age_ms=limits_of(settings).max_age_ms,
        max_chain=settings.conversation_max_depth,
    )


def build_acts(parts: Parts) -> Acts:
    """What decides on the step for each message."""
    return Acts(
        parts.ledger,
        find_agent=parts.agents.get,
        table=parts.routing,
        limits=limits_of(parts.settings, parts.routing),
        shards=parts.settings.shards,
    )


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
    aside: Aside | None = None,
) -> Router:
    """A router that consumes ``types``; connects to nothing but ``client`` until it has a run to send.

    ``aside`` is what another one in this process has put aside, before it was built anew.

    Raises:
        ConfigurationError: the routing table in the settings is wrong.
    """
    parts = assemble(client, settings)
    clock = clock or ServerClock(client)
    table = parts.routing
    limits = limits_of(settings)
    conversations = Conversations(client, shards=settings.shards, keep_ms=limits.max_age_ms)
    parking = Parking(Scripts(client), shards=range(settings.shards), mark_ms=limits.max_age_ms)
    dependencies = Dependencies(
        parts.ledger,
        parking,
        clock=clock,
        keep_ms=conversations.keep_ms,
        ignore_failed=settings.failed_dependency == "ignore",
    )
    retries = Retries(
        table,
        clock=clock,
        find_agent=parts.agents.get,
        registration_s=settings.registration_patience_s,
        jitter=jitter,
    )
    intake = build_intake(parts, clock)
    return Router(
        ledger=parts.ledger,
        streams=RedisStreams(client),
        outboxes=Outboxes(
            Scripts(client), read=intake.read, agents=parts.agents.all, table=table, shards=settings.shards
        ),
        admission=Admission(parts.ledger, intake=intake, retries=retries, dependencies=dependencies),
        execution=Execution(
            parts.ledger,
            acts=build_acts(parts),
            starting=Starting(parts.ledger, limits_of(settings, table)),
            marking=Marking(limits),
            inboxes=Inboxes(Scripts(client), most=settings.stream_max_entries),
        ),
        retries=retries,
        redelivery=Redelivery(parking, dependencies=dependencies, agents=parts.agents, clock=clock),
        undelivered=Undelivered(
            parts.ledger,
            parts.letters,
            table=table,
            find_agent=parts.agents.get,
            conversations=conversations,
            limits=dead_limits(settings),
        ),
        dispatcher=dispatcher or Dispatcher(build_celery(settings)),
        agents=parts.agents,
        consumer=consumer,
        sources=all_streams(settings.shards, types),
        # A router that holds an entry for as long as a worker may be silent is dead.
        reclaim_idle_ms=round(settings.lease_s * 1000) if reclaim_idle_ms is None else reclaim_idle_ms,
        aside=Aside() if aside is None else aside,
    )
