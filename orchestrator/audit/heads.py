"""Signed heads: how far the tables of an audit database have come, attested by the operator, and their proof.

The chain shows a change if one knows where it must end. A head states that, and needs the operator's key.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, Self, cast

from pydantic import ConfigDict, TypeAdapter

from orchestrator.agents.registry import OPERATOR
from orchestrator.audit.database import CHAINED
from orchestrator.config.settings import Settings
from orchestrator.envelope.parse import DEFAULT_LIMITS, ParseLimits, Unparsable, parse
from orchestrator.envelope.signature import Signer, verify
from orchestrator.errors import AuditError, SignatureError
from orchestrator.keyring import claims
from orchestrator.keyring.certificates import KeyCertificate
from orchestrator.keyring.claims import Purpose
from orchestrator.keyring.files import locked, make_private, read_if_there, write_whole
from orchestrator.machine import Clock, SystemClock


class Keys(Protocol):
    """Source of public keys."""

    def lookup(self, key_id: str) -> KeyCertificate | None:
        """Return the trusted signing key of that id, or None. May raise SignatureError for one not to be trusted."""
        ...


@dataclass(frozen=True)
class KeysAt:
    """The keys as they were at a moment, in ms since the epoch: a later revocation undoes nothing that was accepted."""

    keys: Keys
    at_ms: int

    def lookup(self, key_id: str) -> KeyCertificate | None:
        """As :meth:`Keys.lookup`."""
        key = self.keys.lookup(key_id)
        if key is None or key.revoked_ms is None or key.revoked_ms <= self.at_ms:
            return key
        return replace(key, revoked_ms=None)


@dataclass(frozen=True)
class EitherKeys:
    """Keys of one place, and of another where the first does not know them: Redis may have lost its memory."""

    first: Keys
    second: Keys

    def lookup(self, key_id: str) -> KeyCertificate | None:
        """As :meth:`Keys.lookup`."""
        return self.first.lookup(key_id) or self.second.lookup(key_id)


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Checks messages of the trail again. Safe to share between threads."""

    keys: Keys
    #: Whether a message without a signature counts for nothing.
    signatures_required: bool = True
    limits: ParseLimits = DEFAULT_LIMITS

    def fault(self, xml: bytes, published_ms: int) -> str:
        """Return the rule that the message breaks, of signatures or of its form; empty if its sender's signature
        holds.
        """
        try:
            root, _ = parse(xml, self.limits)
            verify(root, KeysAt(self.keys, published_ms))
        except Unparsable as refused:
            return refused.finding.rule
        except SignatureError as error:
            rule = str(error.args[0])
            return "" if rule == "signature-missing" and not self.signatures_required else rule
        return ""


def proof_of(keys: Keys, settings: Settings) -> Proof:
    """Return the proof by these keys under the settings of a stack."""
    return Proof(
        keys=keys,
        signatures_required=settings.signatures_required,
        limits=ParseLimits(size=settings.max_message_bytes),
    )


#: How documents are read that anybody may have written: every field as it is declared, and no other.
STRICT: Final = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedDocument:
    """Common fields of signed documents; each kind adds its own."""

    __pydantic_config__: ClassVar = STRICT
    purpose: ClassVar[Purpose]

    #: The name of the database among all.
    database: str
    #: When, in ms since the epoch.
    at_ms: int = 0
    #: This document as the operator has signed it; empty: nobody has.
    jws: str = ""

    def claims(self) -> dict[str, Any]:
        """Return what is signed."""
        return {name: value for name, value in asdict(self).items() if name != "jws"}

    def to_text(self) -> str:
        """Return the document as it is stored."""
        return self.jws or claims.unsigned(self.claims())

    @classmethod
    def from_text(cls, text: str | bytes) -> Self | None:
        """Return the document that :meth:`to_text` wrote, unchecked; None if it is no document of this kind."""
        try:
            document: Self = _adapter(cast("Any", cls)).validate_json(claims.payload(text))
        except ValueError:
            return None
        text = text.decode() if isinstance(text, bytes) else text
        return document if text.startswith(".") else replace(document, jws=text)

    def signed_by(self, signer: Signer) -> Self:
        """Return this document with a signature."""
        return replace(self, jws=claims.sign(self.claims(), self.purpose, signer))

    def fault(self, keys: Keys, database: str) -> str:
        """Return why the operator does not stand for this document about a database; empty: it does."""
        if self.database != database:
            return "it is of another database"
        try:
            signed_claims, key = claims.verify(self.to_text(), self.purpose, KeysAt(keys, self.at_ms).lookup)
        except SignatureError as error:
            return str(error)
        if key.agent != OPERATOR or key.revoked_ms is not None:
            return f"its key {key.key_id} is not a valid key of the operator"
        return "" if signed_claims == self.claims() else "its signature is of another document"


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


