"""Reading of a program's output as it comes, within bounds: text, one JSON document, or one JSON object a line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from orchestrator.agents.options.command import CommandOptions, Reading, Readings
from orchestrator.display.text import well_formed
from orchestrator.errors import AgentProgramError
from orchestrator.policy.budget import MOST_TOKENS
from orchestrator.transcript.model import note_in
from orchestrator.worker.context.context import Context
from orchestrator.worker.execution.printing import Tail, note
from orchestrator.worker.executors.command.process import AgentProcess

#: Bytes of what a program complains of that are kept, and characters of it that an error repeats.
_MAX_COMPLAINT_BYTES: Final = 16 * 1024
_SHOWN_COMPLAINT: Final = 500
#: The most that one report may count: larger numbers are mistakes of the program.
_MOST: Final = {"input_tokens": MOST_TOKENS, "output_tokens": MOST_TOKENS, "cost_usd": 10**6}


class Complaint(Tail):
    """The end of a program's standard error. It is kept as output of the run, too."""

    def __init__(self) -> None:
        super().__init__(_MAX_COMPLAINT_BYTES)

    def add(self, piece: bytes) -> None:
        """Take what has come."""
        super().add(piece)
        note(piece)

    def suffix(self) -> str:
        """The end of it, as the end of a sentence: empty if the program complained of nothing."""
        text = self.text().strip()[-_SHOWN_COMPLAINT:]
        return f"; {text}" if text else ""


@dataclass
class Usage:
    """Usage of a conversation, as far as its program reports it."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0

    def add(self, name: str, value: object) -> None:
        """Count a number that the program reported. Anything else counts nothing."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST[name]:
            return
        counted = float(value) if name == "cost_usd" else int(value)
        setattr(self, name, getattr(self, name) + counted)


@dataclass(kw_only=True)
class Report:
    """Report of a program on one turn."""

    answer: str | None = None
    conversation: str = ""
    error: str = ""
    cut_off: bool = False
    usage: Usage = field(default_factory=Usage)


#: Takes what the program says and does on the way: `text` or `tool`, and what it is.
Live = Callable[[str, str], None]


class TextReader:
    """The output is the answer."""

    def __init__(self, options: CommandOptions) -> None:
        self._tail = Tail(options.max_output_bytes)

    def add(self, piece: bytes) -> None:
        """Take what the program printed."""
        self._tail.add(piece)

    def end(self) -> Report:
        """Return the report of the program that has ended."""
        return Report(answer=self._tail.text())


class JsonReader:
    """An answer in one JSON document."""

    def __init__(self, options: CommandOptions) -> None:
        self._limit, self._readings = options.max_output_bytes, options.read
        self._octets = bytearray()
        self._too_long = False

    def add(self, piece: bytes) -> None:
        """Take what the program printed."""
        self._too_long = self._too_long or len(self._octets) + len(piece) > self._limit
        if self._too_long:
            self._octets.clear()
        else:
            self._octets += piece

    def end(self) -> Report:
        """Return the report of the program that has ended."""
        if self._too_long:
            return Report(error=f"it printed more than {self._limit} bytes of JSON (max_output_bytes)")
        try:
            document = json.loads(self._octets)
        except (ValueError, RecursionError) as error:
            return Report(error=f"it printed what is not a JSON document: {error}")
        collector = _Collector(self._readings, lambda *_: None)
        collector.take(document)
        return collector.end()


class LinesReader:
    """An answer in a stream of JSON objects, one a line. Other lines are ignored."""

    def __init__(self, options: CommandOptions, live: Live) -> None:
        self._limit = options.max_output_bytes
        self._line = bytearray()
        self._skipping = False
        self._too_long = 0
        self._collector = _Collector(options.read, live, max_bytes=options.max_output_bytes)

    def add(self, piece: bytes) -> None:
        """Take what the program printed."""
        *ended, rest = piece.split(b"\n")
        for part in ended:
            self._extend(part)
            if not self._skipping:
                self._take(bytes(self._line))
            self._line.clear()
            self._skipping = False
        self._extend(rest)

    def _extend(self, part: bytes) -> None:
        if self._skipping:
            return
        if len(self._line) + len(part) > self._limit:
            self._skipping = True
            self._too_long += 1
            self._line.clear()
        else:
            self._line += part

    def _take(self, line: bytes) -> bool:
        if not line.lstrip().startswith(b"{"):
            return not line.strip()
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            return False
        self._collector.take(event)
        return True

    def end(self) -> Report:
        """Return the report of the program that has ended."""
        half = bool(self._line) and not self._take(bytes(self._line)) and self._line.lstrip().startswith(b"{")
        report = self._collector.end()
        if report.answer is None and not report.error:
            if half:
                report.error = (
                    f"its output ends in the middle of a line of JSON, {len(self._line)} bytes into it"
                )
            elif self._too_long:
                report.error = f"it printed a line of more than {self._limit} bytes (max_output_bytes)"
            else:
                report.error = "none of its lines holds an answer (see read.answer)"
        return report


