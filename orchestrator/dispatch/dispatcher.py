"""Sends runs to workers: Celery messages by task name, carrying ids only.

Runs that become ready together travel together: a message names its first run as if it stood alone and the
others under ``more``. A worker takes them one after the other and gives back what would have to wait, so
that bundling saves the broker work and delays nothing for long.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import redis
from celery import Celery
from kombu.exceptions import KombuError

from orchestrator.dispatch.celery_app import RESUME_TASK, START_TASK
from orchestrator.dispatch.unacked import RUN_HEADER
from orchestrator.errors import ServerUnavailable
from orchestrator.ids import derived_uuid
from orchestrator.ledger import Dispatch
from orchestrator.urls import redact_url

#: Runs in one message at most.
BUNDLE: Final = 32
#: Seconds after a failure in which the broker is taken to be still away, so that nobody waits for it again and again.
AWAY_S: Final = 1.0
#: Characters of a message's arguments that Flower is shown.
SHOWN_CHARS: Final = 1000
#: Messages that runs for one queue are spread over before they are bundled, so that every slot gets some.
SPREAD: Final = 2
#: What publishing ends in when the broker is away, or a Redis that takes no writes. The last comes of kombu itself: it
#: repairs a connection that broke while a queue was declared, and goes on with a channel of the old one.
_OUTAGES: Final = (KombuError, OSError, redis.RedisError, AttributeError)


def run_task_id(run: str) -> str:
    """The Celery task id of a run's message: the same each time it is sent."""
    return derived_uuid("run", run)


class Dispatcher:
    """Publishes runs to their queues. Safe to share between threads."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._away_until = 0.0
        self._why_away = ""

    def send(self, dispatch: Dispatch, queue: str) -> None:
        """Send one run to the workers of ``queue``.

        Raises:
            ServerUnavailable: the broker does not answer; the ledger's sweep sends the run later.
        """
        self.send_all([(dispatch, queue)])

    def send_all(self, runs: Iterable[tuple[Dispatch, str]]) -> None:
        """Send several runs at once.

        Raises:
            ServerUnavailable: the broker does not answer; which of them were sent is not known.
        """
        if time.monotonic() < self._away_until:
            raise self._unavailable(self._why_away)
        bundles = list(_bundles(runs))
        try:
            try:
                self._publish(bundles, at_once=len(bundles) > 1)
            except _OUTAGES as error:
                # A connection that broke is not repaired for many messages at once, but for each alone; and where it
                # was repaired halfway, only a new one is of use.
                if len(bundles) == 1 and not isinstance(error, AttributeError):
                    raise
                self._publish(bundles, at_once=False)
        except _OUTAGES as error:
            self._away_until, self._why_away = time.monotonic() + AWAY_S, str(error)
            raise self._unavailable(str(error)) from error

    def _unavailable(self, why: str) -> ServerUnavailable:
        return ServerUnavailable(f"the Celery broker at {redact_url(str(self._app.conf.broker_url))}", why)

    def _publish(self, bundles: Sequence[tuple[str, Sequence[Dispatch]]], *, at_once: bool) -> None:
        # Left with an error, the producer gives its connection up.
        with (
            self._app.amqp.producer_pool.acquire(block=True) as producer,
            _at_once(producer) if at_once else contextlib.nullcontext(),
        ):
            for queue, bundle in bundles:
                self._send(producer, queue, bundle)

    def _send(self, producer: Any, queue: str, bundle: Sequence[Dispatch]) -> None:
        first = bundle[0]
        kwargs: dict[str, Any] = {"agent": first.agent, "session": first.session, "run": first.run}
        if len(bundle) > 1:
            kwargs["more"] = [[one.agent, one.session, one.run] for one in bundle[1:]]
        self._app.send_task(
            START_TASK if first.cause == "start" else RESUME_TASK,
            kwargs=kwargs,
            task_id=run_task_id(first.run),
            # What Flower shows; Celery's own way to write it takes longer than all the rest.
            kwargsrepr=_shown(kwargs),
            headers={RUN_HEADER: first.run},
            queue=queue,
            producer=producer,
            ignore_result=True,
        )


def _shown(kwargs: dict[str, Any]) -> str:
    text = repr(kwargs)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


def _at_once(producer: Any) -> contextlib.AbstractContextManager[Any]:
    """One round trip for several messages, where kombu and the broker can do that."""
    batch = getattr(producer, "batch", None)
    if batch is None:
        return contextlib.nullcontext()
    at_once: contextlib.AbstractContextManager[Any] = batch()
    return at_once


def _bundles(runs: Iterable[tuple[Dispatch, str]]) -> Iterator[tuple[str, list[Dispatch]]]:
    """The messages to send: runs of one task for one queue, in their order."""
    groups: dict[tuple[str, bool], list[Dispatch]] = {}
    for dispatch, queue in runs:
        groups.setdefault((queue, dispatch.cause == "start"), []).append(dispatch)
    for (queue, _), group in groups.items():
        size = min(BUNDLE, max(1, len(group) // SPREAD))
        for start in range(0, len(group), size):
            yield queue, group[start : start + size]
