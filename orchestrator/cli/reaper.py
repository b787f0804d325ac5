"""``orchestra reaper``: one copy of the reaper."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from orchestrator.cli.options import stack_options

if TYPE_CHECKING:
    import redis

    from orchestrator.config.settings import Settings
    from orchestrator.reconciler.reaper import Reaper


@click.command("reaper")
@stack_options
def reaper(settings: Settings) -> None:
    """Run one reaper: takes runs from lost workers, rings workers for what none takes, lets old trees expire."""
    from orchestrator.runtime.service import serve

    serve("reaper", make_reaper, settings)


def make_reaper(client: redis.Redis, settings: Settings) -> Reaper:
    """A reaper with everything it needs of this stack."""
    from orchestrator.bootstrap import Container
    from orchestrator.reconciler.reaper import Reaper
    from orchestrator.redisdb.holders import connected_holders
    from orchestrator.router.deadletters.store import DeadLetters, dead_limits
    from orchestrator.runtime.service import living_agents, with_lanes
    from orchestrator.streams import (
        AUDIT_GROUP,
        GROUPS,
        INBOX,
        TRANSITIONS,
        RedisStreams,
        all_streams,
        boxes,
        ledger_streams,
    )

    parts = Container(client, settings)
    streams, known = RedisStreams(client), all_streams(settings.shards)

    def trim() -> int:
        programs = [record.name for record in parts.agents.all() if record.external]
        # What a program's own group has not read yet stays, in the streams of messages as in its inbox.
        dropped = streams.trim(GROUPS, known, also=programs)
        dropped += streams.trim([AUDIT_GROUP], ledger_streams(TRANSITIONS, settings.shards))
        for program in programs:
            dropped += streams.trim([program], boxes(INBOX, [program], settings.shards))
        return dropped + dead.expire(limits)

    dead, limits = DeadLetters(client, shards=settings.shards), dead_limits(settings)
    return Reaper(
        parts.ledger,
        parts.delivery,
        settle=parts.settle,
        trim=trim,
        ring=parts.ring,
        agents=lambda: with_lanes(
            [record.name for record in parts.agents.all() if not record.external], living_agents(client)
        ),
        concurrency=parts.concurrency,
        connected=lambda: connected_holders(client),
        shards=settings.shards,
        lease_s=settings.lease_s,
        interval_s=settings.sweep_interval_s,
    )
