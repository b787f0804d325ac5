"""What a transition is handed, as its script declares it: keys in their order, and arguments in their form."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from orchestrator.ids import shard_of
from orchestrator.ledger.large_text import Shortened
from orchestrator.ledger.transitions import Outgoing
from orchestrator.redisdb import keys, ledger_keys
from orchestrator.redisdb.scripts import Arg, keys_of

#: Characters that are kept of why a try of a run failed, and of its traceback.
REASON_CHARS: Final = 500
TRACEBACK_CHARS: Final = 4000


def stream(session: str, envelope: Outgoing | None) -> str:
    """The stream of an envelope; without one, some key of the same shard that is never touched."""
    if envelope is None:
        return keys.messages(shard_of(session), "error", "critical")
    return keys.messages(shard_of(session), envelope.type, envelope.priority)


def payload(envelope: Outgoing | None) -> bytes | str:
    """The envelope's bytes, or nothing."""
    return envelope.data if envelope is not None else ""


def pairs(facts: Mapping[str, Arg]) -> list[Arg]:
    """Names and values, in turn."""
    return [part for pair in facts.items() for part in pair]


def large_text(session: str, short: Shortened) -> str:
    """The key of a large text; of any other, a key of the session that is never touched."""
    return (
        ledger_keys.large_text(session, short.sha256)
        if short.ref is not None
        else ledger_keys.session(session)
    )


def ending(session: str, *, parent: str, run: str, envelope: Outgoing | None = None) -> list[str]:
    """The first keys of every transition that may end a session."""
    ids = {"session": session, "parent": parent, "run": run, "stream": stream(session, envelope)}
    return keys_of("lib/termination", ids)


@cache
def run_and_session(shard: int) -> tuple[Arg, ...]:
    """What the keys of a run and of a session of a shard begin with, and what those of its items and bodies end with."""
    anybody = f"ses_{shard:02x}"
    session = ledger_keys.session(anybody)
    return (
        ledger_keys.run(f"run_{shard:02x}").removesuffix(f"run_{shard:02x}"),
        session.removesuffix(anybody),
        ledger_keys.items(anybody).removeprefix(session),
        ledger_keys.bodies(anybody).removeprefix(session),
    )


def mailbox(session: str, *, speaker: str, envelope: Outgoing | None) -> list[str]:
    """The first keys of every transition that puts something into a session's queue."""
    return keys_of("lib/place", {"session": session, "speaker": speaker, "stream": stream(session, envelope)})


def end_of_try(how: str, reason: str, traceback: str = "", *, write: Callable[[str], str] = str) -> str:
    """How a try of a run ended, as the scripts take it; the last tries are kept, so their texts are bounded.

    ``write`` gives a text the form in which the ledger holds it.
    """
    parts = {
        "reason": write(_middle_out(reason, REASON_CHARS)),
        "traceback": write(_middle_out(traceback, TRACEBACK_CHARS)),
    }
    return json.dumps({"how": how, **parts})


def _middle_out(text: str, chars: int) -> str:
    """The beginning of a text and more of its end, in at most so many characters."""
    # Halves of surrogate pairs have a form in JSON that scripts cannot read.
    text = text.encode(errors="replace").decode()
    if len(text) <= chars:
        return text
    head = chars // 4
    return f"{text[:head]}\n…\n{text[-(chars - head - 3) :]}"
