"""Texts of encrypted sessions: sealed on their way into the ledger, opened on their way out where a key is at hand.

The ledger itself compares, counts and hands on what it holds, and never needs to read it. What vouches for a text covers
it as the ledger holds it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, Self, TypeVar

from orchestrator.ledger.model import Item, Run, Session, Try, encrypted_fields
from orchestrator.policy.sealed_text import ENCRYPTED, defused, has_sealed, in_values, replace_sealed

M = TypeVar("M", Session, Run, Item, Try)

#: What of an item's record is said by somebody.
RECORD_TEXTS: Final = ("title", "context", "body")


@dataclass(frozen=True, kw_only=True)
class Seal:
    """For whom a text is sealed."""

    label: str  #: the root session of its tree
    by: str  #: the agent that says it
    to: tuple[str, ...] = ()  #: the agents that read it, beside itself and the operator

    def reading(self, *agents: str) -> Seal:
        """The same for other readers."""
        return replace(self, to=tuple(filter(None, agents)))


class Vault(Protocol):
    """Seals and opens with the keys of one data folder."""

    def seal(self, text: str, *, label: str, by: str, to: tuple[str, ...]) -> str:
        """The sealed text.

        Raises:
            KeyringError: a reader has no key.
        """
        ...

    def open(self, sender: str, readers: str, label: str, content: str) -> str | None:
        """Return the decrypted content; None if no key here opens it, or it was altered."""
        ...


class Opened(str):
    """A text that the ledger holds sealed."""

    __slots__ = ("failed", "kept")

    kept: str  #: as the ledger holds it
    failed: bool  #: whether a part of it could not be opened here

    def __new__(cls, text: str, kept: str, failed: bool = False) -> Self:  # noqa: FBT001, FBT002  (pickled by position)
        """Keep both."""
        made = super().__new__(cls, text)
        made.kept, made.failed = kept, failed
        return made

    def __getnewargs__(self) -> tuple[str, str, bool]:  # type: ignore[override]
        """So that a copy is the same."""
        return str(self), self.kept, self.failed


def as_kept(text: str) -> str:
    """A text as the ledger holds it."""
    return text.kept if isinstance(text, Opened) else text


class Seals:
    """Seals and opens the texts of one ledger. Safe to share between threads."""

    def __init__(self, vault: Vault | None = None) -> None:
        self._vault = vault

    def write(self, text: str, seal: Seal | None) -> str:
        """A text as the ledger is to hold it: sealed, if its session is encrypted.

        Raises:
            KeyringError: a reader has no key.
        """
        if seal is None or not text:
            return defused(text)
        if self._vault is None:
            raise RuntimeError("this ledger has no keys to seal a text with")
        return self._vault.seal(text, label=seal.label, by=seal.by, to=tuple(filter(None, seal.to)))

    def write_record(self, record: Mapping[str, Any], seal: Seal | None) -> dict[str, Any]:
        """The record of an item as the ledger is to hold it."""
        written = {name: self.write(str(record[name]), seal) for name in RECORD_TEXTS if record.get(name)}
        return {**record, **written, **({"encrypted": True} if seal is not None else {})}

    def read(self, text: str, *, label: str = "") -> str:
        """Return a text, decrypted as far as possible; with a ``label`` only what was sealed under it."""
        if not has_sealed(text):
            return text
        failed = False

        def one(found: re.Match[str]) -> str:
            nonlocal failed
            opened = None
            if self._vault is not None and label in ("", found[3]):
                opened = self._vault.open(found[1], found[2], found[3], found[4])
            failed = failed or opened is None
            return ENCRYPTED if opened is None else opened

        return Opened(replace_sealed(text, one), text, failed)

    def model(self, value: M) -> M:
        """Return a session, a run or a try with its texts readable."""
        found: dict[str, Any] = {}
        kind: type = type(value)
        for name, mark in encrypted_fields(kind).items():
            kept = getattr(value, name)
            if has_sealed(kept):
                found[name] = self._read_json(kept) if mark.json else self.read(kept)
        return replace(value, **found) if found else value

    def run(self, run: Run) -> Run:
        """Return a run with its texts and those of its tries readable."""
        tries = tuple(map(self.model, run.tries))
        changed = any(new is not old for new, old in zip(tries, run.tries, strict=True))
        return self.model(replace(run, tries=tries) if changed else run)

    def item(self, item: Item) -> Item:
        """Return an item with its texts readable."""
        extra = {name: self.read(item.extra[name]) for name in RECORD_TEXTS if item.extra.get(name)}
        changed = any(extra[name] is not item.extra[name] for name in extra)
        return self.model(replace(item, extra={**item.extra, **extra}) if changed else item)

    def _read_json(self, text: str) -> str:
        if not has_sealed(text):
            return text
        try:
            return json.dumps(in_values(json.loads(text), self.read))
        except ValueError:
            return text
