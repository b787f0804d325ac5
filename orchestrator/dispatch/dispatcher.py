"""Notifies workers that an agent has ready runs: a Celery message by task name, which wakes a slot that sleeps.

The ledger has the runs and their order. The sweep sends a lost message again; a message that comes twice costs a look.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

import redis
from celery import Celery
from celery.app.control import Control
from kombu.connection import Connection
from kombu.exceptions import KombuError

from orchestrator import machine
from orchestrator.config.urls import kombu_url, redact_url, redis_py_url
from orchestrator.errors import ConfigurationError, ServerUnavailable
from orchestrator.log import in_span
from orchestrator.redisdb.client import connect

#: The Celery tasks of a stack, by name.
START_TASK: Final = "orchestrator.start_session"
RESUME_TASK: Final = "orchestrator.resume_session"
#: What wakes a slot that sleeps: it takes ready runs from the ledger until there is none.
WORK_TASK: Final = "orchestrator.work"
#: Seconds after a failure in which the broker counts as away, so that not every wake-up waits for it.
AWAY_S: Final = 1.0
#: The trace context of notifications, without the flag "sampled": where somebody instruments Celery, a notification would be a
#: trace of its own beside the spans of the runs that it leads to, and a sampler that heeds its parent drops it.
_NOT_TRACED: Final = f"00-{1:032x}-{1:016x}-00"
#: Errors of publishing while the broker is away, or is a Redis that takes no writes. The last is kombu's own: it
#: repairs a connection that broke while a queue was declared, and goes on with a channel of the old connection.
_OUTAGES: Final = (KombuError, OSError, redis.RedisError, AttributeError)


class Dispatcher:
    """Notifies workers. Safe to share between threads."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._away_until = 0.0
        self._why_away = ""

    def wake(self, agents: Iterable[tuple[str, str]]) -> None:
        """Tell the workers of each agent that it has ready runs; ``agents`` are pairs of agent and queue.

        Raises:
            ServerUnavailable: the broker does not answer; the sweep wakes them later.
        """
        to_wake = dict.fromkeys(agents)
        if not to_wake:
            return
        if machine.monotonic() < self._away_until:
            raise self._unavailable(self._why_away)
        try:
            # Left with an error, the producer gives its connection up.
            with self._app.amqp.producer_pool.acquire(block=True) as producer, in_span(_NOT_TRACED):
                for agent, queue in to_wake:
                    self._app.send_task(
                        WORK_TASK,
                        kwargs={"agent": agent},
                        queue=queue,
                        producer=producer,
                        ignore_result=True,
                        headers={"traceparent": _NOT_TRACED},
                    )
        except _OUTAGES as error:
            self._away_until, self._why_away = machine.monotonic() + AWAY_S, str(error)
            raise self._unavailable(str(error)) from error

    def _unavailable(self, why: str) -> ServerUnavailable:
        return ServerUnavailable(f"the Celery broker at {redact_url(str(self._app.conf.broker_url))}", why)


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
                raise ServerUnavailable(f"the Celery broker at {shown}", _reason(error)) from error
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


#: What to use instead of a limit of Celery's, by what it limits.
_INSTEAD: Final = {
    "rate": "limit an agent with `orchestra agents limit AGENT N`",
    "time": "set `run_time_limit_s`, or `time_limit_s` of an agent",
}


def refusal(task_name: str, *, what: Literal["rate", "time"]) -> str | None:
    """Return why a task cannot have a limit of its rate or time; None if it can."""
    if task_name == WORK_TASK:
        return (
            f"the {what} of {WORK_TASK} is not limited: it only wakes workers, which take runs from the ledger; "
            f"{_INSTEAD[what]}"
        )
    if task_name == START_TASK and what == "rate":
        return (
            f"the rate of {START_TASK} is not limited: a submission that a worker holds back keeps it from taking the "
            f"message that wakes it; {_INSTEAD[what]}"
        )
    if task_name == RESUME_TASK:
        return f"{RESUME_TASK} is a name under which runs are shown, and no task of its own; {_INSTEAD[what]}"
    return None


#: What Celery's own programs send, and do without an answer: a worker that starts, whoever reads task events.
_SENT_ANYWAY: Final = frozenset({"hello", "heartbeat", "enable_events", "disable_events"})
#: What to use where workers obey no command, by its name.
_USE: Final = {
    "revoke": "orchestra stop SESSION",
    "rate_limit": "orchestra agents limit AGENT N",
    "time_limit": "the setting `run_time_limit_s`",
}


class StackControl(Control):
    """Celery's remote control; commands that would not do what they promise are refused."""

    def broadcast(self, command: str, *args: Any, **kwargs: Any) -> Any:
        """Send a command to the workers: that of `celery inspect`, `celery control`, or a method of this class.

        Raises:
            ConfigurationError: workers do not obey remote control.
        """
        if command not in _SENT_ANYWAY and not self.app.conf.worker_enable_remote_control:
            raise ConfigurationError(
                "workers do not obey Celery's remote control, which knows no authentication: use "
                f"{_USE.get(command, '`orchestra agents`, `sessions` and `doctor`')}, or set "
                "`remote_control` if every program that reaches the broker may command the workers"
            )
        return super().broadcast(command, *args, **kwargs)

    def rate_limit(self, task_name: str, rate_limit: Any, *args: Any, **kwargs: Any) -> Any:
        """Limit the rate of another program's task.

        Raises:
            ConfigurationError: workers do not obey remote control, or the task cannot be limited so.
        """
        _refuse(refusal(task_name, what="rate"))
        return super().rate_limit(task_name, rate_limit, *args, **kwargs)

    def time_limit(self, task_name: str, *args: Any, **kwargs: Any) -> Any:
        """Limit the time of a submission, or of another program's task.

        Raises:
            ConfigurationError: as :meth:`rate_limit`.
        """
        _refuse(refusal(task_name, what="time"))
        return super().time_limit(task_name, *args, **kwargs)


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise ConfigurationError(reason)
