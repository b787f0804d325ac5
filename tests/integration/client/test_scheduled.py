"""A submission for later: in the ledger and signed now, begun once when its time has come, cancelled by a stop."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from orchestrator.client.client import Client
from orchestrator.deployment.local_stack import build_reaper
from orchestrator.doctor import Doctor
from orchestrator.envelope.codec import decode
from orchestrator.errors import InputError
from orchestrator.ledger import RunRef, SessionState
from orchestrator.policy.moments import moment_ms, parse_duration, parse_moment
from orchestrator.redisdb import keys, ledger_keys
from orchestrator.router.build import build_router
from tests.clock import ManualClock
from tests.commands import Orchestra
from tests.kit import Kit

NOW = 1_800_000_000_000
DAY_MS = 86_400_000
STREAM = keys.messages(0, "task-delegation", "high")

pytestmark = pytest.mark.usefixtures("solo")


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def scheduled(kit: Kit, client: Client, **options: object) -> str:
    for ledger in (kit.ledger, client._ledger):
        ledger.set_time(NOW)
    return client.submit("solo", "later", at=at(NOW + DAY_MS), **options).id  # type: ignore[arg-type]


def fire(kit: Kit) -> list[tuple[str, str]]:
    """Act on due timers as the reaper does, at the ledger's time."""
    due = kit.ledger.sweep.due_timers(0)
    for kind, session in due:
        assert kind == "submit"
        kit.ledger.sweep.submit_due(session, sender="operator")
    return due


def test_it_is_listed_and_begins_once_when_its_time_has_come(kit: Kit, client: Client) -> None:
    session = scheduled(kit, client)
    found = client.session(session)
    assert (found.state, found.due_ms, found.entry) == (SessionState.SCHEDULED, NOW + DAY_MS, "")
    assert [one.id for one in client.scheduled()] == [session]
    assert kit.redis.xlen(STREAM) == 0
    assert fire(kit) == []
    kit.ledger.set_time(NOW + DAY_MS - 1)
    assert fire(kit) == []
    assert kit.ledger.sweep.submit_due(session, sender="operator") == "early"
    kit.ledger.set_time(NOW + DAY_MS)
    assert fire(kit) == [("submit", session)]
    assert fire(kit) == []
    assert kit.ledger.sweep.submit_due(session, sender="operator") == "gone"
    assert kit.redis.xlen(STREAM) == 1
    assert client.scheduled() == []
    assert kit.play(session) == "finished"
    assert client.answer(session) == "later"


def test_its_time_limit_begins_with_it_and_it_does_not_expire_before(kit: Kit, client: Client) -> None:
    session = scheduled(kit, client, time_limit_s=60, expires_s=30)
    assert "limit" not in {kind for kind, _ in kit.ledger.sweep.due_timers(0)}
    late = NOW + DAY_MS + 120_000
    kit.ledger.set_time(late)
    assert fire(kit) == [("submit", session)]
    assert kit.redis.zscore(ledger_keys.timers(0), f"limit|{session}") == late + 60_000
    ((_, fields),) = kit.redis.xrange(STREAM)
    header = decode(fields[b"envelope"]).header
    assert header.expiration is not None
    lasts_ms = header.expiration.instant_ms - header.timestamp.instant_ms
    assert lasts_ms == DAY_MS + 30_000
    assert kit.play(session) == "finished"
    assert kit.redis.zscore(ledger_keys.timers(0), f"limit|{session}") is None


def test_the_same_key_is_the_same_scheduled_session(kit: Kit, client: Client) -> None:
    """With another time, too: the first one counts."""
    session = scheduled(kit, client, key="once")
    again = client.submit("solo", "later", key="once", at=at(NOW + 2 * DAY_MS))
    assert (again.id, again.new) == (session, False)
    assert client.session(session).due_ms == NOW + DAY_MS
    assert kit.redis.zcard(ledger_keys.timers(0)) == 1


def test_a_router_takes_it_however_long_ago_it_was_signed(kit: Kit, client: Client) -> None:
    """Messages older than a day are refused; one that waited for its time is not, as its session is in the ledger."""
    session = scheduled(kit, client)
    ((kind, body),) = kit.redis.hgetall(ledger_keys.bodies(session)).items() - {(b"prompt", b"later")}
    assert kind == b"envelope"
    later = kit.ledger.server_ms() + 30 * DAY_MS
    kit.ledger.set_time(max(later, NOW + DAY_MS))
    fire(kit)
    ((_, entry),) = kit.redis.xrange(STREAM)
    assert entry[b"envelope"] == body
    router = build_router(
        kit.redis, kit.settings, consumer="r", types=["task-delegation"], clock=ManualClock(later)
    )
    handled = router.run_once()
    assert (handled.done, handled.dead, handled.parked) == (1, 0, 0)
    run = client.session(session).run
    assert kit.execute(RunRef(run=run, session=session, agent="solo", cause="start")) == "finished"


