"""Sessions that the audit trail knows and the ledger lost, and the operator's word that they stay so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from orchestrator.agents.registry import SYSTEM_AGENTS
from orchestrator.audit import amendments
from orchestrator.audit.amendments import Amendment
from orchestrator.audit.database import Database
from orchestrator.audit.proof import Proof
from orchestrator.audit.reader import AuditReader, Mention
from orchestrator.bootstrap import Container
from orchestrator.display.text import counted
from orchestrator.doctor.findings import Problem, Severity
from orchestrator.envelope.signature import Signer
from orchestrator.errors import Refused
from orchestrator.ids import is_session_id
from orchestrator.machine import isoformat
from orchestrator.router.deadletters.replay import who

#: Sessions that are named one by one.
_MOST_NAMED: Final = 50
#: How far the clocks of those who publish and of the server may be apart.
_CLOCKS_APART_MS: Final = 3_600_000


class LostSessions:
    """Compares the launches of the trail with the sessions of the ledger.

    A tree is kept for its whole lifetime after its end, so that of every younger launch there is a session.
    """

    def __init__(self, parts: Container, audit: AuditReader, proof: Proof) -> None:
        self._parts = parts
        self._audit = audit
        self._proof = proof

    def find(self, *, newest: int | None) -> list[Problem]:
        """Name the lost sessions that nobody has accepted; with ``newest`` only those of so many newest messages."""
        lost = list(self._lost(newest, self._accepted()))
        problems = [_problem(one) for one in lost[:_MOST_NAMED]]
        if more := lost[_MOST_NAMED:]:
            what = f"{counted(len(more), 'more session')} of the audit trail are not in the ledger"
            problems.append(Problem(Severity.BREAK, "session-lost", "", what))
        return problems

    def accept(self, session: str, database: Database, signer: Signer) -> str:
        """Sign that a lost session, and those below it, are given up; return what was done. A second time does
        nothing.

        Raises:
            Refused: the ledger has the session, or the trail does not.
        """
        below = {record.task_id for record in self._audit.find(session)}
        accepted = self._accepted()
        rows = {one.seq: one.task_id for one in self._lost(None, accepted) if one.task_id in below}
        if not rows:
            return self._no_more(session, accepted)
        now_ms = self._parts.ledger.server_ms()
        amendments.accept(database, list(rows), f"accepted as lost by {who()}", signer, at_ms=now_ms)
        others = len(set(rows.values()) - {session})
        also = f", and {counted(others, 'session')} below it" if others else ""
        return f"accepted that {session} is lost{also}"

    def _no_more(self, session: str, accepted: Mapping[int, Amendment]) -> str:
        """Say why there is nothing to accept."""
        if is_session_id(session) and self._parts.ledger.find([session]):
            raise Refused(f"{session} is in the ledger: nothing was lost that could be accepted")
        known = [accepted[one.seq] for one in self._audit.find(session) if one.seq in accepted]
        if known:
            return f"{session} was {known[0].reason} at {isoformat(known[0].at_ms)}"
        raise Refused(
            f"{session} is not in the audit trail as a session that was lost; `orchestra doctor` names those"
        )

    def _accepted(self) -> dict[int, Amendment]:
        """Return the rows of launches that the operator has accepted as lost."""
        store = self._audit.store
        return {
            one.seq: one
            for one in store.amendments()
            if one.kind == amendments.ACCEPTANCE
            and not one.fault(self._proof.keys, store.id)
            and store.chain_at(one.table, one.seq) == one.chain
        }

    def _lost(self, newest: int | None, accepted: Mapping[int, Amendment]) -> Iterator[Mention]:
        ledger, audit = self._parts.ledger, self._audit
        since_ms = ledger.server_ms() - ledger.limits.tree_ttl_ms + _CLOCKS_APART_MS
        for launches in audit.delegations(since_ms=since_ms, newest=newest):
            named = [one for one in launches if is_session_id(one.task_id) and one.seq not in accepted]
            there = {session.id for session in ledger.find([one.task_id for one in named])}
            for one in named:
                if one.task_id in there or not self._is_launch(one):
                    continue
                if not audit.was_refused(one) and not self._proof.fault(audit.xml(one), one.published_ms):
                    yield one

    def _is_launch(self, one: Mention) -> bool:
        """Return True if the sender may have launched it: the operator, or the agent that was given the task above
        it.
        """
        if one.sender in SYSTEM_AGENTS:
            return True
        record = self._parts.agents.get(one.sender)
        if record is not None and record.external:  # its task-ids are its own, whatever they look like
            return False
        return self._audit.given_above(one) == one.sender


def _problem(one: Mention) -> Problem:
    return Problem(
        Severity.BREAK,
        "session-lost",
        one.task_id,
        f"{one.task_id} of agent {one.recipient!r}, launched by {one.sender!r} at {isoformat(one.published_ms)}, is in "
        "the audit trail and not in the ledger, which was put back or lost a part of it; "
        f"`orchestra audit show {one.message_id}` has the task: submit it again if it is still wanted, then "
        f"`orchestra doctor --accept {one.task_id}` takes it and what is below it off this list",
    )
