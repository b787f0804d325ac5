"""The Celery app of a stack: an executor of tasks by name, and nothing else.

No chords, no countdowns, only results of roots. A message means that an agent has work; the ledger has the work.
Delivering it twice or losing it is harmless: a run is claimed once, and the sweep sends another.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Annotated, Any, Final

from celery import Celery
from celery.app.amqp import AMQP
from kombu.compression import decompress
from kombu.connection import Connection as KombuConnection
from kombu.transport import redis
from kombu.utils.json import loads
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.config.settings import Settings
from orchestrator.config.stack import resolve_redis_url
from orchestrator.config.urls import kombu_url
from orchestrator.dispatch.dispatcher import StackControl
from orchestrator.log import get_logger

Text = Annotated[str, Field(min_length=1)]
Number = int | float
_SHAPE: Final = ConfigDict(strict=True, extra="ignore")


class _Delivery(BaseModel):
    model_config = _SHAPE
    exchange: str
    routing_key: str


class _Properties(BaseModel):
    model_config = _SHAPE
    delivery_tag: Text
    delivery_info: _Delivery
    body_encoding: Annotated[str, Field(pattern="^base64$")] | None = None
    correlation_id: str | None = None
    reply_to: str | None = None


class _Task(BaseModel):
    """A task as both versions of Celery's protocol describe it."""

    model_config = _SHAPE
    task: Text
    id: Text
    eta: str | None = None
    expires: str | Number | None = None
    retries: int | None = None
    timelimit: Annotated[list[Number | None], Field(min_length=2, max_length=2)] | None = None


class _Headers(_Task):
    lang: str | None = None
    origin: str | None = None
    shadow: str | None = None
    root_id: str | None = None
    parent_id: str | None = None
    group: str | None = None
    group_index: int | None = None
    argsrepr: str | None = None
    kwargsrepr: str | None = None
    ignore_result: bool | None = None
    replaced_task_nesting: int | None = None
    stamped_headers: list[str] | None = None
    stamps: dict[str, Any] | None = None
    compression: str | None = None


class _Embedded(BaseModel):
    model_config = _SHAPE
    callbacks: list[dict[str, Any]] | None = None
    errbacks: list[dict[str, Any]] | None = None
    chain: list[dict[str, Any]] | None = None
    chord: dict[str, Any] | None = None


class _Call(BaseModel):
    model_config = _SHAPE
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    embed: _Embedded | None = None


class _OldTask(_Task, _Call, _Embedded):
    pass


class _Message(BaseModel):
    model_config = _SHAPE
    body: str
    content_type: Annotated[str, Field(alias="content-type", pattern="^application/json$")]
    content_encoding: Annotated[str, Field(alias="content-encoding", pattern="^(?i:utf-?8)$")]
    headers: dict[str, Any] | None = None
    properties: _Properties


def flaw(octets: bytes) -> str | None:
    """Return what is wrong with the bytes of a message, without quoting it; None if Celery can read it."""
    try:
        message = _Message.model_validate(_read(octets))
        headers = message.headers or {}
        body = base64.b64decode(message.body) if message.properties.body_encoding else message.body.encode()
        if "compression" in headers:
            body = decompress(body, headers["compression"])  # type: ignore[no-untyped-call]
        if "task" in headers:
            _Headers.model_validate(headers)
            _Call.model_validate(dict(zip(("args", "kwargs", "embed"), _read(body), strict=True)))
        else:  # the first version of the protocol, which other languages may speak
            _OldTask.model_validate(_read(body))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'the whole'}: {first['msg']}"
    except Exception as error:  # noqa: BLE001  (decoders of kombu's raise whatever the values in it provoke)
        return f"{type(error).__name__} on reading it"
    return None


def _read(octets: bytes) -> Any:
    """As kombu will read it, its own forms of dates and the like included."""
    return loads(octets.decode())  # type: ignore[no-untyped-call]


#: The longest pause in seconds between two tries to reach a broker that is away, of a worker or of Flower.
#: Celery's own pauses grow to 30 s, and no setting changes that.
LONGEST_PAUSE_S: Final = 5

_log = get_logger()


class Channel(redis.Channel):
    """Kombu's channel, with clients that leave out malformed messages."""

    @cached_property
    def client(self) -> Any:
        """The client that waits for messages."""
        return _without_junk(super().client)

    @contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        """A client for everything else."""
        with super().conn_or_acquire(client) as found:
            yield _without_junk(found)


class Transport(redis.Transport):
    """Kombu's transport, with these channels."""

    Channel = Channel


class Connection(KombuConnection):
    """Kombu's connection, with this transport for Redis and shorter pauses between tries to reach any broker."""

    def ensure_connection(
        self,
        errback: Any = None,
        max_retries: int | None = None,
        interval_start: float = 1,
        interval_step: float = 1,
        interval_max: float = LONGEST_PAUSE_S,
        **options: Any,
    ) -> Any:
        """Connect; try again for as long as the caller wants."""
        return super().ensure_connection(  # type: ignore[no-untyped-call]
            errback, max_retries, interval_start, interval_step, interval_max, **options
        )

    def get_transport_cls(self) -> Any:
        """Return the transport for the broker."""
        found = super().get_transport_cls()  # type: ignore[no-untyped-call]
        return Transport if found is redis.Transport else found


def _without_junk(client: Any) -> Any:
    """Return the client, which drops entries of queues that Celery cannot read."""

    def taken_from(answer: list[bytes] | None) -> tuple[bytes, bytes] | None:
        return (answer[0], answer[1]) if answer and _is_readable(answer[1], queue=answer[0]) else None

    def taken(answer: Any) -> Any:
        return answer if not isinstance(answer, bytes) or _is_readable(answer) else None

    client.set_response_callback("BRPOP", taken_from)
    client.set_response_callback("RPOP", taken)
    return client


def _is_readable(octets: bytes, *, queue: bytes = b"") -> bool:
    reason = flaw(octets)
    if reason is not None:
        # Nobody waits for it: if it was a message of ours, the sweep sends another.
        _log.error(
            "message-not-understood",
            queue=queue.decode(errors="replace"),
            octets=len(octets),
            begins=repr(octets[:80]),
            reason=reason,
        )
    return reason is None


class Amqp(AMQP):
    """Makes the connections of a Celery app."""

    Connection = Connection


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
        # A busy worker must not keep the wake-up that would wake another one. Celery can do that on Redis only;
        # elsewhere the sweep sends another.
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
