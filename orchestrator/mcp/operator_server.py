"""The tools of a person's assistant: it submits work, watches it and answers questions, as the operator."""

from __future__ import annotations

from typing import Annotated, Any, Final

from mcp.server import MCPServer
from pydantic import Field

from orchestrator.client.client import Client
from orchestrator.client.waiting import is_over
from orchestrator.errors import SessionFailed
from orchestrator.ledger import Session
from orchestrator.machine import isoformat
from orchestrator.mcp.calls import in_thread
from orchestrator.mcp.tasks import LongWaits

INSTRUCTIONS: Final = (
    "You operate a stack of agent-orchestra for a person. Submit work to agents, look at its sessions, and answer the "
    "questions that they ask. Nothing waits longer than 50 seconds: where ask_again_s is a number, call the same tool "
    "again after so many seconds."
)
#: Seconds after which to ask again for what has not come.
AGAIN_S: Final = 1.0
#: Sessions of a tree that are shown; all of them are counted.
SHOWN: Final = 200

TimeoutS = Annotated[float, Field(ge=0, le=50, description="Seconds to wait at most.")]
Key = Annotated[
    str | None, Field(description="The same key is the same session, however often it is submitted.")
]


def build_operator_server(client: Client, *, may_approve: bool = False) -> MCPServer[Any]:
    """A server whose tools act for the operator; with ``may_approve`` also where only a person may."""
    tools = OperatorTools(client)
    waits = LongWaits(
        {"wait": tools.wait}, {"wait": lambda asked, _: ("wait", {"session": asked["session"]})}
    )
    server: MCPServer[Any] = MCPServer(
        "agent-orchestra operator", instructions=INSTRUCTIONS, log_level="WARNING", extensions=[waits]
    )
    for tool in (
        tools.agents,
        tools.submit,
        tools.plan,
        tools.wait,
        tools.sessions,
        tools.status,
        tools.questions,
        tools.reply,
        tools.approvals,
        tools.resume,
        tools.stop,
    ):
        server.add_tool(tool)
    if may_approve:
        server.add_tool(tools.approve)
        server.add_tool(tools.deny)
    return server


