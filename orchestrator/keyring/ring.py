"""The keyring that services use: signers whose public keys are registered before they sign anything."""

from __future__ import annotations

import threading
from typing import Final

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from orchestrator.envelope.encryption import Recipient
from orchestrator.envelope.signature import Signer
from orchestrator.errors import KeyringError
from orchestrator.keyring.certificates import KeyCertificate
from orchestrator.keyring.registry import KeyRegistry
from orchestrator.keyring.store import KeyStore
from orchestrator.machine import Clock, SystemClock

#: Seconds after which a key is registered once more: Redis may have lost it, or know that it was revoked.
_REGISTER_AGAIN_S: Final = 5.0


class Keyring:
    """Keys of one data folder together with the registry. Safe to share between threads."""

    def __init__(self, store: KeyStore, registry: KeyRegistry, *, clock: Clock | None = None) -> None:
        self.store = store
        self.registry = registry
        self._clock = clock or SystemClock()
        self._registered: dict[str, float] = {}
        self._lock = threading.Lock()

    def signer(self, agent: str) -> Signer:
        """Return the agent's current signer, known to everybody. Ask for it for each message: it may be rotated.

        Raises:
            KeyringError: the key has to be made and this is not the operator's host, or the folder and Redis
                trust different operators.
        """
        if not self._registered:
            # Before the first key is made: a folder that comes to somebody else's Redis makes none. And what was
            # rotated or revoked here while nothing ran becomes known.
            self.registry.register_all()
        signer = self.store.signer(agent)
        if self._is_due(signer.key_id):
            self._register(signer.key_id)
            # Redis may have known better: revoked or rotated on another host.
            signer = self.store.signer(agent)
            if self._is_due(signer.key_id):
                self._register(signer.key_id)
        return signer

    def require(self, *agents: str) -> None:
        """Return if all these agents can sign here, as far as can be told; no key is made.

        Raises:
            KeyringError: a key of theirs is on another host, or was rotated out, or the folder and Redis trust
                different operators.
        """
        if self.registry.has_operator():
            self.registry.settle_operator()  # else a folder that trusts nobody seems to be the operator's own
        self.store.require(*agents)
        for agent in agents:
            if self.store.current(agent) is not None:
                self.store.signer(agent)

    def lookup(self, key_id: str) -> KeyCertificate | None:
        """As :meth:`KeyRegistry.lookup`."""
        return self.registry.lookup(key_id)

    def recipient(self, agent: str) -> Recipient:
        """Return the key to encrypt to ``agent`` with.

        If there is none and the agent is served from this data folder, one is made.

        Raises:
            KeyringError: the agent's host has registered none.
        """
        certificate = self.registry.encryption_key(agent)
        if certificate is None and self.store.current(agent) is not None:
            self.offer_encryption(agent)
            certificate = self.registry.encryption_key(agent)
        if certificate is None:
            raise KeyringError(
                f"{agent!r} has no encryption key; make one where it runs: "
                f"orchestra keys generate {agent} --use encrypt"
            )
        return certificate

    def offer_encryption(self, agent: str) -> str:
        """See to it that messages can be encrypted to ``agent``; the id of its encryption key.

        Raises:
            KeyringError: the key has to be made and this is not the operator's host.
        """
        self.registry.settle_operator()
        certificate = self.store.create(agent, "encrypt")
        self.registry.register(certificate)
        return certificate.key_id

    def decryption_key(self, key_id: str) -> RSAPrivateKey | None:
        """Return the private key of that id if it is here and is one for encryption; rotated ones still decrypt."""
        known = self.store.certificate(key_id)
        if known is None or known.use != "encrypt" or not self.store.has_private(key_id):
            return None
        key = self.store.private_key(key_id)
        return key if isinstance(key, RSAPrivateKey) else None

    def _is_due(self, key_id: str) -> bool:
        last = self._registered.get(key_id)
        return last is None or self._clock.monotonic() - last > _REGISTER_AGAIN_S

    def _register(self, key_id: str) -> None:
        known = self.store.certificate(key_id)
        if known is None:
            raise KeyringError(
                f"the certificate of key {key_id} is gone from {self.store.folder}; import the key again"
            )
        self.registry.register(known)
        with self._lock:
            self._registered[key_id] = self._clock.monotonic()
