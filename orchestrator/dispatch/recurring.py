"""Recurring submissions through Celery beat: each due time is one session, however many beats run."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final, cast

from celery.beat import BeatLazyFunc
from celery.schedules import crontab, schedstate, schedule

from orchestrator.dispatch.celery_app import DEFAULT_QUEUE
from orchestrator.dispatch.names import START_TASK
from orchestrator.errors import InputError

#: Days in which a crontab has a due time, if it ever has one: a 29th of February on a certain day of the week.
_DAYS: Final = 41 * 366


def recurring(
    name: str, when: crontab | timedelta | float, *, agent: str, prompt: str, title: str = ""
) -> dict[str, dict[str, Any]]:
    """An entry for `beat_schedule` that submits a prompt again and again.

        app.conf.beat_schedule = {
            **recurring("nightly", crontab(minute=0, hour=3), agent="lead", prompt="Review the day"),
        }

    Each due time is submitted under the key ``beat:<name>:<due time>``: several beats, and a beat that is started
    again, make one session of it.

    Args:
        name: what tells the schedule from others of the stack. Another prompt needs another name, or is used from the
            next due time on.
        when: a `crontab`, or how long after one the next is due, whole seconds. Times of the latter are the same for
            all beats: those that are divided by it since 1970 in UTC.
        agent: who gets the prompt.
        prompt: what it is to do.
        title: what people call the sessions; by default the beginning of the prompt.

    Raises:
        InputError: the name is empty, or ``when`` is neither.
    """
    if not name:
        raise InputError(
            "recurring(): a schedule needs a name, which tells its sessions from those of others"
        )
    timing = when if isinstance(when, crontab) else Every(_seconds(when))
    kwargs = {"agent": agent, "prompt": prompt, "title": title, "key": BeatLazyFunc(key_of, name, timing)}
    return {
        name: {
            "task": START_TASK,
            "schedule": timing,
            "kwargs": kwargs,
            "options": {"queue": DEFAULT_QUEUE},
        }
    }


class Every(schedule):
    """Due at every whole multiple of so many seconds since 1970 in UTC, so that all beats have the same due times."""

    def __init__(self, seconds: int, app: Any = None) -> None:
        super().__init__(run_every=timedelta(seconds=seconds), app=app)
        self.every_s = seconds

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.every_s,)

    def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
        """Whether a multiple lies between the last run and now, and the seconds until the next one."""
        now_s = self.maybe_make_aware(self.now()).timestamp()
        last_s = self.maybe_make_aware(last_run_at).timestamp()
        due, wait_s = now_s // self.every_s > last_s // self.every_s, self.every_s - now_s % self.every_s
        return cast("tuple[bool, float]", schedstate(is_due=due, next=wait_s))


def key_of(name: str, timing: crontab | Every) -> str:
    """The idempotency key of the submission that is due now."""
    return f"beat:{name}:{last_due(timing, datetime.now(UTC)).isoformat()}"


def last_due(timing: crontab | Every, now: datetime) -> datetime:
    """The latest due time that is not after ``now``, in UTC.

    Raises:
        InputError: there is none: the crontab names a day that does not exist.
    """
    if isinstance(timing, Every):
        return datetime.fromtimestamp(now.timestamp() // timing.every_s * timing.every_s, UTC)
    local = now.astimezone(timing.tz)
    times = [time(hour, minute) for hour in sorted(timing.hour) for minute in sorted(timing.minute)]
    for days in range(_DAYS):
        day = local.date() - timedelta(days=days)
        if not _is_day(timing, day):
            continue
        for at in reversed(times):
            due = datetime.combine(day, at, tzinfo=timing.tz).astimezone(UTC)
            if due <= now:
                return due
    raise InputError(f"{timing!r} is never due")


def _is_day(timing: crontab, day: date) -> bool:
    return (
        day.month in timing.month_of_year
        and day.day in timing.day_of_month
        and day.isoweekday() % 7 in timing.day_of_week
    )


def _seconds(when: object) -> int:
    seconds = when.total_seconds() if isinstance(when, timedelta) else when
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds < 1 or seconds % 1:
        raise InputError(
            f"recurring(): {when!r} is neither a crontab nor a whole number of seconds from 1; give one of them"
        )
    return int(seconds)
