"""Check of a Celery broker of its own, before anything starts that would wait for it."""

from __future__ import annotations

from typing import Final

from kombu.connection import Connection

from orchestrator.config.urls import kombu_url, redact_url, redis_py_url
from orchestrator.errors import ConfigurationError, ServerUnavailable
from orchestrator.redisdb.client import connect

_CONNECT_TIMEOUT_S: Final = 5


def check_broker(url: str) -> None:
    """Connect to the broker once.

    Raises:
        ConfigurationError: the kind of broker is unknown, or its library is not installed.
        UnsupportedServer: it is a Redis that is too old.
        ServerUnavailable: it does not answer, or refuses the user.
    """
    if ";" not in url:  # kombu takes several brokers, separated by semicolons
        try:
            redis_url = redis_py_url(url)
        except ValueError:
            pass  # another kind of broker
        else:
            connect(redis_url, ledger=False).close()
            return
    shown = redact_url(url)
    try:
        # The kind of broker is looked up with the first use.
        with Connection(kombu_url(url), connect_timeout=_CONNECT_TIMEOUT_S) as connection:  # type: ignore[no-untyped-call]
            outages = (*connection.connection_errors, *connection.channel_errors, OSError)
            try:
                connection.connect()
            except outages as error:
                why = _reason(error)
                raise ServerUnavailable(f"the Celery broker at {shown}", why) from error
    except (KeyError, ValueError, ImportError, NameError) as error:  # a name: of a library that is not here
        raise ConfigurationError(
            f"the Celery broker {shown} cannot be used: {_reason(error)}; "
            "use redis://, rediss://, unix:// or amqp://, or install the library for it"
        ) from error


def _reason(error: Exception) -> str:
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    if text.startswith("Port could not be cast"):  # and then it quotes what may be a part of the password
        return "its port is not a number; write a password percent-encoded (%23 for #, %40 for @)"
    return text.rstrip(".") or type(error).__name__
