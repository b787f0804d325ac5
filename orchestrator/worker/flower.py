"""Flower with safe defaults: on loopback, and behind a password.

By itself Flower listens on every address, and shows prompts and answers to everybody. After an outage of the
broker it stays away for as long again, since its pauses double.
"""

from __future__ import annotations

import logging
import secrets
import sys
from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from celery import Celery

from orchestrator.dispatch.celery_app import LONGEST_PAUSE_S

USER: Final = "orchestra"
#: What a row of the task list shows: the arguments of a run say its agent, session and cause.
TASKS_COLUMNS: Final = "name,kwargs,uuid,state,received,runtime,worker"

_log = logging.getLogger(__name__)


def _say_that_it_waits(error: Exception, pause_s: float) -> None:
    _log.warning("waiting for the broker: %s; trying again in %g s", error, pause_s)


#: How a connection waits for a broker that is away: for ever, in short pauses.
_PATIENT: Final = {
    "errback": _say_that_it_waits,
    "max_retries": None,
    "connect_retries_timeout": None,
    "interval_start": 1,
    "interval_step": 1,
    "interval_max": LONGEST_PAUSE_S,
}


class FlowerApp(Celery):
    """The app that Flower is given. Flower listens for events, from a thread, over what :meth:`connection` returns.

    All else that Flower asks of the broker goes over the pool of connections, and fails at once.
    """

    def connection(self, *args: Any, transport_options: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        """A connection to the broker, made on first use, that waits for a broker which is away."""
        patient = {**_PATIENT, **(transport_options or {})}
        return super().connection(*args, transport_options=patient, **kwargs)


def is_flower(arguments: Sequence[str]) -> bool:
    """Return True if a command line of Celery starts Flower."""
    return "flower" in _options(arguments)


def _options(arguments: Sequence[str]) -> set[str]:
    return {argument.partition("=")[0].lstrip("-").replace("_", "-") for argument in arguments}


def guard_flower(arguments: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """Set what the command line and the environment leave open, and see that nobody looks who has not logged in."""
    if not is_flower(arguments):
        return
    options = _options(arguments)
    if "address" not in options:
        environ.setdefault("FLOWER_ADDRESS", "127.0.0.1")
    if "tasks-columns" not in options:
        environ.setdefault("FLOWER_TASKS_COLUMNS", TASKS_COLUMNS)
    with suppress(ImportError):  # Celery says that Flower is not installed
        import flower.options
        from flower.views.monitor import Metrics
        from tornado.options import options as chosen
        from tornado.web import authenticated

        # By itself Flower shows agents and their tasks there to everybody, whatever it asks for elsewhere.
        Metrics.get = authenticated(Metrics.get)
        chosen.add_parse_callback(_Login(chosen, flower.options.DEFAULT_CONFIG_FILE))


class _Login:
    """Called with the options of Flower each time that they were read: from the command line, then from a file as well."""

    def __init__(self, options: Any, default_file: str) -> None:
        self._options = options
        self._default_file = default_file
        self._calls = 0

    def __call__(self) -> None:
        options = self._options
        self._calls += 1
        if self._calls == 1 and (options.conf != self._default_file or Path(options.conf).exists()):
            return  # the file may have a login, and is read next
        if not (options.basic_auth or options.auth):
            password = secrets.token_urlsafe(16)
            options.basic_auth = [f"{USER}:{password}"]
            print(  # logs are not set up yet
                f"Flower asks for user {USER} and password {password}; set FLOWER_BASIC_AUTH to choose them",
                file=sys.stderr,
            )
