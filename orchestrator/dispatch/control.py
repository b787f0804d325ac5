"""Celery's remote control in a stack: commands that the workers would not obey are refused with a reason."""

from __future__ import annotations

from typing import Any, Final, Literal

from celery.app.control import Control

from orchestrator.dispatch.names import RESUME_TASK, START_TASK, WORK_TASK
from orchestrator.errors import ConfigurationError

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
