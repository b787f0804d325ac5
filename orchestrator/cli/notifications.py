"""``orchestra notifier`` runs one notifier; ``orchestra notifications`` tries targets and looks after what was given up."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from orchestrator.cli.options import SubCommands, json_option, stack_options
from orchestrator.cli.output import print_answer, print_json, say
from orchestrator.cli.stack import open_stack
from orchestrator.display.text import counted
from orchestrator.errors import ConfigurationError, InputError

if TYPE_CHECKING:
    import redis

    from orchestrator.cli.documents.stack import DeliveredNotification
    from orchestrator.config.settings import Settings
    from orchestrator.notifier.service import DeadNotification

_NO_TARGET = "there is no target: set notify_url or notify_command"


@click.command("notifier")
@stack_options
def notifier(settings: Settings) -> None:
    """Run one notifier: tells a webhook or a command of questions, approvals, ends and dead callbacks, at least once."""
    from orchestrator.notifier import build_notifier
    from orchestrator.runtime.service import serve

    if not settings.notifies:
        raise ConfigurationError(_NO_TARGET)
    serve("notifier", build_notifier, settings, background=True)


@click.group("notifications", cls=SubCommands)
def notifications() -> None:
    """Try notifications; list, retry and drop those that were given up."""


@notifications.command("list")
@json_option
@stack_options
def list_(*, settings: Settings, as_json: bool) -> None:
    """List the notifications that were given up, oldest first, each with its reason."""
    from orchestrator.cli.documents.stack import DeadNotifications

    with _dead(settings) as (_, found):
        pass
    if as_json:
        print_json(DeadNotifications.of({"notifications": found}))
        return
    for one in found:
        tries = counted(one.attempts, "attempt")
        say(
            f"{one.id}  {one.target}  {one.event.get('type', '')}  {one.event.get('subject', '')}  {tries}: {one.reason}"
        )
    if not found:
        say("no notification was given up", err=True)


@notifications.command("test")
@json_option
@stack_options
def test(*, settings: Settings, as_json: bool) -> None:
    """Send a test event to every target now; exit with 1 if one does not take it. Needs no stack."""
    from orchestrator.cli.documents.stack import DeliveredNotification
    from orchestrator.notifier import EVENTS, CloudEvent, targets_of

    now_ms = time.time_ns() // 1_000_000
    event = CloudEvent(id=f"test-{now_ms}", type=EVENTS["test"], subject="", time_ms=now_ms, data={})
    targets = targets_of(settings)
    if not targets:
        raise ConfigurationError(_NO_TARGET)
    done = []
    for target in targets:
        reason = target.deliver(event.id, event.encode())
        done.append(
            DeliveredNotification(notification="", target=target.name, delivered=not reason, reason=reason)
        )
    _report(done, as_json=as_json)


@notifications.command("retry")
@click.argument("notification", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every one.")
@json_option
@stack_options
def retry(*, settings: Settings, notification: tuple[str, ...], every: bool, as_json: bool) -> None:
    """Deliver notifications that were given up again; exit with 1 if a target refuses one. Delivered ones are dropped."""
    from orchestrator.cli.documents.stack import DeliveredNotification
    from orchestrator.notifier import targets_of
    from orchestrator.notifier.service import drop_dead

    targets = {target.name: target for target in targets_of(settings)}
    done = []
    with _dead(settings) as (client, found):
        for one in _chosen(found, notification, every=every):
            target = targets.get(one.target)
            reason = (
                f"no {one.target} is set"
                if target is None
                else target.deliver(str(one.event.get("id", "")), one.body)
            )
            if not reason:
                drop_dead(client, one.id)
            done.append(
                DeliveredNotification(
                    notification=one.id, target=one.target, delivered=not reason, reason=reason
                )
            )
    _report(done, as_json=as_json)


@notifications.command("drop")
@click.argument("notification", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every one.")
@json_option
@stack_options
def drop(*, settings: Settings, notification: tuple[str, ...], every: bool, as_json: bool) -> None:
    """Drop notifications that were given up."""
    from orchestrator.cli.documents.stack import DroppedNotifications
    from orchestrator.notifier.service import drop_dead

    with _dead(settings) as (client, found):
        chosen = _chosen(found, notification, every=every)
        for one in chosen:
            drop_dead(client, one.id)
    document = DroppedNotifications(notifications=tuple(one.id for one in chosen))
    print_answer(document, f"dropped {counted(len(chosen), 'notification')}", as_json=as_json)


@contextmanager
def _dead(settings: Settings) -> Iterator[tuple[redis.Redis, list[DeadNotification]]]:
    from orchestrator.notifier.service import dead_notifications

    with open_stack(settings, "notifications") as parts:
        yield parts.redis, dead_notifications(parts.redis, settings.shards)


def _chosen(found: list[DeadNotification], names: tuple[str, ...], *, every: bool) -> list[DeadNotification]:
    if every == bool(names):
        raise click.UsageError(
            "name notifications, as `orchestra notifications list` shows them, or give --all"
        )
    known = {one.id: one for one in found}
    if missing := [name for name in names if name not in known]:
        raise InputError(f"no notification {missing[0]!r} was given up; see `orchestra notifications list`")
    return found if every else [known[name] for name in dict.fromkeys(names)]


def _report(done: Iterable[DeliveredNotification], *, as_json: bool) -> None:
    from orchestrator.cli.documents.stack import DeliveredNotifications

    report = DeliveredNotifications(deliveries=tuple(done))
    if as_json:
        print_json(report)
    for one in () if as_json else report.deliveries:
        about = f"{one.notification}: " if one.notification else ""
        say(f"{about}{one.target} {'has taken it' if one.delivered else f'has not taken it: {one.reason}'}")
    if not all(one.delivered for one in report.deliveries):
        sys.exit(1)
