"""`orchestra worker`: one Celery worker of a stack."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from orchestrator.cli.options import agents_options, stack_options

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings


@click.command(context_settings={"ignore_unknown_options": True})
@agents_options
@click.option("--concurrency", type=click.IntRange(min=1), metavar="N", help="Runs that it executes at once.")
@click.argument("celery", nargs=-1, type=click.UNPROCESSED, metavar="[CELERY_OPTIONS]…")
@stack_options
def worker(
    settings: Settings,
    *,
    agents: tuple[str, ...],
    serve: tuple[str, ...],
    concurrency: int | None,
    celery: tuple[str, ...],
) -> None:
    """Run one worker in the foreground: it serves agents of the stack that runs here, or on --redis-url.

    Further options are those of `celery worker`, such as --pool threads or -Q QUEUE.
    """
    from orchestrator.config.stack import resolve, resolve_redis_url
    from orchestrator.runtime.parent_death import python_module

    given = {"agents": agents, "serve": serve, "concurrency": concurrency}
    chosen = resolve(settings.model_copy(update={name: value for name, value in given.items() if value}))
    resolve_redis_url(chosen)  # without a stack there is nothing to work for
    command = [
        *(*python_module("orchestrator.worker"), "worker"),
        *("--without-gossip", "--without-mingle", "--loglevel", chosen.log_level.upper(), *celery),
    ]
    os.execve(command[0], command, {**os.environ, **chosen.to_env()})  # noqa: S606  (this very program, in its place)
