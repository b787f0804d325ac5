"""`orchestra url`: the address of the stack, for programs that connect to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from orchestrator.cli.options import json_option, stack_options
from orchestrator.cli.output import print_json, say

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings


@click.command()
@click.option("--show-password", is_flag=True, help="Print passwords as they are instead of ***.")
@json_option
@stack_options
def url(settings: Settings, *, show_password: bool, as_json: bool) -> None:
    """Print the Redis URL of the stack, without its password; with --json also that of Celery's broker."""
    from orchestrator.cli.documents.stack import Address
    from orchestrator.config.stack import resolve, resolve_redis_url
    from orchestrator.config.urls import redact_url

    redis_url = resolve_redis_url(settings)
    broker_url = resolve(settings).broker_url or redis_url
    if not show_password:
        redis_url, broker_url = redact_url(redis_url), redact_url(broker_url)
    if as_json:
        print_json(Address(redis_url=redis_url, broker_url=broker_url))
    else:
        say(redis_url)
