"""``orchestra router``: one router."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from orchestrator.cli.options import stack_options

if TYPE_CHECKING:
    import redis

    from orchestrator.config.settings import Settings
    from orchestrator.router import Router


@click.command("router")
@click.option(
    "--types",
    metavar="TYPE,…",
    help="Consume only these message types, separated by commas. Default: all. "
    "Every type needs a router somewhere.",
)
@stack_options
def router(settings: Settings, types: str | None) -> None:
    """Run one router: validates messages and acts on them, the urgent ones first."""
    from orchestrator.runtime.service import serve

    wanted = parse_types(types)

    def make(client: redis.Redis, settings: Settings) -> Router:
        from orchestrator.router import build_router
        from orchestrator.streams import consumer_name

        return build_router(client, settings, consumer=consumer_name("router"), types=wanted)

    serve("router", make, settings)


def parse_types(text: str | None) -> tuple[str, ...]:
    """The message types in a list separated by commas; None: all.

    Raises:
        click.BadParameter: one of them is no message type.
    """
    from orchestrator.streams import MESSAGE_TYPES

    if text is None:
        return MESSAGE_TYPES
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    unknown = [name for name in names if name not in MESSAGE_TYPES]
    if unknown or not names:
        raise click.BadParameter(
            f"{', '.join(unknown) or 'nothing'} is not a message type; choose from {', '.join(MESSAGE_TYPES)}",
            param_hint="--types",
        )
    return names
