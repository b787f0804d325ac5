"""Memory of a command-line agent's session from run to run, saved with each commit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.worker.context.context import Context
from orchestrator.worker.executors.command.reading import Usage

#: Characters of the conversation so far, for a program that keeps none.
MAX_REMEMBERED_CHARS: Final = 200_000
#: Characters of the visible text that are kept for people.
MAX_VISIBLE_CHARS: Final = 16_000


class Memory(BaseModel):
    """The conversation so far."""

    model_config = ConfigDict(extra="ignore")

    conversation: str = ""  #: the program's own id of it; empty: it keeps none, or there was no turn yet
    input_tokens: int = 0  #: of all committed turns, as far as the program reports them
    output_tokens: int = 0
    cost_usd: float = 0.0
    turns: int = 0
    visible: str = ""  #: the last answer, without what was its result
    said: list[tuple[str, str]] = []  #: prompts and answers, for a program that keeps no conversation

    @classmethod
    def of(cls, context: Context) -> Self:
        """Return the memory that the last committed run of a session left; an empty one if that cannot be read."""
        try:
            # The conversation of this run, whose answer was not accepted.
            kept = context.new_memory if context.correction else context.read_memory()
            return cls.model_validate_json(kept or "{}")
        except ValidationError:
            return cls()

    def save(self, context: Context) -> None:
        """Have it saved with the commit of this run."""
        context.new_memory = self.model_dump_json(exclude_defaults=True)

    def count(self, usage: Usage) -> None:
        """Add what one turn has used."""
        self.turns += 1
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        self.cost_usd = round(self.cost_usd + usage.cost_usd, 9)

    def take_off(self, usage: Usage, names: Iterable[str]) -> None:
        """Leave of these numbers, which count the whole conversation, what was not counted before."""
        for name in names:
            setattr(usage, name, max(0, getattr(usage, name) - getattr(self, name)))

    def used_since(self, before: Usage) -> Usage:
        """Return the usage since ``before``; never negative, whatever a program reports."""
        return Usage(
            max(0, self.input_tokens - before.input_tokens),
            max(0, self.output_tokens - before.output_tokens),
            max(0.0, self.cost_usd - before.cost_usd),
        )

    def remember(self, prompt: str, answer: str) -> None:
        """Keep one turn, and forget the oldest beyond the limit."""
        self.said.append((prompt, answer))
        size = sum(len(one) + len(other) for one, other in self.said)
        while len(self.said) > 1 and size > MAX_REMEMBERED_CHARS:
            size -= sum(map(len, self.said.pop(0)))

    def retold(self, prompt: str) -> str:
        """The prompt, after the conversation so far."""
        if not self.said:
            return prompt
        before = "\n\n".join(f"You were told:\n{one}\n\nYou answered:\n{other}" for one, other in self.said)
        return f"This is how our conversation went so far.\n\n{before}\n\nNow you are told:\n{prompt}"
