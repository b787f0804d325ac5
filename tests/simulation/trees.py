"""What the agents of a play do: trees of 3 to 12, of which each node says what it is to do as its prompt."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from orchestrator.agents.definition import AgentDefinition, define_agent
from orchestrator.policy.plan import Assignment, Plan
from orchestrator.testing.simulation.world import World


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
        plain: dict[str, Any]
        for plain in (
            {"asks": False},
            {"deadline_s": 0},
            {"window_s": 0},
            {"plans": False},
            {"strays": False},
            {"sleeps_s": 0},
            {"pays": False},
            {"approved": False},
            {"then": ""},
            {"works_s": 0},
            {"fails": 0},
            {"stops_after_s": 0},
        ):
            if (less := dataclasses.replace(self, **plain)) != self:
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

    def any(self, what: str) -> bool:
        """Whether one of the tree does that."""
        return bool(getattr(self, what)) or any(child.any(what) for child in self.children)


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
        fails=fails,
        works_s=chance.choice([0, 0, 0, 0.01, 0.05, 1.5]),
        strays=bool(fails) and chance.random() < 0.3,
        asks=bool(depth) and not wide and chance.random() < 0.15,
        sleeps_s=chance.choice([0.01, 0.5]) if chance.random() < 0.1 else 0,
        pays=chance.random() < 0.2,
        approved=chance.random() < 0.07,
        then=chance.choice(["prompt", "delete", "fork"]) if depth == 0 and chance.random() < 0.3 else "",
        stops_after_s=chance.choice([0.02, 0.05, 0.5]) if depth == 0 and chance.random() < 0.15 else 0,
    )


@dataclass(frozen=True)
class Try:
    """What one try of a run was given."""

    claim: str
    items: tuple[str, ...]


class Node:
    """The agent of the plays: it does its task, and its answer names the answers of its children."""

    def __init__(self) -> None:
        #: Where time passes for it.
        self.world: World | None = None
        #: Run → its tries, and what they were told of the payment that they made.
        self.tries: dict[str, list[Try]] = {}
        self.receipts: dict[str, list[str]] = {}

    @property
    def catalogue(self) -> dict[str, AgentDefinition]:
        """Two agents that do the same: a plan tells those who wait by their names."""
        return {
            name: define_agent(
                name,
                function=self._run,
                source="tests",
                version="1",
                role="coordinator",
                attempts=3,
                retry_delay_s=1,
            )
            for name in ("node", "leaf")
        }

    def _run(self, ctx: Any) -> str:
        items = tuple(item.id for item in ctx._held.items)
        claim = ctx._held.claim.claim
        self.tries.setdefault(ctx.run, []).append(Try(claim, items))
        task = Task.read(ctx.prompt if ctx.cause == "start" else ctx.state["task"])
        if task.works_s and self.world is not None:
            self.world.sleep(task.works_s)
        if ctx.cause == "start":
            ctx.state["task"] = ctx.prompt
            self._start(ctx, task)
            if task.asks:
                ctx.ask_later("may I?")
                return "asked"
        if task.pays:
            self.receipts.setdefault(ctx.run, []).append(ctx.step("pay", lambda: f"receipt {claim}"))
        if task.sleeps_s:
            ctx.sleep(task.sleeps_s)
        for callback in ctx.callbacks:
            if callback.kind == "query":
                ctx.reply(callback, "yes")
            elif callback.kind == "reply":
                ctx.state["reply"] = callback.text if callback.status != "failed" else "no"
        told = [
            r.result if r.status == "completed" else r.status
            for r in ctx.all_results
            if r.kind == "completion"
        ]
        asked = f"?{ctx.state.get('reply', '')}" if task.asks else ""
        if task.approved:
            asked += "!" if ctx.request_approval("end", {"agent": task.name}, key="end").approved else "-"
        if ctx.cause == "user":
            asked += f"+{ctx.prompt}"
        # Each try gives another answer, so that it shows which one was committed.
        return f"{task.name}#{claim[:6]}{asked}" + "".join(sorted(f"({text})" for text in told))

    def _start(self, ctx: Any, task: Task) -> None:
        if ctx.attempt <= task.fails:
            if task.strays:
                ctx.delegate("node", Task("stray").prompt)
            raise RuntimeError("as it was told")
        if task.plans and task.children:
            leaf = "leaf" if ctx.agent == "node" else "node"
            ctx.carry_out(
                Plan(
                    tuple(
                        Assignment(role=leaf, task=child.prompt, sequence=n // 2 + 1, caller=ctx.agent)
                        for n, child in enumerate(task.children)
                    )
                )
            )
            return
        if task.together:
            ctx.delegate_all("node", [child.prompt for child in task.children])
        else:
            for child in task.children:
                ctx.delegate("node", child.prompt)
        if task.children:
            ctx.wait_for(
                task.wait,
                k=1 if task.wait == "quorum" else None,
                deadline_s=task.deadline_s or None,
                window_s=task.window_s or None,
            )
