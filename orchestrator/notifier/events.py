"""Notifications as CloudEvents 1.0 in JSON, made from an entry of the stream and from the ledger."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from orchestrator.ledger import Item, Ledger
from orchestrator.ledger.sealing import Opened
from orchestrator.machine import isoformat
from orchestrator.policy.approval import read_request
from orchestrator.policy.sealed_text import ENCRYPTED, has_sealed

#: What happened, as transitions name it and as the setting `notify_events` does → type of its event.
EVENTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "question": "agent-orchestra.question.asked",
        "approval": "agent-orchestra.approval.requested",
        "finished": "agent-orchestra.session.finished",
        "failed": "agent-orchestra.session.failed",
        "stopped": "agent-orchestra.session.stopped",
        "dead": "agent-orchestra.callback.dead",
        "test": "agent-orchestra.test",
    }
)
SOURCE: Final = "/agent-orchestra"


@dataclass(frozen=True, kw_only=True)
class CloudEvent:
    """An event. The same entry makes the same event in every attempt, with the same id."""

    id: str
    type: str
    subject: str  #: the session
    time_ms: int
    data: Mapping[str, Any]

    def encode(self) -> bytes:
        """Return the event in JSON, as CloudEvents has it."""
        facts = {
            "specversion": "1.0",
            "id": self.id,
            "source": SOURCE,
            "type": self.type,
            "subject": self.subject,
            "time": isoformat(self.time_ms),
            "datacontenttype": "application/json",
            "data": dict(self.data),
        }
        return json.dumps(facts, ensure_ascii=True, separators=(",", ":")).encode()


def event_of(ledger: Ledger, shard: int, entry: str, fields: Mapping[str, str]) -> CloudEvent:
    """Return the event that an entry of the stream reports.

    Facts that the ledger has no more are left empty: a tree may expire before its notification is delivered.

    Raises:
        redis.RedisError: Redis is away.
    """
    what, session, about = fields.get("event", ""), fields.get("session", ""), fields.get("about", "")
    found = next(iter(ledger.find([session])), None)
    data: dict[str, Any] = {
        "session": session,
        "agent": found.agent if found else "",
        "title": shown(found.title) if found else "",
        "root": found.root if found else "",
    }
    if what == "question":
        item = ledger.item(session, about)
        data["question"] = {
            "id": about,
            "kind": item.kind if item else "",
            "text": shown(ledger.texts(session, [about]).get(about, "")),
            "context": _context(item),
            "reply": f"orchestra reply {about} TEXT",
        }
    elif what == "approval":
        data["approval"] = _approval(about, ledger.item(session, about))
    elif what == "dead":
        data["callbacks"] = int(about) if about.isdecimal() else 1
    if what not in ("question", "approval") and fields.get("reason"):
        # A reason is cut, and what is cut cannot be opened.
        data["reason"] = ENCRYPTED if has_sealed(fields["reason"]) else fields["reason"]
    return bare_event(shard, entry, fields, data)


def shown(text: str) -> str:
    """Return a text for receivers outside of the stack: nothing that is encrypted in the ledger."""
    return ENCRYPTED if isinstance(text, Opened) else text


def _context(item: Item | None) -> Any:
    if item is None:
        return None
    context = item.extra.get("context", "null")
    return ENCRYPTED if isinstance(context, Opened) else json.loads(context)


def _approval(approval: str, item: Item | None) -> dict[str, Any]:
    """Return the data of an approval for a person."""
    facts: dict[str, Any] = {}
    if item is not None and item.extra.get("encrypted"):
        facts = {"tool": ENCRYPTED}
    elif item is not None:
        request = read_request(approval, item.extra.get("context"))
        facts = {
            "tool": request.tool,
            "arguments": json.loads(request.arguments),
            "reason": request.reason,
            "digest": request.digest,
            "expires": isoformat(request.expires_ms) if request.expires_ms else None,
            "default": request.default,
        }
    return {
        "id": approval,
        **facts,
        "approve": f"orchestra approve {approval}",
        "deny": f"orchestra deny {approval}",
    }


def bare_event(
    shard: int, entry: str, fields: Mapping[str, str], data: Mapping[str, Any] | None = None
) -> CloudEvent:
    """Return the event without facts of the ledger."""
    what, session = fields.get("event", ""), fields.get("session", "")
    return CloudEvent(
        id=f"{shard:02x}-{entry}",
        type=EVENTS.get(what, f"agent-orchestra.{what}"),
        subject=session,
        time_ms=int(entry.partition("-")[0]),
        data={"session": session} if data is None else data,
    )
