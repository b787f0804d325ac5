"""Effects of an agent in a scripted session: each once, as the ledger took it, and the result of each run."""

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
    """An effect of a run. Another attempt that asks for the same effect adds none."""

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


#: How one run ended. `parked`: it has freed its slot, and is tried again when what it waits for is there.
RunStatus = Literal["idle", "finished", "failed", "stopped", "parked"]


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """An attempt of a run."""

    how: Literal["ended", "failed", "crashed", "parked"]
    #: What the agent raised; None where it returned.
    error: BaseException | None = None
    #: Seconds that the next attempt waits for; the test does not.
    wait_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ScriptedRun:
    """Result of one run."""

    status: RunStatus
    #: What the agent answered; of a run that failed or was parked: why.
    text: str
    #: What this run did, each effect once, in all its attempts.
    effects: tuple[Effect, ...]
    attempts: tuple[Attempt, ...]
    #: What is attached to the answer.
    attachments: Mapping[str, str]

    @property
    def answer(self) -> str:
        """The answer of the agent.

        Raises:
            AssertionError: it did not answer; the message says why.
        """
        if self.status not in ("idle", "finished"):
            raise AssertionError(f"the run {self.status}: {self.text}") from self.error
        return self.text

    @property
    def error(self) -> BaseException | None:
        """The error that the agent raised in its last attempt; None if it returned."""
        return self.attempts[-1].error if self.attempts else None

    @property
    def delegated(self) -> tuple[Effect, ...]:
        """The children that it launched: delegations, reviews and escalations."""
        return tuple(effect for effect in self.effects if effect.kind in LAUNCHES)

    def of(self, kind: EffectKind) -> tuple[Effect, ...]:
        """Return the effects of one kind."""
        return tuple(effect for effect in self.effects if effect.kind == kind)
