"""The seed of a fork: state, memory and results of another session, as the first run of a new one finds them.

State and memory belong to the new session from the beginning. The items of the forked run and of the runs before it
become a large text of the new session: nobody expects a callback for them, so none is counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from orchestrator.ids import item_id
from orchestrator.ledger import decode
from orchestrator.ledger.large_text import Shortened
from orchestrator.ledger.model import JSON, Item, ItemState
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.sealing import Seal, Seals
from orchestrator.ledger.statements import Statement
from orchestrator.redisdb import ledger_keys

#: The mark of an item that came with a fork.
FORKED = "forked"


@dataclass(frozen=True, kw_only=True)
class Found:
    """State and memory at the start of a run."""

    state: JSON
    memory: str  #: empty: none
    #: What is to be vouched for of them: what it is, the statement, the proof.
    own: tuple[tuple[str, Statement, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Seed:
    """Items that the first run of a fork gets, and earlier ones that all its runs count among the results so far."""

    cause: Literal["start", "callbacks", "user"]
    given: tuple[tuple[Item, str], ...] = ()
    earlier: tuple[tuple[Item, str], ...] = ()

    def dump(self) -> str:
        """The seed as it is kept."""
        rows = {name: [[asdict(i), text] for i, text in getattr(self, name)] for name in ("given", "earlier")}
        return json.dumps({"cause": self.cause, **rows})

    @classmethod
    def load(cls, text: str) -> Seed:
        """Return the seed that :meth:`dump` wrote."""
        raw = json.loads(text)
        rows = {name: tuple((_item(i), text) for i, text in raw[name]) for name in ("given", "earlier")}
        return cls(cause=raw["cause"], **rows)


@dataclass(frozen=True, kw_only=True)
class Fork:
    """First records of a new root, and the large texts that they refer to."""

    session: str  #: the one that is forked
    run: str
    by: str  #: who makes the fork
    state: str  #: as JSON; empty: none
    memory: Shortened
    seed: Shortened
    large_texts: tuple[str, ...] = ()  #: SHA-256 of the large texts that the seed refers to
    sealed: bool = False
    waiting: str = ""  #: its waiting policies, as JSON
    close_policy: str = "stop"
    task: str = ""  #: what was said of its task beside the prompt, as JSON; empty: nothing
    seal: Seal | None = None  #: for whom the new session's words are sealed

    @property
    def facts(self) -> Mapping[str, str]:
        """Fields that the fork sets in the new session's record."""
        sealed = "1" if self.sealed else ""
        return {
            "forked_from": self.session,
            "forked_at": self.run,
            "sealed": sealed,
            "waiting": self.waiting,
            "close_policy": self.close_policy,
        }

    @property
    def texts(self) -> Mapping[str, str]:
        """Texts of the new session beside its prompt, by name."""
        kept = {"fork": self.seed.json, "memory": self.memory.json, "state": self.state, "task": self.task}
        return {name: text for name, text in kept.items() if text}

    def kept_texts(self, seals: Seals) -> Mapping[str, str]:
        """The texts as the ledger is to hold them; what refers to a large one is no text of anybody's."""
        said = ("state", "task")
        return {
            name: seals.write(text, self.seal) if name in said else text for name, text in self.texts.items()
        }

    @property
    def kept(self) -> list[str]:
        """The large texts that are to live as long as the new session."""
        return [sha for sha in (self.seed.sha256, self.memory.sha256, *self.large_texts) if sha]


def found_by(ledger: LedgerReader, session_id: str, number: int) -> Found | None:
    """Return state and memory at the start of run ``number``; None if they are no longer kept.

    Raises:
        PayloadError: the memory is not kept any more, or was altered.
    """
    pipe = ledger.redis.pipeline(transaction=True)
    pipe.hgetall(ledger_keys.past(session_id))
    pipe.hmget(ledger_keys.bodies(session_id), "state", "memory")
    pipe.hmget(ledger_keys.session(session_id), "root", "encrypted", "agent")
    raw, now, (root, encrypted, agent) = pipe.execute()
    label = decode.text(root) if encrypted else ""
    past = decode.mapping(raw)
    if number < int(past.get("from", "0")):
        return None
    state, memory = (
        _replaced(past, what, number, decode.text(value))
        for what, value in zip(("state", "memory"), now, strict=True)
    )
    state_proof, state = decode.with_proof(state)
    memory_proof, reference = decode.reference(memory)
    said = {"state": (state, state_proof), "memory": (reference, memory_proof)}
    return Found(
        state=json.loads(ledger.seals.read(state, label=label) or "null"),
        memory=ledger.large_texts.read(json.loads(memory), label=label) if memory else "",
        own=tuple(
            (what, Statement.of_own(what, session_id, decode.text(agent), text), proof)
            for what, (text, proof) in said.items()
            if text
        ),
    )


def _replaced(past: Mapping[str, str], what: str, number: int, now: str) -> str:
    """Return the value that the first run from ``number`` on replaced; ``now`` if none did."""
    later = [int(name.partition(":")[2]) for name in past if name.startswith(f"{what}:")]
    first = min((at for at in later if at >= number), default=None)
    return now if first is None else past[f"{what}:{first}"]


def seed_of(ledger: LedgerReader, session_id: str) -> Seed | None:
    """Return the seed of a session; None if it is not a fork.

    Raises:
        PayloadError: it is not kept any more, or was altered.
    """
    ref = decode.text(ledger.redis.hget(ledger_keys.bodies(session_id), "fork") or b"")
    return Seed.load(ledger.large_texts.read(json.loads(ref))) if ref else None


def as_given(item: Item, text: str, *, session: str) -> tuple[Item, str]:
    """Return an item of another session as a fork gets it: nobody waits for a reply to it."""
    # The id of a question says who is to be replied to, which is a session of another tree.
    name = item.id if item.kind == "completion" else item_id(session, f"fork:{item.id}")
    extra = {
        key: value for key, value in item.extra.items() if key not in ("question", "proof", "taken", "said")
    }
    return replace(item, id=name, state=ItemState.CLAIMED, extra={**extra, FORKED: True}), text


def _item(raw: Mapping[str, Any]) -> Item:
    return Item(**{**raw, "state": ItemState(raw["state"])})
