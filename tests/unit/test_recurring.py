"""The due times of recurring submissions, and the keys that say them."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab

from orchestrator.dispatch.recurring import Every, key_of, last_due, recurring
from orchestrator.errors import InputError

NOW = datetime(2026, 11, 22, 15, 4, 5, tzinfo=UTC)


def cron(zone: str = "UTC", **when: object) -> crontab:
    return crontab(**when, app=Celery(set_as_current=False, timezone=zone))


@pytest.mark.parametrize(
    ("timing", "due"),
    [
        (cron(), "2026-11-22T15:04:00+00:00"),
        (cron(minute=0, hour=3), "2026-11-22T03:00:00+00:00"),
        (cron(minute=30, hour="15,17"), "2026-11-21T17:30:00+00:00"),
        (cron(minute=0, hour=0, day_of_week="mon"), "2026-11-16T00:00:00+00:00"),
        (cron(minute=0, hour=0, day_of_month=29, month_of_year=2), "2024-02-29T00:00:00+00:00"),
        (
            cron(minute=0, hour=0, day_of_month=29, month_of_year=2, day_of_week="mon"),
            "2016-02-29T00:00:00+00:00",
        ),
        (cron("Europe/Berlin", minute=0, hour=3), "2026-11-22T02:00:00+00:00"),
        (Every(3600), "2026-11-22T15:00:00+00:00"),
        (Every(1), "2026-11-22T15:04:05+00:00"),
    ],
    ids=str,
)
def test_the_last_due_time(timing: crontab | Every, due: str) -> None:
    assert last_due(timing, NOW).isoformat() == due
    # A due time is due in its own moment, and in every moment until the next one.
    assert last_due(timing, datetime.fromisoformat(due)).isoformat() == due
    assert last_due(timing, datetime.fromisoformat(due) - timedelta(microseconds=1)).isoformat() != due


def test_an_hour_that_comes_twice_is_due_as_beat_has_it() -> None:
    """The clocks in Berlin went back at three on 25 October 2026; the due time is one moment for all beats."""
    before = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    assert last_due(cron("Europe/Berlin", minute=30, hour=2), before.astimezone(UTC)) == before.astimezone(
        UTC
    )


def test_an_interval_is_due_at_the_same_moments_for_every_beat() -> None:
    every = Every(60, app=Celery(set_as_current=False, timezone="UTC"))
    now = datetime.now(UTC)
    begin = datetime.fromtimestamp(now.timestamp() // 60 * 60, UTC)
    assert every.is_due(begin - timedelta(seconds=1))[0]
    due, wait_s = every.is_due(now)
    assert (due, 0 < wait_s <= 60) == (False, True)


def test_an_entry_survives_the_file_that_beat_keeps() -> None:
    entry = pickle.loads(pickle.dumps(recurring("tick", 60, agent="echo", prompt="x")))["tick"]
    assert entry["schedule"] == Every(60)
    assert entry["kwargs"]["key"]().startswith("beat:tick:20")
    assert key_of("tick", Every(10**9)) == "beat:tick:2001-09-09T01:46:40+00:00"


def test_what_is_no_schedule_is_refused() -> None:
    for wrong in (0, -5, 1.5, "60", None, True, timedelta(milliseconds=10)):
        with pytest.raises(InputError, match="neither a crontab nor"):
            recurring("tick", wrong, agent="echo", prompt="x")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="needs a name"):
        recurring("", 60, agent="echo", prompt="x")
