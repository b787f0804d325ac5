"""The tools of a command-line agent: it takes part in the run of the session that started it.

Each tool is an operation of the run (see `worker.gateway.operations`), under the token in the environment.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from mcp.server import MCPServer
from pydantic import Field

from orchestrator.client.current import RemoteSession
from orchestrator.mcp.calls import in_thread
from orchestrator.mcp.tasks import LongWaits

INSTRUCTIONS: Final = (
    "You work for one session of agent-orchestra. Delegate work to other agents, wait for it, ask who gave you your "
    "task, and answer your children. Nothing waits longer than 50 seconds: where ask_again_s is a number, call the same "
    "tool again after so many seconds. What has not come when you finish resumes you later."
)

TimeoutS = Annotated[float, Field(ge=0, le=50, description="Seconds to wait at most.")]
Kind = Annotated[str, Field(description="query, blocker, clarification, error or a word of your own.")]
Urgency = Literal["critical", "high", "normal", "low"]


def build_session_server(session: RemoteSession) -> MCPServer[Any]:
    """A server whose tools act for a session."""
    tools = SessionTools(session)
    waits = LongWaits(
        {"wait": tools.wait, "answer": tools.answer},
        {
            "wait": lambda asked, _: ("wait", {"sessions": list(asked.get("sessions") or [])}),
            "ask": lambda _, answer: ("answer", {"question": answer["question"]}),
            "answer": lambda asked, _: ("answer", {"question": asked["question"]}),
        },
    )
    server: MCPServer[Any] = MCPServer(
        "agent-orchestra", instructions=INSTRUCTIONS, log_level="WARNING", extensions=[waits]
    )
    for tool in (
        tools.delegate,
        tools.wait,
        tools.ask,
        tools.answer,
        tools.raise_callback,
        tools.request_approval,
        tools.decision,
        tools.reply,
        tools.message,
        tools.status,
        tools.results,
        tools.read_result,
        tools.agents,
        tools.session,
    ):
        server.add_tool(tool)
    return server


class SessionTools:
    """The tools. Their docstrings and fields are what a model reads."""

    def __init__(self, session: RemoteSession) -> None:
        self._session = session

    async def _call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        return await in_thread(self._session.call, operation, **parameters)

    async def session(self) -> dict[str, Any]:
        """Your session: its ids, your agent's name, why you run and what you were given to do."""
        return await self._call("session")

    async def delegate(
        self,
        agent: Annotated[str, Field(description="The agent that gets the task.")],
        task: Annotated[str, Field(description="What it is to do, complete: it knows nothing else.")],
        *,
        title: str = "",
        priority: Urgency = "high",
        group: str = "",
        after: Annotated[list[str], Field(description="Sessions that must be completed first.")] = [],  # noqa: B006
        key: Annotated[
            str | None,
            Field(
                description="The same key is the same delegation. Give one if you repeat a call that failed."
            ),
        ] = None,
        objectives: Annotated[list[str], Field(description="What the task must reach.")] = [],  # noqa: B006
        acceptance_criteria: Annotated[list[str], Field(description="When the work is accepted.")] = [],  # noqa: B006
        details: Annotated[
            dict[str, Any] | None,
            Field(
                description="What else the task says, as the fields of a Task: success_criteria, context, …"
            ),
        ] = None,
        expires_s: Annotated[
            float | None, Field(description="Seconds after which it is not begun any more.")
        ] = None,
        retry_policy: Annotated[
            dict[str, Any] | None,
            Field(description="How its delivery is tried: max_attempts, backoff_strategy, timeout_seconds."),
        ] = None,
        time_limit_s: Annotated[
            float | None, Field(description="Seconds within which it must be done.")
        ] = None,
    ) -> dict[str, Any]:
        """Give work to another agent and go on. Returns the id of its session, for `wait`."""
        more = {"objectives": objectives, "acceptance_criteria": acceptance_criteria}
        given = {**(details or {}), **{name: value for name, value in more.items() if value}}
        return await self._call(
            "delegate",
            agent=agent,
            task=task,
            title=title,
            priority=priority,
            group=group,
            after=after,
            key=key,
            details=given or None,
            expires_s=expires_s,
            retry_policy=retry_policy,
            time_limit_s=time_limit_s,
        )

    async def wait(
        self,
        sessions: Annotated[list[str], Field(description="Children to wait for; none: all of them.")] = [],  # noqa: B006
        timeout_s: TimeoutS = 20.0,
    ) -> dict[str, Any]:
        """Wait until a child has ended or asks something. Answer each of its questions with `reply`."""
        return await self._call("wait", sessions=sessions, timeout_s=timeout_s)

    async def ask(
        self,
        message: str,
        *,
        type: Kind = "query",
        context: dict[str, Any] | None = None,
        priority: Urgency | None = None,
        timeout_s: TimeoutS = 20.0,
        attempted: Annotated[list[str], Field(description="What you have tried.")] = [],  # noqa: B006
        error: Annotated[str, Field(description="The full message of an error.")] = "",
    ) -> dict[str, Any]:
        """Ask who gave you your task and wait for the reply. If none came, call `answer` with the id of the question."""
        return await self._call(
            "ask",
            message=message,
            type=type,
            context=context,
            priority=priority,
            timeout_s=timeout_s,
            attempted=attempted,
            error=error,
        )

    async def answer(self, question: str, timeout_s: TimeoutS = 20.0) -> dict[str, Any]:
        """Wait for the reply to a question that you have asked."""
        return await self._call("answer", question=question, timeout_s=timeout_s)

    async def raise_callback(
        self,
        message: str,
        callback_type: Kind = "query",
        context: dict[str, Any] | None = None,
        priority: Urgency | None = None,
    ) -> dict[str, Any]:
        """Tell who gave you your task of a problem and go on; `answer` waits for the reply."""
        return await self._call(
            "raise", message=message, type=callback_type, context=context, priority=priority
        )

    async def request_approval(
        self,
        tool: Annotated[str, Field(description="What you want to do, in a word.")],
        arguments: Annotated[dict[str, Any], Field(description="With what: the yes is for this alone.")] = {},  # noqa: B006
        reason: str = "",
        key: Annotated[
            str | None, Field(description="The same key is the same approval. Give one if you repeat a call.")
        ] = None,
        timeout_s: TimeoutS = 20.0,
    ) -> dict[str, Any]:
        """Ask a person for a yes or no before you do something. If none came, call `decision` with the approval's id."""
        return await self._call(
            "approval", tool=tool, arguments=arguments, reason=reason, key=key, timeout_s=timeout_s
        )

    async def decision(self, approval: str, timeout_s: TimeoutS = 20.0) -> dict[str, Any]:
        """Wait for a person's answer to an approval that you have asked for. Without `approved: true` do nothing."""
        return await self._call("decision", approval=approval, timeout_s=timeout_s)

    async def reply(self, question: str, text: str) -> dict[str, Any]:
        """Answer a question of a child."""
        return await self._call("reply", question=question, text=text)

    async def message(
        self, to: Annotated[str, Field(description="The session of a child, or `parent`.")], text: str
    ) -> dict[str, Any]:
        """Say something to your parent or to a child; no answer comes."""
        return await self._call("message", to=to, text=text)

    async def status(
        self,
        progress: Annotated[int | None, Field(ge=0, le=100, description="Per cent done.")] = None,
        activity: Annotated[str, Field(description="What you do now.")] = "",
        blockers: Annotated[list[str], Field(description="What keeps you from going on.")] = [],  # noqa: B006
        next_steps: Annotated[list[str], Field(description="What you do next.")] = [],  # noqa: B006
    ) -> dict[str, Any]:
        """Show how far you are. If `stopping` is not empty, end your work now."""
        return await self._call(
            "status", progress=progress, activity=activity, blockers=blockers, next_steps=next_steps
        )

    async def results(self) -> dict[str, Any]:
        """The ends of all your children so far."""
        return await self._call("results")

    async def read_result(
        self,
        session: Annotated[str, Field(description="A child that has ended.")],
        attachment: Annotated[
            str, Field(description="The name of an attachment; empty: the answer itself.")
        ] = "",
        offset: Annotated[int, Field(ge=0, description="Where to begin, in characters.")] = 0,
        length: Annotated[int, Field(ge=1, le=200_000)] = 20_000,
    ) -> dict[str, Any]:
        """Read what a child has answered, or attached to its answer, from a position on. `next_offset` says where to go on."""
        return await self._call("read", session=session, attachment=attachment, offset=offset, length=length)

    async def agents(
        self, tag: Annotated[str, Field(description="Only those with this tag; empty: all.")] = ""
    ) -> dict[str, Any]:
        """The agents that you may delegate to, with what each is for."""
        return await self._call("agents", tag=tag)
