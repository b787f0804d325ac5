"""What an agent did in a scripted session: each effect once, as the ledger took it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

EffectKind = Literal[
    "delegate",
    "review",
    "escalate",
    "ask",
    "message",
    "reply",
    "report",
    "approval",
    "status",
    "step",
    "policy",
    "withdraw",
]
#: What launches a child.
LAUNCHES = frozenset({"delegate", "review", "escalate"})


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One effect of a run. Another attempt that asks for the same effect adds none."""

    kind: EffectKind
    #: The description of a task, the question, the message, the activity of a status, the name of a step.
    text: str = ""
    #: Who was launched, or spoken to.
    agent: str = ""
    #: The session of the child, or the id of the question, the message or the approval.
    id: str = ""
    title: str = ""
    #: The attempt of the run that had the effect, from 1.
    attempt: int = 1
    #: The run that had it.
    run: str = field(default="", compare=False)
    #: What else belongs to the kind: `group`, `priority`, `callback`, `progress`, `arguments`, ….
    facts: Mapping[str, Any] = field(default_factory=dict)