#: The tables that have a chain.
TABLES: Final = tuple(CHAINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The last row of a table, which stands for all before it; of an empty one, 0 and ''."""

    __pydantic_config__: ClassVar = STRICT

    seq: int = 0
    chain: str = ""
    #: Of transitions: how many entries its rows hold, and those before it.
    entries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Head(SignedDocument):
    """The ends of the tables at a moment."""

    purpose: ClassVar = Purpose.AUDIT_HEAD

    messages: End
    dead_letters: End
    transitions: End = End()

    def end(self, table: str) -> End:
        """Return the end of one table."""
        end: End = getattr(self, table)
        return end

    def follows(self, other: Head) -> bool:
        """Return True if this head says at least as much of every table as another one, and more of one of them."""
        ours = [(self.end(table).seq, other.end(table).seq) for table in TABLES]
        return all(mine >= theirs for mine, theirs in ours) and any(mine > theirs for mine, theirs in ours)


class HeadChanged(Exception):
    """The database does not end where the last signed head says. Raised with one sentence."""


class HeadSigner:
    """Signs the next head of a database, if the present rows are those of the last one.

    Args:
        signer: gives the operator's signer; raises KeyringError where its key is not in the data folder.
        keys: whose heads are believed.
    """

    def __init__(self, signer: Callable[[], Signer], keys: Keys, *, clock: Clock | None = None) -> None:
        self.signer = signer
        self._keys = keys
        self._clock = clock or SystemClock()
        #: The latest head that was signed here or believed.
        self.known: Head | None = None

    def believe(self, head: Head | None, database: str) -> None:
        """Accept a head that was kept elsewhere as the state that this database had reached, if the operator signed
        it.

        Of several heads the one that covers the most rows counts.
        """
        if head is None or head.fault(self._keys, database):
            return
        if self.known is None or head.follows(self.known):
            self.known = head

    def next(self, stored: Head | None, before: Head, after: Head, signer: Signer) -> Head:
        """Return the signed head that follows upon ``stored``. ``before`` and ``after`` are the ends around a batch,
        unsigned.

        Raises:
            HeadChanged: ``before`` is not what was signed last.
        """
        if stored is None:
            if self.known is not None:
                raise HeadChanged("the signed head was removed from the database")
        elif stored != self.known and (fault := stored.fault(self._keys, before.database)):
            raise HeadChanged(f"the stored head does not count: {fault}")
        last = stored or before
        for table in TABLES:
            if before.end(table) != last.end(table):
                raise HeadChanged(
                    f"{table} ends at row {before.end(table).seq}, and not with the row {last.end(table).seq} that was signed"
                )
            if self.known is not None and last.end(table).seq < self.known.end(table).seq:
                raise HeadChanged(
                    f"{table} ends at row {last.end(table).seq}, and row {self.known.end(table).seq} was written before"
                )
        return replace(after, at_ms=self._clock.now_ms()).signed_by(signer)


_NAME = re.compile(r"[0-9a-f]{1,64}")


class KeptHeads:
    """The heads of one data folder. Safe for use by several processes at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, settings: Settings) -> KeptHeads:
        """Return those of the data folder of these settings."""
        return cls(settings.keys_dir / "audit-heads")

    def file(self, database: str) -> Path:
        """Return the path of the head of a database."""
        name = database if _NAME.fullmatch(database) else database.encode().hex()[:64]
        return self.folder / f"{name}.jws"

    def read(self, database: str) -> Head | None:
        """Return the newest head of a database that is kept here, unchecked; None if there is none.

        Raises:
            AuditError: the file is there and cannot be read.
        """
        file = self.file(database)
        try:
            content = read_if_there(file)
        except OSError as error:
            raise AuditError(file, str(error), "let the user of the stack read it") from error
        if content is None:
            return None
        head = Head.from_text(content)
        if head is None:
            raise AuditError(file, "it is not a head", "bring it back from a backup, or remove it")
        return head

    def keep(self, head: Head) -> None:
        """Keep a head, unless the kept one covers more rows.

        Raises:
            AuditError: the folder cannot be written to, or what is here cannot be read.
        """
        file = self.file(head.database)
        try:
            make_private(self.folder)
            with locked(self.folder):
                known = self.read(head.database)
                if known is None or head.follows(known):
                    write_whole(file, head.to_text().encode())
        except OSError as error:
            raise AuditError(file, str(error), "let the user of the stack write to its folder") from error
