"""Notifies workers that an agent has ready runs: a Celery message by task name, which wakes a slot that sleeps.

The ledger has the runs and their order. The sweep sends a lost message again; a message that comes twice costs a look.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import redis
from celery import Celery
from kombu.exceptions import KombuError

from orchestrator import machine
from orchestrator.config.urls import redact_url
from orchestrator.dispatch.names import WORK_TASK
from orchestrator.errors import ServerUnavailable

#: Seconds after a failure in which the broker counts as away, so that not every ring waits for it.
AWAY_S: Final = 1.0
#: Errors of publishing while the broker is away, or is a Redis that takes no writes. The last is kombu's own: it
#: repairs a connection that broke while a queue was declared, and goes on with a channel of the old connection.
_OUTAGES: Final = (KombuError, OSError, redis.RedisError, AttributeError)


class Dispatcher:
    """Notifies workers. Safe to share between threads."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._away_until = 0.0
        self._why_away = ""

    def ring(self, agents: Iterable[tuple[str, str]]) -> None:
        """Tell the workers of each agent that it has ready runs; ``agents`` are pairs of agent and queue.

        Raises:
            ServerUnavailable: the broker does not answer; the sweep rings later.
        """
        to_ring = dict.fromkeys(agents)
        if not to_ring:
            return
        if machine.monotonic() < self._away_until:
            raise self._unavailable(self._why_away)
        try:
            # Left with an error, the producer gives its connection up.
            with self._app.amqp.producer_pool.acquire(block=True) as producer:
                for agent, queue in to_ring:
                    self._send(agent, queue, producer)
        except _OUTAGES as error:
            self._away_until, self._why_away = machine.monotonic() + AWAY_S, str(error)
            raise self._unavailable(str(error)) from error

    def _unavailable(self, why: str) -> ServerUnavailable:
        return ServerUnavailable(f"the Celery broker at {redact_url(str(self._app.conf.broker_url))}", why)

    def _send(self, agent: str, queue: str, producer: Any) -> None:
        self._app.send_task(
            WORK_TASK, kwargs={"agent": agent}, queue=queue, producer=producer, ignore_result=True
        )
