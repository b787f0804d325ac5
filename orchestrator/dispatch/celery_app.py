"""The Celery app of a stack: an executor of tasks by name, and nothing else.

No chords, no countdowns, only results of roots. A message means that an agent has work; the ledger has the work.
Delivering it twice or losing it is harmless: a run is claimed once, and the sweep rings again.
"""

from __future__ import annotations

from typing import Final

from celery import Celery

from orchestrator.config.settings import Settings
from orchestrator.config.stack import resolve_redis_url
from orchestrator.config.urls import kombu_url
from orchestrator.dispatch.connections import Amqp
from orchestrator.dispatch.control import StackControl

#: The queue of agents that name none.
DEFAULT_QUEUE: Final = "orchestra"

#: Tries of one publish, and the seconds between them: a router must not hang on a broker that is away.
_PUBLISH_RETRIES = {"max_retries": 2, "interval_start": 0.05, "interval_step": 0.2, "interval_max": 0.5}
_CONNECT_TIMEOUT_S = 5


def build_celery(settings: Settings, *, redis_url: str | None = None, kind: type[Celery] = Celery) -> Celery:
    """Return the app for this stack, of that ``kind``; ``redis_url`` spares looking up the ledger's Redis.

    The broker is ``settings.broker_url``, else the ledger's Redis; results of roots live in the ledger's Redis.

    Raises:
        ConfigurationError: no Redis is set and no stack runs on the data folder.
    """
    ledger_url = redis_url or resolve_redis_url(settings)
    app = kind("orchestra", set_as_current=False, amqp=Amqp, control=StackControl)
    app.conf.update(
        broker_url=kombu_url(settings.broker_url or ledger_url),
        result_backend=kombu_url(ledger_url),
        task_default_queue=DEFAULT_QUEUE,
        task_serializer="json",
        result_serializer="json",
        event_serializer="json",
        accept_content=["json"],
        result_accept_content=["json"],
        enable_utc=True,
        timezone="UTC",
        # A submission counts when it is in the ledger; until then its message is not acknowledged.
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_acks_on_failure_or_timeout=True,
        worker_prefetch_multiplier=1,
        # A busy worker must not keep the ring that would wake another one. Celery can do that on Redis only;
        # elsewhere the sweep rings again.
        worker_disable_prefetch=True,
        task_ignore_result=False,
        task_store_errors_even_if_ignored=False,
        result_expires=round(settings.tree_ttl_s),
        broker_transport_options={
            # A submission that comes again is the same session, so it may come soon.
            "visibility_timeout": max(1, round(settings.lease_s * 4)),
            "unacked_restore_interval": max(1, round(settings.lease_s)),
            "unacked_restore_throttle": 1,
            "socket_connect_timeout": _CONNECT_TIMEOUT_S,
            # For the first connection of a producer, too; a worker's consumer has retries of its own.
            **_PUBLISH_RETRIES,
            "health_check_interval": 30,
        },
        broker_connection_timeout=_CONNECT_TIMEOUT_S,
        broker_connection_retry_on_startup=True,
        # A worker waits for its broker, however long that is away.
        broker_connection_max_retries=None,
        # What a server refuses while it is a replica, full, or has forgotten its scripts, it takes a moment later.
        broker_channel_error_retry=True,
        broker_pool_limit=8,
        redis_socket_connect_timeout=_CONNECT_TIMEOUT_S,
        # redis-py knows no keepalive on a unix socket.
        redis_socket_keepalive=not ledger_url.startswith("unix:"),
        redis_backend_health_check_interval=30,
        redis_retry_on_timeout=True,
        task_publish_retry=True,
        task_publish_retry_policy=_PUBLISH_RETRIES,
        # Seconds from the death of a pool process until it is reported; the ledger refuses a later result.
        worker_lost_wait=0.5,
        # Flower and `celery events` see every task with its agent and session.
        worker_send_task_events=True,
        # It has no authentication: any program that reaches the broker could stop every worker.
        worker_enable_remote_control=settings.remote_control,
        worker_hijack_root_logger=False,
    )
    return app
