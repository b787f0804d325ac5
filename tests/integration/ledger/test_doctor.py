"""The doctor finds the promise kept where it is, and every kind of damage done behind the ledger's back."""

from __future__ import annotations

import getpass
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis as redis_py
from click.testing import Result
from sqlalchemy import delete, update

from orchestrator.audit.database import AMENDMENTS, MESSAGES
from orchestrator.audit.reader import AuditReader
from orchestrator.audit.store import AuditStore
from orchestrator.audit.writer import AuditWriter
from orchestrator.bootstrap import Container
from orchestrator.config.settings import load_settings
from orchestrator.doctor import Diagnosis, Doctor, Problem, Severity
from orchestrator.doctor.health import NEEDED
from orchestrator.ids import callback_id, child_session_id
from orchestrator.redisdb import keys, ledger_keys
from orchestrator.runtime.service import SignsOfLife
from orchestrator.streams import all_streams
from tests.claims import forged
from tests.commands import run_command
from tests.kit import Kit


def remove_launch(store: AuditStore, task_id: str) -> None:
    """Remove a launch from the audit database, as somebody does who may write its file."""
    with store.database.write() as db:
        db.execute(delete(MESSAGES).where(MESSAGES.c.task_id == task_id))


class Ward(Kit):
    """A root with one child in each condition: delivered, queued, in hand, owed, dead; and its audit trail."""

    def __init__(self, parts: Container) -> None:
        super().__init__(parts)
        self.store = AuditStore(self.settings.audit_database)
        self.root = self.send("ward")
        held = self.run(self.root)
        self.child = {
            name: self.assign(
                held, "reviewer", effect=name, options={"on_failure": "ignore"} if name == "dead" else {}
            ).child_id
            for name in ("delivered", "dead", "claimed", "queued", "owed")
        }
        self.finish(self.child["delivered"])
        self.ledger.effect(held.claim, effect="x")
        self.commit(held.claim)
        self.commit(self.resume(self.root).claim)
        self.finish(self.child["dead"], "no", status="failed")
        self.finish(self.child["claimed"])
        self.resumed = self.resume(self.root)
        self.finish(self.child["queued"])
        writer = AuditWriter(self.redis, self.store, consumer="w", sources=all_streams(1))
        while writer.run_once():
            pass

    def examine(self, *, full: bool = True) -> Diagnosis:
        reader = AuditReader(AuditStore(self.settings.audit_database, read_only=True))
        return Doctor(self.parts, audit=reader, sleep=lambda _: None).examine(watch_leases=False, full=full)

    def broken_rules(self) -> set[str]:
        return {f.rule for f in self.examine().findings if f.severity == Severity.BREAK}

    def lost(self, *, full: bool = True) -> list[Problem]:
        """What the examination says of sessions that are lost."""
        return [found for found in self.examine(full=full).findings if found.rule == "session-lost"]

    def lose(self, pattern: str, *, but: str | None = None) -> None:
        """Remove the keys of a pattern, but those with a text in their name."""
        for key in list(self.redis.scan_iter(pattern)):
            if but is None or but not in key.decode():
                self.redis.delete(key)

    def key_of_run(self, number: int) -> str:
        """The key of a run of the root, the first of which is 0."""
        return ledger_keys.run(self.redis.lindex(ledger_keys.runs(self.root), number).decode())

    def doctor(self, *words: str) -> Result:
        return self.orchestra("doctor", "--quick", *words)


@pytest.fixture
def ward(redis: redis_py.Redis, redis_url: str, tmp_path: Path, impatient_doctor: None) -> Iterator[Ward]:
    ward = Ward.on(redis, load_settings(redis_url=redis_url, data=tmp_path / "data"))
    yield ward
    ward.store.close()


def test_a_kept_promise_is_found_kept_and_every_pending_callback_names_its_mover(ward: Ward) -> None:
    diagnosis = ward.examine()
    assert [f for f in diagnosis.findings if f.severity == Severity.BREAK] == []
    assert str(diagnosis.tally) == "5 launched = 1 delivered + 3 pending + 1 dead"
    assert {w.subject for w in diagnosis.waits} == {
        callback_id(ward.child[n]) for n in ("claimed", "queued", "owed")
    }
    assert all(w.waits_for and w.mover and w.by for w in diagnosis.waits)


