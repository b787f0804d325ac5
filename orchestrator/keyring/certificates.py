"""Certificates (X.509): the operator is a certificate authority, and each key of an agent has a certificate of it.

Subject: common name = the agent, organizational unit = its role when the certificate was issued. Key usage: what the key is
for. Serial number and subject key identifier: the id of the key. A certificate never expires, as no clock of another host may end
what an agent is.

What becomes of a key stands in the operator's list of revocations, a signed CRL with a number that grows. Reason `superseded`: the
key was rotated out at that time, and what it signed before counts. Reason `key compromise`: nothing it ever signed
counts. No entry ever leaves the list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from orchestrator.envelope.signature import ED25519
from orchestrator.errors import KeyringError
from orchestrator.keyring import algorithms
from orchestrator.keyring.algorithms import PublicKey

Use = Literal["sign", "encrypt"]

#: "No well-defined expiration date" (RFC 5280, 4.1.2.5): no clock of another host ends what the operator has signed.
NEVER: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

#: Characters that a common name may have; a longer name of an agent stands in the attribute `name`, which may have 32,768.
_COMMON_NAME: Final = 64
_NAME: Final = x509.ObjectIdentifier("2.5.4.41")
_KEY_USAGES: Final = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


class Revocation(NamedTuple):
    """Revocation of a key."""

    compromised: bool
    at_ms: int

    def stricter(self, other: Revocation | None) -> Revocation:
        """Return this revocation or another one of the same key, whichever is stricter."""
        if other is None or self.compromised > other.compromised:
            return self
        return other if other.compromised > self.compromised else min(self, other)


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocations:
    """A list of revocations by key id; without ``pem`` it is not signed."""

    number: int = 0
    entries: Mapping[str, Revocation] = field(default_factory=dict)
    pem: str = ""

    def covers(self, other: Revocations) -> bool:
        """Return whether this list leaves nothing that another one takes away."""
        mine = self.entries
        return all(
            key in mine and mine[key].stricter(entry) == mine[key] for key, entry in other.entries.items()
        )

    def following(self, entries: Mapping[str, Revocation], *, after: int = 0) -> Revocations:
        """Return the next list, with more entries; its number is higher than ``after``, too."""
        more = {key: entry.stricter(self.entries.get(key)) for key, entry in entries.items()}
        return Revocations(number=max(self.number, after) + 1, entries={**self.entries, **more})


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCertificate:
    """A public key that the operator has certified. Times are milliseconds since the epoch, and full seconds.

    Signatures that say they were made after ``retired_ms`` do not count, and nothing counts that a revoked key has signed.
    """

    #: Its id.
    key_id: str
    #: Whose key it is.
    agent: str
    #: What the agent was when its key was certified; what it may do now says its record.
    role: str
    #: What it is for: `sign` or `encrypt`.
    use: Use
    #: Its algorithm.
    algorithm: str
    #: When it was made.
    created_ms: int
    public: PublicKey
    pem: str
    #: When it was rotated out; null: it was not.
    retired_ms: int | None = None
    #: When it was revoked; null: it was not.
    revoked_ms: int | None = None

    @property
    def current(self) -> bool:
        """True if new messages may be signed with the key, or encrypted to it."""
        return self.retired_ms is None and self.revoked_ms is None

    @property
    def state(self) -> str:
        """`current`, `rotated` or `revoked`."""
        return "revoked" if self.revoked_ms is not None else "current" if self.current else "rotated"

    def under(self, revocations: Revocations) -> KeyCertificate:
        """Return this certificate as a list of revocations leaves it."""
        revocation = revocations.entries.get(self.key_id)
        if revocation is None:
            return self
        if revocation.compromised:
            return replace(self, revoked_ms=revocation.at_ms)
        return replace(self, retired_ms=revocation.at_ms)

    def verifies(self, signature: bytes, octets: bytes) -> bool:
        """Return whether ``signature`` is this key's signature of ``octets``."""
        return algorithms.verifies(self.public, signature, octets)


