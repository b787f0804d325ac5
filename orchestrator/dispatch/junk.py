"""Which messages of a Redis broker Celery can read; at the others a worker would end.

Kombu and Celery take the outer shape of a message on trust, and an error there ends the worker that met it, and the
next one that gets the message. A program that may write to the broker may not end workers, so the shape is checked first.
What a task is called with is not judged here: an error in that is the task's own.
It takes some 30 µs for the message of a run.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any, Final

from kombu.compression import decompress
from kombu.utils.json import loads
from pydantic import BaseModel, ConfigDict, Field, ValidationError

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
