"""The operator's key: the certificate authority of a stack, pinned in each data folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from orchestrator.envelope.signature import ED25519, Signer
from orchestrator.errors import KeyringError, SignatureError
from orchestrator.keyring import algorithms, claims
from orchestrator.keyring.certificates import Authority, Revocations, issue_authority, issue_revocations
from orchestrator.keyring.claims import Purpose
from orchestrator.keyring.files import read_if_there, write_whole
from orchestrator.machine import Clock


class Operator:
    """The operator as one data folder knows it.

    ``operator.crt`` is the pin: only certificates of this authority are believed here. ``operator.pem`` is its private
    key, on the operator's own host only. It signs certificates, lists of revocations and claims, and never an envelope; the
    agent named ``operator`` has a key of its own like any agent.

    The caller holds the folder's lock for everything that writes.
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._pin = folder / "operator.crt"
        self._secret = folder / "operator.pem"
        self._clock = clock

    @property
    def pem(self) -> str | None:
        """The pinned certificate, or None before the first use of this folder."""
        content = read_if_there(self._pin)
        return None if content is None else content.decode()

    def authority(self) -> Authority | None:
        """Return the pinned authority, or None before the first use of this folder."""
        pem = self.pem
        return None if pem is None else Authority.read(pem)

    def private(self) -> Ed25519PrivateKey | None:
        """Return the private key, or None if this folder is not the operator's."""
        content = read_if_there(self._secret)
        if content is None:
            return None
        secret, trusted = _ed25519_private(content), self.authority()
        # One that is not trusted is of a process that died in :meth:`adopt`.
        return secret if trusted is None or trusted.public == secret.public_key() else None

    def create(self) -> tuple[Authority, Ed25519PrivateKey]:
        """Return the authority with its private key, made now if this folder trusts nobody yet.

        Raises:
            KeyringError: the folder trusts an operator whose private key it does not have.
        """
        secret, authority = self.private(), self.authority()
        if authority is None:
            secret = secret or Ed25519PrivateKey.generate()
            authority = issue_authority(secret, now_ms=self._clock.now_ms())
            self.adopt(secret, authority)
        elif secret is None:
            raise KeyringError(
                f"keys of this stack are certified on its operator's host, and its key is not in {self._secret}: "
                "make the key there (`orchestra keys generate`), then bring it here "
                "(`orchestra keys export`, `orchestra keys import`)"
            )
        return authority, secret

    def signer(self) -> Signer:
        """Return the signer of claims with the operator's key.

        Raises:
            KeyringError: as :meth:`create`.
        """
        authority, secret = self.create()
        return Signer("", authority.key_id, ED25519, 0, None, algorithms.signing(secret))

    def adopt(self, secret: Ed25519PrivateKey, authority: Authority) -> None:
        """Become the operator's host with this key.

        Raises:
            KeyringError: another operator is trusted already.
        """
        self._refuse_another(authority)
        # Before anybody trusts it: an operator without a private key could certify nothing, ever.
        write_whole(self._secret, algorithms.private_pem(secret))
        self.pin(authority)

    def pin(self, authority: Authority) -> None:
        """Trust this operator from now on, and be no operator's host unless the key is here.

        Raises:
            KeyringError: another one is trusted already.
        """
        self._refuse_another(authority)
        if self.pem is None:
            write_whole(self._pin, authority.pem.encode())

    def _refuse_another(self, authority: Authority) -> None:
        trusted = self.authority()
        if trusted is not None and trusted != authority:
            raise KeyringError(
                f"this data folder trusts another operator ({self._pin}); use a data folder of its own for each "
                "stack, or remove the keys folder if its keys are no longer wanted"
            )

    def forget(self) -> None:
        """Undo :meth:`create` for a folder that has certified nothing."""
        self._secret.unlink(missing_ok=True)
        self._pin.unlink(missing_ok=True)

    def issue_list(self, revocations: Revocations) -> Revocations:
        """Return a list of revocations with the operator's signature.

        Raises:
            KeyringError: as :meth:`create`.
        """
        authority, secret = self.create()
        name = authority.certificate.subject
        return authority.revocations(
            issue_revocations(name, secret, revocations, now_ms=self._clock.now_ms())
        )


def verified_agent(signed: bytes, operator: Authority) -> dict[str, Any] | None:
    """Return the record of an agent, or None if that operator has not signed it."""
    try:
        return claims.verify(signed, Purpose.AGENT, {operator.key_id: operator}.get)[0]
    except SignatureError:
        return None


def _ed25519_private(pem: bytes) -> Ed25519PrivateKey:
    key = algorithms.load_private(pem)
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyringError("the operator's key is not an Ed25519 key")
    return key