@dataclass(frozen=True, slots=True)
class Authority:
    """The operator as everybody knows it: what its certificate can verify."""

    pem: str
    certificate: x509.Certificate
    public: Ed25519PublicKey
    algorithm: str = ED25519

    @classmethod
    def read(cls, pem: str) -> Authority:
        """Return the authority of a certificate in PEM.

        Raises:
            KeyringError: it is no certificate of an operator.
        """
        return _authority(pem)

    @property
    def key_id(self) -> str:
        return algorithms.key_id(self.public)

    def verifies(self, signature: bytes, octets: bytes) -> bool:
        """Return whether ``signature`` is the operator's signature of ``octets``."""
        return algorithms.verifies(self.public, signature, octets)

    def certificate_of(self, pem: str) -> KeyCertificate:
        """Return the key that a certificate is for.

        Raises:
            KeyringError: the operator has not issued it, or it is not for the key of an agent.
        """
        return _key_certificate(self, pem)

    def revocations(self, pem: str) -> Revocations:
        """Return what a list of revocations says.

        Raises:
            KeyringError: the operator has not issued it.
        """
        return _revocations(self, pem)

    def __hash__(self) -> int:
        return hash(self.pem)


def issue_authority(secret: Ed25519PrivateKey, *, now_ms: int) -> Authority:
    """Return the operator's own certificate, which it signs itself."""
    key_id = algorithms.key_id(secret.public_key())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"operator {key_id}")])
    builder = _builder(name, name, secret.public_key(), secret, now_ms)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
    return Authority.read(builder.sign(secret, None).public_bytes(Encoding.PEM).decode())


def issue(
    authority: Authority,
    secret: Ed25519PrivateKey,
    *,
    agent: str,
    role: str,
    use: Use,
    public: PublicKey,
    now_ms: int,
) -> KeyCertificate:
    """Certify the key of an agent."""
    parts = [
        x509.NameAttribute(NameOID.COMMON_NAME if len(agent) <= _COMMON_NAME else _NAME, agent),
        *([x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role)] if role else []),
    ]
    builder = _builder(x509.Name(parts), authority.certificate.subject, public, secret, now_ms)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    usage = _usage("digital_signature" if use == "sign" else "key_encipherment")
    signed = builder.add_extension(usage, critical=True).sign(secret, None)
    return authority.certificate_of(signed.public_bytes(Encoding.PEM).decode())


def canonical_pem(pem: str) -> str:
    """Return a certificate in the one spelling that PEM has here.

    Raises:
        KeyringError: it is none.
    """
    try:
        return x509.load_pem_x509_certificate(pem.encode()).public_bytes(Encoding.PEM).decode()
    except (ValueError, UnsupportedAlgorithm) as problem:
        raise KeyringError(f"a certificate cannot be read: {problem}") from None


def _builder(
    subject: x509.Name, issuer: x509.Name, public: PublicKey, secret: Ed25519PrivateKey, now_ms: int
) -> x509.CertificateBuilder:
    number = _number(public)
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=public)
        .serial_number(number)
        .not_valid_before(moment(now_ms))
        .not_valid_after(NEVER)
        .add_extension(x509.SubjectKeyIdentifier(number.to_bytes(16, "big")), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier(_number(secret.public_key()).to_bytes(16, "big"), None, None),
            critical=False,
        )
    )


def _number(public: PublicKey) -> int:
    """Return the id of a key as a number: a key has one certificate."""
    return int(algorithms.key_id(public).removeprefix("key_"), 16)


def _usage(*wanted: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{name: name in wanted for name in _KEY_USAGES})


@lru_cache(maxsize=64)
def _authority(pem: str) -> Authority:
    try:
        certificate = x509.load_pem_x509_certificate(pem.encode())
        certificate.verify_directly_issued_by(certificate)
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        public = certificate.public_key()
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.ExtensionNotFound) as problem:
        raise KeyringError(f"the operator's certificate cannot be read: {problem}") from None
    if not constraints.ca or not isinstance(public, Ed25519PublicKey):
        raise KeyringError("the operator's certificate is not one of an authority with an Ed25519 key")
    return Authority(pem, certificate, public)


