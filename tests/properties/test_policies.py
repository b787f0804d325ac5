"""Whatever sessions are told to do with their children, every tree comes to an end and the promise holds.

Waiting policies with deadlines, what a failure means, what becomes of the children of a closed parent (with heirs
anywhere, also below it), opt-outs, questions, crashes, stops and deletions, in any order; two callback services and a
reaper at work.
Nothing is compared with a model here: what counts is that nobody waits for ever and nothing is unaccounted for.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis as redis_py
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from orchestrator.bootstrap import build_container
from orchestrator.config.settings import load_settings
from orchestrator.doctor import Doctor, Severity
from orchestrator.errors import ClaimLost, WrongState
from orchestrator.ids import question_id, reply_id
from orchestrator.ledger import CLOSED, ClaimedRun, RunRef, Session, SessionState
from orchestrator.reconciler.callbacks import CallbackService
from orchestrator.reconciler.delivery import Delivery
from orchestrator.reconciler.reaper import Reaper
from tests.clock import ManualClock
from tests.integration.ledger.conftest import Play

EXAMPLES = int(os.environ.get("HYPOTHESIS_EXAMPLES", "60"))
WAITING = (
    None,
    {"": {"mode": "any"}},
    {"": {"mode": "all"}},
    {"": {"mode": "quorum", "k": 2}, "g": {"mode": "all"}},
    {"g": {"mode": "quorum", "k": 9}},
    {"": {"mode": "quorum", "k": 3}, "g": {"mode": "quorum", "k": 1}},
    # Deadlines that have ended, and one that will be kept.
    {"": {"mode": "quorum", "k": 2, "deadline_ms": 1}},
    {
        "": {"mode": "all", "deadline_ms": 4_000_000_000_000},
        "g": {"mode": "quorum", "k": 2, "deadline_ms": 5},
    },
)
FAILURES = ("deliver", "ignore", "fail")
CLOSINGS = ("", "", "stop", "abandon")
#: Rounds in which everybody who can does his next step; far more than the deepest tree needs.
ROUNDS = 60


class World:
    """Sessions, their services, and all that may happen to them, each chosen by two numbers."""

    def __init__(self, redis: redis_py.Redis, url: str, data: Path) -> None:
        redis.flushdb()
        self.parts = build_container(redis, load_settings(redis_url=url, data=data))
        self.ledger = self.parts.ledger
        self.play = Play(self.ledger)
        self.sent: list[RunRef] = []
        self.held: dict[str, ClaimedRun] = {}
        self.names = itertools.count()
        delivery = Delivery(self.ledger, self.sent.extend)
        self.services = [
            CallbackService(redis, delivery, consumer=name, clock=ManualClock()) for name in "ab"
        ]
        self.reaper = Reaper(
            self.ledger, delivery, settle=self.ledger.sweep.mark_result_published, clock=ManualClock()
        )
        self.held_by_play(self.play.run(self.play.submit("root")))

    def held_by_play(self, held: ClaimedRun) -> None:
        self.held[held.session.id] = held

    @property
    def sessions(self) -> list[Session]:
        return [member for root in sorted(self.ledger.all_roots(0)) for member in self.ledger.tree(root)]

    # --- what may happen -------------------------------------------------------------------------

    def submit(self, a: int, b: int) -> None:
        self.held_by_play(self.play.run(self.play.submit(f"root {next(self.names)}")))

    def start(self, a: int, b: int) -> None:
        pending = [s for s in self.sessions if s.state is SessionState.PENDING and not s.run]
        if pending and (dispatch := self.play.start(pending[a % len(pending)].id)):
            self.sent.append(dispatch)

    def work(self, a: int, b: int) -> None:
        if self.sent:
            dispatch = self.sent.pop(a % len(self.sent))
            claim = f"claim {next(self.names)}"
            held = self.ledger.claim(dispatch.run, claim, session_id=dispatch.session, worker="w")
            if held is not None:
                self.held_by_play(held)

    def delegate(self, a: int, b: int) -> None:
        if held := self._holder(a):
            self.play.delegate(
                held,
                str(next(self.names)),
                callback=b % 5 != 0,
                on_failure=FAILURES[b % 3],
                group="g" if b % 2 else "",
                on_close=CLOSINGS[b % 4],
            )

    def say_what_follows(self, a: int, b: int) -> None:
        if held := self._holder(a):
            heirs = self.sessions
            heir = heirs[(a + b) % len(heirs)].id
            policy = ("stop", "abandon", f"heir:{heir}", f"heir:{heir}")[b % 4]
            self.ledger.effect(held.claim, effect=str(next(self.names)), facts={"close_policy": policy})

    def ask(self, a: int, b: int) -> None:
        held = self._holder(a)
        if held is None or not held.session.parent:
            return
        parent = self.ledger.session(held.session.id).parent
        key = str(next(self.names))
        with contextlib.suppress(WrongState):
            self.ledger.send(
                held.claim,
                parent,
                "?",
                effect=key,
                item_id=question_id(held.session.id, key),
                kind="query",
                priority="normal",
                opens=True,
                extra={"agent": held.session.agent},
            )

    def answer(self, a: int, b: int) -> None:
        for session in self.sessions:
            for question in session.questions:
                if (a + b) % 2 or b < 0:
                    self._reply(session.id, question)

    def _reply(self, session: str, question: str) -> None:
        with contextlib.suppress(WrongState):
            self.ledger.enqueue(
                session, "!", item_id=reply_id(question), kind="reply", priority="high", answers=question
            )

    def commit(self, a: int, b: int) -> None:
        self._end(self._holder(a), waiting=WAITING[b % len(WAITING)])

    def fail(self, a: int, b: int) -> None:
        self._end(self._holder(a), status="failed")

    def stop(self, a: int, b: int) -> None:
        found = self.sessions
        self.ledger.stop(found[a % len(found)].id, "enough", force=b % 4 == 0)

    def delete(self, a: int, b: int) -> None:
        found = self.sessions
        self.ledger.stop(found[a % len(found)].id, "gone", state="deleted", force=b % 4 == 0)

    def resume(self, a: int, b: int) -> None:
        found = self.sessions
        with contextlib.suppress(WrongState):
            self.ledger.enqueue(found[a % len(found)].id, "go on", item_id=f"itm_00{next(self.names)}")

    def crash(self, a: int, b: int) -> None:
        leases = self.ledger.sweep.leases(0)
        if leases and self.ledger.release(leases[a % len(leases)]) == "queued":
            self._send_lost()

    def listen(self, a: int, b: int) -> None:
        self.services[a % 2].run_once()

    def sweep(self, a: int, b: int) -> None:
        self.reaper.run_once()

    # --- the end ---------------------------------------------------------------------------------

    def finish(self) -> None:
        """Everybody does what is his, until nothing is left to do."""
        for _ in range(ROUNDS):
            while any(service.run_once() for service in self.services):
                pass
            self.reaper.run_once()
            self.answer(0, -1)
            while any(s.state is SessionState.PENDING and not s.run for s in self.sessions):
                self.start(0, 0)
            self._send_lost()
            while self.sent:
                self.work(0, 0)
            for held in list(self.held.values()):
                run = self.ledger.run(held.run.id)
                asked = run is not None and run.stop and run.claim == held.claim.claim
                self._end(held, status="stopped" if asked else "completed")
            if self.is_over():
                return

    def is_over(self) -> bool:
        return not self.ledger.sweep.closing(0) and all(
            s.state in CLOSED or (s.state is SessionState.FINISHED and not s.busy and not s.owed)
            for s in self.sessions
        )

    def _send_lost(self) -> None:
        for session in self.sessions:
            run = self.ledger.run(session.run) if session.run else None
            if run is not None and run.state == "queued":
                self.sent.append(RunRef(run=run.id, session=session.id, agent=session.agent, cause=run.cause))

    def _holder(self, a: int) -> ClaimedRun | None:
        for name in list(self.held):
            run = self.ledger.run(self.held[name].run.id)
            if run is None or run.state != "running" or run.claim != self.held[name].claim.claim:
                del self.held[name]
        return list(self.held.values())[a % len(self.held)] if self.held else None

    def _end(self, held: ClaimedRun | None, *, status: str = "completed", waiting: Any = None) -> None:
        if held is not None:
            del self.held[held.session.id]
            with contextlib.suppress(ClaimLost):
                self.play.commit(held.claim, "text", status=status, waiting=waiting)


MOVES: dict[str, Callable[[World, int, int], None]] = {
    "delegate": World.delegate,
    "delegate more": World.delegate,
    "start": World.start,
    "work": World.work,
    "commit": World.commit,
    "fail": World.fail,
    "say what follows": World.say_what_follows,
    "ask": World.ask,
    "answer": World.answer,
    "stop": World.stop,
    "delete": World.delete,
    "resume": World.resume,
    "crash": World.crash,
    "listen": World.listen,
    "sweep": World.sweep,
    "submit": World.submit,
}


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    # Shrinking a failure takes minutes; whoever looks for a short one asks for it.
    phases=[p for p in Phase if p != Phase.shrink or "HYPOTHESIS_SHRINK" in os.environ],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    moves=st.lists(
        st.tuples(st.sampled_from(sorted(MOVES)), st.integers(0, 30), st.integers(0, 30)),
        min_size=10,
        max_size=80,
    )
)
def test_every_tree_ends_and_keeps_its_promise(
    redis: redis_py.Redis, redis_url: str, tmp_path: Path, moves: list[tuple[str, int, int]]
) -> None:
    world = World(redis, redis_url, tmp_path)
    for name, a, b in moves:
        MOVES[name](world, a, b)
    world.finish()
    assert world.is_over(), [
        (s.id[-4:], s.parent[-4:], s.state.value, s.owed, s.questions) for s in world.sessions
    ]
    diagnosis = Doctor(world.parts, audit=None, sleep=lambda _: None).examine(watch_leases=False)
    assert [f.message for f in diagnosis.findings if f.severity is Severity.BREAK] == []
    for session in world.sessions:
        assert session.pending == 0, session
