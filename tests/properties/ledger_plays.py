"""Plays of everything that may happen to a ledger, in any order, with the facts looked at after each step."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import redis as redis_py
from redis.exceptions import NoScriptError

from docs.generated_states import CALLBACK, RUN, SESSION, allowed
from orchestrator.errors import (
    BudgetExceeded,
    ClaimLost,
    LimitExceeded,
    PromptKeyInUse,
    UnknownSession,
    WrongState,
)
from orchestrator.ids import (
    approval_id,
    asker_of,
    callback_id,
    child_session_id,
    decision_id,
    item_id,
    new_claim_id,
    question_id,
    reply_id,
    root_session_id,
    run_id,
)
from orchestrator.ledger import (
    Claim,
    ClaimedRun,
    Concurrency,
    EndedRun,
    Launch,
    Ledger,
    Outcome,
    Outgoing,
    RunRef,
    Session,
    SessionState,
    Start,
    TreeLimits,
    layout,
)
from orchestrator.ledger.journal import StepHeader
from orchestrator.ledger.large_text import Truncated
from orchestrator.ledger.launches import Fork, Seed
from orchestrator.ledger.leftovers import found as leftovers
from orchestrator.ledger.transitions import JournalLimits, PollRequest, Slot
from orchestrator.policy.approval import ApprovalRequest
from orchestrator.policy.budget import Budget, Cost
from orchestrator.reconciler.callbacks import CallbackService
from orchestrator.reconciler.delivery import Delivery
from orchestrator.reconciler.reaper import Reaper
from orchestrator.redisdb import keys, ledger_keys
from orchestrator.redisdb.scripts import Arg, Batch, Scripts, request
from tests.clock import ManualClock
from tests.routed import HOUR_MS, mark
from tests.simulation.ledger_rules import RULES, broken

from .ledger_facts import CLOSED, Change, Facts, problems

AGENTS = ("a", "b", "lead")
VERSIONS = ("v1 latest", "v2 latest", "v1 refuse", "v2 refuse", "")
LARGE = 400  #: bytes from which a text is stored beside its record
#: A large text that was stored.
_LARGE_TEXT = re.compile(r"\S+:[0-9a-f]{64}: None became")
#: Each session that a text names, also by a question or a callback of its own.
_ABOUT = re.compile("(?:ses|ask|apr|cb)_([0-9a-f]{26})")
TTL_MS = 100_000
#: The ways of states that there are, of each kind of thing in the trail.
TABLES = {"session": SESSION, "run": RUN, "callback": CALLBACK}
#: Answers that say no, and are no error of the ledger.
REFUSALS = (BudgetExceeded, LimitExceeded, PromptKeyInUse, UnknownSession, WrongState)
#: Steps without which nothing goes on.
NEEDED = ("start", "claim_next", "delegate", "commit", "flush", "events", "sweep")
#: Steps that look at more than one moment.
ALONE = ("reindex", "restore", "renew", "late")
#: What a late copy of a call may still do, because it says what its caller wants now.
_SAID_ANEW = """
    flush stop claim claim_next make_ready set_limit wake due_timers recount finish_cleanup reindex
    unblock renew trim hold_back publish store_blob withdraw claim_item publish_result release
    reserve spend delete_session refuse touch_blob forget_steps claim_external
