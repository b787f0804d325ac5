"""The conversation with a program that is started again for each turn, and what it remembers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.agents.options.command import CommandOptions
from orchestrator.errors import AgentProgramError
from orchestrator.transcript.model import begin
from orchestrator.worker.context.context import Context
from orchestrator.worker.execution.printing import note
from orchestrator.worker.executors.command.reading import (
    Complaint,
    LiveStatus,
    Report,
    Usage,
    Watch,
    reader_of,
)
from orchestrator.worker.executors.command.sandbox import Place
from orchestrator.worker.executors.text import TextAnswer

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


#: Bytes of a prompt that fit into one argument of a program.
_MAX_ARGUMENT_BYTES: Final = 120_000
_PLACEHOLDER: Final = re.compile(r"\{(?:conversation|session|prompt|prompt_file)\}")


class TurnByTurn:
    """Conversation with one process for each turn."""

    def __init__(self, context: Context, place: Place, memory: Memory) -> None:
        self._context = context
        self._place = place
        self._options: CommandOptions = place.options
        self._memory = memory
        self._live = LiveStatus(context)

    def say(self, text: str) -> TextAnswer:
        """Send a text to the agent; return its answer.

        Raises:
            AgentProgramError: the program cannot be run, failed, or gave no answer.
            ClaimLost, SessionStopped, ServerUnavailable: the run cannot go on.
        """
        options, memory = self._options, self._memory
        continues = bool(options.resume and memory.conversation)
        prompt = text if continues or options.resume else memory.retold(text)
        command, words = self._command(prompt, continues=continues)
        turn = begin(self._context.turns, prompt=prompt)
        # What a turn will use is not known before: a budget that is used up refuses it, and what it did use counts.
        with self._context.spending.reserve(requests=1) as reserved:
            report = self._run(command, words)
            used = report.usage
            if continues:
                memory.take_off(used, options.read.totals)
            reserved.settle(
                requests=1,
                input_tokens=used.input_tokens,
                output_tokens=used.output_tokens,
                usd=used.cost_usd,
            )
        memory.count(used)
        turn.end(report.answer, used, cut_off=report.cut_off)
        if report.answer:
            note(f"{report.answer.rstrip()}\n")
        memory.conversation = report.conversation or memory.conversation
        if options.resume and options.read.conversation is None:  # it has the name that it was given
            memory.conversation = self._context.session
        if report.error or report.answer is None:
            raise AgentProgramError(options.command[0], report.error)
        if not options.resume:
            memory.remember(text, report.answer)
        return TextAnswer(text=report.answer, cut_off=report.cut_off)

    def _command(self, prompt: str, *, continues: bool) -> tuple[list[str], bytes]:
        """The command line of one turn, and what stands on its standard input."""
        options = self._options
        template = list(options.resume if continues else options.start)
        at = template.index("{args}") if "{args}" in template else len(template)
        template[at : at + 1] = options.args
        words = b""
        fills = {"{conversation}": self._memory.conversation, "{session}": self._context.session}
        if options.prompt == "stdin":
            words = prompt.encode(errors="replace")
        elif options.prompt == "argument":
            fills["{prompt}"] = self._argument(prompt)
        else:
            file = self._place.scratch / "prompt.txt"
            file.write_text(prompt, encoding="utf-8", errors="replace")
            fills["{prompt_file}"] = str(file)
        for name in fills.keys() & {"{prompt}", "{prompt_file}"}:
            if not any(name in part for part in template):
                template.append(name)
        filled = [_PLACEHOLDER.sub(lambda found: fills.get(found[0], found[0]), part) for part in template]
        return [*options.command, *filled], words

    def _argument(self, prompt: str) -> str:
        """A prompt as one argument: what begins with a dash must not become an option, and a NUL cannot be one."""
        prompt = prompt.replace("\0", "�")
        size = len(prompt.encode(errors="replace"))
        if size > _MAX_ARGUMENT_BYTES:
            raise AgentProgramError(
                self._options.command[0],
                f'its prompt of {size} bytes is too long for an argument; use prompt = "stdin" or "file"',
            )
        return f" {prompt}" if prompt.startswith("-") else prompt

    def _run(self, command: list[str], words: bytes) -> Report:
        """Run one turn; return the program's report. Its exit code comes first where it failed."""
        reader, complaint = reader_of(self._options, self._live), Complaint()
        with self._place.start(command) as process:
            watch = Watch(self._context, self._options, process, self._live)

            def hear(take: Callable[[bytes], None], piece: bytes) -> None:
                watch.heard()
                take(piece)

            ended = process.talk(
                words,
                on_output=partial(hear, reader.add),
                on_error=partial(hear, complaint.add),
                look=watch.look,
            )
        self._context.check()
        report, how = reader.end(), f"{ended}{complaint.suffix()}"
        if ended.code != 0:
            report.error = f"it ended with {how}{report.error and f' ({report.error})'}"
        elif report.error or report.answer is None:
            report.error = f"{report.error or 'it gave no answer'} ({how})"
        return report
