"""The plays of :func:`orchestrator.testing.exploring.explore`: the user's agents, watched while they run."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast
from unittest import mock

from orchestrator.agents.definition import AgentDefinition
from orchestrator.agents.options import PythonOptions
from orchestrator.client.client import Client
from orchestrator.ids import root_session_id
from orchestrator.ledger import CLOSED, Session, SessionState
from orchestrator.policy.callback import Callback
from orchestrator.testing.simulation.process import Life, Process
from orchestrator.testing.simulation.schedule import Chance, Given, Schedule
from orchestrator.testing.simulation.shrinking import Failure, shrink
from orchestrator.testing.simulation.stage import Stage
from orchestrator.testing.simulation.world import Broken, World
from orchestrator.worker.context.context import Context

_ROOT: Final = root_session_id("explored")
#: What may befall processes: no server that loses what it has acknowledged, which no agent can make good.
_FAULTS: Final = {
    "dies before": 4,
    "dies after": 4,
    "answer lost": 2,
    "away": 1,
    "pauses 5": 2,
    "stands 2": 2,
}
_RUN_FAULTS: Final = {"fails": 1}
#: Plays in which a schedule is shortened.
_MOST_TRIES: Final = 40
#: Words of Python's audit events by which a program acts on what is outside of it.
_ACTS: Final = {
    "os.remove": "removes a file",
    "os.rename": "renames a file",
    "os.system": "starts a program",
    "socket.connect": "opens a connection",
    "subprocess.Popen": "starts a program",
}
#: What a parent reads of a failed child to learn that it failed.
_TELL: Final = frozenset({"status", "error", "error_report", "value_as"})


@dataclass(frozen=True)
class Act:
    """An act of an agent on the world outside."""

    what: str
    session: str
    agent: str
    run: str
    in_step: bool
    #: Children that were still at work then.
    outstanding: int


@dataclass
class Watched:
    """Record of the agents in one play."""

    acts: list[Act] = field(default_factory=list)
    #: Run → what each of its tries has returned.
    answers: dict[str, list[str]] = field(default_factory=dict)
    #: Sessions that were made to fail.
    failing: set[str] = field(default_factory=set)
    #: Callbacks of failed children that their parents looked at.
    looked_at: set[str] = field(default_factory=set)
    #: Callback of a failed child → the session that was given it.
    failures: dict[str, str] = field(default_factory=dict)
    began: int = 0
    #: The try that each process executes now, and whether within a step.
    contexts: dict[str, _WatchedContext] = field(default_factory=dict)
    in_step: set[str] = field(default_factory=set)


class ChildFails(Exception):
    """An agent is made to fail, as a model that is away or a program that crashes would."""


class _WatchedCallback(Callback):
    """The failure of a child; what tells that it is one is noted when it is read."""

    def __getattribute__(self, name: str) -> Any:
        if name in _TELL:
            object.__getattribute__(self, "note")()
        return object.__getattribute__(self, name)

    @property
    def result(self) -> str:
        return ""

    @property
    def value(self) -> Any:
        return None


class _WatchedContext(Context):
    """The context of production, with what its agent does noted."""

    watched: Watched

    @property
    def callbacks(self) -> tuple[Callback, ...]:  # type: ignore[override]  # an attribute there
        return self._noting(self.__dict__["callbacks"])

    @property
    def all_results(self) -> tuple[Callback, ...]:
        return self._noting(super().all_results)

    @property
    def prompt(self) -> str:  # type: ignore[override]
        self.watched.looked_at.update(callback.id for callback in self.__dict__["callbacks"])
        return cast("str", self.__dict__["prompt"])

    def _noting(self, callbacks: tuple[Callback, ...]) -> tuple[Callback, ...]:
        return tuple(self._note(one) if one.status == "failed" else one for one in callbacks)

    def _note(self, failed: Callback) -> Callback:
        self.watched.failures[failed.id] = self.session
        noting = replace(failed)
        noting.__dict__["note"] = lambda: self.watched.looked_at.add(failed.id)
        object.__setattr__(noting, "__class__", _WatchedCallback)
        return noting

    def step(self, name: str, function: Callable[..., Any], *args: Any, **given: Any) -> Any:
        def inside(*args: Any, **given: Any) -> Any:
            self.watched.in_step.add(self.run)
            try:
                return function(*args, **given)
            finally:
                self.watched.in_step.discard(self.run)

        return super().step(name, inside, *args, **given)


class Exploration:
    """Plays schedules of one tree; a ``with`` block puts stand-ins in the place of what acts on the world outside."""

    def __init__(
        self,
        catalogue: Mapping[str, AgentDefinition],
        first: str,
        prompt: str,
        *,
        calls: Mapping[str, Any],
        failures: bool,
        data: Path,
        settings: Mapping[str, Any],
    ) -> None:
        self.first, self.prompt, self.failures = first, prompt, failures
        self._calls = calls
        self._leaving = ExitStack()
        self.watched = Watched()
        self.world: World | None = None
        self.stage = Stage({d.name: self._watching(d) for d in catalogue.values()}, data, **settings)
        #: The root's answer where nothing failed.
        self.answer = ""
        self._answered = False
        self.runs = 0

    def __enter__(self) -> Self:
        for name, given in self._calls.items():
            self._leaving.enter_context(mock.patch(name, self._stand_in(name, given)))
        self._leaving.enter_context(_audited(self._note))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving.close()

    def _stand_in(self, name: str, given: Any) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            words = [*map(repr, args), *(f"{key}={value!r}" for key, value in named.items())]
            self._note(f"calls {name.rpartition('.')[2]}({', '.join(words)})")
            return given(*args, **named) if callable(given) else given

        return call

    def _note(self, what: str) -> None:
        """Note an act of the agent that is called now; nothing where the product itself acts."""
        if self.world is None:
            return
        watched, process = self.watched, self.world.current.name
        context = watched.contexts.pop(process, None)  # what is asked here is no act of the agent
        if context is not None:
            in_step = context.run in watched.in_step
            watched.acts.append(
                Act(what, context.session, context.agent, context.run, in_step, context.outstanding)
            )
            watched.contexts[process] = context

    def _watching(self, definition: AgentDefinition) -> AgentDefinition:
        function = cast("Callable[[Any], Any]", definition.function)

        def run(context: Context) -> Any:
            return self._run(function, context)

        return replace(definition, options=PythonOptions(function=run))

    def _run(self, function: Callable[[Any], Any], context: Context) -> Any:
        watched, world = self.watched, cast("World", self.world)
        watched.began += 1
        process = world.current
        if context.session != _ROOT and world.moment(process, "run") == "fails":
            watched.failing.add(context.session)
        about = f"{process.name}: {context.agent} ({context.title}), run {context.run[-4:]}"
        if context.session in watched.failing:
            world.tell(f"{about} fails, as the schedule says")
            raise ChildFails("it was made to fail")
        world.tell(f"{about} begins, attempt {context.attempt}")
        object.__setattr__(context, "__class__", _WatchedContext)
        watching = cast("_WatchedContext", context)
        watching.watched = watched
        watched.contexts[process.name] = watching
        try:
            answer = function(context)
        finally:
            watched.contexts.pop(process.name, None)
        world.tell(f"{about} answers {str(answer)[:60]!r}")
        watched.answers.setdefault(context.run, []).append(repr(answer))
        return answer

    # --- a play ----------------------------------------------------------------------------------

    def play(self, seed: int, schedule: Schedule | None = None) -> Failure[None] | None:
        """Play one schedule; None: nothing was wrong."""
        chance = random.Random(seed)  # noqa: S311  (a play is repeated)
        self.watched = Watched()
        play = _Play(self, routers=1, reaper=True)
        scheduler = Chance(chance) if schedule is None else Given(schedule)
        self.world = world = self.stage.world(play, scheduler, seed=seed)
        try:
            world.run()
        except Broken as error:
            return Failure(None, world.schedule, str(error), tuple(world.story))
        finally:
            self.runs += self.watched.began
        return None

    def shrink(self, seed: int, found: Failure[None]) -> Failure[None]:
        """The shortest schedule that shows the same kind of fault."""
        kind = found.wrong.partition(":")[0]

        def again(_: None, schedule: Schedule) -> Failure[None] | None:
            failure = self.play(seed, schedule)
            return failure if failure is not None and failure.wrong.startswith(kind) else None

        return shrink(found, again, lambda _: (), most_tries=_MOST_TRIES)

    def compare(self, answer: str) -> str:
        """Remember the answer of a tree in which nothing failed; what is wrong if an earlier one gave another."""
        if not self._answered:
            self.answer, self._answered = answer, True
        if answer != self.answer:
            return f"another answer: the tree answers {answer!r}, and {self.answer!r} under another schedule"
        return ""


class _Play:
    """A play of the exploration."""

    def __init__(self, exploration: Exploration, *, routers: int, reaper: bool) -> None:
        self._exploration = exploration
        stack = exploration.stage.stack
        self.lives: Mapping[str, Life] = {"user": self._user, **stack.lives(routers=routers, reaper=reaper)}
        self._stack = stack

    def faults(self, process: str) -> Mapping[str, int]:
        more = _RUN_FAULTS if self._exploration.failures else {}
        return {**_FAULTS, **more} if process.startswith("worker") else {}

    @property
    def begun(self) -> int:
        return self._exploration.watched.began

    def _user(self, process: Process) -> None:
        explored = self._exploration
        Client(parts=self._stack.parts(process)).submit(explored.first, explored.prompt, key="explored")

    def _tree(self, world: World) -> list[Session]:
        return self._stack.parts(world.processes[0]).ledger.tree(_ROOT)

    def is_over(self, world: World) -> bool:
        tree = self._tree(world)
        return bool(tree) and all(s.state in CLOSED or (s.state == "finished" and not s.run) for s in tree)

    def what_is_open(self, world: World) -> str:
        waiting = [
            f"{s.agent} ({s.state})" for s in self._tree(world) if s.state not in CLOSED and not s.ended_ms
        ]
        return f"these sessions never end: {', '.join(waiting)}"

    def wrongs_now(self, world: World) -> Iterator[str]:
        yield from ()

    def wrongs(self, world: World) -> Iterator[str]:
        watched = self._exploration.watched
        tree = {s.id: s for s in self._tree(world)}
        yield from self._answers(watched, tree, world)
        yield from _repeated(watched.acts)
        yield from _early(watched.acts)
        for callback, session in watched.failures.items():
            if callback not in watched.looked_at and tree[session].state is SessionState.FINISHED:
                agent = tree[session].agent
                yield (
                    f"a failure that nobody looks at: {agent} finishes, and has read neither `status` nor `error` of the "
                    "callback of a child that failed"
                )
        for s in tree.values():
            above = bool(watched.failing) and any(
                c.parent == s.id and c.state in CLOSED for c in tree.values()
            )
            if s.state is SessionState.FAILED and s.id not in watched.failing and not above:
                yield f"an agent that fails: {s.agent} fails although none of its children has: {s.reason}"

    def _answers(self, watched: Watched, tree: Mapping[str, Session], world: World) -> Iterator[str]:
        for answers in watched.answers.values():
            if len(set(answers)) > 1:
                first, second = list(dict.fromkeys(answers))[:2]
                yield f"another answer: a run that was tried again answers {second}, and {first} the first time"
        if not watched.failing and tree[_ROOT].state is SessionState.FINISHED:
            ledger = self._stack.parts(world.processes[0]).ledger
            if wrong := self._exploration.compare(str(ledger.result(_ROOT)[1])):
                yield wrong


def _repeated(acts: list[Act]) -> Iterator[str]:
    """Yield what a run did again, outside of a step, when it was tried again."""
    counts = Counter((act.agent, act.run, act.what) for act in acts if not act.in_step)
    for (agent, _, what), times in counts.items():
        if times > 1:
            yield f"an act outside of a step: {agent} {what} {times} times, as its run was tried again; put it into ctx.step"


def _early(acts: list[Act]) -> Iterator[str]:
    """Yield what a session did while children were at work, and again later."""
    seen: dict[tuple[str, str], Act] = {}
    for act in acts:
        name = act.what.partition("(")[0]
        first = seen.setdefault((act.session, name), act)
        if first.run != act.run and first.outstanding:
            yield (
                f"an act before its wait: {act.agent} {name} while {first.outstanding} of its children are at work, and again "
                'when another one has ended; wait with ctx.wait_for("all"), or act where ctx.outstanding is 0'
            )


#: What is told of audit events now; a hook cannot be taken away again.
_listener: Callable[[str], None] | None = None
_hooked = False


@contextmanager
def _audited(note: Callable[[str], None]) -> Iterator[None]:
    """Tell of what this Python process does to the world outside."""
    global _listener, _hooked  # noqa: PLW0603
    if not _hooked:
        sys.addaudithook(_hear)
        _hooked = True
    before, _listener = _listener, note
    try:
        yield
    finally:
        _listener = before


def _hear(event: str, args: tuple[Any, ...]) -> None:
    if _listener is None or (event not in _ACTS and event != "open") or _is_ours():
        return
    if event in _ACTS:
        _listener(f"{_ACTS[event]} ({args[0]!r})")
    elif isinstance(args[1], str) and set(args[1]) & set("wax+"):
        _listener(f"writes a file ({args[0]!r})")


def _is_ours() -> bool:
    """Return True if the product acts now, and not an agent."""
    frame = sys._getframe(2)  # noqa: SLF001  (who opened the file)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("orchestrator."):
            return module != __name__
        frame = frame.f_back  # type: ignore[assignment]
    return True