"""
SAID_ANEW = frozenset(_SAID_ANEW.split())


class Broken(AssertionError):
    """What must hold does not hold."""


class Crash(BaseException):
    """The process that plays a step dies here."""


class Repeating(Batch):
    """Sends some scripts twice, as redis-py does when an answer is lost."""

    def __init__(self, scripts: RepeatingScripts) -> None:
        super().__init__(scripts.client)
        self._scripts = scripts

    def execute(self) -> list[Any]:
        calls, self._calls = self._calls, []
        self._scripts.between(calls)
        # One after the other, so that each is held to its rules; nobody else comes between them.
        answers = [self._scripts.alone(call) for call in calls]
        for call, answer in zip(calls, answers, strict=True):
            if call[0] is not None and not isinstance(answer, Exception):
                self._scripts.sent(call, answer)
        self._scripts.after()
        return answers


class RepeatingScripts(Scripts):
    def __init__(
        self, client: redis_py.Redis, chance: random.Random, share: float, read: Callable[[], Facts]
    ) -> None:
        super().__init__(client)
        self.read = read
        self._chance = chance
        self._share = share
        self.late: list[tuple[Any, Any]] = []
        self.calls = 0
        #: What happens between what a caller has read and what it does, which are these calls.
        self.between: Callable[[Sequence[tuple[Any, Any]]], None] = lambda _: None
        self.after: Callable[[], None] = lambda: None

    def batch(self) -> Batch:
        return Repeating(self)

    def sent(self, call: tuple[Any, Any], answer: Any) -> None:
        if answer != [b"envelope"]:  # it did nothing, and is to come with one
            self.late = [*self.late[-40:], call]
        self.calls += 1
        if (
            (call[0] == "reserve" and answer[0] == b"refused")  # it is told each time it is given
            or call[0] in ("renew", "make_ready", "release_call", "unblock")
            or self._chance.random() > self._share
        ):
            return
        before = self.read()
        self.again(call)
        if wrong := before.same_as(self.read()):
            raise Broken(f"{call[0]} sent twice after {answer}: {wrong}; {call}")

    def alone(self, call: tuple[Any, Any]) -> Any:
        """What a call is answered, which is held to the rules of its transition."""
        batch = Batch(self.client)
        batch._calls.append(call)
        before = self.read() if call[0] in RULES else None
        (answer,) = batch.execute()
        if before is not None and (wrong := broken(*call, answer, before, self.read())):
            raise Broken(f"{call}, answer {answer}: {wrong}")
        return answer

    def again(self, call: tuple[Any, Any]) -> Any:
        answer = self.alone(call)
        if isinstance(answer, Exception) and not isinstance(answer, NoScriptError):
            raise Broken(f"{call} again: {answer}")
        return answer


@functools.cache
def _parameters(step: str) -> tuple[str, ...]:
    """What a step takes: a claim or a session."""
    return tuple(inspect.signature(getattr(Play, step)).parameters)[1:]


class Play:
    """One stack without workers and routers: whoever plays is them."""

    def __init__(
        self,
        client: redis_py.Redis,
        seed: int,
        *,
        share: float = 0.1,
        read: Callable[[], Facts] | None = None,
    ) -> None:
        self.client, self.chance = client, random.Random(seed)
        #: Returns all keys.
        self.read = read or partial(Facts.read, client)
        self.numbers = itertools.count()
        # Each play has some steps often and others never, which leads further than all of them alike.
        self.weights = [
            weight * (1 if name in NEEDED else self.chance.choice([0, 1, 1, 4]))
            for name, weight in STEPS.items()
        ]
        client.flushdb()
        self.clock = ManualClock(int(client.time()[0]) * 1000)
        self.ledger = Ledger(
            client,
            limits=TreeLimits(
                max_lost_workers=self.chance.choice([0, 1, 3]),
                max_process_deaths=self.chance.choice([1, 2, 3]),
                resume_max_items=3,
                redispatch_ms=1000,
                inline_bytes=LARGE,
                fork_runs=2,
                question_ms=self.chance.choice([0, 5000]),
                tree_ttl_ms=TTL_MS,
                max_depth=5,
                max_tree_runs=60,
                journal=JournalLimits(steps=5, bytes=5000, inline_bytes=200),
            ),
            now_ms=self.clock.now_ms(),
        )
        self.scripts = RepeatingScripts(client, self.chance, share, self.read)
        self.ledger.scripts = self.scripts
        self.concurrency = Concurrency(client)
        self.concurrency._scripts = self.scripts
        self.delivery = Delivery(self.ledger, lambda _: None)
        self.service = self._make_service()
        self.reaper = Reaper(
            self.ledger,
            self.delivery,
            settle=self.ledger.sweep.mark_result_published,
            agents=lambda: AGENTS,
            concurrency=self.concurrency,
            clock=self.clock,
        )
        self.held: list[Claim] = []
        self.leases: list[Any] = []  #: as somebody has seen them
        self.last: dict[Change, str] = {}
        self.trail_at = "-"
        self.told: list[str] = []
        self.using: Claim | None = None  #: of the step that is played
        #: The sessions that the last calls were about; and those that are chosen first.
        self.about = self.near = frozenset[str]()
        #: How often others act amid a step, and how often a step is about what the one before it was about.
        self.crowd, self.follow = self.chance.choice([0.05, 0.1, 0.3]), self.chance.choice([0, 0.3, 0.6])
        self.inside = True  #: whether nobody acts between what a step reads and what it does
        self.scripts.between = self._between
        self.scripts.after = self._maybe_crash

    def _make_service(self) -> CallbackService:
        consumer = f"c{next(self.numbers)}"
        return CallbackService(
            self.client, self.delivery, consumer=consumer, take_over_ms=0, clock=self.clock
        )

    def _maybe_crash(self) -> None:
        if not self.inside and self.chance.random() < 0.02:
            raise Crash

    def _between(self, calls: Sequence[tuple[Any, Any]]) -> None:
        """Others act between what a caller has read and what it does; or its process dies."""
        self.about = frozenset(f"ses_{found}" for found in _ABOUT.findall(str(calls)))
        if self.inside:
            return
        self._maybe_crash()
        if self.chance.random() < self.crowd:
            self.inside, using, near = True, self.using, self.near
            # Who acts at the same moment often acts on the same thing: that is where one overtakes the other.
            self.near = self.about if self.chance.random() < 0.7 else frozenset()
            try:
                for _ in range(self.chance.choice([1, 1, 3])):
                    name = self.chance.choices(list(STEPS), self.weights)[0]
                    self.told.append(f"  meanwhile {name}")
                    with contextlib.suppress(ClaimLost, *REFUSALS):
                        self._do(name)
            finally:
                self.inside, self.using, self.near = False, using, near

    # --- looking ------------------------------------------------------------------------------

    def check(self) -> Facts:
        rows: Any = self.client.xrange("ao:{00}:transitions", self.trail_at)
        for entry, fields in rows:
            self.trail_at = f"({entry.decode()}"
            for body in [v for v in fields.values() if b" " in v]:
                for line in body.decode().split("\n"):
                    kind, session, what, state = line.split(" ")[:4]
                    before = self.last.get((kind, session, what), state)
                    begins_or_goes = before == "none" or state == "removed"
                    if kind in TABLES and not begins_or_goes and not allowed(TABLES[kind], before, state):
                        raise Broken(f"{kind} {session} {what}: {before} -> {state} is not in the table")
                    self.last[kind, session, what] = state
        facts = self.read()
        if any("for its whole lifetime" in s.get("reason", "") for s in facts.of_kind("session").values()):
            return facts  # its removal was cut short, and is gone through with by the next sweep
        if found := list(problems(facts, self.last)):
            raise Broken("\n".join(found))
        return facts

    def sessions(self) -> list[Session]:
        return self.ledger.find(self._names())

    def _names(self) -> list[str]:
        ids = [key.decode() for key in self.client.keys("ao:*:session:*")]
        return sorted({key.split(":")[3] for key in ids if key.count(":") == 3})

    def pick(self, things: Sequence[Any]) -> Any:
        near = [thing for thing in things if self._is_near(thing)]
        return self.chance.choice(near or things) if things else None

    def _is_near(self, thing: Any) -> bool:
        thing = thing[0] if isinstance(thing, tuple) else thing
        return not self.near.isdisjoint({getattr(thing, "id", ""), getattr(thing, "session", "")})

    def session(self, *states: str) -> Session | None:
        names = self._names()
        self.chance.shuffle(names)
        names.sort(key=lambda name: name not in self.near)
        wanted = {state.encode() for state in states}
        for name in names:
            if wanted and self.client.hget(ledger_keys.session(name), "state") not in wanted:
                continue
            for found in self.ledger.find([name]):
                return found
        return None

    def counts(self, claim: Claim) -> bool:
        facts = self.client.hmget(ledger_keys.run(claim.run), "state", "claim")
        return facts == [b"running", claim.claim.encode()]

    def envelope(self, kind: str = "task-delegation", priority: str = "") -> Outgoing:
        priority = priority or self.chance.choice(["critical", "high", "normal", "low"])
        return Outgoing(data=b"<m/>", type=kind, priority=priority, message_id=f"m-{next(self.numbers)}")

    def text(self) -> str:
        n = next(self.numbers)
        return f"t{n % 7}" if self.chance.random() < 0.8 else f"large {n % 7} " * 100

    # --- steps ----------------------------------------------------------------------------------

    def step(self, *, looks: bool = True) -> None:
        """One thing happens, and everything is looked at."""
        before = self.scripts.calls
        while self.scripts.calls == before:
            name = self.chance.choices(list(STEPS), self.weights)[0]
            self.told.append(name)
            self.inside = name in ALONE
            self.near = self.about if self.chance.random() < self.follow else frozenset()
            try:
                self._do(name)
            except Crash:
                self.told[-1] += " crashed"
                self.service = self._make_service()
            except REFUSALS as error:
                self.told[-1] += f" refused: {type(error).__name__}"
            except ClaimLost as error:
                self.told[-1] += " lost"
                if self.using is not None and self.using.run == error.args[0] and self.counts(self.using):
                    raise Broken(f"{name}: the claim {self.using} counts, and was lost") from error
            self.inside = True
            if name.startswith("wait"):
                break
            if self.scripts.calls == before:
                self.told.pop()
        if looks:
            self.check()

    def _do(self, name: str) -> None:
        """A step, with what it takes: a claim or a session."""
        act = getattr(self, name)
        given = [self._held() if wanted == "claim" else self.session() for wanted in _parameters(name)]
        self.using = given[0] if given and isinstance(given[0], Claim) else None
        if None in given:
            return
        if self.using is None or self.counts(self.using):
            act(*given)
        else:
            self._under_a_lost_claim(name, partial(act, *given))

    def _under_a_lost_claim(self, name: str, act: Callable[[], None]) -> None:
        """Nothing changes by whoever acts under a claim that does not count, but for the texts that are stored first."""
        before, self.inside, inside = self.read(), True, self.inside
        try:
            act()
        finally:
            self.inside = inside
            if wrong := [w for w in before.same_as(self.read()) if not _LARGE_TEXT.match(w)]:
                raise Broken(f"{name} under {self.using}, which does not count: {wrong}")

    def _held(self) -> Claim | None:
        """Mostly a claim that counts, sometimes one that was lost."""
        live = [c for c in self.held if self.counts(c)]
        lost = [c for c in self.held if c not in live]
        return self.pick(lost if lost and self.chance.random() < 0.12 else live)  # type: ignore[no-any-return]

    def begin(self) -> None:
        """A root at work that has launched two children, which mostly may begin: chance alone seldom gets as far."""
        match self.chance.randint(0, 7):
            case 0 | 1:
                self.concurrency.limit_trees(self.chance.choice([1, 2]))
            case 2:
                self.concurrency.limit_agent(self.pick(AGENTS), 1)
        self.submit()
        self._start_all()
        self.claim()
        for _ in range(2):
            self._do("delegate")
        if self.chance.random() < 0.6:
            self._start_all()
        self.check()

    def _start_all(self) -> None:
        for s in self.sessions():
            if s.state == "pending":
                self._start(s)

    def submit(self) -> None:
        if len(self._names()) > 14:
            return
        n = next(self.numbers) if self.chance.random() < 0.8 else 0
        envelope = self.envelope()
        options: dict[str, Any] = {}
        if self.chance.random() < 0.15 and self.held:
            options["at_ms"] = self.clock.now_ms() + self.chance.choice([-5, 3000, 20_000])
        if self.chance.random() < 0.3:
            options["time_limit_ms"] = self.chance.choice([2000, 30_000])
        if self.chance.random() < 0.3:
            options["budget"] = Budget(requests=3, tokens=50)
        if self.chance.random() < 0.3 and (of := self.session()) is not None:
            new = root_session_id(f"r{n}")
            options["make_fork"] = lambda: self._fork(new, of)
        self.ledger.submit(
            root_session_id(f"r{n}"),
            agent=self.pick(AGENTS),
            prompt=f"p{n}",
            envelope=envelope,
            correlation="c",
            **options,
        )

    def _fork(self, new: str, of: Session) -> Fork:
        shorten = self.ledger.large_texts.shorten
        return Fork(
            session=of.id,
            run=of.run or run_id(of.id, 1),
            by="operator",
            state='{"a": 1}',
            memory=shorten(new, "memory", above_bytes=0)
            if self.chance.random() < 0.5
            else Truncated(text="", ref=None),
            seed=shorten(new, Seed(cause="start").dump(), above_bytes=0),
            waiting=json.dumps({"": {"mode": "all"}}) if self.chance.random() < 0.3 else "",
        )

    def start(self) -> None:
        if (s := self.session("pending")) is not None:
            self._start(s)

    def start_any(self, s: Session) -> None:
        self._start(s)

    def _start(self, s: Session) -> None:
        due = self.clock.now_ms() + 4000 if self.chance.random() < 0.15 else 0
        # Else it has come once more, or its sender has used its id for something else.
        own = s.entry and self.chance.random() < 0.9
        digest, entry = ("d", s.entry.rpartition(":")[2]) if own else self.pick([("d", "1-1"), ("e", "1-2")])
        launch = Start(
            session=s.id,
            message=s.message if self.chance.random() < 0.95 else f"other{next(self.numbers)}",
            sender="operator",
            digest=digest,
            recipient=s.agent,
            conversation="c",
            stream=keys.messages(0, "task-delegation", "high"),
            entry=entry,
            mark_ms=HOUR_MS,
            review_due_ms=due,
        )
        call = self.ledger.start_call(0, [launch], group="g", keep_ms=HOUR_MS)
        self.ledger.started(s.id, self.scripts.run("start", *call)[0])

    def refuse(self, s: Session) -> None:
        self.ledger.refuse(s.id, "no")

    def claim(self) -> None:
        queued = [s for s in self.sessions() if s.run and self._state_of(s.run) == "queued"]
        if (s := self.pick(queued)) is not None:
            version = self.chance.choice(VERSIONS)
            self._got(self.ledger.claim(s.run, new_claim_id(), session_id=s.id, worker="w", version=version))

    def _state_of(self, run: str) -> str:
        return (self.client.hget(ledger_keys.run(run), "state") or b"").decode()

    def _got(self, held: ClaimedRun | None) -> None:
        if held is not None:
            self.held = [*self.held[-30:], held.claim]

    def _poll(self, number: int = 0) -> PollRequest:
        agents = list(AGENTS)
        self.chance.shuffle(agents)
        versions = {agent: self.chance.choice(VERSIONS) for agent in agents}
        return PollRequest(
            slot=Slot(
                name=f"slot{self.chance.randint(1, 3)}/{number}",
                worker="w",
                agents=tuple(agents[: self.chance.randint(1, len(agents))]),
                versions=versions,
            ),
            claim=new_claim_id(),
            woken=self.chance.random() < 0.5,
            rank=self.chance.choice([None, None, 0, 1, 2, 3]),
        )

    def claim_next(self) -> None:
        poll = self._poll()
        self.ledger.claim_next(0, poll)
        self._got(poll.held)

    def delegate(self, claim: Claim) -> None:
        known = self.sessions()
        if not known or len(known) > 16:
            return
        launches = []
        for _ in range(self.chance.choice([1, 1, 1, 3])):
            key = self.chance.choice("abcd")
            tree = [s for s in known if s.root == claim.root]
            caller: str = ""
            if self.chance.random() < 0.25:
                caller = self.chance.choice(["none", self.pick(tree).id]) if tree else "none"
            on_close = self.chance.choice(["", "stop", "abandon", f"heir:{self.pick(known).id}"])
            launches.append(
                Launch(
                    effect=key,
                    child_id=child_session_id(claim.session, f"{claim.run}|{key}"),
                    agent=self.pick(AGENTS),
                    description="d",
                    envelope=self.envelope(),
                    correlation="c",
                    chain=(),
                    callback=not caller and self.chance.random() < 0.85,
                    group=self.chance.choice(["", "", "g"]),
                    on_failure=self.chance.choice(["deliver", "deliver", "ignore", "fail"]),
                    on_close=on_close,
                    caller=caller,
                    caller_agent="a" if caller.startswith("ses_") else "",
                    budget=Budget(tokens=20) if self.chance.random() < 0.2 else None,
                    time_limit_ms=self.chance.choice([0, 0, 3000]),
                )
            )
        self.ledger.delegate_all(claim, launches)

    def _policy(self) -> Any:
        rules = {}
        for group in self.chance.choice([[""], ["", "g"], ["g"]]):
            rule: dict[str, Any] = {"mode": self.chance.choice(["any", "all", "quorum"])}
            if rule["mode"] == "quorum":
                rule["k"] = self.chance.randint(1, 3)
            if self.chance.random() < 0.3:
                rule["deadline_ms"] = self.clock.now_ms() + self.chance.choice([-10, 2000, 9000])
                if self.chance.random() < 0.3:
                    rule["parks"] = True
            if self.chance.random() < 0.3:
                rule["window_ms"] = self.chance.choice([50, 3000])
            rules[group] = rule
        return rules

    def commit(self, claim: Claim) -> None:
        run = self.ledger.run(claim.run)
        waits = run is not None and run.awaits  # so its worker parks it, unless what it waits for comes first
        status = self.chance.choice(
            [*["completed"] * 5, "failed", "failed", "stopped", *["parked"] * (12 if waits else 1)]
        )
        done = status == "completed"
        outcome = Outcome(
            status=status,  # type: ignore[arg-type]
            text=self.text(),
            state={"n": 1} if done and self.chance.random() < 0.4 else None,
            waiting=self._policy() if done and self.chance.random() < 0.4 else None,
            parked_ms=1500 if waits else self.chance.choice([0, 1500]),
            steps_left_out=("s1",) if self.chance.random() < 0.2 else (),
            steps_failed=("s2",) if self.chance.random() < 0.2 else (),
            memory=f"memory {self.chance.randint(1, 3)}" if done and self.chance.random() < 0.4 else None,
            told=self.chance.choice(["completed", "partial-success"]),
            body='{"b": 1}' if self.chance.random() < 0.2 else "",
            once=self.chance.random() < 0.5,
            attachments={"x": self.text()} if done and self.chance.random() < 0.3 else {},
        )
        # Whoever has lost its claim takes another run all the same, which `_under_a_lost_claim` could not tell apart.
        some = self.chance.choice([0, 0, 1, 3]) if self.counts(claim) else 0
        polls = [self._poll(n) for n in range(some)]
        answer = None
        if self.chance.random() < 0.5:
            answer = self._answer_for(claim)
        expect_over, attempts = self.chance.random() < 0.3, self.chance.randint(1, 3)
        ended = EndedRun(
            claim,
            replace(outcome, attempts=attempts, retry_ms=self.chance.choice([0, 700])),
            make_envelope=lambda: self.envelope("task-completion"),
            expect_over=expect_over,
            answer_questions=answer,
        )
        (done,) = self.ledger.commit_all([ended], polls)
        for poll in polls:
            self._got(poll.held)
        if isinstance(done, Exception):
            raise done

    def _answer_for(self, claim: Claim) -> Any:
        def answer(questions: Sequence[str]) -> bool:
            for q in questions:
                asker = asker_of(q)
                if asker is None:
                    return False
                try:
                    self.ledger.send(
                        claim,
                        asker,
                        "failed",
                        effect=f"refuse|{q}",
                        item_id=reply_id(q),
                        kind="reply",
                        priority="high",
                        answers=q,
                        extra={"status": "failed", "answers": q},
                    )
                except (WrongState, UnknownSession):
                    continue
            return self.chance.random() < 0.9

        return answer

    def ask(self, claim: Claim) -> None:
        key = self.chance.choice("xy")
        about = self.ledger.session(claim.session)
        if about.parent and self.chance.random() < 0.9:
            self.ledger.send(
                claim,
                about.parent,
                self.text(),
                effect=f"ask{key}",
                item_id=question_id(claim.session, f"{claim.run}|{key}"),
                kind=self.chance.choice(["query", "blocker"]),
                priority="normal",
                opens=True,
                extra={"agent": about.agent},
            )
        else:
            self.ledger.send(
                claim,
                claim.session,
                "q",
                opens=True,
                effect=f"ask{key}",
                item_id=question_id(claim.session, f"{claim.run}|{key}"),
                kind="query",
                priority="high",
                envelope=self.envelope("callback-request"),
                conversation="c",
                open_ms=self.chance.choice([0, 5000]),
                extra={"agent": about.agent},
            )

    def message(self, claim: Claim) -> None:
        about = self.ledger.session(claim.session)
        below = [s.id for s in self.sessions() if s.parent == claim.session]
        target = self.pick(below) if below and self.chance.random() < 0.5 else about.parent
        if not target:
            return
        key = f"m{self.chance.randint(1, 2)}"
        self.ledger.send(
            claim,
            target,
            self.text(),
            effect=key,
            item_id=item_id(target, f"{claim.run}|{key}"),
            kind="message",
            priority="low",
            envelope=self.envelope("message"),
        )

    def _questions(self) -> list[tuple[Session, str]]:
        return [(s, q) for s in self.sessions() for q in s.questions]

    def reply(self) -> None:
        """Whoever answers: a run, or a user."""
        found, claim = self.pick(self._questions()), self._held()
        if found is None:
            return
        asker, q = found
        if claim is None or self.chance.random() < 0.5:
            self._answer(asker, q)
        else:
            self.using = claim
            options = {"kind": "reply", "priority": "high", "answers": q}
            self.ledger.send(
                claim, asker.id, self.text(), effect=f"reply|{q}", item_id=reply_id(q), **options
            )

    def request_approval(self, claim: Claim) -> None:
        key = self.chance.choice("pq")
        name = approval_id(claim.session, f"{claim.run}|{key}")
        self.ledger.approvals.request(
            claim,
            ApprovalRequest(
                tool="t",
                arguments="{}",
                digest="d",
                agent="a",
                session=claim.session,
                run=claim.run,
                expires_ms=self.clock.now_ms() + 3000 if self.chance.random() < 0.5 else 0,
            ),
            approval=name,
            effect=f"approve{key}",
            title="t",
            envelope=self.envelope("approval-request"),
        )

    def decide(self) -> None:
        if found := self.pick([(s, a) for s in self.sessions() for a in s.approvals]):
            self._answer(*found)

    def withdraw(self) -> None:
        """Who asked waits no more, or a user has answered in the place of who was asked."""
        found = self.pick(self._questions())
        if found is None:
            return
        asker, q = found
        claim = self.pick([c for c in self.held if c.session == asker.id])
        self.using = claim
        asked = self.ledger.asked(asker.id, q) or asker.id
        if claim is None:
            self._answer(asker, q)
        self.ledger.withdraw(q, asker=asker.id, asked=asked, reason="why", claim=claim)

    def _answer(self, asker: Session, q: str) -> None:
        item = decision_id(q) if q in asker.approvals else reply_id(q)
        options: dict[str, Any] = {"kind": "reply", "priority": "high", "answers": q, "extra": {"answers": q}}
        self.ledger.enqueue(asker.id, "r", item_id=item, **options)

    def give_up(self) -> None:
        found = self.pick(self._questions())
        if found is not None:
            self.delivery.give_up(found[1], "late")

    def take(self, claim: Claim) -> None:
        """A blocking call looks for what it waits for: any item, or the reply to a question of its own."""
        items = [i.id for i in self.ledger.items(claim.session)]
        for q in self.ledger.session(claim.session).questions:
            items += [decision_id(q) if q.startswith("apr_") else reply_id(q)] * 3
        item = self.pick(items) or item_id(claim.session, "unknown")
        self.ledger.claim_item(claim, item, waits=self.chance.choice(["wait", "wait", "give up", ""]))

    def block(self, claim: Claim) -> None:
        """A blocking call: it asks, stands still for the answer, and mostly parks its run."""
        self.chance.choice([self.ask, self.request_approval])(claim)
        self.take(claim)
        self.commit(claim)

    def reject(self, claim: Claim) -> None:
        run = self.ledger.run(claim.run)
        if run is not None and run.items:
            self.ledger.reject(claim, self.pick(run.items), "not genuine")

    def effect(self, claim: Claim) -> None:
        facts: dict[str, Arg] = {}
        if self.chance.random() < 0.3 and (known := self.sessions()):
            facts["close_policy"] = self.chance.choice(["stop", "abandon", f"heir:{self.pick(known).id}"])
        self.ledger.effect(
            claim,
            effect=f"e{self.chance.randint(1, 3)}",
            envelope=self.envelope("status-update"),
            value="v",
            facts=facts,
        )

    def record(self, claim: Claim) -> None:
        key: Any = self.chance.choice(["s1", "s2", "s3", "a", "asky", "b"])
        how: Any = self.chance.choice(["done", "failed", "retry"])
        known = json.loads(self.client.hget(ledger_keys.steps(claim.run), f"h:{key}") or "{}")
        header = StepHeader(key=key, how=how, tries=known.get("tries", 0) + 1)
        self.ledger.journal.record(claim, header, b"v" * self.chance.choice([3, 300]))

    def forget(self, claim: Claim) -> None:
        self.ledger.journal.forget(claim, ["s1", "s3"])

    def reserve(self, claim: Claim) -> None:
        about = self.ledger.session(claim.session)
        budgets = (self.client.hget(ledger_keys.session(claim.session), "budgets") or b"").decode().split()
        self.ledger.spending.reserve(
            claim,
            f"call{self.chance.randint(1, 3)}",
            Cost(requests=1, input_tokens=7),
            agent=about.agent,
            budgets=budgets,
            agent_budget=Budget(requests=9, per_s=3) if self.chance.random() < 0.5 else None,
        )

    def spend(self, claim: Claim) -> None:
        self.ledger.spending.spend(
            claim, f"call{self.chance.randint(1, 3)}", Cost(requests=1, input_tokens=3), agent="a"
        )

    def renew(self, claim: Claim) -> None:
        assert self.ledger.renew(claim).held == self.counts(claim)

    def lose(self) -> None:
        """Somebody takes a run from a holder that is gone, or was when somebody looked."""
        leases, self.leases = self.leases, self.ledger.sweep.leases(0)
        if found := self.leases or leases if self.chance.random() < 0.5 else leases:
            died = self.chance.choice(["", "", "signal 9"])
            self.ledger.release(self.pick(found), died=died, wait_ms=self.chance.choice([0, 900]))

    def stop(self, s: Session) -> None:
        state = self.chance.choice(["stopped", "stopped", "failed", "deleted"])
        self.ledger.stop(s.id, "why", state=state, force=self.chance.random() < 0.3)

    def prompt(self, s: Session) -> None:
        item = item_id(s.id, f"prompt-{next(self.numbers) % 4}")
        self.ledger.enqueue(s.id, "p", item_id=item)

    def flush(self, s: Session) -> None:
        waiting = [name.decode() for name in self.client.zrange("ao:{00}:waiting", 0, -1)]
        self.ledger.flush(self.pick(waiting) if waiting and self.chance.random() < 0.6 else s.id)

    def events(self) -> None:
        self.service.run_once()

    def sweep(self) -> None:
        self.reaper.run_once()

    def close(self) -> None:
        if (s := self.session(*CLOSED)) is not None:
            self.delivery.close(s.id)

    def cleanup(self, s: Session) -> None:
        self.ledger.finish_cleanup(s.id, seen_as=self.chance.choice([None, SessionState(s.state)]))

    def reindex(self, s: Session) -> None:
        if wrong := self.ledger.sweep.reindex(s.id, recount=True):
            raise Broken(f"reindex of {s.id}, which is {s.state}: {wrong}")
        if wrong := self.concurrency.forget_slots(0, recount=True)[1]:
            raise Broken(f"recount: {wrong}")
        if wrong := list(leftovers(self.ledger)):
            raise Broken(f"leftovers: {wrong}")

    def restore(self) -> None:
        if (s := self.session("finished")) and self.ledger.texts(s.parent or s.id, [callback_id(s.id)]):
            self.ledger.sweep.restore_text(s.id, "x")

    def pause(self) -> None:
        self.concurrency.pause("agent", self.pick(AGENTS))

    def unpause(self) -> None:
        for agent in AGENTS:
            self.concurrency.unpause("agent", agent, agents=[agent])

    def limit(self) -> None:
        known = self.sessions()
        match self.chance.randint(0, 2):
            case 0:
                self.concurrency.limit_agent(self.pick(AGENTS), self.chance.choice([1, 2, "none", "default"]))
            case 1:
                self.concurrency.limit_trees(self.chance.choice([1, 2, "none", "default"]))
            case 2 if known:
                self.concurrency.limit_tree(self.pick(known).root, self.chance.choice([1, "none", "default"]))

    def take_external(self) -> None:
        queued = [s for s in self.sessions() if s.run and self._state_of(s.run) == "queued"]
        if (s := self.pick(queued)) is not None:
            self.ledger.take_external(RunRef(run=s.run, session=s.id, agent=s.agent, cause="start"))

    def report(self) -> None:
        """The program that runs a session says that it has ended."""
        found = [s for s in self.sessions() if s.run]
        found = [s for s in found if (run := self.ledger.run(s.run)) is not None and run.external]
        if (s := self.pick(found)) is not None:
            self._report(s, self.chance.choice(["completed", "partial-success", "failed"]))

    def _report(self, s: Session, status: str) -> None:
        n = next(self.numbers)
        said = {"parent": s.parent, "status": status, "message": f"m{n}", "late": "late"}
        self.ledger.transition(
            "route_report", s.id, "said", "", mark=mark(f"report-{n}", "task-completion"), **said
        )

    def program_launch(self) -> None:
        """An external program gives an agent work."""
        known = self.sessions()
        if len(known) > 14:
            return
        n = next(self.numbers)
        parent = self.pick(known) if known and self.chance.random() < 0.5 else None
        session = child_session_id(parent.id, f"m|{n}") if parent else root_session_id(f"x{n}")
        run, agent = run_id(session, 1), self.pick(AGENTS)
        facts: dict[str, Arg] = {
            "agent": agent,
            "title": "",
            "task": "",
            "priority": "high",
            "correlation": f"c{n}",
            "message": f"l{n}",
            "chain": json.dumps([f"l{n}"]),
            "delegator": "program",
            "task_id": f"t{n}",
        }
        octets: list[Arg] = []
        about = {"id": session, "agent": agent, "priority": "high"}
        body = request(
            launches=[layout.launch(about, facts, octets, prompt="p", envelope="", task="")],
            mark=mark(f"l{n}", "task-delegation", conversation=f"c{n}"),
            message=f"l{n}",
            run=run,
            parent=parent.id if parent else "",
            task=f"t{n}",
            first=f"l{n}",
            look_ms=1000,
            sender="program",
            names_conversation=True,
        )
        self.scripts.run("launch", [ledger_keys.session(session)], [body, *octets])

    def program_says(self) -> None:
        """An external program puts something into a session's queue."""
        to, speaker = self.session(), self.session()
        if to is None or speaker is None:
            return
        n = next(self.numbers)
        opens = speaker.parent == to.id and speaker.state == "running"
        answers = self.pick(list(to.questions)) or "" if not opens and self.chance.random() < 0.5 else ""
        kind = "query" if opens else "reply" if answers else "message"
        item = (
            question_id(speaker.id, f"m{n}")
            if opens
            else reply_id(answers)
            if answers and not answers.startswith("apr_")
            else item_id(to.id, f"m{n}")
        )
        record = {
            "kind": kind,
            "priority": "normal",
            "child": speaker.id,
            **({"question": True} if opens else {}),
        }
        asked = {"id": item, "record": record, "answers": answers, "mark": mark(f"m{n}")}
        self.scripts.run("post", *layout.post(to.id, "t", opens=speaker.id if opens else "", **asked))

    def wait(self) -> None:
        self.advance(self.chance.choice([100, 1000, 3000]))

    def wait_long(self) -> None:
        self.advance(TTL_MS + 10)

    def advance(self, ms: int) -> None:
        self.clock.advance(ms / 1000)
        self.ledger.set_time(self.clock.now_ms())

    def late(self) -> None:
        """A call whose answer was lost long ago is sent again."""
        if not self.scripts.late:
            return
        call = self.chance.choice(self.scripts.late)
        before = self.read()
        runs = before.of_kind("run").values()
        if call[0] in ("claim", "claim_next") and not any(r["claim"] and r["claim"] in call[1] for r in runs):
            return  # whoever sent it has worked under it, and sends no claim again
        asked = json.loads(call[1][2]) if call[0] == "step" else {}
        if asked and not self.client.hexists(ledger_keys.steps(asked["run"]), f"h:{asked['key']}"):
            return  # its holder has forgotten the step since, and records it no more
        self.told[-1] += f" {call[0]}"
        answer = self.scripts.again(call)
        if call[0] not in SAID_ANEW and (wrong := before.same_as(self.read())):
            raise Broken(f"{call[0]} sent late, answer {answer}: {wrong}; {call}")

    # --- the end ----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Everybody does what is theirs to do; then all is over, and nothing is owed."""
        self.told.append("settle")
        self.unpause()
        for kind in self.read().hashes["limits"]:
            if kind.startswith(("agent:", "tree")):
                self.concurrency._set(0, kind, "none")
        for _ in range(60):
            self.advance(2000)
            while self.service.run_once():
                pass
            self.reaper.run_once()
            self._move_all()
            self._end_all_runs()
            facts = self.check()
            sessions = facts.of_kind("session").items()
            left = [i for i, s in sessions if s["run"] or s["state"] not in (*CLOSED, "finished")]
            index = facts.sorted["waiting"] or facts.sorted["closing"]
            if not left and not index and not facts.others.get("session-events"):
                break
        else:
            raise Broken(f"it does not come to an end: {left}; closing {self.ledger.sweep.closing(0)}")
        ends = (
            i
            for s in self.sessions()
            for i in self.ledger.items(s.id)
            if i.kind == "completion" and i.callback
        )
        if open_ := [i for i in ends if i.state not in ("delivered", "dead")]:
            raise Broken(f"at the end there are {open_}")

    def _move_all(self) -> None:
        """Do what somebody outside of the stack has to do for all sessions."""
        found = self.read().of_kind("session").items()
        open_ = [
            i
            for i, s in found
            if s["run"] or s["state"] == "pending" or any(n.startswith("question:") for n in s)
        ]
        for s in self.ledger.find(sorted(open_)):
            self._move(s)

    def _move(self, s: Session) -> None:
        """Do what somebody outside of the stack has to do for a session."""
        if s.state == "pending" and not s.run:
            self._start(s)
        if s.run and (run := self.ledger.run(s.run)) is not None and run.external:
            self._report(s, "completed")
        for q in s.questions:
            with contextlib.suppress(WrongState, UnknownSession):
                self._answer(s, q)

    def _end_all_runs(self) -> None:
        versions = dict.fromkeys(AGENTS, "v1 refuse")
        while True:
            for lease in self.ledger.sweep.leases(0):
                s = self.ledger.session(lease.session)
                claim = Claim(run=lease.run, claim=lease.claim, session=s.id, parent=s.parent, root=s.root)
                end = Outcome(status="completed", text="end")
                self.ledger.commit(
                    EndedRun(claim, end, make_envelope=lambda: self.envelope("task-completion"))
                )
            poll = PollRequest(
                slot=Slot(name="slot1", worker="w", agents=AGENTS, versions=versions), claim=new_claim_id()
            )
            self.ledger.claim_next(0, poll)
            if poll.held is None:
                return

    def expire(self) -> None:
        """Every tree has had its lifetime: nothing is left of any."""
        self.told.append("expire")
        for _ in range(6):
            self.advance(TTL_MS + 700_000)
            while self.service.run_once():
                pass
            self.reaper.run_once()
            facts = self.read()
            lasting = {
                name for name in facts.names() - facts.expiring if not name.startswith(("msg:", "spending:"))
            }
            left = lasting - {"totals", "transitions", "limits", "limits-said", "sweep", "session-events"}
            if not left:
                break
        self.check()
        if left:
            raise Broken(f"left: {sorted(left)}; {dict(facts.sorted)}")
        said = [*facts.hashes["limits"], *facts.hashes["limits-said"]]
        if trees := [name for name in said if name.startswith("tree:")]:
            raise Broken(f"limits of {trees} are left")


