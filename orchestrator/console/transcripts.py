"""The transcript of a session: its page, and the same as a file of its own."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from orchestrator.console.rendering import file_page
from orchestrator.console.stack import Stack
from orchestrator.policy.budget import Cost
from orchestrator.transcript.model import PartKind, RunTranscript, Transcript, Turn
from orchestrator.transcript.reading import read_transcript
from orchestrator.transcript.rendering import SIGNS, came_back, ended_words, spent, verdict_words

#: Runs of one page, and characters of a part that it shows unless all are asked for.
RUNS: Final = 20
CHARS: Final = 8_000
#: Parts that are folded at first.
_FOLDED: Final[tuple[PartKind, ...]] = ("instructions", "thinking")


def transcript(stack: Stack, name: str, query: Mapping[str, str]) -> dict[str, Any]:
    """Return what the page of a transcript shows: the latest runs, or those before one."""
    found = read_transcript(stack.parts, name, stack.trail())
    until = query.get("until", "")
    runs = [run for run in found.runs if not until.isdigit() or run.number <= int(until)]
    earlier = runs[:-RUNS]
    return {
        **_shown(found, runs[-RUNS:], most=None if query.get("full") == "all" else CHARS),
        "before": earlier[-1].number if earlier else 0,
        "until": until,
    }


def page(found: Transcript) -> str:
    """Return a transcript as a file, without a link that leads elsewhere."""
    shown = _shown(found, found.runs, most=None)
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return file_page("transcript_file.html", **shown, made=made, link=None)


def _shown(found: Transcript, runs: list[RunTranscript], *, most: int | None) -> dict[str, Any]:
    return {
        "one": found,
        "runs": runs,
        "most": most,
        "total": spent(sum((run.cost for run in found.runs), Cost())),
        "signs": SIGNS,
        "folded": _FOLDED,
        "spent": spent,
        "cost_of": _cost_of,
        "ended": ended_words,
        "came_back": came_back,
        "verdict": verdict_words,
    }


def _cost_of(turn: Turn) -> str:
    return spent(
        Cost(input_tokens=turn.input_tokens, output_tokens=turn.output_tokens, nano_usd=turn.nano_usd)
    )
