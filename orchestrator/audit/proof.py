"""Proof that the sender of a message in the trail signed it, by the keys as they were when it was published."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from orchestrator.config.settings import Settings
from orchestrator.envelope.parse import DEFAULT_LIMITS, ParseLimits, Unparsable, parse
from orchestrator.envelope.signature import verify
from orchestrator.errors import SignatureError
from orchestrator.keyring.certificates import KeyCertificate


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