#: How often each step is taken, beside the others.
_WEIGHTS = """
    submit 4, start 9, start_any 1, refuse 1, claim 5, claim_next 12, delegate 12, commit 14,
    ask 5, block 6, message 3, reply 4, request_approval 2, decide 2, withdraw 2, give_up 1, take 4,
    reject 1, effect 2, record 4, forget 1, reserve 3, spend 3, renew 4, lose 4, stop 2,
    prompt 3, flush 6, events 8, sweep 3, close 2, cleanup 2, reindex 2, restore 3, pause 1,
    unpause 1, limit 2, take_external 1, report 2, program_launch 1, program_says 1, wait 4,
    wait_long 0.15, late 8
"""
STEPS = {name: float(weight) for name, weight in map(str.split, _WEIGHTS.split(","))}


def play(
    client: redis_py.Redis,
    seed: int,
    *,
    steps: int | Sequence[int] = 60,
    share: float = 0.1,
    look_every: int = 1,
    read: Callable[[], Facts] | None = None,
    at_rest: Callable[[], object] = lambda: None,
) -> None:
    """One play from its beginning to its end; everything is looked at after so many steps, and at its end.

    Each step has its own chance, so that it comes to the same where others are left out: ``steps`` may name those that stay.
    """
    one = Play(client, seed, share=share, read=read)
    try:
        one.begin()
        for number in range(steps) if isinstance(steps, int) else steps:
            one.chance.seed(f"{seed} {number}")
            one.step(looks=number % look_every == 0)
        one.chance.seed(f"{seed} at the end")
        one.settle()
        at_rest()
        one.expire()
    except Exception as error:
        told = "\n".join(f"{n}: {what}" for n, what in enumerate(one.told))
        raise Broken(f"seed {seed}\n{told}\n{type(error).__name__}: {error}") from error
