"""A transcript as text for a terminal. Signs tell who speaks, so that it reads the same without colours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from orchestrator.display.figures import money, number, span
from orchestrator.display.text import counted
from orchestrator.machine import isoformat
from orchestrator.policy.budget import Cost
from orchestrator.transcript.model import (
    Attempt,
    Delegation,
    Part,
    PartKind,
    RunTranscript,
    Transcript,
    Turn,
    Verdict,
)

#: Sign and word of each kind of part.
SIGNS: Final[dict[PartKind, tuple[str, str]]] = {
    "instructions": ("§", "instructions"),
    "prompt": (">", "prompt"),
    "thinking": ("~", "thinking"),
    "text": ("<", "says"),
    "call": ("→", "calls"),
    "result": ("←", "result of"),
    "retry": ("!", "not accepted"),
    "note": ("·", "note"),
}
#: Lines and characters of a part that are shown without `--full`; of instructions, which are the same each time, fewer.
_LINES, _CHARS, _FEW_LINES = 12, 1200, 1
#: Delegations of a run that are shown without it.
_CHILDREN: Final = 50


@dataclass(frozen=True)
class Renderer:
    """Renders transcripts; ``full`` leaves nothing out."""

    full: bool = False

    def lines(self, one: Transcript) -> Iterator[str]:
        """Yield the lines of a transcript."""
        state = one.state or "from the audit trail"
        yield f"{one.agent}: {one.title or one.session}, {state}{one.reason and f': {one.reason}'}"
        total = sum((run.cost for run in one.runs), Cost())
        facts = [one.session, f"launched {isoformat(one.created_ms)}" if one.created_ms else ""]
        facts += [f"by {one.parent}" if one.parent else "", counted(len(one.runs), "run"), spent(total)]
        yield ", ".join(filter(None, facts))
        for run in one.runs:
            yield ""
            yield from self._run(run)
        if one.answer:
            yield ""
            yield "answer"
            yield from self._text(one.answer, "  ", lines=10_000 if self.full else 3 * _LINES)
        for note in one.missing:
            yield f"missing: {note}"

    def _run(self, run: RunTranscript) -> Iterator[str]:
        took = span(run.ended_ms - run.created_ms) if run.ended_ms else ""
        facts = [f"run {run.number}" if run.number else "run", run.run, run.cause and f"by {run.cause}"]
        facts += [f"{run.state}{run.reason and f': {run.reason}'}", took, spent(run.cost)]
        yield "── " + ", ".join(filter(None, facts))
        if run.prompt and not run.has_turns:
            yield "   > given"
            yield from self._text(run.prompt, "     ")
        for attempt in run.attempts:
            yield from self._attempt(attempt, of=len(run.attempts))
        for given in run.delegated if self.full else run.delegated[:_CHILDREN]:
            yield f"   ⇒ delegated to {_delegated(given)}"
            if given.result:
                yield from self._text(given.result, "     ")
        if not self.full and (left := len(run.delegated) - _CHILDREN) > 0:
            yield f"   ⇒ {number(left)} more delegations; --full shows them"
        for asked in run.approvals:
            yield f"   ? approval {verdict_words(asked)}"
            yield from self._text(asked.arguments, "     ")

    def _attempt(self, attempt: Attempt, *, of: int) -> Iterator[str]:
        if of > 1:  # else the run says the same
            yield f"   attempt {attempt.number} {ended_words(attempt)}"
        for index, turn in enumerate(attempt.turns, 1):
            yield f"   turn {index}{_facts(turn)}{being_written(attempt, turn)}"
            for part in turn.parts:
                yield from self._part(part)
            if turn.stopped:
                yield f"     ! stopped: {turn.stopped}"
        for step in attempt.steps:
            yield f"   · {step}"
        if attempt.printed:
            yield "   · printed"
            yield from self._text(attempt.printed, "     ")

    def _part(self, part: Part) -> Iterator[str]:
        sign, word = SIGNS[part.kind]
        about = f" {part.tool}" if part.tool else ""
        if part.kind == "call" and len(part.text) <= _CHARS and "\n" not in part.text:
            yield f"     {sign} {word}{about} {part.text}".rstrip()
            return
        yield f"     {sign} {word}{about}"
        cut = f"\n[{number(part.cut)} characters were not kept]" if part.cut else ""
        yield from self._text(
            part.text + cut, "       ", lines=_FEW_LINES if part.kind == "instructions" else _LINES
        )

    def _text(self, text: str, indent: str, *, lines: int = _LINES) -> Iterator[str]:
        shown = text.rstrip("\n")
        if not self.full:
            shown = "\n".join(shown[:_CHARS].split("\n")[:lines])
        yield from (f"{indent}{line}" for line in shown.split("\n"))
        if left := len(text.rstrip("\n")) - len(shown):
            yield f"{indent}[{number(left)} more characters; --full shows them]"


def spent(cost: Cost) -> str:
    """Return tokens and money of a run or a turn; empty if there were none."""
    if not cost.tokens:
        return ""
    price = f", {money(cost.usd)}" if cost.nano_usd else ""
    return f"{number(cost.input_tokens)} + {number(cost.output_tokens)} tokens{price}"


def being_written(attempt: Attempt, turn: Turn) -> str:
    """Return that a turn is being written; empty if it is not."""
    return ", being written" if attempt.how == "running" and not turn.at_ms else ""


def _facts(turn: Turn) -> str:
    cost = Cost(input_tokens=turn.input_tokens, output_tokens=turn.output_tokens, nano_usd=turn.nano_usd)
    again = "as an earlier attempt recorded it" if turn.again else ""
    facts = ", ".join(filter(None, (turn.model, spent(cost), again)))
    return facts and f", {facts}"


def ended_words(attempt: Attempt) -> str:
    """Return how a try ended, and why."""
    how = {
        "died": "ended with its worker process",
        "lost": "was lost with its worker",
        "parked": "was parked",
        "": "reported",
    }.get(attempt.how, attempt.how)
    took = (
        f" after {span(attempt.ended_ms - attempt.started_ms)}"
        if attempt.ended_ms and attempt.started_ms
        else ""
    )
    again = "; tried again" if attempt.again_ms else ""
    return f"{how}{took}{attempt.reason and f': {attempt.reason}'}{again}"


def _delegated(given: Delegation) -> str:
    about = f" ({given.title})" if given.title else ""
    return f"{given.agent}{about}, {given.session}: {came_back(given)}"


def came_back(given: Delegation) -> str:
    """Return what came back of a delegation, and where."""
    if not given.status:
        return "no answer yet" if given.state == "owed" else given.state or "no answer yet"
    where = (
        f", delivered in {given.delivered_in}"
        if given.delivered_in
        else f", {given.state}" * bool(given.state)
    )
    return f"{given.status}{where}{given.reason and f': {given.reason}'}"


def verdict_words(asked: Verdict) -> str:
    """Return what was asked, and who answered what."""
    why = f" ({asked.reason})" if asked.reason else ""
    verdict = {"open": "open: nobody has answered", "expired": "nobody answered in time"}.get(
        asked.verdict, asked.verdict
    )
    by = f" by {asked.by}" if asked.by else ""
    said = f": {asked.comment}" if asked.comment else ""
    return f"of {asked.tool or asked.id}{why}, {verdict}{by}{said}"