def test_an_audit_writer_that_is_behind_breaks_nothing(ward: Ward) -> None:
    """A launch that nobody has written yet is in its stream; one that was written before and is gone is missed."""
    ward.assign(ward.resumed, "reviewer", effect="unwritten")
    ward.redis.hset(ledger_keys.session(ward.child["owed"]), "created_ms", 1)
    assert ward.broken_rules() == set()
    remove_launch(ward.store, ward.child["owed"])
    assert ward.broken_rules() == {"unaudited-launch"}


DAMAGE: dict[str, tuple[Callable[[Ward], object], str]] = {
    "a ledger entry is removed": (
        lambda w: w.redis.hdel(ledger_keys.items(w.root), callback_id(w.child["owed"])),
        "lost-launch",
    ),
    "a queue item is removed": (
        lambda w: w.redis.zrem(ledger_keys.queue(w.root), callback_id(w.child["queued"])),
        "queue-lost",
    ),
    "a committed callback is removed": (
        lambda w: w.redis.hset(w.key_of_run(1), "items", "[]"),
        "delivered-by-none",
    ),
    "a committed run is removed": (
        lambda w: w.redis.delete(w.key_of_run(1)),
        "delivered-by-none",
    ),
    "a callback is delivered by two runs": (
        lambda w: w.redis.hset(w.key_of_run(0), "items", json.dumps([callback_id(w.child["delivered"])])),
        "delivered-twice",
    ),
    "the run in hand is removed": (
        lambda w: w.redis.delete(ledger_keys.run(w.resumed.run.id)),
        "claimed-by-none",
    ),
    "a child is removed": (lambda w: w.redis.delete(ledger_keys.session(w.child["owed"])), "child-gone"),
    "a child that was delivered long ago is removed": (
        lambda w: w.redis.delete(ledger_keys.session(w.child["delivered"])),
        "session-gone",
    ),
    "the root is removed": (lambda w: w.redis.delete(ledger_keys.session(w.root)), "session-gone"),
    "a child's end did not reach its parent": (
        lambda w: w.redis.hset(
            ledger_keys.session(w.child["owed"]), mapping={"state": "finished", "parent_notified": "1"}
        ),
        "callback-lost",
    ),
    "a counter is off by one": (
        lambda w: w.redis.hincrby(ledger_keys.session(w.root), "delivered", 1),
        "counters",
    ),
    "a queued text is removed": (
        lambda w: w.redis.hdel(ledger_keys.bodies(w.child["queued"]), callback_id(w.child["queued"])),
        "text-lost",
    ),
    "a launch is forged into the books": (
        lambda w: w.redis.hset(
            ledger_keys.items(w.root),
            callback_id(child_session_id(w.root, "forged")),
            w.redis.hget(ledger_keys.items(w.root), callback_id(w.child["owed"])).replace(
                w.child["owed"].encode(), child_session_id(w.root, "forged").encode()
            ),
        ),
        "unaudited-launch",
    ),
    "an audited launch is removed": (
        lambda w: remove_launch(w.store, w.child["owed"]),  # by damage that no public call would do
        "unaudited-launch",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_doctor_can_fail(ward: Ward, damage: str) -> None:
    """Each damage, done behind the ledger's back, is named."""
    act, rule = DAMAGE[damage]
    act(ward)
    assert rule in ward.broken_rules()


def test_why_says_what_each_condition_waits_for(ward: Ward) -> None:
    doctor = Doctor(ward.parts, audit=None, sleep=lambda _: None)
    _, at_work, _ = doctor.why(ward.root)
    assert "at work" in at_work.waits_for
    _, pending, _ = doctor.why(ward.child["owed"])
    assert "router" in pending.mover
    _, over, _ = doctor.why(ward.child["delivered"])
    assert over is None
    dispatch = ward.start(ward.child["owed"])
    _, queued, _ = doctor.why(ward.child["owed"])
    assert dispatch.run in queued.waits_for


def test_the_command_exits_with_the_verdict(ward: Ward) -> None:
    """0: holds; 1: broken, each break named; 2: could not look; 3: holds, and something is stuck, as no service is alive."""
    assert ward.doctor().exit_code == 3
    alive = [SignsOfLife(name, ward.redis, ward.settings) for name in NEEDED]
    for one in alive:
        one.begin()
    well = ward.doctor("--json")
    for one in alive:
        one.end()
    assert well.exit_code == 0, well.output
    assert json.loads(well.stdout)["promise"] == "5 launched = 1 delivered + 3 pending + 1 dead"
    ward.redis.zrem(ledger_keys.queue(ward.root), callback_id(ward.child["queued"]))
    ill = ward.doctor()
    assert ill.exit_code == 1
    assert "queue-lost" in ill.stdout
    away = run_command("doctor", "--redis-url", "redis://127.0.0.1:1/0")
    assert away.exit_code == 2
    assert "could not look" in away.stderr


def test_what_came_to_rest_long_ago_is_looked_at_in_full_only(ward: Ward) -> None:
    """Nor is a session that is at rest within a tree which is not."""
    ledger, calm, odd = ward.ledger, ward.given("calm"), ward.given("odd")
    for root in (calm, odd):
        ward.finish(root)
        ward.parts.settle(root)
    due = ledger.server_ms() + ledger.limits.tree_ttl_ms
    for root, hours in ((calm, 2), (odd, 0.5)):
        ward.redis.zadd(ledger_keys.timers(0), {f"expire|{root}": due - hours * 3_600_000})
    resting = ward.child["delivered"]
    ward.redis.hset(ledger_keys.session(resting), "updated_ms", ledger.server_ms() - 7_200_000)
    for session in (calm, odd, resting):
        ward.redis.hdel(ledger_keys.bodies(session), "result", callback_id(session))

    def examine(*words: str) -> tuple[set[str], int, int]:
        said = json.loads(ward.doctor("--json", *words).stdout)
        gone = {found["session"] for found in said["findings"] if found["rule"] == "result-gone"}
        return gone, said["at_rest"], said["tally"]["launched"]

    assert examine() == ({odd}, 1, 5)
    assert examine("--full") == ({calm, odd, resting}, 0, 5)


def test_sessions_that_the_trail_has_and_the_ledger_lost_are_named(ward: Ward) -> None:
    """As after a failover to a replica that was behind: what was acknowledged is in the trail only."""
    assert "session-lost" not in ward.broken_rules()
    ward.lose(f"*{ward.child['queued']}*")
    assert [f.subject for f in ward.lost()] == [ward.child["queued"]]
    everything = {ward.root, *ward.child.values()}
    ward.lose("ao:{00}*")
    for full in (True, False):
        lost = ward.lost(full=full)
        assert {f.subject for f in lost} == everything
        assert "'lead'" in lost[0].message


def test_a_lost_session_is_accepted_with_those_below_it_and_named_no_more(ward: Ward) -> None:
    """Signed into the audit trail with who did it, once; the sentence of the finding says how."""
    gone, beside = ward.child["queued"], ward.given("there")
    ward.lose(f"*{gone}*")
    assert f"orchestra doctor --accept {gone}" in ward.doctor().stdout
    accepted = ward.doctor("--accept", gone)
    assert f"accepted that {gone} is lost" in accepted.stderr
    assert ward.lost() == []
    (first,) = ward.store.amendments()
    assert (first.kind, first.fault(ward.parts.keyring.registry, ward.store.id)) == ("acceptance", "")
    assert getpass.getuser() in first.reason
    again = ward.doctor("--accept", gone)
    assert f"{getpass.getuser()}@" in again.stderr, again.stderr
    assert ward.store.amendments() == [first]
    ward.lose("ao:{00}*", but=beside)
    assert {f.subject for f in ward.lost()} == {ward.root, *ward.child.values()} - {gone}
    assert "and 4 sessions below it" in ward.doctor("--accept", ward.root).stderr
    assert ward.lost() == []
    for refused, why in ((beside, "is in the ledger"), ("s-00-nobody", "is not in the audit trail")):
        answer = ward.doctor("--accept", refused)
        assert answer.exit_code == 2
        assert why in answer.stderr
    assert "acceptance" not in ward.orchestra("audit", "verify").stdout


def test_an_acceptance_that_the_operator_has_not_signed_counts_for_nothing(ward: Ward) -> None:
    gone = ward.child["queued"]
    ward.lose(f"*{gone}*")
    ward.doctor("--accept", gone)
    (signed,) = ward.store.amendments()
    with ward.store.database.write() as db:
        db.execute(update(AMENDMENTS).values(document=forged(signed.to_text(), reason="forged")))
    assert "session-lost" in ward.broken_rules()
    assert "the acceptance of messages row" in ward.orchestra("audit", "verify").stdout


def test_a_session_whose_lifetime_is_over_is_not_lost(ward: Ward) -> None:
    ward.lose("ao:{00}*")
    ward.ledger.set_time(ward.ledger.server_ms() + ward.ledger.limits.tree_ttl_ms)
    assert "session-lost" not in ward.broken_rules()


def test_the_fix_runs_the_sweep_and_takes_runs_from_the_dead(
    redis: redis_py.Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker died, and a resume was never made; no service is there but the doctor."""
    for name, value in {"LEASE_S": "0.8", "HEARTBEAT_S": "0.1"}.items():
        monkeypatch.setenv(f"ORCHESTRA_{name}", value)
    kit = Kit.on(redis, load_settings(redis_url=redis_url, data=tmp_path))
    dead = kit.run(kit.given("dead"))
    parent, child = kit.parent_of("a", seed="idle")
    kit.finish(child)
    done = kit.orchestra("doctor", "--fix", "--quick")
    assert done.exit_code == 3, done.output
    assert "watching it for 0.8 s" in done.stderr
    assert "1 released" in done.stderr
    assert "1 resumed" in done.stderr
    found = kit.ledger.run(dead.run.id)
    assert (found.state, found.lost) == ("queued", 1)
    assert kit.ledger.session(parent).busy
    assert "released" not in kit.orchestra("doctor", "--fix", "--quick").stderr


def test_a_session_that_is_to_be_ended_is_stuck_until_it_is_and_no_longer(ward: Ward) -> None:
    """Its agent was done before it heard that it was to stop, so the callback service has to end it."""
    ledger = ward.ledger

    def stuck_later() -> bool:
        ledger.set_time(ledger.server_ms() + 120_000)
        return any(ward.root == f.session and "to be ended" in f.message for f in ward.examine().findings)

    assert ledger.stop(ward.root, "enough").outcome == "asked"
    ward.commit(ward.resumed.claim)
    assert stuck_later()
    assert ledger.stop(ward.root, "enough").outcome == "ended"
    assert not stuck_later()


def test_a_lease_that_stands_still_is_stuck_and_one_that_moves_is_not(ward: Ward) -> None:
    ledger = ward.ledger

    def examine(between: Callable[[float], object]) -> set[str]:
        doctor = Doctor(ward.parts, audit=None, sleep=between)
        return {f.rule for f in doctor.examine().findings}

    assert "lease-still" in examine(lambda _: None)
    assert "lease-still" not in examine(lambda _: ledger.renew(ward.resumed.claim))


def test_a_trail_that_is_split_over_databases_accuses_nobody(ward: Ward, tmp_path: Path) -> None:
    """A second host wrote a part of it: what this one lacks says nothing, and a warning says so."""
    elsewhere = AuditStore(tmp_path / "elsewhere.sqlite")
    ward.redis.hset(keys.audit_heads(), elsewhere.id, "1 x")
    elsewhere.close()
    DAMAGE["an audited launch is removed"][0](ward)
    diagnosis = ward.examine()
    assert diagnosis.holds
    assert "audit-split" in {f.rule for f in diagnosis.findings}
    ward.redis.hdel(ledger_keys.items(ward.root), callback_id(ward.child["queued"]))
    assert "lost-launch" in ward.broken_rules()
