"""A stack under simulation: its processes, what its user does, and what must hold of it."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import select

from orchestrator import machine
from orchestrator.agents.registry import OPERATOR
from orchestrator.audit.database import TRANSITIONS
from orchestrator.audit.heads import KeptHeads
from orchestrator.audit.store import AuditStore
from orchestrator.audit.transitions import unpack
from orchestrator.bootstrap import Container
from orchestrator.client.client import Client
from orchestrator.envelope import canonical
from orchestrator.envelope.parse import DEFAULT_LIMITS
from orchestrator.errors import InputError, UnknownSession, WrongState
from orchestrator.ids import root_session_id
from orchestrator.policy.versions import OnDeploy
from orchestrator.testing.simulation.process import Life, Process
from orchestrator.testing.simulation.schedule import FAULTS, WAKEUPS, Chance, Given, Schedule
from orchestrator.testing.simulation.shrinking import Failure, as_test, shrink
from orchestrator.testing.simulation.stage import Stage
from orchestrator.testing.simulation.world import Broken, World
from tests.properties import ledger_facts
from tests.simulation.trees import HASTY_S, Node, Task, random_task

#: In an answer: which try gave it.
_TRY = re.compile("#([0-9a-f]{6})")
_CLOSED = ("failed", "stopped", "deleted")
#: Of these ends of a root people are told.
_TOLD = ("finished", "failed", "stopped")
_ROOT = root_session_id("play")
#: What is mended without the reaper, of the router and the callback service.
_MENDED = {"dies before": 1, "answer lost": 1}
_RESTARTS = "server restarts"
#: What may befall a user's program.
_OF_A_USER = {"dies before": 1, "dies after": 1, "answer lost": 1, "away": 1, "cut off 6": 1, "pauses 5": 1}


@dataclass(frozen=True)
class Scene:
    """A tree, and who takes part beside its user and two workers."""

    task: Task
    reaper: bool = True
    #: Routers, and callback services.
    copies: int = 1
    #: Whether somebody limits and pauses, and whether an audit trail is written.
    operator: bool = False
    audit: bool = False
    #: Whether somebody is told of approvals and ends.
    told: bool = False
    #: Whether the second worker has another version of the agents, and what those say of that.
    deploys: OnDeploy | None = None

    @classmethod
    def random(cls, chance: random.Random, guests: random.Random) -> Scene:
        """Return some scene; ``guests`` says who takes part beside those without whom no tree ends."""
        task, reaper, copies = random_task(chance), chance.random() < 0.75, chance.choice([1, 1, 2])
        operator, audit = chance.random() < 0.2, chance.random() < 0.1
        told = reaper and guests.random() < 0.1
        deploys: Any = guests.choice(["refuse", "latest"]) if reaper and guests.random() < 0.1 else None
        task = task if reaper else task.without_reaper()
        if reaper and guests.random() < 0.12:
            task = task.hurried(guests)
        if reaper and guests.random() < 0.12:
            task = task.thinking(guests)
        return cls(task, reaper, copies, operator and reaper, audit, told, deploys)

    def smaller(self) -> Iterator[Scene]:
        """Yield the same with something left out."""
        yield from (replace(self, task=task) for task in self.task.smaller())
        less = {"operator": False, "audit": False, "told": False, "deploys": None}
        yield from (
            replace(self, **{what: value})  # type: ignore[arg-type]
            for what, value in less.items()
            if getattr(self, what) != value
        )


def scene_of(seed: int) -> tuple[Scene, random.Random]:
    """Return the scene of a seed, and the chance that makes up its schedule."""
    chance = random.Random(seed)
    return Scene.random(chance, random.Random(f"guests of {seed}")), chance


class Receiver:
    """Who is told of what happens, and takes some of it at the first attempt only."""

    name = "receiver"

    def __init__(self) -> None:
        #: The events that it has taken, by their ids.
        self.taken: dict[str, Any] = {}

    def deliver(self, event_id: str, body: bytes) -> str:
        """Take an event, after a while."""
        number = machine.random_bytes(2)
        machine.sleep(number[0] / 256)
        if number[1] < 50:
            return "not now"
        self.taken[event_id] = json.loads(body)
        machine.sleep(number[1] / 1024)
        return ""


class Played:
    """One play of a tree on a stack: services, two workers, a user, and a person who approves."""

    def __init__(self, machine: Machine, scene: Scene) -> None:
        self.machine, self.scene, self.task = machine, scene, scene.task
        self.node = machine.node
        self.node.clear()
        others: dict[str, Life] = {"person": self._person} if self.task.any("approved") else {}
        if self.task.any("outside"):
            others["program"] = lambda process: machine.stack.program(
                process, lambda text: Task.read(text).answer
            )
        if scene.operator:
            others["operator"] = machine.stack.operator
        if scene.audit:
            machine.begin_audit()
            others["audit"] = machine.stack.audit
        machine.receiver.taken.clear()
        if scene.told:
            others["notifier"] = lambda process: machine.stack.notifier(process, machine.receiver)
        self.lives: dict[str, Life] = {
            "user": self._user,
            **others,
            **machine.stack.lives(routers=scene.copies, callbacks=scene.copies, reaper=scene.reaper),
        }
        if not scene.reaper:
            services = [name for name in self.lives if name.startswith(("router", "callbacks"))]
            self.lives |= {name: partial(_begun_again, self.lives[name]) for name in services}
        if scene.deploys is not None:
            for worker, version in (("worker-1", "1"), ("worker-2", "2")):
                agents = self.node.catalogue(version, on_deploy=scene.deploys)
                self.lives[worker] = partial(machine.stack.worker, catalogue=agents)
        #: The trees that there are, by their roots.
        self.roots = [_ROOT]
        #: Whether they may end without their answers.
        self.stopped = scene.deploys == "refuse" or self.task.any("hasty") or self.task.any("limit_s")

    def faults(self, process: str) -> Mapping[str, int]:
        if not self.scene.reaper:
            return _MENDED if process.startswith(("router", "callbacks")) else {}
        return _OF_A_USER if process in ("user", "person", "operator") else {**FAULTS, **WAKEUPS}

    def _user(self, process: Process) -> None:
        """Does what a user does, with a tree that a server which restarts may have lost."""
        assert isinstance(process.world, World)
        try:
            self._use(process)
        except UnknownSession:
            if _RESTARTS not in process.world.schedule.values():
                raise

    def _use(self, process: Process) -> None:
        """Submits, and goes on with what came of it; one who dies does it all again."""
        client = Client(parts=self.machine.stack.parts(process))
        budget = {"tokens": self.task.budget} if self.task.budget else None
        client.submit("node", self.task.prompt, key="play", budget=budget)
        if self.task.stops_after_s:
            process.wait(self.task.stops_after_s)
            self.stopped = True
            client.stop(_ROOT, "by its user")
        match self.task.then:
            case "prompt":
                client.wait(_ROOT)
                with suppress(WrongState):  # its user stopped it
                    client.resume(_ROOT, "again", key="again")
            case "fork":
                client.wait(_ROOT)
                try:
                    forked = client.fork(_ROOT, "1", key="forked").id
                except InputError:
                    if not self.stopped:  # before its first run
                        raise
                    return
                if forked not in self.roots:
                    self.roots.append(forked)
            case "delete":
                process.wait(0.03)
                self.stopped = True
                client.delete(_ROOT)

    def _person(self, process: Process) -> None:
        """Approves whatever is asked."""
        client = Client(parts=self.machine.stack.parts(process))
        while True:
            process.wait(1.0)
            for approval in client.approvals():
                with suppress(WrongState):  # its session has ended, or the answer was lost
                    client.approve(approval.id)

    @property
    def begun(self) -> int:
        return sum(map(len, self.node.tries.values()))

    # --- what must hold --------------------------------------------------------------------------

    def _parts(self, world: World) -> Container:
        return Container(world.processes[0].client, self.machine.settings)

    def is_over(self, world: World) -> bool:
        if not world.processes[0].ended:
            return False
        indexes = ["running", "queued", "waiting", *(["closing", "results"] if self.scene.reaper else [])]
        if world.server.execute([b"EXISTS", *(f"ao:{{00}}:{index}".encode() for index in indexes)]):
            return False
        ledger = self._parts(world).ledger
        found = [s for root in self.roots for s in ledger.tree(root)]
        if self._untold(world):
            return False
        # A server that restarts may have lost what it has acknowledged to a user: the submission.
        there = bool(found) or _RESTARTS in world.schedule.values()
        if self.scene.audit and len(self.machine.audited_changes()) < self._published(world):
            return False
        return there and all(s.state in _CLOSED or (s.state == "finished" and not s.run) for s in found)

    def _published(self, world: World) -> int:
        """How many transitions have said what they changed."""
        return int(world.processes[0].client.hget("ao:{00}:totals", "published:ledger:transitions") or 0)  # type: ignore[arg-type]

    def what_is_open(self, world: World) -> str:
        return "; ".join(
            f"{s.id} {s.state} run {s.run or '-'} owed {s.owed} questions {len(s.questions)}"
            for root in self.roots
            for s in self._parts(world).ledger.tree(root)
        ) + "; ".join(self._untold(world))

    def _untold(self, world: World) -> list[str]:
        """What people were to be told of, and are not."""
        if not self.scene.told or _RESTARTS in world.schedule.values():
            return []
        taken, ledger = self.machine.receiver.taken.values(), self._parts(world).ledger
        told = Counter((event["type"].rpartition(".")[2], event["subject"]) for event in taken)
        approvals = {event["data"]["approval"]["id"] for event in taken if "approval" in event["data"]}
        wrong = [
            f"{session} {end} {states.count(end)} times, and people were told so {told[end, session]} times"
            for (kind, session, _), states in self._states(world).items()
            for end in _TOLD
            if kind == "session" and session in self.roots and states.count(end) != told[end, session]
        ]
        items = (i for root in self.roots for s in ledger.tree(root) for i in ledger.items(s.id))
        wrong += [
            f"nobody was told of {i.id}" for i in items if i.kind == "approval" and i.id not in approvals
        ]
        return wrong

    def wrongs_now(self, world: World) -> Iterator[str]:
        facts = ledger_facts.Facts.read(world.processes[0].client)
        last = {what: states[-1] for what, states in self._states(world).items()}
        # A trail keeps what a server has lost.
        lost = " in the trail" if self.scene.audit and _RESTARTS in world.schedule.values() else "\n"
        yield from (f"facts: {p}" for p in ledger_facts.problems(facts, last) if not p.endswith(lost))
        budget = self._parts(world).ledger.spending.budget(_ROOT)
        if budget is not None and (budget.left("tokens") or 0) < 0:
            yield f"budget: it is exceeded: {budget}"

    def _states(self, world: World) -> dict[tuple[str, str, str], list[str]]:
        """The states of each thing, by what the transitions said."""
        found: dict[tuple[str, str, str], list[str]] = {}
        for changes in self._changes(world).values():
            for line in changes.split("\n"):
                if line.count(" ") >= 3:
                    kind, session, what, state = line.split(" ")[:4]
                    found.setdefault((kind, session, what), []).append(state)
        return found

    def _changes(self, world: World) -> dict[str, str]:
        """What each transition changed, by its entry: those that the audit trail has, and those that are in the stream still."""
        written = self.machine.audited_changes() if self.scene.audit else {}
        rows: Any = world.processes[0].client.xrange("ao:{00}:transitions")
        read = {
            name.decode(): body.decode() for name, fields in rows for body in fields.values() if b" " in body
        }
        # What a writer that died had read is written after what came later.
        return dict(
            sorted({**written, **read}.items(), key=lambda change: tuple(map(int, change[0].split("-"))))
        )

    def wrongs(self, world: World) -> Iterator[str]:
        ledger = self._parts(world).ledger
        yield from self.wrongs_now(world)
        for s in (s for root in self.roots for s in ledger.tree(root)):
            if s.launched != s.delivered + s.dead:
                yield f"promise: {s.id} launched {s.launched}, delivered {s.delivered}, dead {s.dead}"
            yield from self._of_deliveries(ledger, s) if s.agent != "partner" else ()
        yield from self._of_messages(world, ledger)
        if _RESTARTS in world.schedule.values():  # it may have lost records, and what a user was told
            return
        if self.scene.audit and len(self.machine.audited_changes()) != self._published(world):
            yield "audit: the trail does not have what the transitions said, each once"
        paid = ((run, set(told)) for run, told in self.node.receipts.items())
        yield from (
            f"step: {run} was told of several payments: {told}" for run, told in paid if len(told) > 1
        )
        node, budget = self.node, ledger.spending.budget(_ROOT) if self.task.then != "fork" else None
        if budget is not None and not node.least <= budget.spent.get("tokens", 0) <= node.most:
            yield f"budget: {budget}, and {node.least} to {node.most} tokens were spent"
        yield from self._of_limits(world, ledger)
        if not self.stopped:
            for root in self.roots:
                yield from self._of_a_tree_that_went_on(world, ledger, root)

    def _of_messages(self, world: World, ledger: Any) -> Iterator[str]:
        """What stands in a queue otherwise than its signed message says, as far as the streams still have that."""
        items = {
            i.extra.get("message"): (s, i)
            for r in self.roots
            for s in ledger.tree(r)
            for i in ledger.items(s.id)
        }
        client: Any = world.processes[0].client
        for key in client.scan_iter(match="ao:{00}:msg:*", count=1000):
            for _, fields in client.xrange(key):
                message = canonical.read(fields.get(b"envelope", b""), DEFAULT_LIMITS)
                header = message.header if message else None
                if header is None or header.message_id not in items:
                    continue
                s, item = items[header.message_id]
                to = "" if item.kind == "approval" else s.id
                said = (header.sender_session or "", header.recipient_session or "")
                if said != (item.child, to) or header.sender.agent_name != (item.agent or OPERATOR):
                    yield f"message: {item.id} is from {item.child} to {s.id}, and its message from {said[0]} to {said[1]}"

    def _of_deliveries(self, ledger: Any, s: Any) -> Iterator[str]:
        """What a session was given, by the tries of its runs that were committed: each thing once."""
        heard: Counter[str] = Counter()
        tried = {t.version for run in ledger.runs(s.id) for t in self.node.tries.get(run.id, [])}
        if s.on_deploy == "refuse" and tried - {s.version}:
            yield f"version: {s.id} refuses all but {s.version}, and was run by {tried}"
        for run in ledger.runs(s.id):
            if run.failures > self.node.failures[run.id] and s.agent != "hasty" and s.on_deploy != "refuse":
                yield f"failures: {run.id} has {run.failures}, and its agent {self.node.failures[run.id]}"
        completed = [run for run in ledger.runs(s.id) if str(run.state) == "completed"]
        for run in completed:
            tries = [t for t in self.node.tries.get(run.id, []) if t.claim == run.claim]
            if len(tries) != 1:
                yield f"claim: {run.id} was committed under a claim that {len(tries)} tries had"
            if any(t.version != run.version for t in tries):
                yield f"version: {run.id} was run by {tries[0].version}, and not {run.version}"
            heard.update(item for t in tries for item in t.items)
        if twice := [item for item, n in heard.items() if n > 1]:
            yield f"exactly once: {s.id} was given {twice} more than once"
        if str(s.state) != "finished":
            return
        text = str(ledger.result(s.id)[1])
        if _TRY.findall(text)[:1] != [run.claim[:6] for run in completed][-1:]:
            yield f"claim: {s.id} answers {text!r}, and its last run was committed by another try"
        ends = [i for i in ledger.items(s.id) if i.kind == "completion" and str(i.state) != "dead"]
        if missed := [i.id for i in ends if i.id not in heard]:
            yield f"exactly once: {s.id} was never given {missed}"

    def _of_limits(self, world: World, ledger: Any) -> Iterator[str]:
        """What took longer than it may, and what was asked of a model beside its provider's limits."""
        events = {event.partition(" ")[0] for event in world.schedule.values()}
        calm, node = events <= {"then"}, self.node
        for s in (s for root in self.roots for s in ledger.tree(root) if s.agent == "hasty"):
            for run in ledger.runs(s.id):
                tries = node.tries.get(run.id, [])
                late = [t.claim for t in tries if t.took_s >= HASTY_S]
                if str(run.state) == "completed" and run.claim in late:
                    yield f"time: {run.id} was completed by a try that took longer than {HASTY_S} s"
                if calm and late and len(tries) > 1 and tries[0].claim in late:
                    yield f"time: {run.id} was tried again though its time was over"
        if calm and (node.at_once > 1 or node.pushed):
            yield f"model: it was asked {node.at_once} times at once, and {node.pushed} times though it wanted none"
        if "clocks" in events:
            return
        began: dict[str, int] = {}
        for entry, changes in self._changes(world).items():
            for line in changes.split("\n"):
                kind, session, _, state = [*line.split(" "), "", "", ""][:4]
                ms, limit_s = int(entry.partition("-")[0]), node.limits.get(session, 0)
                took_ms = ms - began.setdefault(session, ms) if kind == "session" else 0
                if state == "finished" and limit_s and took_ms > limit_s * 1000:
                    yield f"time: {session} finished after {took_ms} ms of {limit_s} s"

    def _of_a_tree_that_went_on(self, world: World, ledger: Any, root: str) -> Iterator[str]:
        state, text = ledger.result(root)
        said = _TRY.sub("", str(text))
        if self.task.may_collect_strays:
            said = said.replace("(stray)", "")
        if (str(state), said) != ("finished", self.task.answer):
            yield f"result: {state} {text!r}, not {self.task.answer!r}"
        sessions = len(ledger.tree(root))
        if sessions != self.task.size and "strays=True" not in repr(self.task):
            yield f"sessions: {sessions}, not {self.task.size}"
        # Nobody resumes a session of a play that has finished.
        for (kind, session, _), states in self._states(world).items():
            prompts = int(session == _ROOT and self.task.then == "prompt")
            if kind == "session" and states.count("finished") > 1 + prompts:
                yield f"end: {session} finished more than once: {states}"


