"""Celery's remote control in a stack: commands that the workers would not obey are refused with a reason."""

from __future__ import annotations

from typing import Any, Final, Literal

from celery.app.control import Control

from orchestrator.dispatch.names import RESUME_TASK, START_TASK, WORK_TASK
from orchestrator.errors import ConfigurationError

#: What to use instead of a limit of Celery's, by what it limits.
_INSTEAD: Final = {
    "rate": "limit an agent with `orchestra limit AGENT N`",
    "time": "set `run_time_limit_s`, or `time_limit_s` of an agent",
}


def refusal(task_name: str, *, what: Literal["rate", "time"]) -> str | None:
    """Why a task cannot have a limit of its rate or time; None: it can."""
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


class StackControl(Control):
    """Celery's remote control; commands that would not do what they promise are refused."""

    def revoke(self, task_id: Any, *args: Any, **kwargs: Any) -> Any:
        """Stop the session of a task, or of a run; see `docs/howto/operate.md`.

        Raises:
            ConfigurationError: workers do not obey remote control.
        """
        self._check_on("orchestra stop SESSION")
        return super().revoke(task_id, *args, **kwargs)

    def rate_limit(self, task_name: str, rate_limit: Any, *args: Any, **kwargs: Any) -> Any:
        """Limit the rate of another program's task.

        Raises:
            ConfigurationError: workers do not obey remote control, or the task cannot be limited so.
        """
        self._check(refusal(task_name, what="rate"), "orchestra limit AGENT N")
        return super().rate_limit(task_name, rate_limit, *args, **kwargs)

    def time_limit(self, task_name: str, *args: Any, **kwargs: Any) -> Any:
        """Limit the time of a submission, or of another program's task.

        Raises:
            ConfigurationError: as :meth:`rate_limit`.
        """
        self._check(refusal(task_name, what="time"), "the setting `run_time_limit_s`")
        return super().time_limit(task_name, *args, **kwargs)

    def _check(self, refused: str | None, instead: str) -> None:
        if refused is not None:
            raise ConfigurationError(refused)
        self._check_on(instead)

    def _check_on(self, instead: str) -> None:
        if not self.app.conf.worker_enable_remote_control:
            raise ConfigurationError(
                f"workers do not obey Celery's remote control, which knows no authentication: use {instead}, or set "
                "`remote_control` if every program that reaches the broker may command the workers"
            )
