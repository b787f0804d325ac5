"""``orchestra reaper``: one copy of the reaper."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from orchestrator.cli.options import stack_options

if TYPE_CHECKING:
    import redis

    from orchestrator.reaper import Reaper
    from orchestrator.registry import AgentRegistry
    from orchestrator.settings import Settings


@click.command("reaper")
@stack_options
def reaper(settings: Settings) -> None:
    """Run one reaper: takes runs from lost workers, sends again what was lost, lets old trees expire."""
    from orchestrator.service import serve

    serve("reaper", make_reaper, settings)


def make_reaper(client: redis.Redis, settings: Settings) -> Reaper:
    """A reaper with everything it needs of this stack."""
    from orchestrator.bootstrap import Parts
    from orchestrator.dispatch import DEFAULT_QUEUE
    from orchestrator.dispatch.depth import QueueDepth
    from orchestrator.reaper import Reaper
    from orchestrator.router.deadletters import DeadLetters, dead_limits
    from orchestrator.streams import GROUPS, RedisStreams, all_streams

    parts = Parts(client, settings)
    streams, known = RedisStreams(client), all_streams(settings.shards)
    depth = QueueDepth(parts.celery)
    dead, limits = DeadLetters(client, shards=settings.shards), dead_limits(settings)
    return Reaper(
        parts.ledger,
        parts.delivery,
        settle=parts.settle,
        knows=lambda agent: parts.agents.get(agent) is not None,
        broker_holds=lambda dispatch: depth(parts.queue_of(dispatch.agent) or DEFAULT_QUEUE) > 0,
        trim=lambda: streams.trim(GROUPS, known, also=_foreign(parts.agents)) + dead.expire(limits),
        shards=settings.shards,
        lease_s=settings.lease_s,
        interval_s=settings.sweep_interval_s,
    )


def _foreign(agents: AgentRegistry) -> list[str]:
    """The external programs: what their own groups have not read yet stays in the streams."""
    return [record.name for record in agents.all() if record.foreign]