# Whether an operator has signed a certificate never changes, and the same few are looked up again and again.
@lru_cache(maxsize=8192)
def _key_certificate(authority: Authority, pem: str) -> KeyCertificate:
    try:
        certificate = x509.load_pem_x509_certificate(pem.encode())
        certificate.verify_directly_issued_by(authority.certificate)
        extensions = certificate.extensions
        usage = extensions.get_extension_for_class(x509.KeyUsage).value
        public = algorithms.require_kind(certificate.public_key())
        key_id = algorithms.key_id(public)
        parts = {part.oid: str(part.value) for part in certificate.subject}
        agent = parts.get(NameOID.COMMON_NAME) or parts[_NAME]
        created = certificate.not_valid_before_utc
        if certificate.serial_number != _number(public):
            raise ValueError("it is not for the key of an agent")
    except (
        *(ValueError, TypeError, KeyError, InvalidSignature, UnsupportedAlgorithm),
        *(x509.ExtensionNotFound, x509.DuplicateExtension),
    ) as problem:
        raise KeyringError(f"the operator has not issued this certificate: {problem!r}") from None
    use: Use = "sign" if usage.digital_signature else "encrypt"
    if use == "encrypt" and not (usage.key_encipherment and isinstance(public, RSAPublicKey)):
        raise KeyringError(f"the certificate of key {key_id} is for nothing that a key is used for here")
    return KeyCertificate(
        key_id=key_id,
        agent=agent,
        role=parts.get(NameOID.ORGANIZATIONAL_UNIT_NAME, ""),
        use=use,
        algorithm=algorithms.RSA_OAEP if use == "encrypt" else algorithms.signing_algorithm(public),
        created_ms=milliseconds(created),
        public=public,
        pem=pem,
    )


# --- revocations ---------------------------------------------------------------------------


def up_to_second(at_ms: int) -> int:
    """Return the next full second: nothing counts for less than it did because a list has no milliseconds."""
    return -(-at_ms // 1000) * 1000


def moment(at_ms: int) -> datetime:
    """Return a time in milliseconds since the epoch as X.509 has it, without a fraction of a second."""
    return _EPOCH + timedelta(seconds=at_ms // 1000)


def milliseconds(at: datetime) -> int:
    """Return a time of X.509 in milliseconds since the epoch."""
    return round((at - _EPOCH).total_seconds()) * 1000


def issue_revocations(
    issuer: x509.Name, secret: Ed25519PrivateKey, revocations: Revocations, *, now_ms: int
) -> str:
    """Return a list of revocations as a signed CRL in PEM."""
    builder = x509.CertificateRevocationListBuilder(issuer, moment(now_ms), NEVER)
    builder = builder.add_extension(x509.CRLNumber(revocations.number), critical=False)
    for key_id, entry in sorted(revocations.entries.items()):
        reason = x509.ReasonFlags.key_compromise if entry.compromised else x509.ReasonFlags.superseded
        builder = builder.add_revoked_certificate(
            x509.RevokedCertificateBuilder(
                int(key_id.removeprefix("key_"), 16), moment(up_to_second(entry.at_ms))
            )
            .add_extension(x509.CRLReason(reason), critical=False)
            .build()
        )
    return builder.sign(secret, None).public_bytes(Encoding.PEM).decode()


@lru_cache(maxsize=16)
def _revocations(authority: Authority, pem: str) -> Revocations:
    """Return what a CRL says.

    Raises:
        KeyringError: it cannot be read, or that operator has not signed it.
    """
    try:
        crl = x509.load_pem_x509_crl(pem.encode())
        if not crl.is_signature_valid(authority.public):
            raise ValueError("it is not signed by the operator")
        number = crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        entries = {f"key_{each.serial_number:032x}": _entry(each) for each in crl}
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.ExtensionNotFound) as problem:
        raise KeyringError(f"a list of revocations cannot be read: {problem}") from None
    return Revocations(number=number, entries=entries, pem=pem)


def _entry(each: x509.RevokedCertificate) -> Revocation:
    reason = each.extensions.get_extension_for_class(x509.CRLReason).value.reason
    return Revocation(reason is not x509.ReasonFlags.superseded, milliseconds(each.revocation_date_utc))
