"""The conversation with a program that is started again for each turn."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Final

from orchestrator.agents.options.command import CommandOptions
from orchestrator.errors import AgentProgramError
from orchestrator.worker.context.context import Context
from orchestrator.worker.execution.printing import note
from orchestrator.worker.executors.command.live import LiveStatus, Watch
from orchestrator.worker.executors.command.memory import Memory
from orchestrator.worker.executors.command.place import Place
from orchestrator.worker.executors.command.reading import Complaint, Report, reader_of
from orchestrator.worker.executors.text import TextAnswer

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
        # What a turn will use is not known before: a budget that is used up refuses it, and what it did use counts.
        with self._context.spending.reserve(requests=1) as reserved:
            report, how = self._run(command, words)
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
        if report.answer:
            note(f"{report.answer.rstrip()}\n")
        memory.conversation = report.conversation or memory.conversation
        if options.resume and options.read.conversation is None:  # it has the name that it was given
            memory.conversation = self._context.session
        if report.error or report.answer is None:
            raise AgentProgramError(options.command[0], f"{report.error or 'it gave no answer'}{how}")
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

    def _run(self, command: list[str], words: bytes) -> tuple[Report, str]:
        """Run one turn; return the program's report, and how it ended, as text."""
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
        report = reader.end()
        if ended.code != 0 and not report.error:
            report.error = "it failed"
        return report, f" ({ended}{complaint.suffix()})"
