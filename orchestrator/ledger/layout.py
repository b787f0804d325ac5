"""Keys and arguments of transitions, in the order and form that their scripts declare, and the run in an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from orchestrator.ledger.transitions import Outgoing, RunRef
from orchestrator.redisdb import ledger_keys
from orchestrator.redisdb.scripts import Arg, request

#: Characters that are kept of why a try of a run failed, and of its traceback.
REASON_CHARS: Final = 500
TRACEBACK_CHARS: Final = 4000


def payload(envelope: Outgoing | None) -> bytes | str:
    """The envelope's bytes, or nothing."""
    return envelope.data if envelope is not None else ""


def pairs(facts: Mapping[str, Arg]) -> list[Arg]:
    """Names and values, in turn."""
    return [part for pair in facts.items() for part in pair]


def ready_run(session: str, run: bytes, agent: bytes, cause: bytes, wake: bytes) -> RunRef:
    """Return the run of a session that a script has made ready, and whether workers are to be told of it."""
    said = {"run": run, "agent": agent, "cause": cause}
    return RunRef(session=session, wake=wake == b"1", **{name: text.decode() for name, text in said.items()})


def launch(
    about: Mapping[str, object],
    facts: Mapping[str, Arg],
    octets: list[Arg],
    *,
    prompt: str,
    envelope: Arg,
    task: str,
) -> dict[str, object]:
    """Return the request of ``launch`` about one session, and append what follows the request to ``octets``."""
    first = len(octets) + 2
    octets += (prompt, envelope, task, *pairs(facts))
    return {**{name: fact for name, fact in about.items() if fact}, "at": first, "facts": 2 * len(facts)}


def stream_name(envelope: Outgoing | None) -> str:
    """Return the stream of an envelope, as a script is asked about it; nothing without one."""
    return f"msg:{envelope.type}:{envelope.priority}" if envelope is not None else ""


def call(session: str, *octets: Arg, **asked: object) -> tuple[list[str], list[Arg]]:
    """Return KEYS and ARGV of a script about a session."""
    return [ledger_keys.session(session)], [request(**asked), *octets]


def post(
    session: str, text: str, *facts: Arg, envelope: Outgoing | None = None, **asked: object
) -> tuple[list[str], list[Arg]]:
    """Return KEYS and ARGV of ``post``; ``facts`` are of the speaker."""
    return call(session, text, payload(envelope), *facts, stream=stream_name(envelope), **asked)


def end_of_try(
    how: str, reason: str, traceback: str = "", *, write: Callable[[str], str] = str
) -> dict[str, str]:
    """Return the end of a try in the form that scripts take. The last tries are kept, so their texts are bounded.

    ``write`` gives a text the form in which the ledger holds it.
    """
    return {
        "how": how,
        "reason": write(_middle_out(reason, REASON_CHARS)),
        "traceback": write(_middle_out(traceback, TRACEBACK_CHARS)),
    }


def _middle_out(text: str, chars: int) -> str:
    """Return the beginning of a text and more of its end, in at most ``chars`` characters."""
    # Halves of surrogate pairs have a form in JSON that scripts cannot read.
    text = text.encode(errors="replace").decode()
    if len(text) <= chars:
        return text
    head = chars // 4
    return f"{text[:head]}\n…\n{text[-(chars - head - 3) :]}"
