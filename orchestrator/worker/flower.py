"""What Flower is started with unless somebody says otherwise: on loopback, and behind a password.

By itself Flower listens on every address, and shows prompts and answers to everybody. After an outage of the
broker it stays away for as long again, since its pauses double.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import MutableMapping, Sequence
from typing import Any, Final

from celery import Celery

from orchestrator.dispatch.connections import LONGEST_PAUSE_S

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
    """Whether a command line of Celery starts Flower."""
    return "flower" in _options(arguments)


def _options(arguments: Sequence[str]) -> set[str]:
    return {argument.partition("=")[0].lstrip("-").replace("_", "-") for argument in arguments}


def guard_flower(arguments: Sequence[str], environ: MutableMapping[str, str]) -> str | None:
    """Set what the command line and the environment leave open; returns what to tell the user, if anything."""
    if not is_flower(arguments):
        return None
    options = _options(arguments)
    if "address" not in options:
        environ.setdefault("FLOWER_ADDRESS", "127.0.0.1")
    if "tasks-columns" not in options:
        environ.setdefault("FLOWER_TASKS_COLUMNS", TASKS_COLUMNS)
    chosen = {"basic-auth", "auth", "auth-provider", "conf"} & options
    if chosen or {"FLOWER_BASIC_AUTH", "FLOWER_AUTH", "FLOWER_CONF"} & environ.keys():
        return None
    password = secrets.token_urlsafe(16)
    environ["FLOWER_BASIC_AUTH"] = f"{USER}:{password}"
    return f"Flower asks for user {USER} and password {password}; set FLOWER_BASIC_AUTH to choose them"
