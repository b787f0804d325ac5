"""Approvals for a person: shown, and approved or denied once, for exactly what was shown."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from orchestrator.agents.registry import OPERATOR
from orchestrator.bootstrap import Container
from orchestrator.client.current import TOKEN_VARIABLE, is_running
from orchestrator.client.waiting import subtree
from orchestrator.errors import ApprovalRefused, InputError, WrongState
from orchestrator.ids import decision_id, session_of_approval
from orchestrator.ledger.inbox import OpenApproval
from orchestrator.policy.approval import Decision, Default, digest_of
from orchestrator.runtime.process import user_name

#: Hexadecimal digits of a digest that are enough to name it.
MIN_DIGEST = 8
#: Characters of a comment.
MAX_COMMENT_CHARS = 10_000


@dataclass(frozen=True, kw_only=True)
class Approval:
    """Something that a person is to approve or deny."""

    #: Its id, for `approve` and `deny`.
    id: str
    #: The session that asks.
    session: str
    #: The root of its tree.
    root: str
    #: The session's generation; a root has 0.
    depth: int
    #: The agent that asks.
    agent: str
    #: What people call the session.
    title: str
    #: The run that asked.
    run: str
    #: What is to be called or done.
    tool: str
    #: With what.
    arguments: dict[str, Any]
    #: SHA-256 of tool and arguments: an answer is for nothing else.
    digest: str
    #: Why it asks, in its own words; else empty.
    reason: str
    #: When it was asked.
    asked_ms: int
    #: When the default counts; 0 or null: never.
    expires_ms: int
    #: What counts when nobody has answered by then.
    default: Default
    #: Why it cannot be approved: it is not what its agent asked; else empty.
    fault: str = ""


def open_approvals(parts: Container, *, session: str = "") -> list[Approval]:
    """Return the open approvals, oldest first; with ``session`` only those of its tree, at or below it.

    Raises:
        UnknownSession: there is no such session.
    """
    ledger, shards = parts.ledger, range(parts.settings.shards)
    names: Iterable[str]
    if session:
        names = [approval for member in subtree(ledger, session) for approval in member.approvals]
    else:
        names = [approval for shard in shards for approval in ledger.approvals.listed(shard)]
    found = [_approval(parts, one) for one in ledger.approvals.find(names)]
    return sorted(found, key=lambda one: (one.asked_ms, one.id))


def answer_approval(
    parts: Container, approval: str, *, approved: bool, comment: str, digest: str, by: str
) -> Approval:
    """Put the operator's yes or no into the queue of the session that asks; the approval that was answered.

    Raises:
        InputError: this is not an approval, the comment is too long, or ``digest`` is of another call.
        ApprovalRefused: an agent or a program that it started answers, or the ledger has something else than what the
            agent asked.
        WrongState: it was answered, its time has passed, or its session has ended.
    """
    from orchestrator.messages.factory import to_session

    if session_of_approval(approval) is None:
        raise InputError(f"{approval!r} is not the id of an approval; `orchestra questions` lists them")
    if is_running() or os.environ.get(TOKEN_VARIABLE):
        raise ApprovalRefused(approval, "this program works for a session of an agent; a person answers it")
    if len(comment) > MAX_COMMENT_CHARS:
        raise InputError(
            f"the comment has {len(comment)} characters; it may have {MAX_COMMENT_CHARS} at most"
        )
    ledger = parts.ledger
    asked = ledger.approvals.find([approval])
    if not asked:
        raise WrongState(f"approval {approval}", "not open", "it was answered, or its session has ended")
    shown = _approval(parts, asked[0])
    if shown.fault and approved:
        raise ApprovalRefused(
            approval,
            f"the ledger has something else than what agent {shown.agent!r} asked ({shown.fault}); deny it",
        )
    if digest and (len(digest) < MIN_DIGEST or not shown.digest.startswith(digest.lower())):
        raise InputError(
            f"approval {approval} is for {shown.tool} with the digest {shown.digest}, not {digest}; look at it again"
        )
    if shown.expires_ms and ledger.server_ms() >= shown.expires_ms:
        raise WrongState(f"approval {approval}", "expired", f"its default counts: {shown.default}")
    session, item, _, request = asked[0]
    decision = Decision(
        approval=approval,
        approved=approved,
        comment=comment,
        by=by or user_name(OPERATOR),  # for people: the signature is what counts
        digest=request.digest,
    )
    said = decision.model_dump_json()
    envelope = parts.message_factory.reply(
        question=str(item.extra["message"]), answer=said, **to_session(session)
    )
    placed = ledger.enqueue(
        session.id,
        comment or ("approved" if approved else "denied"),
        item_id=decision_id(approval),
        kind="reply",
        priority="high",
        answers=approval,
        envelope=envelope,
        extra={"agent": OPERATOR, "answers": approval, "message": envelope.message_id, "context": said},
        by=OPERATOR,
    )
    if not placed:
        raise WrongState(f"approval {approval}", "answered", "it has its answer already")
    return shown


def _approval(parts: Container, asked: OpenApproval) -> Approval:
    session, item, text, request = asked
    fault = ""
    if parts.authenticity.reads_as_operator:
        fault = parts.authenticity.item_fault(session.id, item, text, reader=OPERATOR)
    if not fault and (
        request.session != session.id or request.digest != digest_of(request.tool, request.arguments)
    ):
        fault = "digest: what it names is not what it is for"
    return Approval(
        id=item.id,
        session=session.id,
        root=session.root,
        depth=session.depth,
        agent=session.agent,
        title=session.title,
        run=request.run,
        tool=request.tool,
        arguments=_arguments(request.arguments),
        digest=request.digest,
        reason=request.reason,
        asked_ms=item.at_ms,
        expires_ms=request.expires_ms,
        default=request.default,
        fault=fault,
    )


def _arguments(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