class OperatorTools:
    """The tools. Their docstrings and fields are what a model reads."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def agents(self) -> dict[str, Any]:
        """The agents that work can be given to."""
        found = await in_thread(self._client.agents)
        return {"agents": [record.listed for record in found]}

    async def submit(self, agent: str, prompt: str, title: str = "", key: Key = None) -> dict[str, Any]:
        """Give an agent a prompt. Returns the id of its session, for `wait`."""
        handle = await in_thread(self._client.submit, agent, prompt, title=title, key=key)
        return {"session": handle.id, "new": handle.new}

    async def plan(
        self,
        plan: Annotated[
            str, Field(description="A JSON array of objects with role, task, sequence and caller.")
        ],
        agent: Annotated[str, Field(description="Who carries it out; by default the only caller.")] = "",
        key: Key = None,
    ) -> dict[str, Any]:
        """Have a plan carried out. Returns the id of its session."""
        handle = await in_thread(self._client.submit_plan, plan, agent=agent, key=key)
        return {"session": handle.id, "new": handle.new}

    async def wait(self, session: str, timeout_s: TimeoutS = 20.0) -> dict[str, Any]:
        """Wait for the final answer of a session."""
        return await in_thread(_wait, self._client, session, timeout_s)

    async def sessions(self, limit: Annotated[int, Field(ge=1, le=200)] = 20) -> dict[str, Any]:
        """The latest sessions that were submitted, newest first."""
        return {"sessions": [_shown(s) for s in await in_thread(self._client.sessions, limit=limit)]}

    async def status(self, session: str) -> dict[str, Any]:
        """How a session and everything below it stands."""
        tree = await in_thread(self._client.tree, session)
        return {"count": len(tree), "sessions": [_shown(member) for member in tree[:SHOWN]]}

    async def questions(self, session: str) -> dict[str, Any]:
        """The open questions of a session and everything below it. Answer one with `reply`."""
        return {
            "questions": [
                {
                    "question": q.id,
                    "session": q.session,
                    "agent": q.agent,
                    "type": q.kind,
                    "text": q.text,
                    "context": q.context,
                }
                for q in await in_thread(self._client.questions, session)
            ]
        }

    async def reply(self, question: str, text: str) -> dict[str, Any]:
        """Answer a question in the place of the session that was asked."""
        return {"session": await in_thread(self._client.reply, question, text)}

    async def approvals(self, session: str = "") -> dict[str, Any]:
        """What waits for the person's yes or no; with a session only what it and its tree below it ask. Show it to them."""
        return {
            "approvals": [
                {
                    "id": one.id,
                    "session": one.session,
                    "agent": one.agent,
                    "tool": one.tool,
                    "arguments": one.arguments,
                    "digest": one.digest,
                    "reason": one.reason,
                    "expires": isoformat(one.expires_ms) if one.expires_ms else None,
                    "default": one.default,
                    "fault": one.fault,
                }
                for one in await in_thread(self._client.approvals, session)
            ]
        }

    async def approve(
        self,
        approval: str,
        digest: Annotated[str, Field(description="As `approvals` gave it, with what the person has seen.")],
        comment: str = "",
    ) -> dict[str, Any]:
        """Say yes for the person, who has seen tool and arguments and has told you to. Never decide this yourself."""
        done = await in_thread(self._client.approve, approval, comment, digest=digest)
        return {"session": done.session, "tool": done.tool}

    async def deny(self, approval: str, comment: str = "") -> dict[str, Any]:
        """Say no for the person, who has told you to."""
        done = await in_thread(self._client.deny, approval, comment)
        return {"session": done.session, "tool": done.tool}

    async def resume(self, session: str, prompt: str, key: Key = None) -> dict[str, Any]:
        """Give a session another prompt."""
        return {"item": await in_thread(self._client.resume, session, prompt, key=key)}

    async def stop(self, session: str, reason: str = "stopped by the operator's assistant") -> dict[str, Any]:
        """Stop a session and, by its policy, everything below it. `stopping` counts what is still at work below it.

        `ended`: it has ended; `asked`: its agent was asked to stop; `over`: it had ended before. Call it again after
        ask_again_s seconds to see whether all have ended.
        """
        return await in_thread(_stop, self._client, session, reason)


def _stop(client: Client, session: str, reason: str) -> dict[str, Any]:
    stopping = client.stopping(session)
    client.step(stopping)
    outcome = client.stop(session, reason).outcome
    below = len(client.step(stopping) or ())
    again = AGAIN_S if below or outcome == "asked" else None
    return {"outcome": outcome, "stopping": below, "ask_again_s": again}


def _wait(client: Client, session: str, timeout_s: float) -> dict[str, Any]:
    """How a session stands after at most so many seconds; its answer, if it has ended."""
    try:
        if timeout_s:
            client.wait(session, timeout_s=timeout_s)
    except TimeoutError:
        pass
    found = client.session(session)
    shown: dict[str, Any] = {**_shown(found), "result": None, "error": None, "ask_again_s": None}
    if not is_over(found):
        return {**shown, "ask_again_s": AGAIN_S}
    try:
        return {**shown, "result": client.answer(session)}
    except SessionFailed as error:
        return {**shown, "error": str(error)}


def _shown(session: Session) -> dict[str, Any]:
    progress: int | None = session.progress if session.progress >= 0 else None
    return {
        "session": session.id,
        "parent": session.parent,
        "agent": session.agent,
        "title": session.title,
        "state": session.state.value,
        "progress": progress,
        "activity": session.activity,
        "questions": len(session.questions) - len(session.approvals),
        "approvals": len(session.approvals),
        "reason": session.reason,
    }
