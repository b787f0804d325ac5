"""The tools with which a model makes a tree: delegate, wait, ask, reply, report.

Each is an effect of the run, under the key of the tool call, so that it happens once however often the run is tried.
A tool that waits ends the run: what it waits for comes back as its result, minutes or days later.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, Literal

from pydantic_ai.exceptions import CallDeferred, ToolFailed
from pydantic_ai.tools import RunContext, Tool
from pydantic_ai.toolsets import FunctionToolset

from orchestrator.agents.definition import AgentDefinition
from orchestrator.agents.options import LlmOptions
from orchestrator.errors import ConfigurationError, OrchestraError, UnknownAgent
from orchestrator.worker.context.context import Context
from orchestrator.worker.executors.llm.current import Pending, current
from orchestrator.worker.executors.llm.durability import step_of_tool
from orchestrator.worker.executors.llm.functions import ENDS_RUN

#: Characters that `read_result` returns at most.
MAX_READ_CHARS: Final = 20_000


def _context() -> Context:
    return current().context


def _defer(waits: Pending) -> CallDeferred:
    return CallDeferred(metadata=waits.model_dump(mode="json"))


def _launched(child: str, text: str, *, wait: bool) -> str:
    if wait:
        raise _defer(Pending(kind="child", target=child))
    return text


def list_agents(tag: str = "") -> list[dict[str, Any]]:
    """List the agents that you may delegate to, with what each is for.

    Args:
        tag: only those that have this tag; empty: all.
    """
    return [record.listed for record in _context().agents(tag)]


def delegate(
    run: RunContext[Any],
    *,
    agent: str,
    task: str,
    title: str = "",
    wait: bool = False,
    group: str = "",
    objectives: list[str] | None = None,
    acceptance_criteria: list[str] | None = None,
) -> str:
    """Give a task to another agent. It works at the same time as you do.

    Args:
        run: set by the system.
        agent: the name of the agent; list_agents names them.
        task: everything that the agent has to know; it sees nothing of this conversation.
        title: a few words that name the task.
        wait: true to get the result of the task as the result of this call; false to go on, and call wait later.
        group: a name for tasks that belong together.
        objectives: what the task must reach, if that is several things.
        acceptance_criteria: when the work is accepted.
    """
    context = _context()
    known = context.agents()
    if agent not in {context.agent, *(record.name for record in known)}:
        raise UnknownAgent(agent, [record.name for record in known])
    details = {"objectives": objectives or (), "acceptance_criteria": acceptance_criteria or ()}
    child = context.delegate(
        agent,
        task,
        title=title,
        group=group,
        key=run.tool_call_id,
        task=details if any(details.values()) else None,
    )
    return _launched(
        child, f"Session {child} of {agent} works on it. Call wait to get its result.", wait=wait
    )


def wait(
    mode: Literal["any", "all", "quorum"] = "all", k: int | None = None, timeout_s: float | None = None
) -> str:
    """Wait for what you have delegated; returns the results that have come.

    Args:
        mode: all: until every task has ended; any: until one has; quorum: until k have.
        k: how many make a quorum.
        timeout_s: seconds after which you get what is there, and the names of what is missing.
    """
    context = _context()
    if context.outstanding <= 0 and timeout_s is None:
        return (
            "Nothing is outstanding: every task that you have delegated has ended, and you have its result."
        )
    if (mode == "quorum") != (k is not None):
        return "A quorum, and only a quorum, needs k."
    raise _defer(Pending(kind="wait", mode=mode, k=k, timeout_s=timeout_s))


def ask_parent(
    run: RunContext[Any],
    *,
    question: str,
    urgent: bool = False,
    attempted: list[str] | None = None,
    error: str = "",
) -> str:
    """Ask whoever gave you this task, and get the answer. Ask only what you cannot find out yourself.

    Args:
        run: set by the system.
        question: the question, with everything that is needed to answer it.
        urgent: true if you cannot go on at all without the answer.
        attempted: what you have tried.
        error: the full message of an error, if there is one.
    """
    context = _context()
    if not context.parent:
        return "A user gave you this task, and cannot be asked here. Decide yourself, and say in your answer what you assumed."
    kind: Literal["blocker", "query"] = "blocker" if urgent else "query"
    asked = context.ask_later(
        question, kind=kind, key=run.tool_call_id, attempted=attempted or (), error=error
    )
    raise _defer(Pending(kind="reply", target=asked))


def ask_child(run: RunContext[Any], session: str, question: str) -> str:
    """Ask an agent to which you have delegated a task, and get its answer. It remembers its work, also after its end.

    Args:
        run: set by the system.
        session: the session of the task, which delegate has named.
        question: the question.
    """
    asked = _context().ask_later(question, to=session, key=run.tool_call_id)
    raise _defer(Pending(kind="reply", target=asked))


def reply(question: str, text: str) -> str:
    """Answer a question of an agent to which you have delegated a task.

    Args:
        question: the id of the question, as its agent-callback gives it.
        text: the answer.
    """
    return "It has your answer." if _context().reply(question, text) else "The answer comes too late."


def raise_callback(message: str, kind: Literal["message", "error", "blocker"] = "message") -> str:
    """Tell whoever gave you this task of something at once, without ending your work.

    Args:
        message: what there is to say.
        kind: message: nothing has to be done; error, blocker: something is wrong, and an answer is wanted.
    """
    context = _context()
    if not context.parent:
        return "A user gave you this task; say it in your answer."
    if kind == "message":
        context.message("parent", message)
    else:
        context.ask_later(message, kind=kind)
    return "It has been told. An answer, if there is one, comes by itself."


def report_status(
    activity: str,
    progress: int | None = None,
    blockers: list[str] | None = None,
    next_steps: list[str] | None = None,
) -> str:
    """Show people how far you are.

    Args:
        activity: what you are doing now, in a few words.
        progress: percent that are done, 0 to 100.
        blockers: what makes it slow or hard; ask_parent where you need an answer.
        next_steps: what you do next, in order.
    """
    _context().status(
        None if progress is None else max(0, min(100, progress)),
        activity,
        blockers=blockers or (),
        next_steps=next_steps or (),
    )
    return "Shown."


def request_review(
    run: RunContext[Any], *, description: str, files: list[str] | None = None, wait: bool = True
) -> str:
    """Have the code reviewer review something.

    Args:
        run: set by the system.
        description: what is to be reviewed, and for what.
        files: paths of the files.
        wait: true to get the review as the result of this call; false to go on, and call wait later.
    """
    child = _context().request_review(description, files=files or (), key=run.tool_call_id)
    return _launched(child, f"Session {child} reviews it. Call wait to get the review.", wait=wait)


def escalate(run: RunContext[Any], *, description: str, wait: bool = True) -> str:
    """Give what you cannot settle to the tech lead.

    Args:
        run: set by the system.
        description: what is the matter, and what you have tried.
        wait: true to get the decision as the result of this call.
    """
    child = _context().escalate(description, key=run.tool_call_id)
    if child is None:
        return "There is no tech lead; the operator finds it in the audit trail. Decide yourself."
    return _launched(child, f"Session {child} decides it. Call wait to get the decision.", wait=wait)


def read_result(session: str, offset: int = 0, length: int = MAX_READ_CHARS, attachment: str = "") -> str:
    """Read the result of a task that you have delegated, or what is attached to it, from a position on.

    Args:
        session: the session of the task.
        offset: where to begin, in characters.
        length: how many characters to read, 20,000 at most.
        attachment: the name of an attachment, as the agent-callback gives it; empty: the result itself.
    """
    piece = _context().read_result(
        session, attachment, offset=max(0, offset), length=max(1, min(length, MAX_READ_CHARS))
    )
    if piece.following is None:
        return piece.text
    return (
        f"{piece.text}\n[{piece.following} of {piece.size} characters; go on with offset={piece.following}]"
    )


_TOOLS: Final[dict[str, Callable[..., Any]]] = {
    function.__name__: function
    for function in (
        list_agents,
        delegate,
        wait,
        ask_parent,
        ask_child,
        reply,
        raise_callback,
        report_status,
        request_review,
        escalate,
        read_result,
    )
}
#: What an agent that only works has of them.
_OF_SPECIALISTS: Final = ("ask_parent", "raise_callback", "report_status", "escalate")


def tools_of(definition: AgentDefinition, options: LlmOptions) -> dict[str, Callable[..., Any]]:
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
    tools = [
        Tool(_step(function), name=name, max_retries=options.limits.retries)
        for name, function in tools_of(definition, options).items()
    ]
    return FunctionToolset(tools, id="orchestra")


def _step(function: Callable[..., Any]) -> Callable[..., Any]:
    """A tool as a durable step. The model reads why a tool refuses. What ends the run passes through."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        def act() -> dict[str, Any]:
            try:
                return {"result": function(*args, **kwargs)}
            except CallDeferred as waits:
                return {"waits": waits.metadata}
            except ENDS_RUN:
                raise
            except OrchestraError as error:
                return {"refused": str(error)}

        done = _context().step(step_of_tool(function.__name__), act)
        if "waits" in done:
            raise CallDeferred(metadata=done["waits"])
        if "refused" in done:
            raise ToolFailed(done["refused"])
        return done["result"]

    return call
