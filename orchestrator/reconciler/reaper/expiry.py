"""The end of a tree: some time after its root has finished, its records are removed, unless somebody still needs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from orchestrator.crashpoints import failpoint
from orchestrator.errors import UnknownSession
from orchestrator.ledger import CLOSED, ItemState, Ledger, Session, SessionState
from orchestrator.runtime.service import still_at_work

#: Milliseconds after which a tree that was due and is still needed is looked at again.
_LOOK_AGAIN_MS: Final = 600_000


def expire_tree(ledger: Ledger, shard: int, root: str) -> int:
    """Remove a tree that has had its whole lifetime, or look at it again later; how many sessions were removed."""
    sweep, lifetime_ms = ledger.sweep, ledger.limits.tree_ttl_ms
    try:
        session = ledger.session(root)
    except UnknownSession:
        sweep.drop_timer(shard, "expire", root)
        return 0
    now_ms = ledger.server_ms()
    finished = session.state in CLOSED or session.state == SessionState.FINISHED
    if not finished or session.busy or now_ms - session.ended_ms < lifetime_ms:
        sweep.postpone_timer(shard, "expire", root, (session.ended_ms if finished else now_ms) + lifetime_ms)
        return 0
    members = ledger.tree(root)
    # The last of these decides: from then on nobody can use the tree again.
    if _is_awaited(members) or _is_read_elsewhere(ledger, members) or not sweep.close_tree(members):
        sweep.postpone_timer(shard, "expire", root, now_ms + min(lifetime_ms, _LOOK_AGAIN_MS))
        return 0
    for member in reversed(members):
        if member.id != root:
            sweep.delete_session(member.id, root)
            still_at_work()
            failpoint("reaper.pruned")
    sweep.delete_session(root, root)
    return len(members)


def _is_awaited(tree: Sequence[Session]) -> bool:
    """Return True if a session of this tree still waits for a child, or an heir elsewhere for the end of one of them."""
    own = {member.id for member in tree}
    for member in tree:
        if member.state in CLOSED:
            continue
        handed_on = member.parent not in own and member.parent != ""
        if member.owed or (handed_on and member.state != SessionState.FINISHED):
            return True
    return False


def _is_read_elsewhere(ledger: Ledger, tree: Sequence[Session]) -> bool:
    """Return True if a large text of this tree is for a session of another one.

    An heir there has it as a callback as long as the heir is kept, or a child that was inherited from there has yet
    to read it.
    """
    own = {member.id for member in tree}
    speakers = [member for member in tree if ledger.large_texts.digests(member.id)]
    heirs = ledger.find([member.parent for member in speakers if member.parent and member.parent not in own])
    if any(heir.state != SessionState.DELETED for heir in heirs):
        return True
    children = {item.child for member in speakers for item in ledger.items(member.id)} - own - {""}
    return any(
        item.state in (ItemState.QUEUED, ItemState.CLAIMED) and text["session"] in own
        for child in ledger.find(sorted(children))
        for item in ledger.items(child.id)
        for text in item.large_texts
    )
