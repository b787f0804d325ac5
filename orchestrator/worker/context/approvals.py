"""Approvals that an agent requests of a person: each once, however often its run is tried, without holding a slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orchestrator.agents.registry import OPERATOR
from orchestrator.errors import AwaitsApproval, DamagedRecord, InputError, KeyInUse
from orchestrator.ids import approval_id, decision_id
from orchestrator.ledger.large_text import check_size, check_text
from orchestrator.policy.approval import (
    ApprovalRequest,
    Decision,
    Default,
    canonical,
    digest_of,
    read_decision,
    read_request,
    refused,
)
from orchestrator.policy.moments import check_timeout, limit_ms
from orchestrator.worker.context.effects import Effects
from orchestrator.worker.context.verification import Verifier, callback_of
from orchestrator.worker.context.waits import Blocking, Taken

#: Seconds after which a parked run looks again although nobody has answered.
LOOK_AGAIN_S: Final = 30 * 86_400.0


class ApprovalRequests:
    """The approvals that one run asks for, in one try of it."""

    def __init__(
        self, effects: Effects, blocking: Blocking, verifier: Verifier, *, time_limit_s: float | None
    ) -> None:
        self._effects = effects
        self._blocking = blocking
        self._verifier = verifier
        self._time_limit_s = time_limit_s

    def post(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        reason: str = "",
        timeout_s: float | None = None,
        default: Default = "deny",
        key: str | None = None,
    ) -> tuple[str, ApprovalRequest]:
        """Ask a person and go on; return the approval's id and the request.

        Raises:
            LimitExceeded: this session has as many open questions as it may.
            InputError: a value is wrong, or the arguments have no form as JSON or are too long.
            KeyInUse: the key was used before, for something else.
        """
        check_text("tool", tool)
        check_size("tool", tool)
        check_size("reason", check_text("reason", reason))
        check_timeout(timeout_s)
        if not tool.strip():
            raise InputError("an approval names what is to be approved: tool is empty")
        if default not in ("deny", "approve"):
            raise InputError(f"default = {default!r}: choose from 'deny', 'approve'")
        limit_s = self._time_limit_s if timeout_s is None else timeout_s
        if limit_s is None and default == "approve":
            raise InputError("default = 'approve' needs a time limit: give timeout_s")
        effects, session = self._effects, self._effects.held.session
        text = canonical(arguments, tool=tool)
        digest = digest_of(tool, text)
        effect = effects.key("approval", tool, digest, given=key)
        now_ms = effects.retrying("approval", effects.ledger.server_ms)
        request = ApprovalRequest(
            tool=tool,
            arguments=text,
            digest=digest,
            agent=session.agent,
            session=session.id,
            run=effects.held.claim.run,
            expires_ms=0 if limit_s is None else now_ms + limit_ms(limit_s),
            default=default,
            reason=reason,
        )
        outgoing = effects.write(
            lambda: effects.message_factory.query(
                question=str(request),
                context=request.model_dump_json(indent=2),
                priority="high",
                **effects.parties(OPERATOR),
            )
        )
        name = approval_id(session.id, f"{effects.held.claim.run}:{effect}")
        posted = effects.attempt(
            "approval",
            lambda: effects.ledger.approvals.request(
                effects.held.claim,
                request,
                approval=name,
                effect=effect,
                title=session.title,
                envelope=outgoing,
            ),
            effect=effect,
        )
        if posted[1].digest != digest:
            raise KeyInUse(key, posted[0], session.agent, "set of arguments")
        return posted

    def decision(self, approval: str) -> Decision:
        """Return the answer; the run is parked until it is there.

        Raises:
            AwaitsApproval: nobody has answered yet; let it pass through.
            InputError: this session has asked for no such approval.
        """
        request = self._request(approval)
        taken = self._blocking.take(decision_id(approval), "wait")
        if taken is None:
            raise AwaitsApproval(approval, f"{LOOK_AGAIN_S:.6g}")
        return self._read(approval, request, taken)

    def await_decision(self, approval: str, *, timeout_s: float) -> Decision | None:
        """Return the answer; the run holds its slot until it is there, for ``timeout_s`` seconds at most.

        Raises:
            InputError: this session has asked for no such approval.
            WouldDeadlock: too many runs wait for one another in this worker's slot.
        """
        check_timeout(timeout_s)
        request = self._request(approval)
        if timeout_s > 0:
            self._blocking.check_depth("an approval")
        taken = self._blocking.answer(
            decision_id(approval), approval, awaited=self._effects.held.session.id, timeout_s=timeout_s
        )
        return None if taken is None else self._read(approval, request, taken)

    def delivered(self, approval: str, *, digest: str) -> Decision:
        """Return the answer that this run or an earlier one carries, for a call with this digest.

        It is read from the ledger, with its proof and that of the request: nothing else that is remembered is consent.
        """
        try:
            request = self._request(approval)
        except (InputError, DamagedRecord) as error:
            return refused(approval, str(error))
        found = self._item(decision_id(approval))
        if found is None:
            return refused(approval, "nobody has answered")
        return self._read(approval, request, found, digest=digest)

    def withdraw(self, approval: str, reason: str) -> bool:
        """Withdraw an approval: nobody needs to answer any more; False if somebody has."""
        return self._effects.withdraw(approval, reason, asked=self._effects.held.session.id)

    def _read(
        self, approval: str, request: ApprovalRequest | None, taken: Taken, *, digest: str = ""
    ) -> Decision:
        """Return the decision that a verified answer means, by default for the call that was asked about."""
        answer = callback_of(*taken, self._effects)
        if request is None:
            return refused(approval, "what was asked is not what the ledger has")
        return read_decision(
            approval,
            request,
            digest=digest or request.digest,
            answered=answer.agent == OPERATOR and answer.status != "failed",
            context=answer.context,
            text=answer.text,
            now_ms=self._effects.retrying("approval", self._effects.ledger.server_ms),
        )

    def _request(self, approval: str) -> ApprovalRequest | None:
        """Return the approval request, or None if its signature does not verify.

        Raises:
            InputError: this session has asked for no such approval.
            DamagedRecord: what it asked cannot be read.
        """
        found = self._item(approval)
        if found is None or found[0].kind != "approval":
            session = self._effects.held.session.id
            raise InputError(f"session {session} has asked for no approval {approval!r}")
        if found[0].status == "failed":
            return None
        return read_request(approval, found[0].extra.get("context"))

    def _item(self, name: str) -> Taken | None:
        """Return a verified item of this session, with its text."""
        session, ledger = self._effects.held.session.id, self._effects.ledger

        def find() -> Taken | None:
            item = ledger.item(session, name)
            return None if item is None else (item, ledger.texts(session, [name]).get(name, ""))

        found = self._effects.retrying("approval", find)
        return None if found is None else self._verifier.items([found])[0]
