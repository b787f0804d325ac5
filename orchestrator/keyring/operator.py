"""The operator's key: the one root of trust of a stack, pinned in each data folder."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from orchestrator.errors import KeyringError
from orchestrator.keyring import algorithms
from orchestrator.keyring.files import read_if_there, write_whole
from orchestrator.keyring.record import KeyRecord


class Operator:
    """The operator as one data folder knows it.

    ``operator.pub.pem`` is the pin: only records that this key vouches for are believed here.
    ``operator.pem`` is its private half, on the operator's own host only. It signs records of keys and never an
    envelope; the agent named ``operator`` has a key of its own like any agent.

    The caller holds the folder's lock for everything that writes.
    """

    def __init__(self, folder: Path) -> None:
        self._pin = folder / "operator.pub.pem"
        self._secret = folder / "operator.pem"

    @property
    def pem(self) -> str | None:
        """The pinned public key, or None before the first use of this folder."""
        content = read_if_there(self._pin)
        return None if content is None else content.decode()

    def public(self) -> Ed25519PublicKey | None:
        """The pinned public key, or None before the first use of this folder."""
        pem = self.pem
        return None if pem is None else _ed25519_public(pem)

    def private(self) -> Ed25519PrivateKey | None:
        """The private half, or None if this folder is not the operator's."""
        content = read_if_there(self._secret)
        if content is None:
            return None
        secret, trusted = _ed25519_private(content), self.public()
        # One that is not trusted is of a process that died in :meth:`adopt`.
        return secret if trusted is None or trusted == secret.public_key() else None

    def create(self) -> Ed25519PrivateKey:
        """The private half, made now if this folder trusts nobody yet.

        Raises:
            KeyringError: the folder trusts an operator whose private key it does not have.
        """
        secret = self.private()
        if self.pem is None:
            secret = secret or Ed25519PrivateKey.generate()
            self.adopt(secret)
        elif secret is None:
            raise KeyringError(
                f"keys of this stack are vouched for on its operator's host, and its key is not in {self._secret}: "
                "make the key there (`orchestra keys generate`), then bring it here "
                "(`orchestra keys export`, `orchestra keys import`)"
            )
        return secret

    def vouch(self, record: KeyRecord) -> KeyRecord:
        """The record with the operator's signature.

        Raises:
            KeyringError: as :meth:`create`.
        """
        return record.vouched_by(self.create())

    def adopt(self, secret: Ed25519PrivateKey) -> None:
        """Become the operator's host with this key.

        Raises:
            KeyringError: another operator is trusted already.
        """
        pem = algorithms.public_pem(secret.public_key())
        self._refuse_another(pem)
        # Before anybody trusts it: an operator without a private key could vouch for nothing, ever.
        write_whole(self._secret, algorithms.private_pem(secret))
        self.pin(pem)

    def pin(self, pem: str) -> None:
        """Trust this operator from now on, and be no operator's host unless the key is ours.

        Raises:
            KeyringError: another one is trusted already, or it is no Ed25519 key.
        """
        _ed25519_public(pem)
        self._refuse_another(pem)
        if self.pem is None:
            write_whole(self._pin, pem.encode())

    def _refuse_another(self, pem: str) -> None:
        trusted = self.pem
        if trusted is not None and trusted.strip() != pem.strip():
            raise KeyringError(
                f"this data folder trusts another operator ({self._pin}); use a data folder of its own for each "
                "stack, or remove the keys folder if its keys are no longer wanted"
            )

    def forget(self) -> None:
        """Undo :meth:`create` for a folder that has vouched for nothing."""
        self._secret.unlink(missing_ok=True)
        self._pin.unlink(missing_ok=True)


def _ed25519_public(pem: str) -> Ed25519PublicKey:
    key = algorithms.load_public(pem)
    if not isinstance(key, Ed25519PublicKey):
        raise KeyringError("the operator's key is not an Ed25519 key")
    return key


def _ed25519_private(pem: bytes) -> Ed25519PrivateKey:
    key = algorithms.load_private(pem)
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyringError("the operator's key is not an Ed25519 key")
    return key
