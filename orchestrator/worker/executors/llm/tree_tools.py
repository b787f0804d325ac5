"""The tools with which a model makes a tree: delegate, wait, ask, reply, report.

Each is an effect of the run, under the key of the tool call, so that it happens once however often the run is tried.
A tool that waits ends the run: what it waits for comes back as its result, minutes or days later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, Required

from pydantic_ai.exceptions import CallDeferred, ToolFailed
from pydantic_ai.tools import RunContext, Tool, ToolDefinition
from pydantic_ai.toolsets import FunctionToolset
from typing_extensions import Doc

from orchestrator.agents.definition import AgentDefinition
from orchestrator.agents.options import LlmOptions
from orchestrator.errors import ConfigurationError, OrchestraError, UnknownAgent
from orchestrator.operations import requests
from orchestrator.operations.table import Operation
from orchestrator.operations.values import Mark
from orchestrator.worker.context.context import Context
from orchestrator.worker.executors.llm.current import Pending, current
from orchestrator.worker.executors.llm.durability import step_of_tool
from orchestrator.worker.executors.llm.functions import ENDS_RUN

#: Characters that `read_result` returns at most.
MAX_READ_CHARS: Final = 20_000

Waits = Annotated[
    bool,
    Doc("True to get the result as the result of this call; false to go on, and call wait later."),
    Mark.FOR_MODELS,
]


class Delegate(requests.Delegate, total=False):
    """Give a task to another agent. It works at the same time as you do."""

    wait: Waits


class RequestReview(requests.RequestReview, total=False):
    """Have the code reviewer review something."""

    wait: Waits


class Escalate(requests.Escalate, total=False):
    """Give what you cannot settle to the tech lead."""

    wait: Waits


class Wait(requests.Request, total=False):
    """Wait for what you have delegated; returns the results that have come."""

    mode: Annotated[
        Literal["any", "all", "quorum"],
        Doc("all (the default): until every task has ended; any: until one has; quorum: until k have."),
        Mark.FOR_MODELS,
    ]
    k: Annotated[int | None, Doc("How many make a quorum."), Mark.FOR_MODELS]
    timeout_s: Annotated[
        float | None,
        Doc("Seconds after which you get what is there, and the names of what is missing."),
        Mark.FOR_MODELS,
    ]


class AskParent(requests.Ask, total=False):
    """Ask whoever gave you this task, and get the answer. Ask only what you cannot find out yourself."""


class AskChild(requests.QuestionOptions, total=False):
    """Ask an agent to which you have delegated a task, and get its answer. It remembers its work, also after its end."""

    message: Required[requests.Question]
    to: Required[Annotated[str, Doc("The session of the task, which delegate has named."), Mark.FOR_MODELS]]


class RaiseCallback(requests.Request, total=False):
    """Tell whoever gave you this task of something at once, without ending your work."""

    message: Required[Annotated[str, Doc("What there is to say."), Mark.FOR_MODELS]]
    kind: Annotated[
        Literal["message", "error", "blocker"],
        Doc(
            "message (the default): nothing has to be done; error, blocker: something is wrong, and an answer is "
            "wanted."
        ),
        Mark.FOR_MODELS,
    ]


#: What a model gave, after it was checked.
_Request = dict[str, Any]


def _context() -> Context:
    return current().context


def _defer(waits: Pending) -> CallDeferred:
    return CallDeferred(metadata=waits.model_dump(mode="json"))


def list_agents(_call: str, request: _Request) -> list[dict[str, Any]]:
    """List the agents that the agent may delegate to."""
    return [record.listed for record in _context().agents(request.get("tag") or "")]


def _launch(verb: str, text: str, *, waits: bool) -> Callable[[str, _Request], str]:
    """Return what carries out a verb that launches a child, once for each tool call; ``waits``: where the model does not say."""

    def launch(call: str, request: _Request) -> str:
        wait, agent, context = request.pop("wait", waits), request.get("agent", ""), _context()
        if "agent" in request:
            known = [record.name for record in context.agents()]
            if agent not in (context.agent, *known):
                raise UnknownAgent(agent, known)
        child = getattr(context, verb)(**request, key=call)
        if child is None:
            return "There is no tech lead; the operator finds it in the audit trail. Decide yourself."
        if wait:
            raise _defer(Pending(kind="child", target=child))
        return text.format(child=child, agent=agent)

    return launch


def wait(_call: str, request: _Request) -> str:
    """Wait for children, which ends the run."""
    mode, k, timeout_s = request.get("mode", "all"), request.get("k"), request.get("timeout_s")
    if _context().outstanding <= 0 and timeout_s is None:
        return (
            "Nothing is outstanding: every task that you have delegated has ended, and you have its result."
        )
    if (mode == "quorum") != (k is not None):
        return "A quorum, and only a quorum, needs k."
    raise _defer(Pending(kind="wait", mode=mode, k=k, timeout_s=timeout_s))


def ask_parent(call: str, request: _Request) -> str:
    """Ask the parent and wait, which ends the run."""
    context = _context()
    if not context.parent:
        return "A user gave you this task, and cannot be asked here. Decide yourself, and say in your answer what you assumed."
    raise _defer(Pending(kind="reply", target=context.ask_later(**request, key=call)))


def ask_child(call: str, request: _Request) -> str:
    """Ask a child and wait, which ends the run."""
    raise _defer(Pending(kind="reply", target=_context().ask_later(**request, key=call)))


def reply(_call: str, request: _Request) -> str:
    """Answer a question of a child."""
    return "It has your answer." if _context().reply(**request) else "The answer comes too late."


def raise_callback(_call: str, request: _Request) -> str:
    """Say something to the parent and go on."""
    context, kind = _context(), request.get("kind", "message")
    if not context.parent:
        return "A user gave you this task; say it in your answer."
    if kind == "message":
        context.message("parent", request["message"])
    else:
        context.ask_later(request["message"], kind=kind)
    return "It has been told. An answer, if there is one, comes by itself."


def report_status(_call: str, request: _Request) -> str:
    """Show how far the session is."""
    _context().status(**request)
    return "Shown."


def read_result(_call: str, request: _Request) -> str:
    """Read a part of a child's result."""
    piece = _context().read_result(
        request["session"],
        request.get("attachment") or "",
        offset=request.get("offset") or 0,
        length=min(request.get("length") or MAX_READ_CHARS, MAX_READ_CHARS),
    )
    if piece.following is None:
        return piece.text
    return (
        f"{piece.text}\n[{piece.following} of {piece.size} characters; go on with offset={piece.following}]"
    )