def reader_of(options: CommandOptions, live: Live) -> TextReader | JsonReader | LinesReader:
    """Return the reader for the program's output format."""
    match options.output:
        case "json":
            return JsonReader(options)
        case "json-lines":
            return LinesReader(options, live)
        case _:
            return TextReader(options)


class _Collector:
    """Picks out of JSON what the readings of an agent name."""

    def __init__(self, readings: Readings, live: Live, *, max_bytes: int = 1 << 24) -> None:
        self._readings = readings
        self._live = live
        self._joined = Tail(max_bytes)
        self._report = Report()

    def end(self) -> Report:
        self._report.answer = self._joined.end or self._report.answer
        return self._report

    def take(self, event: Any) -> None:
        readings, report = self._readings, self._report
        join = readings.answer is not None and readings.answer.join
        for piece in _texts(readings.answer, event):
            if join:  # there may be many
                self._joined.add(piece.encode(errors="replace"))
            report.answer = "" if join else piece
        for piece in _texts(readings.conversation, event):
            report.conversation = piece
        for piece in _texts(readings.error, event):
            report.error = piece or "it reported a failure without a reason"
        if readings.cut_off is not None:
            report.cut_off = any(found(readings.cut_off, event)) or report.cut_off
        for name in ("input_tokens", "output_tokens", "cost_usd"):
            for value in found(getattr(readings, name), event):
                report.usage.add(name, value)
        for kind in ("text", "tool"):
            for piece in _texts(getattr(readings, kind), event):
                self._live(kind, piece)


def _texts(reading: Reading | None, event: Any) -> Iterator[str]:
    for value in found(reading, event):
        if value is not None:
            yield well_formed(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def found(reading: Reading | None, event: Any) -> Iterator[Any]:
    """Every value that stands where a reading says, if its conditions hold."""
    if reading is None:
        return
    for path, wanted in reading.when.items():
        if wanted not in list(_walk(event, path.split("."))):
            return
    for path in (reading.path, *reading.plus):
        yield from _walk(event, path.split("."))


def _walk(value: Any, steps: list[str]) -> Iterator[Any]:
    if not steps:
        yield value
        return
    name, rest = steps[0].removesuffix("[]"), steps[1:]
    if name:
        if not isinstance(value, dict) or name not in value:
            return
        value = value[name]
    if not steps[0].endswith("[]"):
        yield from _walk(value, rest)
        return
    entries = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for entry in entries:
        yield from _walk(entry, rest)


#: Seconds between two status messages: each is an envelope that is signed, routed and kept.
EVERY_S: Final = 2.0
_CHARS: Final = 200


class LiveStatus:
    """Turns what a program says and does into the status of its session."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._next_at = 0.0
        self._last = ""
        self._shown = ""

    def __call__(self, kind: str, what: str) -> None:
        """Take note of something: `tool`, `text`, `piece` or `thinking`, and what it is."""
        note_in(self._context.turns, kind, what)
        words = " ".join(what.split())
        if words:
            words = f"{kind}: {words}" if kind == "tool" else words
            self._last = words if len(words) <= _CHARS else f"{words[: _CHARS - 1]}…"

    def show(self) -> None:
        """Send the status if there is a new one, and it is time.

        Raises:
            ClaimLost, SessionStopped, ServerUnavailable: the run cannot go on.
        """
        now = time.monotonic()
        if self._last != self._shown and now >= self._next_at:
            self._next_at, self._shown = now + EVERY_S, self._last
            self._context.status(activity=self._shown)


class Watch:
    """Looks after one process of an agent while it works."""

    def __init__(
        self, context: Context, options: CommandOptions, process: AgentProcess, live: LiveStatus
    ) -> None:
        self._context = context
        self._options = options
        self._process = process
        self._live = live
        self._heard_at = time.monotonic()

    def heard(self) -> None:
        """The program is not silent now."""
        self._heard_at = time.monotonic()

    def look(self) -> None:
        """End the process if its run has ended; else show what it does.

        Raises:
            AgentProgramError: the program is silent for too long.
            ClaimLost, SessionStopped, ServerUnavailable: the run cannot go on.
        """
        if self._context.claim_lost:
            self._process.kill()
        elif self._context.stopping:
            self._process.stop()
        else:
            self._live.show()
        limit_s = self._options.silence_limit_s
        if limit_s is not None and time.monotonic() - self._heard_at > limit_s:
            raise AgentProgramError(
                self._options.command[0],
                f"it printed nothing for {limit_s:g} s (silence_limit_s) and was killed",
            )
