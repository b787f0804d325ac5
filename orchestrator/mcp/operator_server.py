"""The tools of a person's assistant: it submits work, watches it and answers questions, as the operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from mcp.server.lowlevel import Server

from orchestrator.client.client import Client, SessionHandle
from orchestrator.client.waiting import is_over
from orchestrator.errors import SessionFailed
from orchestrator.ledger.model import Session, SessionFilter
from orchestrator.machine import SystemClock, isoformat
from orchestrator.mcp.serving import build_server
from orchestrator.operations import requests
from orchestrator.operations.table import OF_APPROVER, OF_OPERATOR

INSTRUCTIONS: Final = (
    "You operate a stack of agent-orchestra for a person. Submit work to agents, look at its sessions, and answer the "
    "questions that they ask. Nothing waits longer than 50 seconds: where ask_again_s is a number, call the same tool "
    "again after so many seconds."
)
#: Seconds after which to ask again for what has not come.
AGAIN_S: Final = 1.0
#: Sessions of a tree that are shown; all of them are counted.
SHOWN: Final = 200
#: Seconds that one call waits by default.
WAIT_S: Final = 20.0


#: The tools that begin a root session.
_BEGIN: Final[Mapping[str, Callable[..., SessionHandle]]] = {
    "submit": Client.submit,
    "plan": Client.submit_plan,
}


def build_operator_server(client: Client, *, may_approve: bool = False) -> Server[Any]:
    """A server whose tools act for the operator; with ``may_approve`` also where only a person may."""
    tools, table = OperatorTools(client), OF_OPERATOR | (OF_APPROVER if may_approve else {})

    def call(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        request = table[name].read(given)
        if begin := _BEGIN.get(name):
            handle = begin(client, **request)
            return {"session": handle.id, "new": handle.new}
        answer: dict[str, Any] = getattr(tools, name)(request)
        return answer

    return build_server("agent-orchestra operator", INSTRUCTIONS, table, call)


class OperatorTools:
    """Carries the other tools out: a method for each row of the table."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def agents(self, _: requests.ListAllAgents) -> dict[str, Any]:
        """List the agents."""
        return {"agents": [record.listed for record in self._client.agents()]}

    def wait(self, request: requests.AwaitSession) -> dict[str, Any]:
        """Wait for the end of a session."""
        return _wait(self._client, request["session"], request.get("timeout_s", WAIT_S))

    def sessions(self, request: requests.ListSessions) -> dict[str, Any]:
        """List roots."""
        only = SessionFilter.of(request, SystemClock().now_ms())
        found = self._client.sessions(limit=request.get("limit", 20), where=only.fits if only else None)
        return {"sessions": [_shown(one) for one in found]}

    def status(self, request: requests.ShowTree) -> dict[str, Any]:
        """Show a tree."""
        tree = self._client.tree(request["session"])
        return {"count": len(tree), "sessions": [_shown(member) for member in tree[:SHOWN]]}

    def questions(self, request: requests.ListQuestions) -> dict[str, Any]:
        """List the questions of a tree."""
        names = ("session", "agent", "kind", "text", "context")
        found = self._client.questions(request["session"])
        return {"questions": [{"question": one.id, **_fields(one, names)} for one in found]}

    def reply(self, request: requests.AnswerQuestion) -> dict[str, Any]:
        """Answer a question."""
        return {"session": self._client.reply(request["question"], request["text"])}

    def approvals(self, request: requests.ListApprovals) -> dict[str, Any]:
        """List approvals."""
        names = ("id", "session", "agent", "tool", "arguments", "digest", "reason", "default", "fault")
        return {
            "approvals": [
                {**_fields(one, names), "expires": isoformat(one.expires_ms) if one.expires_ms else None}
                for one in self._client.approvals(request.get("session", ""))
            ]
        }

    def approve(self, request: requests.Approve) -> dict[str, Any]:
        """Approve."""
        return _fields(self._client.approve(**request), ("session", "tool"))

    def deny(self, request: requests.Deny) -> dict[str, Any]:
        """Deny."""
        return _fields(self._client.deny(**request), ("session", "tool"))

    def resume(self, request: requests.Resume) -> dict[str, Any]:
        """Give a session another prompt."""
        return {"item": self._client.resume(**request)}

    def stop(self, request: requests.Stop) -> dict[str, Any]:
        """Stop a session; count what is still at work below it."""
        client, session = self._client, request["session"]
        stopping = client.stopping(session)
        client.step(stopping)
        outcome = client.stop(session, request.get("reason", "stopped by the operator's assistant")).outcome
        below = len(client.step(stopping) or ())
        again = AGAIN_S if below or outcome == "asked" else None
        return {"outcome": outcome, "stopping": below, "ask_again_s": again}


def _wait(client: Client, session: str, timeout_s: float) -> dict[str, Any]:
    """Return the state of a session after at most ``timeout_s`` seconds, and its answer if it has ended."""
    with suppress(TimeoutError):
        if timeout_s:
            client.wait(session, timeout_s=timeout_s)
    found = client.session(session)
    shown: dict[str, Any] = {**_shown(found), "result": None, "error": None, "ask_again_s": None}
    if not is_over(found):
        return {**shown, "ask_again_s": AGAIN_S}
    try:
        return {**shown, "result": client.answer(session)}
    except SessionFailed as error:
        return {**shown, "error": str(error)}


def _shown(session: Session) -> dict[str, Any]:
    return {
        "session": session.id,
        **_fields(session, ("parent", "agent", "title", "activity", "reason")),
        "state": session.state.value,
        "progress": session.progress if session.progress >= 0 else None,
        "questions": len(session.questions) - len(session.approvals),
        "approvals": len(session.approvals),
    }


def _fields(value: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}
