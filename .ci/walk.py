"""Count the modules that one prompt enters, from its submit to its parent's resume, and those of one plain run.

A lead delegates one task, a specialist answers, the lead goes on with the answer: router, slots and callback service
take their turns in this process, on Redis as a Python object. The first tree warms what is kept. Of three more a module
counts that each of them enters: what is due only now and then, such as a look for dead consumers, is no part of the walk.
Prints one JSON object: for each stage the modules of `orchestrator` in which a function was called.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
DATA = tempfile.TemporaryDirectory(prefix="walk-")
os.environ["ORCHESTRA_DATA"] = DATA.name

import fakeredis  # noqa: E402

from orchestrator.agents.definition import define_agent  # noqa: E402
from orchestrator.bootstrap import Container  # noqa: E402
from orchestrator.client.submission import Submission  # noqa: E402
from orchestrator.config.settings import Settings  # noqa: E402
from orchestrator.dispatch import RootResults, build_celery  # noqa: E402
from orchestrator.reconciler.callbacks import CallbackService  # noqa: E402
from orchestrator.reconciler.delivery import Delivery  # noqa: E402
from orchestrator.router.build import build_router  # noqa: E402
from orchestrator.worker.container import Runtime  # noqa: E402
from orchestrator.worker.execution.slot import SlotLoop  # noqa: E402

URL = "redis://walk.invalid"
PACKAGE = f"{ROOT}/orchestrator/"
#: The stage of a run that delegates nothing.
PLAIN = "the child's run"


class NoDispatcher:
    """Wakes nobody: the walk calls each part itself."""

    def wake(self, agents: Iterable[str]) -> None:
        list(agents)


class NoEvents:
    """Keeps no events of tasks."""

    def begun(self, *_: Any) -> None: ...

    def ended(self, *_: Any) -> None: ...

    def flush(self, *_: Any) -> None: ...


def lead(ctx: Any) -> str:
    if ctx.cause == "start":
        ctx.delegate("counter", "one two three")
        return "waiting"
    return f"got {ctx.callbacks[0].result}"


def counter(ctx: Any) -> int:
    return len(ctx.prompt.split())


def stages() -> list[tuple[str, Callable[[], Any]]]:
    """Build the parts on a server of their own, and return what happens to a prompt, in order."""
    client = fakeredis.FakeRedis(server=fakeredis.FakeServer(), protocol=2)
    settings = Settings(redis_url=URL, data=Path(DATA.name), heartbeat_s=5)
    parts = Container(client, settings)
    parts.__dict__["dispatcher"] = NoDispatcher()
    agents = {
        "lead": define_agent("lead", function=lead, source="walk", role="coordinator", attempts=1),
        "counter": define_agent("counter", function=counter, source="walk", role="specialist", attempts=1),
    }
    parts.agents.announce([agent.record for agent in agents.values()])
    runtime = Runtime(
        parts=parts, results=RootResults(build_celery(settings, redis_url=URL), client), catalogue=agents
    )
    runtime = dataclasses.replace(runtime, events=NoEvents())  # type: ignore[arg-type]
    router = build_router(client, settings, consumer="router", dispatcher=NoDispatcher())  # type: ignore[arg-type]
    callbacks = CallbackService(client, Delivery(parts.ledger, lambda _: None), consumer="callbacks")
    sessions: list[str] = []

    def run() -> None:
        SlotLoop(runtime, worker="worker").run()

    def end() -> None:
        _, answer = parts.ledger.result(sessions[-1])
        if answer != "got 3":
            raise SystemExit(f"The walk did not reach its end: the lead's answer is {answer!r}.")

    return [
        (
            "submit",
            lambda: sessions.append(Submission(parts).begin({"agent": "lead", "prompt": "hello"}).session),
        ),
        ("the prompt is routed", router.run_once),
        ("the lead's run", run),
        ("its commit is handled", callbacks.run_once),
        ("the task is routed", router.run_once),
        (PLAIN, run),
        ("the callback is delivered", callbacks.run_once),
        ("the lead's second run", run),
        ("", end),
    ]


def modules_of(walk: list[tuple[str, Callable[[], Any]]]) -> dict[str, set[str]]:
    """Walk once, and return the modules that each stage entered."""
    entered: dict[str, set[str]] = defaultdict(set)
    stage = ""

    def note(frame: Any, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(PACKAGE):
            entered[stage].add(file[len(PACKAGE) :])

    for name, act in walk:
        stage = name
        if name:
            threading.setprofile(note)
            sys.setprofile(note)
        act()
        sys.setprofile(None)
        threading.setprofile(None)
    return entered


def main() -> None:
    walk = stages()
    _, *counted = [modules_of(walk) for _ in range(4)]
    print(
        json.dumps({name: sorted(set.intersection(*(one[name] for one in counted))) for name in counted[0]})
    )


if __name__ == "__main__":
    main()
