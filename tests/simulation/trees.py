"""What the agents of a play do: trees of 3 to 12, of which each node says what it is to do as its prompt."""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from orchestrator import machine
from orchestrator.agents.definition import AgentDefinition, define_agent
from orchestrator.errors import BudgetExceeded, WrongState
from orchestrator.policy.plan import Assignment, Plan
from orchestrator.policy.versions import OnDeploy

#: Seconds that a run of a hasty agent may take.
HASTY_S: Final = 1.2


@dataclass(frozen=True)
class Task:
    """What one agent is to do."""

    name: str
    children: tuple[Task, ...] = ()
    #: For which of its children it waits, for how long, and how long it gathers what comes.
    wait: str = "all"
    deadline_s: float = 0
    window_s: float = 0
    #: Whether its children are a plan: the next one begins when the one before it has ended.
    plans: bool = False
    #: Whether it launches them in one round trip.
    together: bool = False
    #: Whether its run stands still for them: for one after the other, or for what comes first; and for how long at most.
    stands: str = ""
    stands_s: float = 0
    #: Attempts that fail; 9: each.
    fails: int = 0
    #: Seconds that each of its runs takes.
    works_s: float = 0
    #: Whether the attempts that fail launch a child that the next ones do not.
    strays: bool = False
    #: Whether it asks its parent, and goes on with the reply.
    asks: bool = False
    #: Seconds for which it sleeps without its slot before it ends.
    sleeps_s: float = 0
    #: Whether it pays for something, in a step.
    pays: bool = False
    #: Whether a person has to approve its end.
    approved: bool = False
    #: Whether it is a task of an external program.
    outside: bool = False
    #: Tokens that each of its runs sets aside, of which it spends a part; and of a root, how many all may spend.
    spends: int = 0
    budget: int = 0
    #: Whether a run of it may take no longer than `HASTY_S`, and how long its parent gives it; 0: as long as it takes.
    hasty: bool = False
    limit_s: float = 0
    #: How often it asks a model, whose provider answers after a while, with something useless or not at all for now.
    thinks: int = 0
    #: Of a root: what its user does once it has finished: `prompt`, `delete`, `fork` or nothing.
    then: str = ""
    #: Seconds until the root is stopped by its user; 0: never.
    stops_after_s: float = 0

    @property
    def size(self) -> int:
        """How many agents take part."""
        return 1 + (sum(child.size for child in self.children) if self.fails <= 2 else 0)

    @property
    def answer(self) -> str:
        """The answer of the agent, if nobody is stopped."""
        if self.fails > 2:
            return "failed"
        told = "".join(sorted(f"({child.answer})" for child in self.children))
        said = ("?yes" if self.asks else "") + ("!" if self.approved else "")
        return self.name + said + ("+again" if self.then == "prompt" else "") + told

    @property
    def may_collect_strays(self) -> bool:
        """Whether a try may collect a child that only an earlier try has launched."""
        return (self.strays and self.stands == "collect") or any(c.may_collect_strays for c in self.children)

    @property
    def prompt(self) -> str:
        """The task as its agent is given it."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def read(cls, prompt: str) -> Task:
        """The task of a prompt."""
        return cls._of(json.loads(prompt))

    @classmethod
    def _of(cls, fields: dict[str, Any]) -> Task:
        return cls(**{**fields, "children": tuple(map(cls._of, fields["children"]))})

    def smaller(self) -> Iterator[Task]:
        """The same with something left out."""
        for i, child in enumerate(self.children):
            rest = self.children[:i] + self.children[i + 1 :]
            yield dataclasses.replace(self, children=rest)
            for less in child.smaller():
                yield dataclasses.replace(self, children=(*self.children[:i], less, *self.children[i + 1 :]))
        for field in dataclasses.fields(self)[2:]:
            less = dataclasses.replace(self, **{field.name: field.default})
            if less != self:
                yield less

    def without_reaper(self) -> Task:
        """The same without retries, stops and sleep, which wait for a sweep."""
        children = tuple(child.without_reaper() for child in self.children)
        return dataclasses.replace(
            self,
            fails=0,
            stops_after_s=0,
            sleeps_s=0,
            approved=False,
            plans=False,
            then="",
            children=children,
        )

    def hurried(self, chance: random.Random) -> Task:
        """Return the same with time limits here and there."""
        hurried = []
        for child in self.children:
            less = child.hurried(chance)
            # The steps of a plan name their agents themselves, and what a run stands still for has no limit.
            limit_s = 0 if self.plans or self.stands == "call" else chance.choice([0, 0, 0.02, 1.0])
            hurried.append(dataclasses.replace(less, hasty=chance.random() < 0.4, limit_s=limit_s))
        return dataclasses.replace(self, children=tuple(hurried))

    def thinking(self, chance: random.Random) -> Task:
        """Return the same with questions to a model."""
        children = tuple(child.thinking(chance) for child in self.children)
        return dataclasses.replace(self, children=children, thinks=chance.choice([0, 1, 2]))

    @property
    def agent(self) -> str:
        """Who is given it."""
        return "partner" if self.outside else "hasty" if self.hasty else "node"

    def any(self, what: str) -> bool:
        """Whether one of the tree does that."""
        return bool(getattr(self, what, False)) or any(child.any(what) for child in self.children)


def random_task(chance: random.Random, name: str = "r", depth: int = 0) -> Task:
    """Some tree."""
    wide = chance.randint(2, 4) if depth == 0 else chance.choice([0, 0, 0, 1, 2]) if depth == 1 else 0
    fails = chance.choice([0, 0, 0, 0, 1, 9]) if depth else 0
    children = tuple(random_task(chance, f"{name}{i}", depth + 1) for i in range(wide))
    return Task(
        name=name,
        children=children,
        wait=chance.choice(["all", "any", "quorum"]),
        deadline_s=chance.choice([0.01, 0.3]) if chance.random() < 0.15 else 0,
        window_s=0.05 if chance.random() < 0.1 else 0,
        # What fails ends what waits for it.
        plans=chance.random() < 0.15 and not any(child.fails > 2 for child in children),
        together=chance.random() < 0.3,
        stands=chance.choice(["call", "collect"]) if wide and chance.random() < 0.15 else "",
        stands_s=chance.choice([0, 0.3]),
        outside=(outside := bool(depth) and not wide and chance.random() < 0.03),
        spends=chance.choice([0, 0, 0, 100]),
        budget=chance.choice([250, 400, 900]) if not depth and chance.random() < 0.25 else 0,
        fails=fails,
        works_s=chance.choice([0, 0, 0, 0.01, 0.05, 1.5]),
        strays=bool(fails) and chance.random() < 0.3,
        asks=bool(depth) and not wide and not outside and chance.random() < 0.15,
        sleeps_s=chance.choice([0.01, 0.5]) if chance.random() < 0.1 else 0,
        pays=chance.random() < 0.2,
        approved=not outside and chance.random() < 0.07,
        then=chance.choice(["prompt", "delete", "fork"]) if depth == 0 and chance.random() < 0.3 else "",
        stops_after_s=chance.choice([0.02, 0.05, 0.5]) if depth == 0 and chance.random() < 0.15 else 0,
    )


@dataclass
class Try:
    """What one try of a run was given, and how long it took."""

    claim: str
    items: set[str]
    version: str
    took_s: float = 0


class Node:
    """The agent of the plays: it does its task, and its answer names the answers of its children."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Know nothing of any play."""
        #: Run → its tries, and what they were told of the payment that they made.
        self.tries: dict[str, list[Try]] = {}
        self.receipts: dict[str, list[str]] = {}
        #: Run → how often its agent has failed.
        self.failures: Counter[str] = Counter()
        #: Tokens that have been spent at least and at most, as far as the agents know.
        self.least = self.most = 0
        #: Session → how long its parent has given it.
        self.limits: dict[str, float] = {}
        #: How many asked the model at once at most, and how many asked it though it was to be left alone.
        self.thinking = self.at_once = self.pushed = 0
        self._alone_until = 0.0

    def catalogue(self, version: str = "1", *, on_deploy: OnDeploy = "latest") -> dict[str, AgentDefinition]:
        """Agents that do the same: a plan tells those who wait by their names, and one may take less time."""

        def run(ctx: Any) -> str:
            return self._run(ctx, version)

        given: Any = {"function": run, "version": version, "attempts": 3, "role": "coordinator"}
        return {
            "node": define_agent("node", source="tests", on_deploy=on_deploy, **given),
            "leaf": define_agent("leaf", source="tests", **given),
            "hasty": define_agent("hasty", source="tests", time_limit_s=HASTY_S, **given),
        }

    def _run(self, ctx: Any, version: str) -> str:
        claim, heard = ctx._held.claim.claim, {item.id for item in ctx._held.items}
        tried, began = Try(claim, heard, version), machine.monotonic()
        self.tries.setdefault(ctx.run, []).append(tried)
        try:
            return self._work(ctx, claim, heard)
        finally:
            tried.took_s = machine.monotonic() - began

    def _work(self, ctx: Any, claim: str, heard: set[str]) -> str:
        task = Task.read(ctx.prompt if ctx.cause == "start" else ctx.state["task"])
        self.limits[ctx.session] = task.limit_s
        if task.works_s:
            machine.sleep(task.works_s)
        self._think(ctx, task.thinks)
        if ctx.cause == "start":
            ctx.state["task"] = ctx.prompt
            self._start(ctx, task, heard)
            if task.asks:
                return self._ask(ctx)
        if task.spends:
            self._spend(ctx, task)
        if task.pays:
            self.receipts.setdefault(ctx.run, []).append(ctx.step("pay", lambda: f"receipt {claim}"))
        if task.sleeps_s:
            ctx.sleep(task.sleeps_s)
        for callback in ctx.callbacks:
            if callback.kind == "query":
                ctx.reply(callback, "yes")
            elif callback.kind == "reply":
                ctx.state["reply"] = callback.text if callback.status != "failed" else "no"
        ends = [r for r in ctx.all_results if r.kind == "completion"]
        told = [r.result if r.status == "completed" else r.status for r in ends]
        asked = f"?{ctx.state.get('reply', '')}" if task.asks else ""
        if task.approved:
            asked += "!" if ctx.request_approval("end", {"agent": task.name}, key="end").approved else "-"
        if ctx.cause == "user":
            asked += f"+{ctx.prompt}"
        # Each try gives another answer, so that it shows which one was committed.
        return f"{task.name}#{claim[:6]}{asked}" + "".join(sorted(f"({text})" for text in told))

    def _ask(self, ctx: Any) -> str:
        try:
            ctx.ask_later("may I?")
        except WrongState:  # its parent has been stopped
            self.failures[ctx.run] += 1
            raise
        return "asked"

    def _think(self, ctx: Any, times: int) -> None:
        """Ask a model until it has said something useful so many times."""
        useful = 0
        while useful < times:
            with ctx.limits.acquire("sim", "model", tokens=10, time_limit_s=600):
                self.pushed += machine.monotonic() < self._alone_until
                self.thinking += 1
                self.at_once = max(self.at_once, self.thinking)
                try:
                    number = machine.random_bytes(1)[0]
                    machine.sleep(number / 512)
                    if number < 40:
                        ctx.limits.hold_back("sim", "model", after_s=number / 50)
                        self._alone_until = machine.monotonic() + number / 50 - 0.01
                finally:
                    self.thinking -= 1
            useful += number >= 80

    def _spend(self, ctx: Any, task: Task) -> None:
        """Set tokens aside and spend a quarter of them, if a budget leaves so many."""
        self.most += task.spends
        try:
            reservation = ctx.spending.reserve(input_tokens=task.spends)
        except BudgetExceeded:
            self.most -= task.spends
            return
        self.least += task.spends
        machine.sleep(0.01)
        self.least -= task.spends * 3 // 4
        reservation.settle(input_tokens=task.spends // 4)
        self.most -= task.spends * 3 // 4

    def _start(self, ctx: Any, task: Task, heard: set[str]) -> None:
        if ctx.attempt <= task.fails:
            if task.strays:
                ctx.delegate("node", Task("stray").prompt)
            self.failures[ctx.run] += 1
            raise RuntimeError("as it was told")
        if task.plans and task.children:
            given: Any = {"role": "leaf" if ctx.agent == "node" else "node", "caller": ctx.agent}
            steps = [(child.prompt, n // 2 + 1) for n, child in enumerate(task.children)]
            ctx.carry_out(Plan(tuple(Assignment(task=text, sequence=n, **given) for text, n in steps)))
            return
        if task.stands == "call":
            for child in task.children:
                with suppress(TimeoutError):  # its end comes as a callback
                    limit_s = task.stands_s or None
                    heard.add(
                        ctx.call(child.agent, child.prompt, timeout_s=limit_s, answer=lambda _: "yes").id
                    )
            return
        if task.together and not any(child.agent != "node" or child.limit_s for child in task.children):
            ctx.delegate_all("node", [child.prompt for child in task.children])
        else:
            for child in task.children:
                ctx.delegate(child.agent, child.prompt, time_limit_s=child.limit_s or None)
        if task.children and task.stands:
            self._collect(ctx, task, heard)
        elif task.children:
            ctx.wait_for(
                task.wait,
                k=1 if task.wait == "quorum" else None,
                deadline_s=task.deadline_s or None,
                window_s=task.window_s or None,
            )

    def _collect(self, ctx: Any, task: Task, heard: set[str]) -> None:
        """Stand still until all children have ended, or for as long as the task says."""
        known: set[str] = set()
        while True:
            found = ctx.collect(timeout_s=task.stands_s or 3600, known=known)
            for callback in found.callbacks:
                if callback.id not in known and callback.kind == "query":
                    ctx.reply(callback, "yes")
            known |= {callback.id for callback in found.callbacks}
            if not found.outstanding or (task.stands_s and not found.callbacks):
                heard.update(known)
                return
