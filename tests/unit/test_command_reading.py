"""What is read of a program's output."""

from __future__ import annotations

import json
import time

from orchestrator.agents.options import check_options
from orchestrator.agents.options.command import CommandOptions
from orchestrator.worker.executors.command.reading import Report, reader_of


def read(*pieces: str) -> Report:
    options = check_options("gem", "command", {"preset": "gemini"})
    assert isinstance(options, CommandOptions)
    reader = reader_of(options, lambda *_: None)
    for piece in pieces:
        event = {"type": "message", "role": "assistant", "content": piece}
        reader.add(json.dumps(event).encode() + b"\n")
    return reader.end()


def test_the_pieces_of_an_answer_are_put_together() -> None:
    assert read("all ", "", "of it: é").answer == "all of it: é"
    assert read("").answer == ""
    assert read().answer is None


def test_what_a_cache_took_and_gave_is_input() -> None:
    """Claude Code counts it apart; the others count it as input themselves."""
    options = check_options("coder", "command", {"preset": "claude"})
    assert isinstance(options, CommandOptions)
    reader = reader_of(options, lambda *_: None)
    usage = {"input_tokens": 60, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 30}
    event = {"type": "result", "is_error": False, "result": "done", "usage": {**usage, "output_tokens": 20}}
    reader.add(json.dumps(event).encode() + b"\n")
    used = reader.end().usage
    assert (used.input_tokens, used.output_tokens) == (100, 20)


def test_an_answer_in_very_many_pieces_takes_no_longer_for_each() -> None:
    """Four megabytes took half a minute of processor time."""
    before_s = time.process_time()
    assert read(*["x" * 100] * 40_000).answer == "x" * 4_000_000
    assert time.process_time() - before_s < 8


def test_halves_of_surrogate_pairs_are_joined_or_replaced() -> None:
    """Programs that cut their text by UTF-16 units print such halves."""
    facts = {"command": ["x"], "output": "json", "read": {"answer": "a", "conversation": "c"}}
    options = check_options("x", "command", facts)
    assert isinstance(options, CommandOptions)
    reader = reader_of(options, lambda *_: None)
    reader.add(json.dumps({"a": "\ud83d\ude00 \ud83d", "c": {"id": "\ude00"}}).encode())
    report = reader.end()
    assert (report.answer, report.conversation) == ("\N{GRINNING FACE} \ufffd", '{"id": "\ufffd"}')
