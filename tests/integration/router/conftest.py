"""A stack without workers: a router on a real server, agents that are registered, messages that are signed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import redis as redis_py
from click.testing import CliRunner, Result

from orchestrator.agents.registry import SYSTEM_AGENTS, AgentRecord, system_record
from orchestrator.bootstrap import Container, build_container
from orchestrator.cli import main
from orchestrator.config.settings import Settings, load_settings
from orchestrator.doctor import inspection
from orchestrator.envelope.bodies import EscalationMatter, Review, Task
from orchestrator.envelope.model import AgentMessage, Body, Header, Party, RetryPolicy
from orchestrator.envelope.model_values import Timestamp, with_values
from orchestrator.envelope.signature import sign_message
from orchestrator.errors import ServerUnavailable
from orchestrator.ids import child_session_id, derived_uuid, new_claim_id, new_message_id, root_session_id
from orchestrator.ledger import ClaimedRun, Launch, RunRef
from orchestrator.messages.factory import Terms, Thread
from orchestrator.redisdb.acl import PASSWORD, acl_line, role_rules
from orchestrator.redisdb.client import connect, is_outage
from orchestrator.redisdb.raw_pipeline import ServerClock
from orchestrator.redisdb.scripts import Scripts
from orchestrator.router.build import build_router
from orchestrator.router.deadletters.store import DeadLetter, DeadLetters
from orchestrator.router.delayed.parked import DelayedMessages
from orchestrator.router.router import Router
from orchestrator.streams import ROUTER_GROUP, RedisStreams, StreamId, all_streams
from tests.conftest import TrailDatabase
from tests.documents import hold_to_models
from tests.ready import ready_runs
from tests.waiting import PATIENCE_S, wait_until

AGENTS = (
    AgentRecord(name="lead", role="coordinator"),
    AgentRecord(name="reviewer", role="specialist", queue="reviews"),
    AgentRecord(name="tech-lead", role="coordinator"),
    AgentRecord(name="code-reviewer", role="specialist"),
    AgentRecord(name="partner", role="coordinator", executor="foreign"),
)


def until(condition: Callable[[], bool], *, seconds: float = PATIENCE_S) -> None:
    """Wait for a condition; an outage of the server counts as not yet."""

    def holds() -> bool:
        try:
            return condition()
        except redis_py.RedisError as error:
            if not is_outage(error):
                raise
            return False

    wait_until(holds, timeout_s=seconds)


@dataclass
class Sent:
    """A dispatcher that remembers whom it rang; `down` makes it behave as when the broker is away."""

    parts: Container
    wakeups: list[tuple[str, str]] = field(default_factory=list)
    down: bool = False
    _cleared: set[str] = field(default_factory=set)

    def wake(self, agents: Iterable[tuple[str, str]]) -> None:
        pairs = list(agents)
        if self.down and pairs:
            raise ServerUnavailable("the Celery broker", "away")
        self.wakeups += pairs

    @property
    def runs(self) -> list[tuple[RunRef, str]]:
        """The ready runs, each with the queue of its agent, in the order in which they were made."""
        return [(run, queue) for run, queue in ready_runs(self.parts) if run.run not in self._cleared]

    def clear(self) -> None:
        """Forget what is ready now."""
        self._cleared |= {dispatch.run for dispatch, _ in self.runs}


class At:
    """A clock that stands still at a moment."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return 0.0


class Ahead(ServerClock):
    """The server's clock, put forward by what a test would else wait for."""

    def __init__(self, client: redis_py.Redis) -> None:
        super().__init__(client)
        self._ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms

    def skip(self, ms: int) -> None:
        """Let that many milliseconds pass."""
        self._ahead_ms += ms


@cache
def user_rules(role: str) -> list[str]:
    """What `ACL SETUSER` takes for a role."""
    return acl_line(role, role_rules(role)).replace(PASSWORD, "for-tests").split()[1:]


