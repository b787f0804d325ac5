"""Approvals in the ledger: questions of a session that a person answers, and the index of those that are open."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from orchestrator.errors import DamagedRecord
from orchestrator.ids import session_of_approval
from orchestrator.ledger import decode
from orchestrator.ledger.core import LedgerCore
from orchestrator.ledger.model import CLOSED, Item, Session
from orchestrator.ledger.transitions import Claim, Outgoing
from orchestrator.policy.approval import ApprovalRequest, read_request
from orchestrator.redisdb import ledger_keys

#: The part of the system that says that the time of an approval is up.
SWEEPER: Final = "reaper"


class OpenApproval(NamedTuple):
    """An approval that nobody has answered yet, as the ledger has it."""

    session: Session
    item: Item
    text: str
    request: ApprovalRequest


class Approvals:
    """The approvals of one ledger. Safe to share between threads."""

    def __init__(self, ledger: LedgerCore) -> None:
        self._ledger = ledger

    def request(
        self,
        claim: Claim,
        request: ApprovalRequest,
        *,
        approval: str,
        effect: str,
        title: str,
        envelope: Outgoing,
    ) -> tuple[str, ApprovalRequest]:
        """Ask a person for approval; return its id and the request, which may be that of an earlier try of the run.

        Raises:
            ClaimLost: the run is not held under this claim any more.
            LimitExceeded: the session has as many open questions as it may.
            DamagedRecord: what an earlier try asked for cannot be read.
        """
        ledger, session = self._ledger, claim.session
        record: dict[str, Any] = {
            "kind": "approval",
            "priority": "high",
            "child": session,
            "agent": request.agent,
            "title": title,
            "message": envelope.message_id,
            # As text: the scripts know neither empty lists nor long numbers.
            "context": request.model_dump_json(),
        }
        # Its default counts when its time is up, which the reaper says.
        seal = claim.seal and claim.seal.reading(SWEEPER)
        text = ledger.seals.write(str(request), seal)
        record = ledger.seals.write_record(record, seal)
        reply = ledger.post(
            session,
            record,
            text,
            item=approval,
            by=request.agent,
            to=request.agent,
            envelope=envelope,
            run=claim.run,
            claim=claim.claim,
            speaker=session,
            effect=effect,
            opens=session,
            person="delivered",
            due_ms=request.expires_ms,
            most_open=ledger.limits.open_questions,
        )
        name = decode.text(reply[1])
        if reply[0] == b"exists":
            item = ledger.item(session, name)
            return name, read_request(name, item.extra.get("context") if item is not None else None)
        return name, request

    def listed(self, shard: int, *, limit: int = -1) -> list[str]:
        """The ids in the index of open approvals, oldest first."""
        found = self._ledger.redis.zrange(ledger_keys.approvals(shard), 0, limit - 1 if limit > 0 else -1)
        return [decode.text(one) for one in found]

    def find(self, approvals: Iterable[str]) -> list[OpenApproval]:
        """Those of these approvals that are open, in their order.

        What one asks that cannot be read is empty, with a digest that fits nothing: it can be denied.
        """
        wanted = {one: session_of_approval(one) for one in approvals}
        sessions = {s.id: s for s in self._ledger.find(list(dict.fromkeys(filter(None, wanted.values()))))}
        found = []
        for approval, name in wanted.items():
            session = sessions.get(name) if name else None
            if session is None or approval not in session.questions or session.state in CLOSED:
                continue
            item = self._ledger.item(session.id, approval)
            if item is None:
                continue  # the doctor names it
            text = self._ledger.texts(session.id, [approval]).get(approval, "")
            try:
                request = read_request(approval, item.extra.get("context"))
            except DamagedRecord:
                request = ApprovalRequest(
                    tool="",
                    arguments="{}",
                    digest="",
                    agent=item.agent,
                    session=session.id,
                    run=item.run,
                )
            found.append(OpenApproval(session, item, text, request))
        return found

    def strays(self, shard: int) -> list[str]:
        """Return the indexed approvals whose question is no longer open."""
        return [approval for approval in self.listed(shard) if not self._is_open(approval)]

    def drop_strays(self, shard: int) -> int:
        """Remove from the index the approvals that are no longer open; return how many."""
        # An id is asked for once, so what is not open now never will be.
        found = self.strays(shard)
        return int(self._ledger.redis.zrem(ledger_keys.approvals(shard), *found)) if found else 0

    def _is_open(self, approval: str) -> bool:
        session = session_of_approval(approval)
        known = self._ledger.find([session]) if session else []
        return any(approval in one.questions and one.state not in CLOSED for one in known)