def _begun_again(life: Life, process: Process) -> None:
    """Live; where it died before, tell workers of the runs that it had made ready, as the reaper does (decision 49)."""
    if process.generation > 1:
        process.world.wake("node")
    life(process)


class Machine:
    """What all plays of one process have in common, made once."""

    def __init__(self, data: Path) -> None:
        self.node, self.receiver = Node(), Receiver()
        # The keys in `data` stay from one call to the next, as their signatures are in the trace.
        # Routers look at the outboxes of programs, which costs each play a tenth.
        limits: Any = {"provider_limits": {"sim/model": {"calls": 1}}}
        self.outside = Stage(
            self.node.catalogue(), data, programs=["partner"], target=self.receiver, **limits
        )
        self.stage = Stage(self.node.catalogue(), data, **limits)
        self.stack, self.settings = self.stage.stack, self.stage.settings
        self.servers = [self.stage.server, self.outside.server]
        self._trail = self.settings.audit_file.with_name("template.sqlite")
        AuditStore(self._trail).close()
        #: How many moments all plays had; of the last one a digest of what was sent, and what was out of the ordinary.
        self.moments, self.trace = 0, ""
        self.schedule: Schedule = {}

    def begin_audit(self) -> None:
        """Begin with an empty audit trail."""
        file = self.settings.audit_file
        shutil.rmtree(KeptHeads.of(self.settings).folder, ignore_errors=True)
        for left in file.parent.glob(f"{file.name}*"):
            left.unlink()
        shutil.copy(self._trail, file)

    def audited_changes(self) -> dict[str, str]:
        """What each transition changed, by its entry, as the audit trail has it.

        Raises:
            AssertionError: it has one twice.
        """
        store = AuditStore(self.settings.audit_file)
        rows = store.query(select(TRANSITIONS.c.document).order_by(TRANSITIONS.c.seq))
        steps = [step for row in rows for step in unpack(row.document)]
        store.close()
        found = {step.entry_id: step.changes for step in steps}
        assert len(found) == len(steps)
        return found

    def world(self, seed: int, scene: Scene | None = None, schedule: Schedule | None = None) -> World:
        """A play of a seed; its scene and its schedule are the seed's unless they are given."""
        drawn, chance = scene_of(seed)
        scheduler = Chance(chance) if schedule is None else Given(schedule)
        scene = scene or drawn
        stage = self.outside if scene.told or scene.task.any("outside") else self.stage
        self.stack = stage.stack
        return stage.world(Played(self, scene), scheduler, seed=seed)

    def play(
        self, seed: int, scene: Scene | None = None, schedule: Schedule | None = None
    ) -> Failure[Scene] | None:
        """Play one seed; None: nothing was wrong."""
        world = self.world(seed, scene, schedule)
        wrong = ""
        try:
            world.run()
        except Broken as error:
            wrong = str(error)
        self.moments += world.moments
        self.trace, self.schedule = world.trace, world.schedule
        if not wrong:
            return None
        assert isinstance(world.play, Played)
        return Failure(world.play.scene, world.schedule, wrong, tuple(world.story))

    def shrink(self, seed: int, found: Failure[Scene]) -> Failure[Scene]:
        """The shortest play of that seed that fails."""
        return shrink(found, lambda scene, schedule: self.play(seed, scene, schedule), Scene.smaller)

    def as_test(self, seed: int, failure: Failure[Scene]) -> str:
        """Write the shortest play of that seed that fails as a test that can be pasted."""
        return as_test(seed, self.shrink(seed, failure))
