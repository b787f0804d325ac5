"""A worker without Celery around it: real ledger, real keys, and runs that are executed where the test stands."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis as redis_py
from click.testing import CliRunner, Result

from orchestrator.agents.definition import AgentDefinition, define_agent
from orchestrator.bootstrap import Container, build_container
from orchestrator.cli import main
from orchestrator.client.submission import Submission
from orchestrator.config.settings import Settings, load_settings
from orchestrator.dispatch import RootResults, build_celery
from orchestrator.ledger import Ledger, RunRef, Session, Start
from orchestrator.policy.callback import Callback
from orchestrator.redisdb import keys
from orchestrator.worker.container import Runtime
from orchestrator.worker.context.context import Context
from orchestrator.worker.execution.runner import execute_run


@dataclass
class StackHarness:
    """Plays the router and the callback service for agents that a test defines."""

    redis: redis_py.Redis
    settings: Settings
    catalogue: dict[str, AgentDefinition] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.parts: Container = build_container(self.redis, self.settings)
        self.app = build_celery(self.settings)
        results = RootResults(self.app, self.redis)
        self.runtime = Runtime(parts=self.parts, results=results, catalogue=self.catalogue)

    @property
    def steady(self) -> Settings:
        """The settings for a worker whose signs of life last, also while a busy machine stands still for a second."""
        return self.settings.model_copy(update={"heartbeat_s": 5.0})

    @property
    def ledger(self) -> Ledger:
        return self.parts.ledger

    def agent(
        self, name: str, **options: Any
    ) -> Callable[[Callable[[Context], Any]], Callable[[Context], Any]]:
        """Define an agent and announce it."""

        def define(function: Callable[[Context], Any]) -> Callable[[Context], Any]:
            options.setdefault("backoff_s", 0.001)
            definition = define_agent(name, function=function, source="here", **options)
            self.catalogue[name] = definition
            self.parts.agents.announce([definition.record])
            return function

        return define

    def submit(self, agent: str, prompt: str = "go", *, task: str = "") -> str:
        return Submission(self.parts).begin({"agent": agent, "prompt": prompt}, result_of=task).session

    def start(self, session: str) -> RunRef:
        """Queue the first run of a session, as the router does."""
        found = self.ledger.session(session)
        launch = Start(
            session=session,
            message=found.message,
            sender="operator",
            digest="d",
            recipient=found.agent,
            conversation=found.correlation,
            stream=keys.messages(0, "task-delegation", "high"),
            entry=found.entry.rpartition(":")[2] or "1-1",
            mark_ms=60_000,
        )
        call = self.ledger.start_call(0, [launch], group="router", keep_ms=60_000)
        dispatch = self.ledger.started(session, self.ledger.scripts.run("start", *call)[0])
        assert dispatch is not None
        return dispatch

    def execute(self, dispatch: RunRef, worker: str = "w1") -> str:
        return execute_run(
            self.runtime, agent=dispatch.agent, session=dispatch.session, run=dispatch.run, worker=worker
        )

    def play(self, session: str) -> str:
        """Start a session and execute its first run."""
        return self.execute(self.start(session))

    def begin(self, agent: str, prompt: str = "go", *, ends: str = "") -> str:
        """Submit to an agent and execute its first run, which ends as told; the session."""
        session = self.submit(agent, prompt)
        outcome = self.play(session)
        assert ends in ("", outcome)
        return session

    def children(self, session: str) -> list[Session]:
        return [member for member in self.ledger.tree(session) if member.parent == session]

    def resume(self, session: str) -> str:
        """Flush, and execute the run that it made."""
        flushed = self.ledger.flush(session)
        assert flushed.dispatch is not None, flushed
        return self.execute(flushed.dispatch)

    def end_children(self, session: str) -> str:
        """Execute the first runs of its children, and its resume; how that ends."""
        for child in self.children(session):
            self.play(child.id)
        return self.resume(session)

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

    def callback(self, agent: str, prompt: str) -> Any:
        """Have a parent delegate the prompt; the callback that it gets."""
        told = self.lead(f"{agent}: {prompt}")
        self.end_children(self.begin("lead"))
        (callback,) = told
        return callback

    def orchestra(self, *words: str) -> Result:
        """Run a command on the stage."""
        place = ["--redis-url", str(self.settings.redis_url), "--data", str(self.settings.data)]
        return CliRunner().invoke(main, [*words, *place])

    def again(self, dispatch: RunRef) -> str:
        """Execute a run that was queued once more, as soon as it may be tried again."""
        while (run := self.ledger.run(dispatch.run)) and run.claimable_ms > self.ledger.server_ms():
            time.sleep(0.001)
        return self.execute(dispatch, worker="w2")


@pytest.fixture
def stage(redis: redis_py.Redis, redis_url: str, tmp_path: Path) -> StackHarness:
    """A stage with short times."""
    return StackHarness(
        redis,
        load_settings(
            redis_url=redis_url,
            data=tmp_path,
            heartbeat_s=0.05,
            lease_s=1,
            stop_grace_s=20,
            run_time_limit_s=30,
        ),
    )


@pytest.fixture
def theatre(stage: StackHarness) -> Iterator[Any]:
    """Router, callback service and slots around the stage."""
    from tests.integration.workers.theatre import Harness

    with Harness(stage) as running:
        yield running


@pytest.fixture
def crew(stage: StackHarness, tmp_path: Path) -> Any:
    """Agents that are real programs."""
    from tests.integration.workers.crew import Crew

    return Crew(stage, tmp_path / "crew")


@pytest.fixture
def stranger() -> Iterator[str]:
    """What stands in the environment of a process of the same user that has nothing to do with an agent."""
    secret = uuid4().hex
    with subprocess.Popen(
        ["sleep", "600"], env={"HIDDEN": secret}, executable=shutil.which("sleep")
    ) as other:
        try:
            yield secret
        finally:
            other.kill()