@dataclass(frozen=True)
class _TreeTool:
    """A tool: a verb with the fields that a model may set, and what carries it out under the id of the tool call."""

    operation: Operation
    carry_out: Callable[[str, Any], Any]

    @property
    def name(self) -> str:
        return self.operation.name

    @property
    def description(self) -> str:
        return str(self.operation.schema["description"])


#: What a model reads of a child that it does not wait for.
_WORKS: Final = "Session {child} of {agent} works on it. Call wait to get its result."
_REVIEWS: Final = "Session {child} reviews it. Call wait to get the review."
_DECIDES: Final = "Session {child} decides it. Call wait to get the decision."
#: The tools by name, in the order in which an agent uses them.
_TOOLS: Final = {
    name: _TreeTool(Operation(name, request).for_models, carry_out)
    for name, request, carry_out in (
        ("list_agents", requests.ListAgents, list_agents),
        ("delegate", Delegate, _launch("delegate", _WORKS, waits=False)),
        ("wait", Wait, wait),
        ("ask_parent", AskParent, ask_parent),
        ("ask_child", AskChild, ask_child),
        ("reply", requests.Reply, reply),
        ("raise_callback", RaiseCallback, raise_callback),
        ("report_status", requests.Status, report_status),
        ("request_review", RequestReview, _launch("request_review", _REVIEWS, waits=True)),
        ("escalate", Escalate, _launch("escalate", _DECIDES, waits=True)),
        ("read_result", requests.ReadResult, read_result),
    )
}
#: What an agent that only works has of them.
_OF_SPECIALISTS: Final = ("ask_parent", "raise_callback", "report_status", "escalate")


def tools_of(definition: AgentDefinition, options: LlmOptions) -> dict[str, _TreeTool]:
    """The tree tools of an agent, by name: those that it names, else those that fit its role.

    Raises:
        ConfigurationError: it names an unknown tool.
    """
    names = options.tree_tools
    if names is None:
        names = _OF_SPECIALISTS if definition.record.role == "specialist" else tuple(_TOOLS)
    unknown = sorted(set(names) - set(_TOOLS))
    if unknown:
        raise ConfigurationError(
            f"agent {definition.name!r}: there is no tree tool {unknown[0]!r} (there are: {', '.join(_TOOLS)})"
        )
    return {name: _TOOLS[name] for name in names}


def tree_toolset(definition: AgentDefinition, options: LlmOptions) -> FunctionToolset[Any]:
    """The tree tools of an agent, for its model.

    Raises:
        ConfigurationError: it names an unknown tool.
    """
    tools = [_tool(one, max_retries=options.limits.retries) for one in tools_of(definition, options).values()]
    return FunctionToolset(tools, id="orchestra")


def _tool(one: _TreeTool, *, max_retries: int) -> Tool[Any]:
    """A tool as a durable step. The model reads why a tool refuses. What ends the run passes through."""

    def call(ctx: RunContext[Any], request: dict[str, Any]) -> Any:
        def act() -> dict[str, Any]:
            try:
                return {"result": one.carry_out(str(ctx.tool_call_id), one.operation.read(request))}
            except CallDeferred as waits:
                return {"waits": waits.metadata}
            except ENDS_RUN:
                raise
            except OrchestraError as error:
                return {"refused": str(error)}

        done = _context().step(step_of_tool(one.name), act)
        if "waits" in done:
            raise CallDeferred(metadata=done["waits"])
        if "refused" in done:
            raise ToolFailed(done["refused"])
        return done["result"]

    async def show(_: RunContext[Any], shown: ToolDefinition) -> ToolDefinition:
        return replace(shown, parameters_json_schema=one.operation.schema)

    # pydantic-ai takes the one parameter as the arguments themselves, and checks them.
    call.__annotations__["request"] = one.operation.request
    return Tool(call, name=one.name, description=one.description, max_retries=max_retries, prepare=show)
