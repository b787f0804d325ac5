"""Approvals that nobody can answer or end, or that only the index of open ones still names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from orchestrator.doctor.findings import Broken, Problem, TermsReader, stuck, warning
from orchestrator.errors import DamagedRecord
from orchestrator.ledger import CLOSED, Item, Ledger
from orchestrator.ledger.snapshot import Snapshot
from orchestrator.machine import isoformat
from orchestrator.policy.approval import ApprovalRequest, read_request

#: Milliseconds for which an approval may be open after its time.
_LATE_MS: Final = 60_000


def requests(snapshot: Snapshot) -> dict[str, tuple[Item, ApprovalRequest | None]]:
    """Return the open approvals of a session; None for one whose request cannot be read."""
    open_requests: dict[str, tuple[Item, ApprovalRequest | None]] = {}
    items = {item.id: item for item in snapshot.items}
    for approval in snapshot.session.approvals:
        item = items.get(approval)
        if item is None:
            continue  # a question that is lost
        try:
            open_requests[approval] = item, read_request(approval, item.extra.get("context"))
        except DamagedRecord:
            open_requests[approval] = item, None
    return open_requests


def breaks(snapshot: Snapshot) -> Iterator[Broken]:
    """Yield what keeps an open approval of a session from being seen, answered or ended."""
    if snapshot.session.state in CLOSED:
        return
    for approval, (item, request) in requests(snapshot).items():
        if request is None:
            yield (
                "approval-unanswerable",
                approval,
                f"{approval} cannot be approved: what it asks cannot be read; `orchestra deny {approval}`",
            )
            continue
        missing = []
        if approval not in snapshot.listed_approvals:
            missing.append("the index of open approvals: `orchestra questions` does not show it")
        if request.expires_ms and approval not in snapshot.question_due_ms:
            missing.append(f"the timers: nobody ends it at {isoformat(request.expires_ms)}")
        for where in missing:
            yield (
                "approval-unindexed",
                approval,
                f"{approval} ({request.tool}, asked at {isoformat(item.at_ms)}) is not in {where}",
            )


def waiting(snapshot: Snapshot, terms: TermsReader, now_ms: int) -> Iterator[Problem]:
    """Open approvals whose answer would move nothing, or whose time has passed."""
    session = snapshot.session
    if session.state in CLOSED or not session.approvals:
        return
    nobody = terms.of(session.agent).nobody
    for approval, (_, request) in requests(snapshot).items():
        if request is not None and request.expires_ms and now_ms - request.expires_ms > _LATE_MS:
            at = isoformat(request.expires_ms)
            expired = f"{approval} expired at {at} and is still open: is a reaper running?"
            yield stuck("approval-late", approval, expired, session=session.id)
        if nobody:
            waits = f"{approval} waits for an answer that moves nothing now, as {nobody}; start a worker that does"
            yield warning("approval-unserved", approval, waits, session=session.id)


def strays(ledger: Ledger, shards: Iterable[int]) -> Iterator[Problem]:
    """Entries of the index that no session asks for any more."""
    for shard in shards:
        for approval in ledger.approvals.strays(shard):
            yield stuck(
                "approval-stray",
                approval,
                f"the index of open approvals names {approval}, which no session asks for: the sweep takes it off",
            )
