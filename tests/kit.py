"""A stack in the hands of a test: a real server, ledger and keys; what its processes do is done a step at a time.

kit.agent("lead")(function)          given agents, and sessions: `submit` as a client, `given` in the ledger alone
kit.post(body, sender="partner")     publish what an external program says
kit.route()                          a router takes what is there; `start` does it for one session
kit.run(session), kit.play(session)  run a session: take its run, to commit it; or execute its agent
kit.crash(session)                   its worker is lost
kit.balance(session)                 then: `children`, `dead`, `published`, `orchestra("tree", …)`
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, Self

import redis as redis_py
from click.testing import Result

from orchestrator.agents.definition import AgentDefinition, define_agent
from orchestrator.agents.registry import SYSTEM_AGENTS, system_record
from orchestrator.bootstrap import Container, build_container
from orchestrator.client.submission import Submission
from orchestrator.config.settings import Settings, load_settings
from orchestrator.dispatch import RootResults, build_celery
from orchestrator.envelope.bodies import EscalationMatter, Review, Task
from orchestrator.envelope.model import AgentMessage, Body, Header, Party, RetryPolicy
from orchestrator.envelope.model_values import Timestamp, with_values
from orchestrator.envelope.signature import sign_message
from orchestrator.ids import child_session_id, derived_uuid, new_claim_id, new_message_id, root_session_id
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
    Session,
    SessionState,
    Start,
)
from orchestrator.messages.factory import Terms, Thread
from orchestrator.policy.callback import Callback
from orchestrator.redisdb import keys
from orchestrator.redisdb.scripts import Scripts
from orchestrator.router.build import build_router
from orchestrator.router.deadletters.store import DeadLetter, DeadLetters
from orchestrator.router.delayed.parked import DelayedMessages
from orchestrator.router.router import Handled, Router
from orchestrator.streams import ROUTER_GROUP, RedisStreams, StreamId, all_streams
from orchestrator.worker.container import Runtime
from orchestrator.worker.context.context import Context
from orchestrator.worker.execution.runner import execute_run
from tests.commands import run_command
from tests.services import Sent, Services
from tests.users import connect_as
from tests.waiting import wait_until

_numbers = itertools.count()


def carried(
    message_type: str = "task-delegation", priority: str = "high", text: bytes = b"<agent-message/>"
) -> Outgoing:
    """An envelope that the ledger carries without looking into it."""
    return Outgoing(data=text, type=message_type, priority=priority, message_id=f"m-{next(_numbers)}")


class Kit:
    """Plays the client, the router, the workers and the services of a stack."""

    def __init__(
        self,
        parts: Container,
        *,
        ledger: Ledger | None = None,
        catalogue: dict[str, AgentDefinition] | None = None,
    ) -> None:
        self.parts = parts
        self.redis, self.settings = parts.redis, parts.settings
        self.ledger = ledger or parts.ledger
        self.catalogue = {} if catalogue is None else catalogue

    @classmethod
    def on(cls, redis: redis_py.Redis, settings: Settings | None = None, **options: Any) -> Self:
        """A kit of its own parts on a server."""
        return cls(build_container(redis, settings or load_settings()), **options)

    @classmethod
    def of(cls, ledger: Ledger) -> Self:
        """A kit of a ledger alone."""
        return cls.on(ledger.redis, ledger=ledger)

    def beside(self, **settings: Any) -> Self:
        """Another kit on the same server and with the same agents, under other settings."""
        return type(self).on(self.redis, self.settings.model_copy(update=settings), catalogue=self.catalogue)

    @cached_property
    def app(self) -> Any:
        return build_celery(self.settings)

    @cached_property
    def runtime(self) -> Runtime:
        """What a worker executes its runs with."""
        results = RootResults(self.app, self.redis)
        return Runtime(parts=self.parts, results=results, catalogue=self.catalogue)

    @cached_property
    def services(self) -> Services:
        """A callback service and a reaper."""
        return Services(self.redis, self.ledger)

    @cached_property
    def sent(self) -> Sent:
        """Whom the routers of this kit told of runs."""
        return Sent(self.parts)

    @cached_property
    def streams(self) -> RedisStreams:
        return RedisStreams(self.redis)

    @property
    def now_ms(self) -> int:
        """The second of the server's time."""
        return int(self.redis.time()[0]) * 1000

    @property
    def steady(self) -> Settings:
        """The settings for a worker whose signs of life last, also while a busy machine stands still for a second."""
        return self.settings.model_copy(update={"heartbeat_s": 5.0})

    # --- given ---------------------------------------------------------------------------------------------------

    def agent(
        self, name: str, **options: Any
    ) -> Callable[[Callable[[Context], Any]], Callable[[Context], Any]]:
        """Define an agent and announce it."""

        def define(function: Callable[[Context], Any]) -> Callable[[Context], Any]:
            options.setdefault("backoff_s", 0.001)
            self.serve(define_agent(name, function=function, source="here", **options))
            return function

        return define

    def serve(self, definition: AgentDefinition) -> AgentDefinition:
        """Announce an agent whose runs this kit executes."""
        self.catalogue[definition.record.name] = definition
        self.parts.agents.announce([definition.record])
        return definition

    def submit(self, agent: str = "lead", prompt: str = "go", *, task: str = "", **options: Any) -> str:
        """Submit as a client does, with the options of a request; the session."""
        request: Any = {"agent": agent, "prompt": prompt, **options}
        return Submission(self.parts).begin(request, result_of=task).session

    def send(self, seed: str = "root", agent: str = "lead") -> str:
        """A session whose signed task waits for the router, which may refuse it; the session."""
        session = root_session_id(seed)
        thread = Thread(correlation=derived_uuid("conversation", session))
        letter = self.parts.message_factory.delegation(
            sender="operator",
            recipient=agent,
            task_id=session,
            task=Task(title="a task", description="do it"),
            thread=thread,
        )
        self.ledger.submit(
            session, agent=agent, prompt="do it", envelope=letter, correlation=thread.correlation
        )
        return session

    def given(self, seed: str = "root", agent: str = "lead", prompt: str = "go") -> str:
        """A session that waits for the router; the ledger alone knows of it, and carries its message."""
        session = root_session_id(seed)
        self.ledger.submit(session, agent=agent, prompt=prompt, envelope=carried(), correlation="c")
        return session

    def given_run(
        self, seed: str = "root", agent: str = "lead", prompt: str = "go"
    ) -> tuple[str, ClaimedRun]:
        """A session at work; its id and the run."""
        session = self.given(seed, agent, prompt)
        return session, self.run(session)

    def parent_of(self, *effects: str, seed: str = "root", waiting: Any = None, **options: Any) -> list[str]:
        """A session that has launched children and waits for them: it, and each child, which is still pending."""
        session, held = self.given_run(seed)
        children = [self.delegate(held, effect, **options) for effect in effects]
        self.commit(held.claim, waiting=waiting)
        return [session, *children]

    def launch(self, parent: ClaimedRun, effect: str, **options: Any) -> Launch:
        """A launch that may be asked for."""
        priority = options.pop("priority", "high")
        return Launch(
            effect=effect,
            child_id=child_session_id(parent.claim.session, effect),
            agent=options.pop("agent", "reviewer"),
            description=options.pop("description", "look"),
            envelope=options.pop("envelope", None) or carried(priority=priority),
            correlation=parent.session.correlation,
            chain=parent.session.chain,
            **options,
        )

    def delegate(self, parent: ClaimedRun, effect: str, **options: Any) -> str:
        """Have a run delegate; the child."""
        return self.ledger.delegate(parent.claim, self.launch(parent, effect, **options)).child

    def assign(
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
        """Have a run launch a child by a signed message, by default a delegation.

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
        launch = self.launch(
            parent, effect, agent=agent, description=description, envelope=envelope, **options
        )
        self.ledger.delegate(parent.claim, launch)
        return launch

    def lead(
        self,
        *tasks: str,
        reply: Callable[[Callback], str] | None = lambda _: "yes",
        answer: Callable[[Context], Any] = lambda ctx: ",".join(map(str, ctx.all_results)),
    ) -> list[Callback]:
        """Define `lead`, who delegates each `agent: task`, replies to whoever asks, and answers; all that it is told."""
        told: list[Callback] = []

        @self.agent("lead", role="coordinator")
        def lead(ctx: Context) -> Any:
            if ctx.cause == "start":
                for agent, _, text in (task.partition(": ") for task in tasks):
                    ctx.delegate(agent, text)
            told.extend(ctx.callbacks)
            for callback in ctx.callbacks if reply is not None else ():
                if callback.can_reply:
                    assert ctx.reply(callback, reply(callback))
            return answer(ctx)

        return told

    # --- send ----------------------------------------------------------------------------------------------------

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
        timestamp: Timestamp | None = None,
        retry: RetryPolicy | None = None,
        role: str | None = None,
        **further: Any,
    ) -> bytes:
        """A signed envelope from any agent, as an external program may write it."""
        now_ms = self.now_ms
        header = Header(
            message_id=message_id or new_message_id(),
            timestamp=timestamp or Timestamp.from_ms(now_ms),
            sender=self._party(sender, role),
            recipient=self._party(recipient),
            correlation_id=correlation,
            conversation_chain=chain,
            retry_policy=retry,
            **further,
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

    def post(self, body: Body, **header: Any) -> bytes:
        """Publish a signed envelope where it belongs; its octets."""
        data = self.envelope(body, **header)
        self.publish(data, body.type, header.get("priority") or self.parts.routing[body.type].priority)
        return data

    def say(self, held: ClaimedRun, to: str, text: str = "?", *, item: str, **options: Any) -> str:
        """Have a run put something into the queue of a session: a message of usual priority, if nothing else is said."""
        options = {"effect": item, "kind": "message", "priority": "normal"} | options
        return self.ledger.send(held.claim, to, text, item_id=item, **options)

    def ask(self, held: ClaimedRun, of: str, *, item: str = "itm_00q", **options: Any) -> str:
        """Have a run put an open question into the queue of a session."""
        return self.say(held, of, "which?", item=item, kind="query", opens=True, **options)

    # --- route ---------------------------------------------------------------------------------------------------

    def as_role(self, role: str) -> redis_py.Redis:
        """A connection of the user that `orchestra service acl` prints for a role."""
        return connect_as(role, self.redis, str(self.settings.redis_url))

    def router(self, consumer: str = "r1", **options: Any) -> Router:
        """A router under a consumer's name, that may do what `orchestra service acl router` says."""
        options.setdefault("dispatcher", self.sent)
        return build_router(self.as_role("router"), self.settings, consumer=consumer, **options)

    def route(self, consumer: str = "r1", **options: Any) -> Handled:
        """Have a router take what is there, once."""
        return self.router(consumer, **options).run_once()

    def start(self, session: str, *, entry: str = "", message: str = "") -> RunRef | None:
        """Queue the first run of a session, as the router does."""
        found = self.ledger.session(session)
        launch = Start(
            session=session,
            message=message or found.message,
            sender="operator",
            digest="d",
            recipient=found.agent,
            conversation=found.correlation,
            stream=keys.messages(0, "task-delegation", "high"),
            entry=entry or found.entry.rpartition(":")[2] or "1-1",
            mark_ms=60_000,
        )
        call = self.ledger.start_call(0, [launch], group="router", keep_ms=60_000)
        return self.ledger.started(session, self.ledger.scripts.run("start", *call)[0])

    # --- run: take and commit -------------------------------------------------------------------------------------

    def claim(self, run: RunRef | str) -> ClaimedRun:
        """A run, or the one that a session has, in the hands of a worker."""
        if isinstance(run, str):
            run, session = self.ledger.session(run).run, run
        else:
            run, session = run.run, run.session
        held = self.ledger.claim(run, new_claim_id(), session_id=session, worker="w1")
        assert held is not None
        return held

    def run(self, session: str) -> ClaimedRun:
        """Bring a pending session to running."""
        dispatch = self.start(session)
        assert dispatch is not None
        return self.claim(dispatch)

    def commit(
        self,
        claim: Claim,
        text: str = "done",
        *,
        status: str = "completed",
        waiting: Any = None,
        attempts: int = 1,
    ) -> Committed | RetryLater:
        """Commit a run with its answer."""
        return self.ledger.commit(
            EndedRun(
                claim,
                Outcome(status=status, text=text, waiting=waiting, attempts=attempts),
                make_envelope=lambda: carried("task-completion"),
                about=next(iter(self.ledger.find([claim.session])), None),
            )
        )

    def finish(self, session: str, text: str = "done", *, status: str = "completed") -> None:
        """Run a pending session to its end."""
        self.commit(self.run(session).claim, text, status=status)

    def flush(self, session: str) -> RunRef:
        """Flush a session, and expect the run that this makes."""
        flushed = self.ledger.flush(session)
        assert flushed.dispatch is not None, flushed
        return flushed.dispatch

    def resume(self, session: str) -> ClaimedRun:
        """Flush, and claim the run that it made."""
        return self.claim(self.flush(session))

    def crash(self, session: str) -> str:
        """Lose the worker of a session's run, also one whose heart still beats; what becomes of the run."""
        while True:
            lease = next(lease for lease in self.ledger.sweep.leases(0) if lease.session == session)
            if (became := self.ledger.release(lease)) != "moved":
                return became

    # --- run: execute ---------------------------------------------------------------------------------------------

    def execute(self, dispatch: RunRef | None, worker: str = "w1") -> str:
        """Execute a run with its agent; how it ends."""
        assert dispatch is not None
        return execute_run(
            self.runtime, agent=dispatch.agent, session=dispatch.session, run=dispatch.run, worker=worker
        )

    def play(self, session: str) -> str:
        """Start a session, or resume it if it has begun, and execute that run."""
        pending = self.ledger.session(session).state is SessionState.PENDING
        return self.execute(self.start(session) if pending else self.flush(session))

    def begin(self, agent: str, prompt: str = "go", *, ends: str = "", **options: Any) -> str:
        """Submit to an agent and execute its first run, which ends as told; the session."""
        session = self.submit(agent, prompt, **options)
        outcome = self.play(session)
        assert ends in ("", outcome), (outcome, self.ledger.session(session).reason)
        return session

    def again(self, run: RunRef | str) -> str:
        """Execute a run, or the one that a session has, once more, as soon as it may be tried again."""
        name = self.ledger.session(run).run if isinstance(run, str) else run.run
        return self.execute(wait_until(lambda: self.ledger.sweep.make_ready(name)), worker="w2")

    def end_children(self, session: str) -> str:
        """Execute the first runs of its children, and its resume; how that ends."""
        for child in self.children(session):
            self.play(child.id)
        return self.play(session)

    def callback(self, agent: str, prompt: str) -> Any:
        """Have a parent delegate the prompt; the callback that it gets."""
        told = self.lead(f"{agent}: {prompt}")
        self.end_children(self.begin("lead"))
        (callback,) = told
        return callback

    # --- then -----------------------------------------------------------------------------------------------------

    def answer(self, session: str) -> str | None:
        """What a session answered, or why it failed."""
        return self.ledger.result(session)[1]

    def balance(self, session: str) -> tuple[int, int, int, int]:
        """launched, delivered, pending, dead."""
        s = self.ledger.session(session)
        return s.launched, s.delivered, s.pending, s.dead

    def children(self, session: str) -> list[Session]:
        return [member for member in self.ledger.tree(session) if member.parent == session]

    def dead(self) -> list[DeadLetter]:
        """The dead letters."""
        return DeadLetters(self.redis, shards=self.settings.shards).all()

    def pending(self) -> int:
        """Entries that a router holds."""
        return sum(row.pending for row in self.streams.backlog(ROUTER_GROUP, all_streams()))

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

    def orchestra(self, *words: str, **options: Any) -> Result:
        """Run a command on this stack."""
        return run_command(*words, settings=self.settings, **options)

    def document(self, *words: str, **options: Any) -> Any:
        """What a command prints with `--json`."""
        return json.loads(self.orchestra(*words, "--json", **options).stdout)