@pytest.mark.parametrize("how", ["stop", "delete"])
def test_a_stop_cancels_it(kit: Kit, client: Client, how: str) -> None:
    session = scheduled(kit, client)
    assert getattr(client, how)(session).outcome == "ended"
    assert kit.redis.zcard(ledger_keys.timers(0)) == 0
    kit.ledger.set_time(NOW + DAY_MS)
    assert kit.ledger.sweep.submit_due(session, sender="operator") == "gone"
    assert kit.redis.xlen(STREAM) == 0
    assert not kit.redis.hexists(ledger_keys.bodies(session), "envelope")


def test_a_prompt_that_comes_before_its_time_comes_after_its_task(kit: Kit, client: Client) -> None:
    session = scheduled(kit, client)
    client.resume(session, "and then")
    assert kit.ledger.flush(session).outcome == "waits"
    kit.ledger.set_time(NOW + DAY_MS)
    fire(kit)
    assert kit.play(session) == "idle"
    assert kit.play(session) == "finished"
    assert client.answer(session) == "and then"


def test_the_doctor_knows_what_it_waits_for_and_sets_its_timer_again(kit: Kit, client: Client) -> None:
    session = scheduled(kit, client)
    doctor = Doctor(kit.parts, audit=None, sleep=lambda _: None)
    kit.ledger.set_time(NOW + 120_000)
    named = [p for p in doctor.examine(watch_leases=False).findings if p.session == session]
    assert named == []
    blocker = doctor.why(session)[1]
    assert (blocker.waits_for.startswith("its time"), blocker.by) == (True, "2027-01-16T08:00:00.000Z")
    kit.redis.delete(ledger_keys.timers(0))
    (lost,) = [p for p in doctor.why(session)[2] if p.rule == "schedule-lost"]
    assert lost.session == session
    kit.ledger.sweep.reindex(session, recount=False)
    assert kit.redis.zscore(ledger_keys.timers(0), f"submit|{session}") == NOW + DAY_MS


def test_the_reaper_begins_it_by_the_clock_of_redis(kit: Kit, client: Client) -> None:
    session = client.submit("solo", "soon", at=timedelta(milliseconds=300)).id
    reaper = build_reaper(kit.redis, kit.settings)
    while client.session(session).state is SessionState.SCHEDULED:
        reaper.run_once()
    assert kit.play(session) == "finished"


def test_a_time_that_has_passed_is_now(kit: Kit, client: Client) -> None:
    session = client.submit("solo", "late", at=0).id
    assert client.session(session).state is SessionState.PENDING
    assert kit.redis.xlen(STREAM) == 1


def test_the_commands_say_when_it_begins(kit: Kit, client: Client, orchestra: Orchestra) -> None:
    session = orchestra("submit", "solo", "x", "--in", "1h30m").stdout.strip()
    now = kit.ledger.server_ms()
    assert 0 <= now + 5_400_000 - client.session(session).due_ms < 60_000
    other = kit.document("submit", "solo", "x", "--at", "2100-01-01T00:00Z")["session"]
    listed = kit.document("sessions", "--state", "scheduled")["sessions"]
    assert [one["session"] for one in listed] == [session, other]
    assert listed[1]["due"] == "2100-01-01T00:00:00.000Z"
    assert "begins 2100-01-01T00:00:00.000Z" in orchestra("sessions", "--state", "scheduled").stdout
    assert orchestra("stop", session).exit_code == 0
    assert session not in orchestra("sessions", "--state", "scheduled").stdout
    assert session in orchestra("sessions", "--state", "stopped").stdout
    assert orchestra("submit", "solo", "x", "--in", "1h", "--at", "2100-01-01").exit_code == 2
    for option, wrong in (
        ("--in", "soon"),
        ("--in", "99999999d"),
        ("--at", "tomorrow"),
        ("--at", "9999-01-01"),
    ):
        refused = orchestra("submit", "solo", "x", option, wrong)
        assert (refused.exit_code, refused.stdout) == (2, "")


def test_durations_and_moments_are_read() -> None:
    assert parse_duration("90s") == parse_duration("1m30s") == parse_duration("90") == timedelta(seconds=90)
    assert parse_duration("1d2h") == timedelta(days=1, hours=2)
    assert parse_moment("2026-12-01T09:00Z") == datetime(2026, 12, 1, 9, tzinfo=UTC)
    for wrong in ("", "h", "-5s", "1.5h", "5 m", "2h30", "9" * 5000):
        with pytest.raises(InputError, match="is not a duration"):
            parse_duration(wrong)
    with pytest.raises(InputError, match="more than a century ahead"):
        moment_ms(10**400, now_ms=0)
    assert moment_ms(-(10**400), now_ms=0) == 0
