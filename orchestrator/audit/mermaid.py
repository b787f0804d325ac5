"""A conversation as a Mermaid sequence diagram."""

from __future__ import annotations

import re
from collections.abc import Sequence

from orchestrator.audit.records import MessageRecord

#: What Mermaid reads as its own, or ends a line.
_SPECIAL = re.compile(r"[^\w .,/@()\[\]:|+-]")


def sequence_diagram(records: Sequence[MessageRecord]) -> str:
    """Return the messages in the order in which they were published, with their times; a dead letter is crossed out."""
    names: dict[str, str] = {}
    lines = []
    for record in records:
        sender, recipient = (
            names.setdefault(name or "unknown", f"p{len(names)}")
            for name in (record.sender, record.recipient)
        )
        what = record.type + (f" [{record.task_id}]" if record.task_id else "")
        again = f" (attempt {record.attempt})" if record.attempt > 1 else ""
        arrow = "--x" if record.dead else "->>"
        lines.append(f"    {sender}{arrow}{recipient}: {_plain(record.published)} {_plain(what + again)}")
        if record.dead:
            lines.append(f"    Note over {sender},{recipient}: dead: {_plain(record.dead)}")
    participants = [f"    participant {short} as {_plain(name)}" for name, short in names.items()]
    return "\n".join(["sequenceDiagram", *participants, *lines])


def _plain(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"#{ord(found[0])};", text)
