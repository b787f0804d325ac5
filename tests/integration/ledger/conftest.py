"""A ledger on a real server, and a short way to play sessions through its public calls."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import redis as redis_py

from orchestrator.ids import child_session_id, new_claim_id, root_session_id
from orchestrator.ledger import (
    Claim,
    ClaimedRun,
    Committed,
    EndedRun,
    Launch,
    Ledger,
    Outcome,
    Outgoing,
    RetryLater,
    RunRef,
    Start,
    TreeLimits,
)
from orchestrator.reconciler.callbacks import CallbackService
from orchestrator.reconciler.delivery import Delivery
from orchestrator.reconciler.reaper import Reaper
from orchestrator.redisdb import keys
from tests.clock import ManualClock


def envelope(
    message_type: str = "task-delegation", priority: str = "high", text: bytes = b"<agent-message/>"
) -> Outgoing:
    """An envelope that the ledger carries without looking into it."""
    return Outgoing(data=text, type=message_type, priority=priority, message_id=f"m-{next(_numbers)}")


_numbers = itertools.count()


@dataclass
class Play:
    """Plays the router, the workers and the callback service, one transition at a time."""

    ledger: Ledger
    claims: dict[str, ClaimedRun] = field(default_factory=dict)

    def submit(self, seed: str = "root", agent: str = "lead", prompt: str = "go") -> str:
        session = root_session_id(seed)
        self.ledger.submit(session, agent=agent, prompt=prompt, envelope=envelope(), correlation="c")
        return session

    def start(self, session: str, *, entry: str = "1-1", message: str = "") -> RunRef | None:
        found = self.ledger.session(session)
        message = message or found.message
        launch = Start(
            session=session,
            message=message,
            sender="operator",
            digest="d",
            recipient=found.agent,
            conversation="c",
            stream=keys.messages(0, "task-delegation", "high"),
            entry=entry,
            mark_ms=60_000,
        )
        call = self.ledger.start_call(0, [launch], group="router", keep_ms=60_000)
        return self.ledger.started(session, self.ledger.scripts.run("start", *call)[0])

    def claim(self, dispatch: RunRef) -> ClaimedRun:
        held = self.ledger.claim(dispatch.run, new_claim_id(), session_id=dispatch.session, worker="w1")
        assert held is not None
        self.claims[dispatch.session] = held
        return held

    def run(self, session: str) -> ClaimedRun:
        """Bring a pending session to running."""
        dispatch = self.start(session)
        assert dispatch is not None
        return self.claim(dispatch)

    def begin(self, seed: str = "root", agent: str = "lead", prompt: str = "go") -> tuple[str, ClaimedRun]:
        """Submit a session and bring it to running; its id and the run."""
        session = self.submit(seed, agent, prompt)
        return session, self.run(session)

    def launch(self, parent: ClaimedRun, effect: str, **options: object) -> Launch:
        """A launch that may be asked for."""
        return Launch(
            effect=effect,
            child_id=child_session_id(parent.claim.session, effect),
            agent=str(options.pop("agent", "reviewer")),
            description="look",
            envelope=options.pop("envelope", None) or envelope(priority=str(options.pop("priority", "high"))),  # type: ignore[arg-type]
            correlation="c",
            chain=parent.session.chain,
            **options,  # type: ignore[arg-type]
        )

    def delegate(self, parent: ClaimedRun, effect: str, **options: object) -> str:
        return self.ledger.delegate(parent.claim, self.launch(parent, effect, **options)).child

    def say(self, held: ClaimedRun, to: str, text: str = "?", *, item: str, **options: object) -> str:
        """Put something into the queue of a session: a message of usual priority, if nothing else is said."""
        options = {"effect": item, "kind": "message", "priority": "normal"} | options
        return self.ledger.send(held.claim, to, text, item_id=item, **options)  # type: ignore[arg-type]

    def ask(self, held: ClaimedRun, of: str, *, item: str = "itm_00q", **options: object) -> str:
        """Put an open question into the queue of a session."""
        return self.say(held, of, "which?", item=item, kind="query", opens=True, **options)

    def commit(
        self,
        claim: Claim,
        text: str = "done",
        *,
        status: str = "completed",
        waiting: object = None,
        attempts: int = 1,
    ) -> Committed | RetryLater:
        return self.ledger.commit(
            EndedRun(
                claim,
                Outcome(status=status, text=text, waiting=waiting, attempts=attempts),  # type: ignore[arg-type]
                make_envelope=lambda: envelope("task-completion"),
                about=next(iter(self.ledger.find([claim.session])), None),
            )
        )

    def finish(self, session: str, text: str = "done", *, status: str = "completed") -> None:
        """Run a pending session to its end."""
        self.commit(self.run(session).claim, text, status=status)

    def resume(self, session: str) -> ClaimedRun:
        """Flush, and claim the run that it made."""
        flushed = self.ledger.flush(session)
        assert flushed.dispatch is not None, flushed
        return self.claim(flushed.dispatch)

    def balance(self, session: str) -> tuple[int, int, int, int]:
        """launched, delivered, pending, dead."""
        s = self.ledger.session(session)
        return s.launched, s.delivered, s.pending, s.dead


class Stack:
    """One callback service and one reaper whose dispatches are collected instead of sent."""

    def __init__(self, redis: redis_py.Redis, play: Play) -> None:
        self.play, self.ledger, self.redis = play, play.ledger, redis
        self.sent: list[RunRef] = []
        self.settled: list[str] = []
        self.broken = False
        self.clock = ManualClock()
        self.delivery = Delivery(self.ledger, self._send)
        self.service = self.callback_service("one")
        self.reaper = self.make_reaper()

    def callback_service(self, name: str) -> CallbackService:
        return CallbackService(self.redis, self.delivery, consumer=name, clock=self.clock, take_over_ms=100)

    def make_reaper(self) -> Reaper:
        return Reaper(self.ledger, self.delivery, settle=self._settle, clock=self.clock, lease_s=15)

    def _settle(self, root: str) -> None:
        self.settled.append(root)
        self.ledger.sweep.mark_result_published(root)

    def _send(self, ready: Sequence[RunRef]) -> None:
        if self.broken:
            raise ConnectionError("broker is away")
        self.sent += ready

    def drain(self) -> None:
        """Let the callback service do what there is to do."""
        while self.service.run_once():
            pass

    def resumed(self) -> ClaimedRun:
        """The run that was made ready last, once the callback service has nothing left to do; claimed."""
        self.drain()
        return self.play.claim(self.sent[-1])


@pytest.fixture
def ledger(redis: redis_py.Redis) -> Ledger:
    """A ledger with small limits."""
    return Ledger(redis, limits=TreeLimits(resume_max_items=50, max_lost_workers=2))


@pytest.fixture
def play(ledger: Ledger) -> Play:
    return Play(ledger)


@pytest.fixture
def stack(redis: redis_py.Redis, play: Play) -> Stack:
    return Stack(redis, play)
