"""Large texts, stored once and referred to by their beginning; and sealed texts, opened with the keys at hand.

A large text belongs to the session that wrote it. It is stored before the transition that refers to it. Until then it
expires by itself; from then on it lives as long as its session, or as long as a session that received it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final, Protocol, Self, TypeVar

import redis

from orchestrator.envelope.payload import BlobRef, BlobStore
from orchestrator.errors import InputError
from orchestrator.ids import shard_of
from orchestrator.ledger.model import Item, Run, Session, Try, encrypted_fields
from orchestrator.policy.sealed_text import ENCRYPTED, defused, has_sealed, in_values, replace_sealed
from orchestrator.redisdb import ledger_keys

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


class EncryptionContext(Protocol):
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


class Decrypted(str):
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
    return text.kept if isinstance(text, Decrypted) else text


class Seals:
    """Seals and opens the texts of one ledger. Safe to share between threads."""

    def __init__(self, encryption: EncryptionContext | None = None) -> None:
        self._encryption = encryption

    def write(self, text: str, seal: Seal | None) -> str:
        """A text as the ledger is to hold it: sealed, if its session is encrypted.

        Raises:
            KeyringError: a reader has no key.
        """
        if seal is None or not text:
            return defused(text)
        if self._encryption is None:
            raise RuntimeError("this ledger has no keys to seal a text with")
        return self._encryption.seal(text, label=seal.label, by=seal.by, to=tuple(filter(None, seal.to)))

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
            if self._encryption is not None and label in ("", found[3]):
                opened = self._encryption.open(found[1], found[2], found[3], found[4])
            failed = failed or opened is None
            return ENCRYPTED if opened is None else opened

        return Decrypted(replace_sealed(text, one), text, failed)

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


#: Bytes of what stands beside a text in each record of it, such as its title.
MAX_BESIDE_BYTES: Final = 16 * 1024
#: Bytes of a large text that the ledger holds itself.
HEAD_BYTES: Final = 256 * 1024
#: Seconds that a large text lives to which nothing refers yet.
UNUSED_TTL_S: Final = 3600


@dataclass(frozen=True, kw_only=True)
class Truncated:
    """A text as the ledger takes it."""

    text: str  #: all of it, or its beginning
    ref: dict[str, Any] | None  #: refers to all of it, where `text` is its beginning

    @property
    def sha256(self) -> str:
        """The digest of all of it; empty if the text is not large."""
        return str(self.ref["sha256"]) if self.ref is not None else ""

    @property
    def json(self) -> str:
        """The reference as the scripts take it."""
        return json.dumps(self.ref) if self.ref is not None else ""


class LargeTexts:
    """Large texts of any session."""

    def __init__(self, client: redis.Redis, seals: Seals | None = None) -> None:
        self._client = client
        self._seals = seals or Seals()

    def shorten(self, session: str, text: str, *, above_bytes: int, seal: Seal | None = None) -> Truncated:
        """The text, or its beginning and a reference to all of it, which is stored then for ``session``.

        With a ``seal`` both are sealed.

        Raises:
            PayloadError: it is larger than the store takes.
            KeyringError: a reader of the ``seal`` has no key.
            redis.RedisError: it could not be stored.
        """
        if len(text) <= above_bytes // 4:  # a character has four bytes at most
            return Truncated(text=self._seals.write(text, seal), ref=None)
        octets = text.encode(errors="surrogatepass")
        if len(octets) <= above_bytes:
            return Truncated(text=self._seals.write(text, seal), ref=None)
        head = head_of(octets, above_bytes)
        return Truncated(text=self._seals.write(head, seal), ref=self.put(session, text, seal=seal))

    def put(self, session: str, text: str, *, seal: Seal | None = None) -> dict[str, Any]:
        """Store a text of any size for ``session``; return its reference.

        Raises:
            PayloadError: it is larger than the store takes.
            redis.RedisError: it could not be stored.
        """
        return self._put(session, self._seals.write(text, seal).encode(errors="surrogatepass"))

    def _put(self, session: str, octets: bytes) -> dict[str, Any]:
        return {"session": session, **asdict(self._store(session).put(octets, ttl_s=UNUSED_TTL_S))}

    def restore(self, ref: Mapping[str, Any], octets: bytes) -> None:
        """Store the bytes of a reference again, which were altered or are gone, for as long as its session lives.

        Raises:
            ValueError: they are other octets.
        """
        session, sha256 = str(ref["session"]), str(ref["sha256"])
        if hashlib.sha256(octets).hexdigest() != sha256:
            raise ValueError(f"these are not the bytes of {sha256}")
        self._store(session).put(octets, ttl_s=UNUSED_TTL_S, anew=True)
        with self._client.pipeline(transaction=True) as pipe:
            pipe.persist(ledger_keys.large_text(session, sha256))
            pipe.sadd(ledger_keys.large_texts(session), sha256)
            pipe.execute()

    def read(self, ref: Mapping[str, Any], *, label: str = "") -> str:
        """The text of a reference; with a ``label`` it is opened only if it was sealed under that.

        Raises:
            PayloadError: it is not kept any more, or was altered.
        """
        blob = BlobRef(
            sha256=str(ref["sha256"]),
            size=int(ref["size"]),
            chunks=int(ref["chunks"]),
            stored_size=int(ref["stored_size"]),
        )
        found = self._store(str(ref["session"])).get(blob).decode(errors="surrogatepass")
        return self._seals.read(found, label=label)

    def is_kept(self, ref: dict[str, Any]) -> bool:
        """Return True if the text of a reference is stored."""
        return bool(self._client.exists(ledger_keys.large_text(str(ref["session"]), str(ref["sha256"]))))

    def digests(self, session: str) -> set[str]:
        """The digests of the large texts of a session."""
        found: Any = self._client.smembers(ledger_keys.large_texts(session))
        return {name.decode() for name in found}

    def keys_of(self, session: str, *, but: Collection[str] = ()) -> list[str]:
        """The keys of the large texts of a session, ``but`` some, and of the list of them."""
        found = [
            ledger_keys.large_text(session, name) for name in sorted(self.digests(session).difference(but))
        ]
        return found if but else [ledger_keys.large_texts(session), *found]

    def _store(self, session: str) -> BlobStore:
        return BlobStore(self._client, shard_of(session), name=partial(ledger_keys.large_text, session))


def head_of(octets: bytes, above_bytes: int) -> str:
    """Return what a record has itself of a text that is stored beside it because it has more bytes than this."""
    return octets[: min(HEAD_BYTES, above_bytes)].decode(errors="ignore")


def digest_of(text: str) -> str:
    """Tells whether two texts are the same but for white space around them."""
    return hashlib.sha256(text.strip().encode(errors="surrogatepass")).hexdigest()[:32]


def beginning(text: str, limit_bytes: int = HEAD_BYTES) -> str:
    """Return a text, cut to ``limit_bytes`` bytes if it is longer."""
    octets = text.encode(errors="replace")
    if len(octets) <= limit_bytes:
        return text
    return octets[:limit_bytes].decode(errors="ignore") + "\n[cut]"


def check_text(name: str, value: object) -> str:
    """The value, which is text.

    Raises:
        InputError: it is not.
    """
    if not isinstance(value, str):
        raise InputError(f"{name} = {value!r} is not text; give a str")
    return value


def check_size(name: str, value: str, most: int = MAX_BESIDE_BYTES) -> None:
    """Check that a value beside the text is short: every look at the session reads it.

    Raises:
        InputError: it is not.
    """
    if len(value) > most // 4 and (size := len(value.encode(errors="surrogatepass"))) > most:
        raise InputError(
            f"{name} has {size} bytes, and at most {most} are allowed; put long text into the task or the message"
        )
