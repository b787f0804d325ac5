"""Large texts: the ledger holds the beginning of a large text, and a reference to all of it, which is stored once.

A large text belongs to the session that wrote it. It is stored before the transition that refers to it. Until then it
expires by itself; from then on it lives as long as its session, or as long as a session that received it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import redis

from orchestrator.envelope.payload import BlobRef, BlobStore
from orchestrator.errors import InputError
from orchestrator.ids import shard_of
from orchestrator.ledger.sealing import Seal, Seals
from orchestrator.redisdb import ledger_keys

#: Bytes of what stands beside a text in each record of it, such as its title.
MAX_BESIDE_BYTES: Final = 16 * 1024
#: Bytes of a large text that the ledger holds itself.
HEAD_BYTES: Final = 256 * 1024
#: Seconds that a large text lives to which nothing refers yet.
UNUSED_TTL_S: Final = 3600


@dataclass(frozen=True, kw_only=True)
class Shortened:
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

    def shorten(self, session: str, text: str, *, above_bytes: int, seal: Seal | None = None) -> Shortened:
        """The text, or its beginning and a reference to all of it, which is stored then for ``session``.

        With a ``seal`` both are sealed.

        Raises:
            PayloadError: it is larger than the store takes.
            KeyringError: a reader of the ``seal`` has no key.
            redis.RedisError: it could not be stored.
        """
        if len(text) <= above_bytes // 4:  # a character has four bytes at most
            return Shortened(text=self._seals.write(text, seal), ref=None)
        octets = text.encode(errors="surrogatepass")
        if len(octets) <= above_bytes:
            return Shortened(text=self._seals.write(text, seal), ref=None)
        head = head_of(octets, above_bytes)
        return Shortened(text=self._seals.write(head, seal), ref=self.put(session, text, seal=seal))

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
        """Store the octets of a reference again, which were altered or are gone, for as long as its session lives.

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
