"""Whether the transitions in the audit trail lead to what the ledger has now."""

from __future__ import annotations

from orchestrator.audit.store import AuditStore, Changes
from orchestrator.ledger import Ledger


def disagreements(ledger: Ledger, store: AuditStore, roots: list[str]) -> list[str]:
    """What stands in the ledger in another state than the last one that the trail knows of it."""
    last: dict[tuple[str, str, str], str] = {}
    for change in Changes(store).of(None):
        last[change.kind, change.session, change.id] = change.state
    found = []

    def compare(kind: str, session: str, identifier: str, state: str) -> None:
        known = last.get((kind, session, identifier))
        if known != state:
            found.append(f"{kind} {identifier} of {session} is {state}, and {known} in the trail")

    for root in roots:
        for session in ledger.tree(root):
            compare("session", session.id, "-", session.state)
            for run in ledger.runs(session.id):
                compare("run", session.id, run.id, run.state)
            for item in ledger.items(session.id):
                kind = {"completion": "callback"}.get(item.kind, "item")
                if item.id.startswith("apr_"):
                    kind = "approval"
                # A person's answer leaves the record of the question as it is.
                if last.get((kind, session.id, item.id)) != "answered":
                    compare(kind, session.id, item.id, item.state)
    return found
