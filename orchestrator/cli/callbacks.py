"""``orchestra callbacks``: one copy of the callback service."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from orchestrator.cli.options import stack_options

if TYPE_CHECKING:
    import redis

    from orchestrator.config.settings import Settings
    from orchestrator.reconciler.callbacks import CallbackService


@click.command("callbacks")
@stack_options
def callbacks(settings: Settings) -> None:
    """Run one callback service: on every session_stop, resume who has callbacks waiting."""
    from orchestrator.runtime.service import serve

    serve("callbacks", _make, settings)


def _make(client: redis.Redis, settings: Settings) -> CallbackService:
    from orchestrator.bootstrap import Container
    from orchestrator.reconciler.callbacks import CallbackService
    from orchestrator.streams import consumer_name

    return CallbackService(
        client,
        Container(client, settings).delivery,
        consumer=consumer_name("callbacks"),
        shards=settings.shards,
        # Handling a batch takes far less than what a lease allows an agent.
        take_over_ms=round(settings.lease_s * 1000 / 3),
    )
