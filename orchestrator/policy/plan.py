"""A coordinator's plan: assignments as JSON, and the waves in which they are carried out.

    [{"role": "developer", "task": "Write the module", "sequence": 1, "caller": "manager"}]

Assignments of the same sequence run at the same time; those of the next sequence wait for all of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from orchestrator.errors import PlanError

#: Characters of the largest plan that is read.
MAX_CHARS: Final = 4 * 1024 * 1024
#: Assignments of the largest plan.
MAX_ASSIGNMENTS: Final = 10_000
#: Pairs of an assignment and one that it waits for. Each is written into a message.
MAX_DEPENDENCIES: Final = 250_000

_KINDS: Final = {dict: "an object", list: "an array", str: "a string", type(None): "null"}
_FENCED = re.compile(r"```[A-Za-z]*[ \t]*\n(?P<inner>.*)\n[ \t]*```", re.DOTALL)


class Assignment(BaseModel):
    """A task of a plan."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    role: Annotated[str, Field(min_length=1, max_length=200, description="The agent that gets the task.")]
    task: Annotated[str, Field(min_length=1, description="What the agent is to do.")]
    sequence: Annotated[
        int, Field(ge=1, le=1_000_000, description="Its place in the order. Equal numbers run in parallel.")
    ] = 1
    caller: Annotated[
        str | None,
        Field(
            min_length=1, max_length=200, description="The agent that gets its callbacks. Null: nobody does."
        ),
    ] = None

    @field_validator("role", "task", "caller")
    @classmethod
    def _not_blank(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("must not be blank")
        return value


@dataclass(frozen=True)
class Wave:
    """Assignments that run at the same time."""

    #: Their place in the order.
    sequence: int
    #: The assignments, in the order of the plan.
    assignments: tuple[Assignment, ...]


@dataclass(frozen=True)
class Plan:
    """Plan of a coordinator: its assignments, in its own order."""

    assignments: tuple[Assignment, ...] = ()

    @property
    def waves(self) -> tuple[Wave, ...]:
        """The assignments by sequence, the first wave first."""
        by_sequence: dict[int, list[Assignment]] = {}
        for assignment in self.assignments:
            by_sequence.setdefault(assignment.sequence, []).append(assignment)
        return tuple(Wave(sequence, tuple(by_sequence[sequence])) for sequence in sorted(by_sequence))

    @property
    def callers(self) -> tuple[str, ...]:
        """The agents that get callbacks, each once, in the order of the plan."""
        return tuple(dict.fromkeys(a.caller for a in self.assignments if a.caller is not None))

    def check(self, *, agents: Mapping[str, object] | Iterable[str], callers: Iterable[str]) -> None:
        """See that every role is an agent, and that every caller has a session when its callbacks come.

        Args:
            agents: the names of the registered agents.
            callers: the agents that have a session before the plan begins: who carries it out and those above it.

        Raises:
            PlanError: names each assignment that is wrong.
        """
        known, present = set(agents), set(callers)
        there = ", ".join(sorted(known)) or "none"
        problems = []
        earlier: set[str] = set()
        for wave in self.waves:
            for assignment in wave.assignments:
                if assignment.role not in known:
                    problems.append(
                        f"there is no agent {assignment.role!r} for task {_short(assignment.task)!r} "
                        f"(agents: {there})"
                    )
                if assignment.caller is not None and assignment.caller not in present | earlier:
                    callers_now = ", ".join(sorted(present | earlier)) or "none"
                    problems.append(
                        f"caller {assignment.caller!r} of task {_short(assignment.task)!r} has no session when "
                        f"sequence {wave.sequence} begins (callers may be: {callers_now})"
                    )
            earlier |= {assignment.role for assignment in wave.assignments}
        if problems:
            raise PlanError(*problems)


_ASSIGNMENTS: Final = TypeAdapter(list[Assignment])


def parse_plan(text: str) -> Plan:
    """Read a plan: a JSON array, which may stand in one Markdown code block.

    Raises:
        PlanError: says what is wrong, with the line of bad JSON or the number of the assignment.
    """
    if len(text) > MAX_CHARS:
        raise PlanError(f"it has {len(text)} characters; at most {MAX_CHARS} are allowed")
    try:
        document = json.loads(_unfenced(text), object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise PlanError(f"it is not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except (RecursionError, ValueError) as error:
        raise PlanError(f"it cannot be read: {error}") from None
    if not isinstance(document, list):
        raise PlanError(f"it is {_kind(document)}; write a JSON array of assignments")
    if len(document) > MAX_ASSIGNMENTS:
        raise PlanError(f"it has {len(document)} assignments; at most {MAX_ASSIGNMENTS} are allowed")
    try:
        plan = Plan(tuple(_ASSIGNMENTS.validate_python(document)))
    except ValidationError as error:
        raise PlanError(*map(_problem, error.errors(include_url=False))) from None
    _check_size(plan)
    return plan


def looks_like_plan(text: str) -> bool:
    """Return True if an answer is meant as a plan: it begins as a JSON array does, in a code block or not."""
    return _unfenced(text).lstrip().startswith("[")


def agent_of(plan: Plan) -> str:
    """Return the agent that a plan from outside is for: its only caller.

    Raises:
        PlanError: it has none, or several.
    """
    if len(plan.callers) == 1:
        return plan.callers[0]
    found = f"its callers are {', '.join(plan.callers)}" if plan.callers else "it names no caller"
    raise PlanError(f"{found}; name the agent that carries it out (--agent NAME)")


def _check_size(plan: Plan) -> None:
    sizes = [len(wave.assignments) for wave in plan.waves]
    pairs = sum(before * after for before, after in pairwise(sizes))
    if pairs > MAX_DEPENDENCIES:
        raise PlanError(
            f"its waves wait for {pairs} assignments in all; at most {MAX_DEPENDENCIES} are allowed: put a "
            "single assignment between two large waves"
        )


def _unfenced(text: str) -> str:
    fenced = _FENCED.fullmatch(text.strip())
    return fenced["inner"] if fenced else text


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; refuse two values under one name, as nobody can say which one is meant."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"an object has the key {name!r} twice")
        found[name] = value
    return found


def _problem(problem: Any) -> str:
    """Return a problem that pydantic found as a sentence."""
    number, *field = problem["loc"]
    where = f"assignment {number + 1}"
    kind = str(problem["type"])
    if not field:
        return f"{where} is {_kind(problem['input'])}; write an object with role and task"
    name = field[0]
    if kind == "missing":
        return f"{where} has no {name!r}"
    if kind == "extra_forbidden":
        allowed = ", ".join(Assignment.model_fields)
        return f"{where} has the unknown key {name!r} (keys: {allowed})"
    message = str(problem["msg"]).removeprefix("Value error, ")
    return f"{where}: {name} = {_short(json.dumps(problem['input'], default=str))}: {message[0].lower()}{message[1:]}"


def _kind(value: object) -> str:
    return _KINDS.get(type(value)) or f"the value {value!r}"


def _short(text: str, most: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
