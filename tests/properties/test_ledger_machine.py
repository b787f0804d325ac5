"""Any interleaving of transitions leaves the ledger where the pure model says, and the promise holds throughout."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest
import redis as redis_py
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from docs.generated_states import CALLBACK, RUN, SESSION, allowed
from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.errors import ClaimLost, WrongState
from orchestrator.ids import (
    callback_id,
    child_session_id,
    item_id,
    new_claim_id,
    question_id,
    reply_id,
    root_session_id,
    run_id,
)
from orchestrator.ledger import EndedRun, Launch, Ledger, Outcome, Outgoing, RetryLater, Start, TreeLimits
from orchestrator.redisdb import ledger_keys
from orchestrator.redisdb.client import connect

from .ledger_model import CLOSED, Model
from .ledger_plays import play

MAX_LOST = 2
LIMIT = 3


def _envelope() -> Outgoing:
    return Outgoing(data=b"<m/>", type="task-delegation", priority="high", message_id="m")


class LedgerMachine(RuleBasedStateMachine):
    """Starts, delegations, questions, claims, commits, crashes, stops, deletions and flushes in any order."""

    client: redis_py.Redis

    @initialize(running=st.integers(0, 2))
    def begin(self, running: int) -> None:
        """A root at work, two children, and as many of them at work: chance alone seldom gets as far."""
        self.client.flushdb()
        self.ledger = Ledger(
            self.client, limits=TreeLimits(max_lost_workers=MAX_LOST, resume_max_items=LIMIT, redispatch_ms=0)
        )
        self.model = Model(max_lost=MAX_LOST)
        self.numbers = itertools.count()
        self.stale: list[tuple[str, str]] = []
        self.before: dict[str, str] = {}
        self.asked: dict[str, str] = {}  # question → who asked
        self._submit()
        (root,) = self.model.sessions
        self._start(root)
        (run,) = self.model.runs
        self._claim(run)
        for key in "ab":
            self._delegate(run, key, "high")
        for child in [name for name, s in self.model.sessions.items() if s.parent][:running]:
            self._start(child)
            self._claim(self.model.sessions[child].run)

    # --- choosing ---------------------------------------------------------------------------

    def _pick(self, data: st.DataObject, things: list[Any]) -> Any:
        return data.draw(st.sampled_from(things))

    def _sessions(self, *, open_only: bool = False) -> list[str]:
        return [n for n, s in self.model.sessions.items() if not open_only or s.state not in CLOSED]

    def _runs(self, state: str) -> list[str]:
        return [n for n, r in self.model.runs.items() if r.state == state]

    def _claim_object(self, run: str, claim: str) -> Any:
        from orchestrator.ledger import Claim

        session = self.model.runs[run].session
        root = session
        while self.model.sessions[root].parent:
            root = self.model.sessions[root].parent
        return Claim(
            run=run, claim=claim, session=session, parent=self.model.sessions[session].parent, root=root
        )

    # --- transitions ------------------------------------------------------------------------

    def _submit(self) -> None:
        session = root_session_id(f"root-{next(self.numbers)}")
        for _ in range(2):
            self.ledger.submit(session, agent="a", prompt="p", envelope=_envelope(), correlation="c")
            self.model.submit(session)

    @precondition(lambda self: len(self.model.sessions) < 10)
    @rule()
    def submit(self) -> None:
        self._submit()

    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self._start(self._pick(data, self._sessions()))

    def _start(self, session: str) -> None:
        run = run_id(session, 1)
        launch = Start(
            session=session,
            message="m",
            sender="operator",
            digest="d",
            recipient="a",
            conversation="c",
            stream="ao:{00}:s",
            entry="1-1",
            mark_ms=1000,
        )
        call = self.ledger.start_call(0, [launch], group="g", keep_ms=1000)
        reply = self.ledger.scripts.run("start", *call)[0]
        assert (self.ledger.started(session, reply) is not None) == self.model.start(session, run)

    @precondition(lambda self: self._runs("queued"))
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        self._claim(self._pick(data, self._runs("queued")))

    def _claim(self, run: str) -> None:
        claim = new_claim_id()
        session = self.model.runs[run].session
        for _ in range(2):
            held = self.ledger.claim(run, claim, session_id=session, worker="w")
            assert held is not None
            assert list(held.run.items) == self.model.runs[run].items
        self.model.claim(run, claim)
        assert self.ledger.claim(run, new_claim_id(), session_id=session, worker="w") is None

    @precondition(lambda self: self._runs("running") and len(self.model.sessions) < 10)
    @rule(data=st.data(), key=st.sampled_from("bcd"), priority=st.sampled_from(["critical", "high", "low"]))
    def delegate(self, data: st.DataObject, key: str, priority: str) -> None:
        self._delegate(self._pick(data, self._runs("running")), key, priority)

    def _delegate(self, run: str, key: str, priority: str) -> None:
        held = self._claim_object(run, self.model.runs[run].claim)
        child = child_session_id(held.session, f"{run}|{key}")
        launch = Launch(
            effect=key,
            child_id=child,
            agent="b",
            description="d",
            envelope=Outgoing(data=b"<m/>", type="task-delegation", priority=priority, message_id="m"),
            correlation="c",
            chain=(),
        )
        done = self.ledger.delegate(held, launch)
        expected = self.model.delegate(run, held.claim, key, child, callback_id(child), priority)
        assert done.created == (expected == "created")

    @precondition(lambda self: self._runs("running"))
    @rule(
        data=st.data(),
        status=st.sampled_from(["completed", "completed", "failed", "stopped"]),
        attempts=st.integers(1, 2),
    )
    def commit(self, data: st.DataObject, status: str, attempts: int) -> None:
        self._commit_twice(self._pick(data, self._runs("running")), status, attempts)

    def _commit_twice(self, run: str, status: str, attempts: int) -> None:
        claim = self.model.runs[run].claim
        self.stale.append((run, claim))
        for _ in range(2):  # the same commit, sent again, changes nothing
            expected = self.model.commit(run, claim, status, attempts)
            if expected == "lost":
                with pytest.raises(ClaimLost):
                    self._commit(run, claim, status, attempts)
                continue
            done = self._commit(run, claim, status, attempts)
            if expected == "retry":
                assert isinstance(done, RetryLater)
            elif expected == "again":
                assert not done.first
            else:
                assert (done.session_state, done.first) == (expected, True)

    def _commit(self, run: str, claim: str, status: str, attempts: int) -> Any:
        return self.ledger.commit(
            EndedRun(
                self._claim_object(run, claim),
                Outcome(status=status, text="t", attempts=attempts),  # type: ignore[arg-type]
                make_envelope=_envelope,
            )
        )

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def late_commit(self, data: st.DataObject) -> None:
        run, claim = self._pick(data, self.stale)
        if self.model.commit(run, claim, "completed", 1) == "lost":
            with pytest.raises(ClaimLost):
                self._commit(run, claim, "completed", 1)
        else:
            assert not self._commit(run, claim, "completed", 1).first

    @precondition(lambda self: self._runs("running"))
    @rule(data=st.data())
    def lose_worker(self, data: st.DataObject) -> None:
        self._lose(self._pick(data, self._runs("running")))

    def _lose(self, run: str) -> None:
        self.stale.append((run, self.model.runs[run].claim))
        lease = next(lease for lease in self.ledger.sweep.leases(0) if lease.run == run)
        assert self.ledger.release(lease) == self.model.release(run)
        assert self.ledger.release(lease) == "moved"

    @rule(
        data=st.data(),
        state=st.sampled_from(["", "", "", "stopped", "failed", "deleted"]),
        force=st.booleans(),
    )
    def stop(self, data: st.DataObject, state: str, force: bool) -> None:
        if not state:  # rarely, or nothing lives long enough to be interesting
            return
        session = self._pick(data, self._sessions())
        verdict = self.ledger.stop(session, "why", state=state, force=force)  # type: ignore[arg-type]
        assert verdict.outcome == self.model.stop(session, state, force=force)

    def _askers(self) -> list[str]:
        runs = self.model.runs
        return [n for n in self._runs("running") if self.model.sessions[runs[n].session].parent]

    @precondition(lambda self: self._askers())
    @rule(data=st.data(), key=st.sampled_from("xy"))
    def ask(self, data: st.DataObject, key: str) -> None:
        self._ask(self._pick(data, self._askers()), key)

    def _ask(self, run: str, key: str) -> None:
        held = self._claim_object(run, self.model.runs[run].claim)
        question = question_id(held.session, f"{run}|{key}")
        expected = self.model.ask(run, held.claim, key, question)
        if expected == "closed":
            with pytest.raises(WrongState):
                self._say(held, key, question)
        else:
            self.asked[question] = held.session
            assert self._say(held, key, question) == question

    def _say(self, held: Any, key: str, question: str) -> str:
        options = {"effect": key, "item_id": question, "kind": "query", "priority": "normal", "opens": True}
        return self.ledger.send(held, held.parent, "q", **options)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def reply(self, data: st.DataObject) -> None:
        question = self._pick(data, sorted(self.asked))
        asker, reply = self.asked[question], reply_id(question)
        expected = self.model.reply(asker, question, reply)
        options = {"item_id": reply, "kind": "reply", "priority": "high", "answers": question}
        if expected == "refused":
            with pytest.raises(WrongState):
                self.ledger.enqueue(asker, "r", **options)
        else:
            assert self.ledger.enqueue(asker, "r", **options) == (expected == "queued")

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        question = self._pick(data, sorted(self.asked))
        asker = self.asked[question]
        parent = self.model.sessions[asker].parent
        withdrawn = self.ledger.withdraw(question, asker=asker, asked=parent, reason="why")
        assert withdrawn == self.model.withdraw(asker, question)

    @precondition(lambda self: self._runs("running"))
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        run = self._pick(data, self._runs("running"))
        held = self._claim_object(run, self.model.runs[run].claim)
        items = self.model.sessions[held.session].items
        if not items:
            return
        item = self._pick(data, sorted(items))
        assert (self.ledger.claim_item(held, item) is not None) == self.model.take(run, item)

    @rule(data=st.data())
    def prompt(self, data: st.DataObject) -> None:
        session = self._pick(data, self._sessions())
        item = item_id(session, f"prompt-{next(self.numbers)}")
        if self.model.put(session, item) == "closed":
            with pytest.raises(WrongState):
                self.ledger.enqueue(session, "p", item_id=item)
        else:
            assert self.ledger.enqueue(session, "p", item_id=item)
            assert not self.ledger.enqueue(session, "p", item_id=item)

    @rule(data=st.data())
    def flush(self, data: st.DataObject) -> None:
        self._flush(self._pick(data, self._sessions()))

    def _flush(self, session: str) -> None:
        run = run_id(session, self.model.sessions[session].runs + 1)
        assert self.ledger.flush(session).outcome == self.model.flush(session, run, LIMIT)

    @rule(data=st.data(), steps=st.integers(3, 8))
    def advance(self, data: st.DataObject, steps: int) -> None:
        """What happens most: sessions take their natural next step. Chance alone seldom gets to a delivery."""
        for _ in range(steps):
            session = self._pick(data, self._sessions())
            s = self.model.sessions[session]
            if s.state in CLOSED:
                continue
            if not s.runs:
                self._start(session)
            elif not s.run:
                self._flush(session)
            elif self.model.runs[s.run].state == "queued":
                self._claim(s.run)
            else:
                match data.draw(st.integers(0, 5)):
                    case 0 if s.parent:
                        self._ask(s.run, "x")
                    case 1:
                        self._lose(s.run)
                    case _:
                        self._commit_twice(s.run, "completed", 1)
            self.every_step_is_in_the_tables()

    # --- what must hold after every step -----------------------------------------------------

    @invariant()
    def ledger_is_where_the_model_is(self) -> None:
        for name, s in self.model.sessions.items():
            real = self.ledger.session(name)
            assert (real.state, real.run, real.runs) == (s.state, s.run, s.runs)
            launched = s.completions("owed", "queued", "claimed", "delivered", "dead")
            assert set(real.questions) == s.questions
            assert (real.launched, real.owed) == (launched, s.completions("owed"))
            assert (real.delivered, real.dead) == (s.completions("delivered"), s.completions("dead"))
            items = {i.id: (i.state, i.status) for i in self.ledger.items(name)}
            assert items == {n: (i.state, i.status) for n, i in s.items.items()}
            queued = [m.decode() for m in self.client.zrange(ledger_keys.queue(name), 0, -1)]
            assert queued == s.queue

    @invariant()
    def promise_holds_from_independent_evidence(self) -> None:
        for name in self.model.sessions:
            real = self.ledger.session(name)
            items = [i for i in self.ledger.items(name) if i.kind == "completion"]
            assert (
                real.launched
                == len(items)
                == sum(1 for s in self.model.sessions.values() if s.parent == name)
            )
            committed = [i for r in self.ledger.runs(name) if r.state == "completed" for i in r.items]
            assert len(committed) == len(set(committed))
            delivered = {i.id for i in items if i.state == "delivered"}
            assert delivered == {i for i in committed if i.startswith("cb_")} - {
                i.id for i in items if i.state == "dead"
            }
            assert all(i.reason for i in items if i.state == "dead")

    @invariant()
    def every_step_is_in_the_tables(self) -> None:
        for name in self.model.sessions:
            self._step("session", SESSION, name, self.ledger.session(name).state)
            for item in self.ledger.items(name):
                self._step("item", CALLBACK, item.id, item.state)
        for name, run in self.model.runs.items():
            self._step("run", RUN, name, run.state)
            assert self.ledger.run(name).state == run.state  # type: ignore[union-attr]

    def _step(self, kind: str, machine: Any, name: str, state: str) -> None:
        before = self.before.get(name, state)
        assert allowed(machine, before, state), f"{kind} {name}: {before} -> {state} is not in the table"
        self.before[name] = str(state)


# Twenty seconds of processor time with coverage, which is minutes where others want the same cores.
@pytest.mark.timeout(1200)
def test_any_interleaving_keeps_the_promise(redis_server: ValkeyProcess, redis: redis_py.Redis) -> None:
    """Long random plays; HYPOTHESIS_EXAMPLES makes it longer."""

    class Machine(LedgerMachine):
        client = connect(redis_server.url, check=False)

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "60")),
            stateful_step_count=30,
            deadline=None,
            # Shrinking a failure takes minutes; whoever looks for a short one asks for it.
            phases=[p for p in Phase if p != Phase.shrink or "HYPOTHESIS_SHRINK" in os.environ],
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_the_indexes_agree_with_the_records(redis: redis_py.Redis, seed: int) -> None:
    """Every transition, repeated and late ones among them; `make fuzz` plays it for longer."""
    play(redis, seed, steps=50)