@dataclass
class Stack:
    """What a test of the router works with."""

    redis: redis_py.Redis
    settings: Settings
    parts: Container

    def __post_init__(self) -> None:
        self.sent = Sent(self.parts)
        self.streams = RedisStreams(self.redis)
        self.parts.agents.announce(AGENTS)

    def router(self, consumer: str = "r1", **options: object) -> Router:
        """A router under a consumer's name, that may do what `orchestra service acl router` says."""
        return build_router(
            self.as_role("router"),
            self.settings,
            consumer=consumer,
            dispatcher=self.sent,  # type: ignore[arg-type]
            **options,  # type: ignore[arg-type]
        )

    def as_role(self, role: str) -> redis_py.Redis:
        """A connection of the user that `orchestra service acl` prints for a role."""
        self.redis.execute_command("ACL", "SETUSER", *user_rules(role))
        return connect(f"{self.settings.redis_url}&username={role}&password=for-tests", check=False)

    def submit(self, seed: str = "root", agent: str = "lead") -> str:
        """A root session whose task-delegation waits in its stream."""
        session = root_session_id(seed)
        thread = Thread(correlation=derived_uuid("conversation", session))
        letter = self.parts.message_factory.delegation(
            sender="operator",
            recipient=agent,
            task_id=session,
            task=Task(title="a task", description="do it"),
            thread=thread,
        )
        self.parts.ledger.submit(
            session, agent=agent, prompt="do it", envelope=letter, correlation=thread.correlation
        )
        return session

    def claim(self, session: str) -> ClaimedRun:
        """The queued run of a session, in the hands of a worker."""
        ledger = self.parts.ledger
        held = ledger.claim(ledger.session(session).run, new_claim_id(), session_id=session, worker="w")
        assert held is not None
        return held

    def launch(
        self,
        parent: ClaimedRun,
        agent: str,
        *,
        effect: str = "one",
        title: str = "a child",
        description: str = "do it",
        matter: Task | Review | EscalationMatter | None = None,
        after: Sequence[str] = (),
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> Launch:
        """What a session at work launches: by default a delegation.

        ``options`` are those of the ledger's launch.
        """
        session, factory = parent.session, self.parts.message_factory
        child = child_session_id(session.id, effect)
        matter = with_values(matter or Task(), title=title, description=description)
        about: dict[str, Any] = {"sender": session.agent, "recipient": agent, "task_id": child}
        about |= {"thread": Thread.of(session), "terms": Terms(after=after)}
        match matter:
            case Task():
                envelope = factory.delegation(task=matter, **about)
            case Review():
                envelope = factory.review_request(review=matter, reviewed=session.id, **about)
            case EscalationMatter():
                envelope = factory.escalation(matter=matter, escalated=session.id, **about)
        launch = Launch(
            effect=effect,
            child_id=child,
            agent=agent,
            description=description,
            envelope=envelope,
            correlation=session.correlation,
            chain=session.chain,
            **options,
        )
        self.parts.ledger.delegate(parent.claim, launch)
        return launch

    def envelope(
        self,
        body: Body,
        *,
        sender: str = "lead",
        recipient: str = "tech-lead",
        signer: str | None = None,
        message_id: str | None = None,
        correlation: str | None = None,
        chain: tuple[str, ...] = (),
        priority: str | None = None,
        expiration: Timestamp | None = None,
        timestamp: Timestamp | None = None,
        retry: RetryPolicy | None = None,
        role: str | None = None,
    ) -> bytes:
        """A signed envelope from any agent, as an external program may write it."""
        now_ms = int(self.redis.time()[0]) * 1000
        header = Header(
            message_id=message_id or new_message_id(),
            timestamp=timestamp or Timestamp.from_ms(now_ms),
            sender=self._party(sender, role),
            recipient=self._party(recipient),
            correlation_id=correlation,
            conversation_chain=chain,
            priority=priority,  # type: ignore[arg-type]
            expiration=expiration,
            retry_policy=retry,
        )
        message = AgentMessage(header=header, body=body)
        return sign_message(message, self.parts.keyring.signer(signer or sender), now_ms=now_ms)

    def _party(self, name: str, role: str | None = None) -> Party:
        record = system_record(name) if name in SYSTEM_AGENTS else self.parts.agents.get(name)
        return Party(agent_name=name, agent_role=role or (record.role if record else "specialist"))

    def publish(
        self, data: bytes, message_type: str, priority: str = "normal", extra: dict[str, str] | None = None
    ) -> str:
        """Append to a stream, as `redis-cli` would."""
        return self.streams.publish(StreamId(0, message_type, priority), data, extra=extra)

    def dead(self) -> list[DeadLetter]:
        """The dead letters."""
        return DeadLetters(self.redis).all()

    def pending(self) -> int:
        """Entries that a router holds."""
        return sum(row.pending for row in self.streams.backlog(ROUTER_GROUP, all_streams()))

    def run(self, *arguments: str, stdin: bytes | None = None, **runner: Any) -> Result:
        """One command on the stack."""
        options = ["--redis-url", str(self.settings.redis_url), "--data", str(self.settings.data)]
        done = CliRunner().invoke(main, [*arguments, *options], input=stdin, **runner)
        hold_to_models(arguments, done.stdout)
        return done

    @property
    def delayed(self) -> DelayedMessages:
        """The messages that wait."""
        return DelayedMessages(Scripts(self.redis), shards=[0], mark_ms=60_000)

    def wake(self) -> None:
        """Let the time come for everything that waits."""
        for parked in self.delayed.all():
            assert self.delayed.release([parked]) == 1

    def published(self, message_type: str) -> list[bytes]:
        """The envelopes of a type that are in the streams, in the order of priorities."""
        streams = all_streams(types=[message_type])
        rows = [row for s in streams for row in self.redis.xrange(f"ao:{{00}}:msg:{s.type}:{s.priority}")]
        return [fields[b"envelope"] for _, fields in rows]


@pytest.fixture
def stack(redis: redis_py.Redis, redis_url: str, tmp_path: Path) -> Stack:
    """An empty stack with five registered agents, `partner` being an external program."""
    settings = load_settings(redis_url=redis_url, data=tmp_path, registration_patience_s=0)
    return Stack(redis, settings, build_container(redis, settings))


@pytest.fixture
def database(trail_database: TrailDatabase, monkeypatch: pytest.MonkeyPatch) -> TrailDatabase:
    """The audit database of the stack, of each kind in turn; nobody writes it while it is inspected."""
    monkeypatch.setattr(inspection, "BETWEEN_S", 0.0)
    return trail_database
