"""A transcript: the runs of a session, their tries, the turns of each, and the parts of a turn.

A worker writes the turns of a try, `reading` puts the rest around them. Every surface shows this model: the command, its
JSON, the HTML and the console.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Protocol

from pydantic import BaseModel, ConfigDict, TypeAdapter

from orchestrator import machine
from orchestrator.display.text import counted
from orchestrator.policy.budget import NANO, Cost, describe

#: Characters of a part, and of all parts of a turn, that are kept.
MOST_CHARS: Final = 200_000
MOST_TURN_CHARS: Final = 2_000_000
#: Bytes of a try: in an envelope, where `<` takes four, they are fewer than what a stack opens by default.
MOST_TRY_BYTES: Final = 3_000_000

#: Steps that a report names.
SHOWN_STEPS: Final = 20

#: `instructions`, `prompt`, `result`, `retry` are what the model was given, the others what it said or did.
PartKind = Literal["instructions", "prompt", "result", "retry", "text", "thinking", "call", "note"]


class Used(Protocol):
    """Usage that a program reports of a turn."""

    input_tokens: int
    output_tokens: int
    cost_usd: float


class Part(BaseModel):
    """A piece of a turn."""

    model_config = ConfigDict(extra="ignore")

    #: `instructions`, `prompt`: what the agent was told; `result`: of a tool; `retry`: why its answer or call was not
    #: accepted; `text`, `thinking`: what it said; `call`: of a tool; `note`: what else is known.
    kind: PartKind
    #: What it says; of a `call` its arguments as JSON.
    text: str = ""
    #: Of `call`, `result` and a `retry` of a call: the tool; else empty.
    tool: str = ""
    #: Likewise: the id of the call.
    call: str = ""
    #: Characters that were left out at the end.
    cut: int = 0


class Turn(BaseModel):
    """A turn: what the agent was given, and what it said and did."""

    model_config = ConfigDict(extra="ignore")

    #: When the answer came; null: none did.
    at_ms: int = 0
    #: The model that answered, with its provider; empty: not known.
    model: str = ""
    #: What was given and said, in order.
    parts: list[Part] = []
    #: Tokens of the request.
    input_tokens: int = 0
    #: Tokens of the answer.
    output_tokens: int = 0
    #: Billionths of a US dollar.
    nano_usd: int = 0
    #: Why the model stopped, where that is neither the end of its answer nor a tool call; else empty.
    stopped: str = ""
    #: Whether an earlier try of the run has it already: its recorded answer was used again, and cost nothing.
    again: bool = False

    @property
    def usd(self) -> float:
        """Its cost in US dollars; 0 where no price is known."""
        return self.nano_usd / NANO

    def add(self, kind: PartKind, text: str, *, tool: str = "", call: str = "", on: bool = False) -> None:
        """Add a part, bounded; with ``on`` to the last one, if that is of the same kind."""
        last = self.parts[-1] if self.parts else None
        room = min(MOST_CHARS, MOST_TURN_CHARS - sum(len(part.text) for part in self.parts))
        if on and last is not None and last.kind == kind:
            room, before, cut = min(room, MOST_CHARS - len(last.text)), last.text, last.cut
        else:
            last, before, cut = Part(kind=kind, tool=tool, call=call), "", 0
            self.parts.append(last)
        fit = text.encode(errors="replace").decode()
        last.text = before + fit[: max(0, room)]
        last.cut = cut + max(0, len(fit) - max(0, room))

    def end(self, answer: str | None, used: Used, *, cut_off: bool = False) -> None:
        """Add the answer of a program, unless it was the last that it said, and what the turn used."""
        if answer is not None and self.said("text").strip() != answer.strip():
            self.add("text", answer)
        self.at_ms = machine.time_ns() // 1_000_000
        self.input_tokens, self.output_tokens = used.input_tokens, used.output_tokens
        self.nano_usd = round(used.cost_usd * NANO)
        self.stopped = "length" if cut_off else self.stopped

    def said(self, *kinds: PartKind) -> str:
        """Return the last part of these kinds; empty if there is none."""
        return next((part.text for part in reversed(self.parts) if part.kind in kinds), "")


def begin(turns: list[BaseModel], *, prompt: str) -> Turn:
    """Begin a turn with what an agent is told."""
    turn = Turn()
    turn.add("prompt", prompt)
    turns.append(turn)
    return turn


def note_in(turns: list[BaseModel], kind: str, what: str) -> None:
    """Add to the present turn what a program says or does: a `text`, a `piece` of one, a piece of its `thinking`, or a
    `tool`, of which it says what it likes.
    """
    if turns and isinstance(turn := turns[-1], Turn):
        if kind == "tool":
            turn.add("call", "", tool=what)
        else:
            turn.add("thinking" if kind == "thinking" else "text", what, on=kind != "text")


TURNS: Final = TypeAdapter(list[Turn])


def written(turns: Sequence[BaseModel]) -> str:
    """Return the turns of a try as they are kept: as JSON, with shorter parts where all together are too long."""
    kept = [turn.model_copy(deep=True) for turn in turns if isinstance(turn, Turn)]
    most = MOST_CHARS
    while len(octets := TURNS.dump_json(kept, exclude_defaults=True)) > MOST_TRY_BYTES and most > 1:
        most //= 2
        for part in (part for turn in kept for part in turn.parts):
            part.cut += max(0, len(part.text) - most)
            part.text = part.text[:most]
    return octets.decode()


def account(
    run: str, attempt: int, steps: Sequence[str], spent: Cost, turns: Sequence[BaseModel], *, died: str = ""
) -> tuple[str, str]:
    """Return a worker's report of a try, and the turns in it as JSON, which are empty if there are none.

    ``died`` says how the try's process ended, where others report.
    """
    parts, said = [f"its process died: {died}"] if died else [], written(turns) if turns else ""
    if steps:
        more = f" and {len(steps) - SHOWN_STEPS} more" if len(steps) > SHOWN_STEPS else ""
        parts.append(f"{counted(len(steps), 'step')}: {', '.join(steps[:SHOWN_STEPS])}{more}")
    if spent.requests:
        parts.append(describe(spent))
    text = f"{run}, attempt {attempt}: {'; '.join(parts)}"
    return (f"{text}\n{said}" if said else text), said


class Attempt(BaseModel):
    """A try of a run."""

    #: Its number, from 1.
    number: int
    #: `completed`, `failed`, `stopped`; `died`, `lost`: with its process, with its worker; `parked`: it freed its slot;
    #: `running`, `queued`.
    how: str
    #: Why it did not complete; else empty.
    reason: str = ""
    #: When it began.
    started_ms: int = 0
    #: When it ended.
    ended_ms: int = 0
    #: When the run could be tried again at the earliest; null: it was the last try.
    again_ms: int = 0
    #: What was said in it; empty: it is not an agent of turns, or nothing of it was kept.
    turns: list[Turn] = []
    #: What it printed, as far as that is kept and not among the turns.
    printed: str = ""
    #: Durable steps and sums that are known of it, in words.
    steps: list[str] = []


class Delegation(BaseModel):
    """A session that was launched, and what came back."""

    #: Its id.
    session: str
    #: Its agent.
    agent: str
    #: What people call it.
    title: str = ""
    #: When it was launched.
    at_ms: int = 0
    #: How it ended: `completed`, `partial-success` or `failed`; empty: it has not.
    status: str = ""
    #: Where its callback stands: `owed`, `queued`, `claimed`, `delivered` or `dead`; `none`: it owes none.
    state: str = ""
    #: The run that got it; else empty.
    delivered_in: str = ""
    #: Its answer, or why it failed; else empty.
    result: str = ""
    #: Why its callback is dead; else empty.
    reason: str = ""


class Verdict(BaseModel):
    """An approval that was asked for, and its answer."""

    #: Its id.
    id: str
    #: What was to be called or done.
    tool: str = ""
    #: With what, as JSON.
    arguments: str = ""
    #: Why the agent asked, in its own words; else empty.
    reason: str = ""
    #: When it was asked.
    asked_ms: int = 0
    #: `open`, `approved`, `denied`, `expired`: nobody answered in time and the default counted, or `closed`.
    verdict: str = "open"
    #: Who answered; else empty.
    by: str = ""
    #: What they said; else empty.
    comment: str = ""
    #: When it was answered.
    answered_ms: int = 0

    @classmethod
    def of(cls, request: Mapping[str, Any], approval: str, asked_ms: int) -> Verdict:
        """Return an approval that waits for its answer."""
        facts: dict[str, Any] = {name: str(request.get(name, "")) for name in ("tool", "arguments", "reason")}
        return cls(id=approval, asked_ms=asked_ms, **facts)

    def answer(self, decision: Mapping[str, Any], at_ms: int) -> None:
        """Add the answer."""
        self.answered_ms = at_ms
        self.by, self.comment = str(decision.get("by", "")), str(decision.get("comment", ""))
        if decision.get("expired") or decision.get("how") == "expired":
            self.verdict, self.comment = "expired", f"{decision.get('default', 'deny')} counted"
        else:
            self.verdict = "approved" if decision.get("approved") is True else "denied"


class RunTranscript(BaseModel):
    """A run: what it was given, its tries, what it launched."""

    #: Its id.
    run: str
    #: 1 for the first run of the session; 0: not known.
    number: int = 0
    #: Why it began: `start`, `callbacks` or `user`; empty: not known.
    cause: str = ""
    #: Where it stands.
    state: str = ""
    #: Why it failed or was stopped; else empty.
    reason: str = ""
    #: What it was given: the task, or callbacks in their tags and what users said.
    prompt: str = ""
    #: When it was queued.
    created_ms: int = 0
    #: When it ended.
    ended_ms: int = 0
    #: Its tries, oldest first.
    attempts: list[Attempt] = []
    #: What was launched while it ran.
    delegated: list[Delegation] = []
    #: What a person was asked while it ran.
    approvals: list[Verdict] = []

    @property
    def has_turns(self) -> bool:
        """True if anything that was said in it is known, what it was given included."""
        return any(attempt.turns for attempt in self.attempts)

    @property
    def cost(self) -> Cost:
        """The sum over its turns."""
        turns = [turn for attempt in self.attempts for turn in attempt.turns if not turn.again]
        return Cost(
            requests=len([turn for turn in turns if turn.input_tokens or turn.output_tokens]),
            input_tokens=sum(turn.input_tokens for turn in turns),
            output_tokens=sum(turn.output_tokens for turn in turns),
            nano_usd=sum(turn.nano_usd for turn in turns),
        )


class Transcript(BaseModel):
    """All that was said in a session, run by run."""

    #: The session.
    session: str
    #: Its agent.
    agent: str
    #: What people call it.
    title: str = ""
    #: Where it stands; empty: only the audit trail has it.
    state: str = ""
    #: Why it was closed; else empty.
    reason: str = ""
    #: Where it was read: `ledger` or `audit`.
    read_from: Literal["ledger", "audit"] = "ledger"
    #: The session that launched it; empty for a root.
    parent: str = ""
    #: When it was launched.
    created_ms: int = 0
    #: When it ended.
    ended_ms: int = 0
    #: Its latest answer; empty: there is none.
    answer: str = ""
    #: Its runs, oldest first.
    runs: list[RunTranscript] = []
    #: What is missing, in words.
    missing: list[str] = []


def during(runs: list[RunTranscript], at_ms: int) -> RunTranscript:
    """Return the run in which something happened; one without an id if there was none."""
    begun = [run for run in runs if run.run and run.created_ms <= at_ms]
    if begun or runs:
        return begun[-1] if begun else runs[0]
    runs.append(RunTranscript(run=""))
    return runs[0]


def json_object(text: Any) -> dict[str, Any]:
    """Return the object that a text is as JSON; an empty one if it is none."""
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def repeated(attempts: Sequence[Attempt]) -> None:
    """Mark the turns that a later try of a run has from the records of an earlier one."""
    known: set[str] = set()
    for attempt in attempts:
        for turn in attempt.turns:
            if turn.at_ms:
                same = f"{turn.at_ms} {turn.said('text', 'thinking', 'call')}"
                turn.again = same in known
                known.add(same)
