"""`orchestra service router`, `callbacks`, `reaper`, `audit`, `notifier` and `worker`: one process of a stack in the foreground."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.exit_codes import Exit
from orchestrator.cli.options import agents_options, stack_options
from orchestrator.cli.output import say

if TYPE_CHECKING:
    import redis

    from orchestrator.config.settings import Settings
    from orchestrator.router.router import Router


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

    wanted = _message_types(types)

    def build(client: redis.Redis, settings: Settings) -> Router:
        from orchestrator.agents.registry import REAPER, ROUTER
        from orchestrator.bootstrap import build_container
        from orchestrator.router.build import build_router
        from orchestrator.streams import consumer_name

        build_container(client, settings).keyring.require(ROUTER, REAPER)
        return build_router(client, settings, consumer=consumer_name("router"), types=wanted)

    serve("router", build, settings)


def _message_types(text: str | None) -> tuple[str, ...]:
    """Return the message types in a list separated by commas; None: all.

    Raises:
        click.BadParameter: one of them is no message type.
    """
    from orchestrator.envelope.message_types import MESSAGE_TYPES

    if text is None:
        return tuple(MESSAGE_TYPES)
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    unknown = [name for name in names if name not in MESSAGE_TYPES]
    if unknown or not names:
        raise click.BadParameter(
            f"{', '.join(unknown) or 'nothing'} is not a message type; choose from {', '.join(MESSAGE_TYPES)}",
            param_hint="--types",
        )
    return names


@click.command("callbacks")
@stack_options
def callbacks(settings: Settings) -> None:
    """Run one callback service: on every session_stop, resume who has callbacks waiting."""
    from orchestrator.deployment.local_stack import build_callbacks
    from orchestrator.runtime.service import serve

    serve("callbacks", build_callbacks, settings)


@click.command("reaper")
@stack_options
def reaper(settings: Settings) -> None:
    """Run one reaper: takes runs from lost workers, notifies workers of ready runs, removes old trees."""
    from orchestrator.deployment.local_stack import build_reaper
    from orchestrator.runtime.service import serve

    serve("reaper", build_reaper, settings)


@click.command("notifier")
@click.option(
    "--test",
    "try_targets",
    is_flag=True,
    help="Send a test event to every target, and end: with 1 if one fails.",
)
@stack_options
def notifier(settings: Settings, *, try_targets: bool) -> None:
    """Run one notifier: tells a webhook or a command of questions, approvals, ends and dead callbacks, at least once."""
    from orchestrator.errors import ConfigurationError
    from orchestrator.notifier import build_notifier
    from orchestrator.runtime.service import serve

    if not settings.notifies:
        raise ConfigurationError("there is no target: set notify_url or notify_command")
    if try_targets:
        _try_targets(settings)
    else:
        serve("notifier", build_notifier, settings, background=True)


def _try_targets(settings: Settings) -> None:
    from orchestrator.machine import SystemClock
    from orchestrator.notifier import EVENTS, CloudEvent, targets_of

    now_ms = SystemClock().now_ms()
    event = CloudEvent(id=f"test-{now_ms}", type=EVENTS["test"], subject="", time_ms=now_ms, data={})
    reasons = {target.name: target.deliver(event.id, event.encode()) for target in targets_of(settings)}
    for name, reason in reasons.items():
        say(f"{name} has not taken it: {reason}" if reason else f"{name} has taken it")
    if any(reasons.values()):
        click.get_current_context().exit(Exit.NO)


@click.command("audit")
@stack_options
def audit_writer(settings: Settings) -> None:
    """Run one audit writer: everything that is published goes into the audit database."""
    from orchestrator.audit import build_writer
    from orchestrator.bootstrap import build_container
    from orchestrator.runtime.service import serve
    from orchestrator.streams import consumer_name

    def make(client: redis.Redis, settings: Settings) -> Any:
        return build_writer(build_container(client, settings), consumer=consumer_name("audit"))

    serve("audit", make, settings, background=True)


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
    from orchestrator.runtime.process import python_module

    overrides = {"agents": agents, "serve": serve, "concurrency": concurrency}
    chosen = resolve(settings.model_copy(update={name: value for name, value in overrides.items() if value}))
    resolve_redis_url(chosen)  # without a stack there is nothing to work for
    command = [
        *(*python_module("orchestrator.worker"), "worker"),
        *("--without-gossip", "--without-mingle", "--loglevel", chosen.log_level.upper(), *celery),
    ]
    os.execve(command[0], command, {**os.environ, **chosen.to_env()})  # noqa: S606  (this very program, in its place)
