"""Messages as trees: below each one what followed upon it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from orchestrator.audit.records import MessageRecord


@dataclass
class Node:
    """A message and what followed upon it."""

    record: MessageRecord
    replies: list[Node] = field(default_factory=list)


def trees(records: Sequence[MessageRecord]) -> list[Node]:
    """Messages as trees by their chains; a message whose forerunner is not among them is a root.

    What cannot be read, and a chain that leads back to itself, is a root too.
    """
    nodes: dict[str, Node] = {}
    order: list[Node] = []
    for record in records:
        known = nodes.get(record.message_id) if record.message_id else None
        if known is not None and known.record.sha256 == record.sha256:
            # A later attempt stands where the first one was made, and says how it went.
            attempt = max(known.record.attempt, record.attempt)
            known.record = replace(known.record, attempt=attempt, dead=record.dead or known.record.dead)
            continue
        node = Node(record)
        order.append(node)
        if record.message_id:  # a message with the id of another one takes nothing from it
            nodes.setdefault(record.message_id, node)
    roots: list[Node] = []
    above: dict[int, Node] = {}  # by identity: two messages may have one id
    for node in order:
        parent = nodes.get(node.record.parent_id) if node.record.parent_id else None
        if parent is None or _top_of(parent, above) is node:
            roots.append(node)
        else:
            parent.replies.append(node)
            above[id(node)] = parent
    return roots


def _top_of(node: Node, above: dict[int, Node]) -> Node:
    """Return the node at the top of a node's tree. Each step halves the way of the next look: a chain may be long."""
    while (parent := above.get(id(node))) is not None:
        above[id(node)] = above.get(id(parent), parent)
        node = above[id(node)]
    return node
