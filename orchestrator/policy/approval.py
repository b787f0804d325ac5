"""Approvals: one call of a tool with certain arguments, and the decision of a person about it. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.errors import DamagedRecord, InputError

#: Bytes of arguments that a person is asked about: nobody reads more, and what is not read is not approved.
MAX_ARGUMENTS_BYTES: Final = 256 * 1024
#: Characters of the arguments that the one line about an approval repeats.
_SHOWN_CHARS: Final = 200

#: What counts when nobody has answered in time.
Default = Literal["deny", "approve"]


class ApprovalRequest(BaseModel):
    """Request for approval, signed by the agent that asks."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    tool: str
    #: The arguments as canonical JSON, and their digest together with the tool.
    arguments: str
    digest: str
    agent: str
    session: str
    run: str
    #: Milliseconds since the epoch after which ``default`` counts; 0: never.
    expires_ms: int = 0
    default: Default = "deny"
    #: Why it is asked, in the words of the agent or the tool.
    reason: str = ""

    def __str__(self) -> str:
        shown = self.arguments if len(self.arguments) <= _SHOWN_CHARS else f"{self.arguments[:_SHOWN_CHARS]}…"
        why = f": {self.reason}" if self.reason else ""
        return f"agent {self.agent!r} asks to call {self.tool} with {shown}{why}"


class Decision(BaseModel):
    """The answer to an approval."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    approval: str
    approved: bool
    comment: str = ""
    #: Who answered, as the answer says; empty: nobody did, and ``how`` says why it is decided.
    by: str = ""
    #: Of what was approved, as whoever answered was shown it.
    digest: str = ""
    how: Literal["answered", "expired", "refused"] = "answered"

    def __str__(self) -> str:
        verdict = "approved" if self.approved else "denied"
        comment = f": {self.comment}" if self.comment else ""
        return f"{verdict}{comment}"


def canonical(arguments: Mapping[str, Any] | None, *, tool: str = "") -> str:
    """Arguments as JSON that is the same for the same arguments.

    Raises:
        InputError: they have no form as JSON, or are longer than anybody reads.
    """
    try:
        text = json.dumps(
            dict(arguments or {}),
            sort_keys=True,
            ensure_ascii=True,
            allow_nan=False,
            separators=(",", ":"),
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"the arguments of {tool!r} have no form as JSON: {error}") from None
    if len(text) > MAX_ARGUMENTS_BYTES:
        raise InputError(
            f"the arguments of {tool!r} have {len(text)} bytes; a person is asked about {MAX_ARGUMENTS_BYTES} at "
            "most: write them to a file and name it"
        )
    return text


def digest_of(tool: str, arguments: str) -> str:
    """Return the digest of a tool and its canonical arguments: what an answer is for."""
    return hashlib.sha256(f"{len(tool)}:{tool}{arguments}".encode(errors="surrogatepass")).hexdigest()


def read_request(approval: str, context: Any) -> ApprovalRequest:
    """Return the request that the record of an approval holds.

    Raises:
        DamagedRecord: it is none.
    """
    try:
        values = json.loads(context) if isinstance(context, str) else context
        return ApprovalRequest.model_validate(values)
    except (ValueError, ValidationError) as error:
        raise DamagedRecord(f"approval {approval}", f"what it asks cannot be read: {error}") from None


def read_decision(
    approval: str,
    request: ApprovalRequest,
    *,
    digest: str,
    answered: bool,
    context: Any,
    text: str,
    now_ms: int,
) -> Decision:
    """Return the decision that an answer means for one call; anything doubtful counts as denied.

    Args:
        approval: the approval that was asked for.
        request: what was asked, which was verified.
        digest: of the call as it would be made now.
        answered: whether a person's answer is there, which was verified; else what is there says that none will come.
        context: what it says, as JSON values.
        text: what it says, in words.
        now_ms: the server's time.
    """
    answer = context if isinstance(context, Mapping) else {}
    if not answered:
        expired = bool(answer.get("expired")) and 0 < request.expires_ms <= now_ms
        if not expired:
            return refused(approval, text)
        approved = request.default == "approve" and request.digest == digest
        return Decision(approval=approval, approved=approved, comment=text, how="expired")
    try:
        decision = Decision.model_validate(answer)
    except ValidationError:
        return refused(approval, "its answer cannot be read")
    if decision.approval != approval or (decision.approved and decision.digest != digest):
        return refused(approval, "the answer is for another call than the one that would be made")
    return decision


def refused(approval: str, why: str) -> Decision:
    """Return a decision that counts as denied, although nobody made it."""
    return Decision(approval=approval, approved=False, comment=why, how="refused")
