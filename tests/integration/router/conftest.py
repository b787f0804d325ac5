"""A kit without workers: a router on a real server, agents that are registered, messages that are signed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from orchestrator.agents.registry import AgentRecord
from orchestrator.config.settings import load_settings
from orchestrator.doctor import inspection
from orchestrator.envelope.bodies import Task, TaskDelegation
from orchestrator.envelope.codec import decode, encode_unsigned
from orchestrator.envelope.model import AgentMessage, Body, RetryPolicy
from orchestrator.envelope.validate import check
from orchestrator.ledger import ClaimedRun, Committed, EndedRun, Outcome, Outgoing, RetryLater, SessionState
from orchestrator.messages.factory import Thread
from orchestrator.reconciler.delivery import Delivery
from orchestrator.reconciler.reaper import Reaper
from orchestrator.router.router import Router
from orchestrator.streams import StreamId, stream_key
from tests.clock import Ahead
from tests.kit import Kit
from tests.postgres import TrailDatabase
from tests.waiting import until

AGENTS = (
    AgentRecord(name="lead", role="coordinator"),
    AgentRecord(name="reviewer", role="specialist", queue="reviews"),
    AgentRecord(name="tech-lead", role="coordinator"),
    AgentRecord(name="code-reviewer", role="specialist"),
    AgentRecord(name="partner", role="coordinator", executor="foreign"),
)
#: An agent that is registered when messages to it have been sent.
LATER = AgentRecord(name="later", role="specialist")
MESSAGES = StreamId(0, "message", "normal")
ONCE = RetryPolicy(max_attempts=1, backoff_strategy="linear", timeout_seconds=60)


@pytest.fixture
def kit(redis: redis_py.Redis, redis_url: str, tmp_path: Path) -> Kit:
    """An empty stack with five registered agents, `partner` being an external program."""
    made = Kit.on(redis, load_settings(redis_url=redis_url, data=tmp_path, registration_patience_s=0))
    made.parts.agents.announce(AGENTS)
    return made


@pytest.fixture
def database(trail_database: TrailDatabase, monkeypatch: pytest.MonkeyPatch) -> TrailDatabase:
    """The audit database of the stack, of each kind in turn; nobody writes it while it is inspected."""
    monkeypatch.setattr(inspection, "BETWEEN_S", 0.0)
    return trail_database


def task(task_id: str = "T-1", text: str = "the lines", **parts: Any) -> TaskDelegation:
    """A task of an external program, under an id of its own."""
    return TaskDelegation(task=Task(task_id=task_id, title="Count", description=text, **parts))


def unsigned(kit: Kit, body: Body, **header: Any) -> bytes:
    """What a stranger who may append to the streams can write in anybody's name."""
    return encode_unsigned(decode(kit.envelope(body, **header)))


def forge(kit: Kit, body: Body, **header: Any) -> bytes:
    """Publish it as a stranger does; its octets."""
    data = unsigned(kit, body, **header)
    kit.publish(data, body.type, kit.parts.routing[body.type].priority)
    return data


def flood(kit: Kit, data: bytes, number: int, stream: StreamId = MESSAGES) -> None:
    """Append the same octets many times, as a stranger would: past every limit of honest publishers."""
    pipeline = kit.redis.pipeline(transaction=False)
    for _ in range(number):
        pipeline.xadd(stream_key(stream), {"envelope": data})
    pipeline.execute()


def route_until_dead(kit: Kit, consumer: str = "r1") -> None:
    """Have a router try without a pause until it gives a message up."""
    router = kit.router(consumer, jitter=lambda: 0.0)
    while not router.run_once().dead:
        pass


def route_all(kit: Kit, consumer: str = "again") -> None:
    """Let a router handle everything that is there, also what has to wait."""
    clock = Ahead(kit.redis)
    router = kit.router(consumer, jitter=lambda: 0.0, clock=clock)
    handled = router.run_once()
    while handled.done or handled.dead or handled.parked or kit.delayed.all():
        kit.wake()
        clock.skip(1_000)
        handled = router.run_once()


def sessions(kit: Kit) -> list[str]:
    """Every session of the ledger."""
    return [session.id for root in kit.ledger.all_roots(0) for session in kit.ledger.tree(root)]


def errors(kit: Kit) -> list[AgentMessage]:
    """The errors that were published."""
    found = [check(data).message for data in kit.published("error")]
    assert None not in found
    return [message for message in found if message is not None]


def rounds(router: Router, number: int = 2) -> int:
    """Let a router work for some rounds, as one may put back what another then handles; how many messages are done."""
    return sum(router.run_once().done for _ in range(number))


def end_run(
    kit: Kit, held: ClaimedRun, text: str = "done", *, status: str = "completed"
) -> Committed | RetryLater:
    """End a run as its worker does: with the signed message that reports the end of its session, if it has ended."""
    session, factory = held.session, kit.parts.message_factory
    about: dict[str, Any] = {"sender": session.agent, "recipient": session.delegator or "operator"}
    about |= {"thread": Thread.of(session)}

    def report() -> Outgoing:
        if status == "completed":
            return factory.completion(task_id=session.id, result=text, **about)
        return factory.error(error=text, **about)

    return kit.ledger.commit(EndedRun(held.claim, Outcome(status=status, text=text), make_envelope=report))


def sweep_until(kit: Kit, session: str, state: SessionState, *, lease_s: float = 15) -> None:
    """Have a reaper work until a session has that state."""
    ledger = kit.ledger
    reaper = Reaper(ledger, Delivery(ledger, lambda _: None), settle=lambda _: None, lease_s=lease_s)
    until(lambda: reaper.run_once() is not None and ledger.session(session).state is state)


class Family:
    """A session of `lead` at work, and the child that it has just given to the external program `partner`."""

    def __init__(self, kit: Kit) -> None:
        self.kit, root = kit, kit.send()
        kit.route("family")
        self.lead = kit.claim(root)
        launch = kit.assign(self.lead, "partner", title="Ask outside", description="what is it?")
        self.child, self.launch = launch.child_id, launch.envelope.message_id
        #: The header of what is said in the conversation of the child.
        self.within: dict[str, Any] = {
            "correlation": self.lead.session.correlation,
            "chain": (self.launch, *self.lead.session.chain),
        }

    def envelope(self, body: Body, *, recipient: str = "lead", **header: Any) -> bytes:
        """What the child says in its conversation."""
        return self.kit.envelope(body, sender="partner", recipient=recipient, **self.within, **header)

    def post(self, body: Body, *, recipient: str = "lead", **header: Any) -> bytes:
        """Publish what the child says in its conversation; its octets."""
        return self.kit.post(body, sender="partner", recipient=recipient, **self.within, **header)
