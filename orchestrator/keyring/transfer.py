"""Export and import of keys: PKCS #12 files of keys with their certificates, beside a PEM file of what is public.

    <key id>.p12  a private key, its certificate, and the operator's; closed and authenticated by a passphrase
    operator.p12  the operator's private key and certificate, if the other host is to certify keys, too
    trust.pem     certificates of agents, the operator's, and its list of revocations
    agents.jws    records of agents that the operator has signed, one a line

The passphrase says who the operator is, so what lies open beside the PKCS #12 files needs none: all of it is signed by him.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, pkcs12

from orchestrator.errors import KeyringError
from orchestrator.keyring import algorithms
from orchestrator.keyring.algorithms import PrivateKey
from orchestrator.keyring.certificates import Authority, KeyCertificate, canonical_pem
from orchestrator.keyring.files import locked, write_whole
from orchestrator.keyring.folder import Certificates, KeyFolder
from orchestrator.keyring.lifecycle import KeyLifecycle
from orchestrator.keyring.operator import verified_agent

#: Bytes that a passphrase needs: PKCS #12 authenticates with 2,048 rounds of SHA-256, which guard no short one.
SHORTEST_PASSPHRASE: Final = 12
_BARE_KEY: Final = re.compile(rb"-----BEGIN [A-Z ]*(PRIVATE|PUBLIC) KEY-----")
_PEM: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----\n?", re.DOTALL)
_CLAIMS: Final = re.compile(rb"([\w-]+\.[\w-]+\.[\w-]+\s*)+", re.ASCII)


@dataclass(slots=True)
class _Found:
    """Contents of the files of an export, checked for nothing but the passphrase."""

    #: Certificates of operators in PKCS #12 files, which a passphrase authenticates, and in PEM files.
    trusted: list[str] = field(default_factory=list)
    named: list[str] = field(default_factory=list)
    operator_key: Ed25519PrivateKey | None = None
    keys: list[tuple[str, PrivateKey]] = field(default_factory=list)
    certificates: list[str] = field(default_factory=list)
    lists: list[str] = field(default_factory=list)
    agents: list[bytes] = field(default_factory=list)


def export(
    store: KeyFolder, agents: Iterable[str] | None = None, *, passphrase: bytes, with_operator: bool = False
) -> dict[str, bytes]:
    """Return the files for another host by their names.

    Args:
        agents: whose keys; None for all.
        passphrase: closes the private keys.
        with_operator: the operator's private key as well, so that the other host can certify keys.

    Raises:
        KeyringError: an agent has no key here, or the passphrase is too short.
    """
    if len(passphrase) < SHORTEST_PASSPHRASE:
        raise KeyringError(
            f"the passphrase is too short: take {SHORTEST_PASSPHRASE} characters or more, at random"
        )
    wanted, authority = _wanted(store, agents)
    files = {
        f"{each.key_id}.p12": _pkcs12(
            store.private_key(each.key_id), each.agent, each.pem, authority, passphrase
        )
        for each in wanted
        if store.has_private(each.key_id)
    }
    secret = store.operator.private() if with_operator else None
    if secret is not None:
        files["operator.p12"] = _pkcs12(secret, "operator", authority.pem, None, passphrase)
    names = sorted({each.agent for each in wanted})
    if records := [signed for name in names if (signed := store.agent_record(name)) is not None]:
        files["agents.jws"] = b"\n".join(records)
    return {**files, "trust.pem": trust_bundle(store, agents)}


def trust_bundle(store: KeyFolder, agents: Iterable[str] | None = None) -> bytes:
    """Return certificates of agents (None: of all), the operator's, and its list of revocations, as PEM.

    The first one is of a key that is in use.

    Raises:
        KeyringError: an agent has no key here.
    """
    wanted, authority = _wanted(store, agents)
    parts = [*(each.pem for each in reversed(wanted)), authority.pem, store.revocations().pem]
    return "".join(parts).encode()


def _wanted(store: KeyFolder, agents: Iterable[str] | None) -> tuple[Certificates, Authority]:
    names = None if agents is None else set(agents)
    wanted = [each for each in store.list() if names is None or each.agent in names]
    missing = (names or set()) - {each.agent for each in wanted}
    if missing:
        raise KeyringError(f"no key of {', '.join(sorted(missing))} is in {store.folder}")
    authority = store.operator.authority()
    if authority is None:
        raise KeyringError(f"{store.folder} holds no keys yet; make one with `orchestra keys generate`")
    return wanted, authority


def import_(
    store: KeyFolder,
    lifecycle: KeyLifecycle,
    files: Iterable[bytes],
    *,
    agent: str | None = None,
    passphrase: bytes | None = None,
) -> Certificates:
    """Take in files of an export, or a PEM key of ``agent`` (private: it signs from now on; public: it only verifies).

    An export pins the operator if nobody is trusted here yet.

    Raises:
        KeyringError: a file cannot be read, another operator is trusted here, or something is not signed by him.
    """
    contents = list(files)
    if agent is not None or any(_BARE_KEY.search(each) for each in contents):
        return [_import_key(store, lifecycle, each, agent, passphrase) for each in contents]
    found = _Found()
    for content in contents:
        _read(content, passphrase, found)
    with locked(store.folder):
        # Nothing is trusted, not even for the first time, before everything has been checked.
        authority = _authority(store, found, passphrase)
        keys = [(_certificate_of(key, authority.certificate_of(pem)), key) for pem, key in found.keys]
        certificates = [
            *(authority.certificate_of(pem) for pem in found.certificates),
            *(each for each, _ in keys),
        ]
        lists = [authority.revocations(pem) for pem in found.lists]
        agents = [(verified_agent(signed, authority), signed) for signed in found.agents]
        if any(record is None for record, _ in agents):
            raise KeyringError("the record of an agent is not signed by the operator of these keys")
        store.operator.pin(authority)
        # The revocations first: a key that was rotated out is never made the current one.
        for revocations in lists:
            lifecycle.take_in(revocations)
        for record, signed in agents:
            store.keep_agent_record(str((record or {}).get("name")), signed)
        for certificate, key in keys:
            write_whole(store.file(certificate.key_id, "pem"), algorithms.private_pem(key))
        for certificate in certificates:
            lifecycle.absorb_one(certificate)
        if found.operator_key is not None:
            store.operator.adopt(found.operator_key, authority)
    return list({each.key_id: each.under(store.revocations()) for each in certificates}.values())


def _authority(store: KeyFolder, found: _Found, passphrase: bytes | None) -> Authority:
    """Return the operator of what was found, who is the one that is trusted here if somebody is."""
    pinned = store.operator.authority()
    named = {*found.trusted, *found.named, *([pinned.pem] if pinned else ())}
    if not named:
        raise KeyringError(
            "no file says who the operator is: import trust.pem, or a PKCS #12 file, with them"
        )
    if len(named) > 1 and pinned is not None:
        store.operator.pin(Authority.read((named - {pinned.pem}).pop()))  # which refuses another one
    if len(named) > 1:
        raise KeyringError("the files were altered: they are of more than one operator; nothing was imported")
    if pinned is None and passphrase is not None and not found.trusted:
        raise KeyringError(
            "no passphrase closes these files, so anybody may have named their operator; import them without one if "
            "you know where they are from"
        )
    return Authority.read(named.pop())


def _import_key(
    store: KeyFolder, lifecycle: KeyLifecycle, content: bytes, agent: str | None, passphrase: bytes | None
) -> KeyCertificate:
    if not agent:
        raise KeyringError("say whose key this is: `orchestra keys import FILE --agent NAME`")
    with locked(store.folder):
        if b"PRIVATE KEY-----" in content:
            return lifecycle.add(agent, "sign", algorithms.load_private(content, passphrase))
        certificate = lifecycle.certify(agent, "sign", algorithms.load_public(content))
        lifecycle.absorb_one(certificate)
        return certificate


def _pkcs12(key: PrivateKey, name: str, pem: str, authority: Authority | None, passphrase: bytes) -> bytes:
    encryption = BestAvailableEncryption(passphrase)
    certificate = x509.load_pem_x509_certificate(pem.encode())
    chain = None if authority is None else [authority.certificate]
    return pkcs12.serialize_key_and_certificates(name.encode(), key, certificate, chain, encryption)


def _read(content: bytes, passphrase: bytes | None, found: _Found) -> None:
    """Put what a file holds among what was found."""
    if content.startswith(b"0"):  # DER: a sequence
        _read_pkcs12(content, passphrase, found)
    elif _CLAIMS.fullmatch(content):
        found.agents += content.split()
    elif not _read_pem(content.decode(errors="replace"), found):
        raise KeyringError(
            "this is neither a file of `orchestra keys export` nor a PEM file; nothing was imported"
        )


def _read_pem(text: str, found: _Found) -> bool:
    blocks = list(_PEM.finditer(text))
    for block in blocks:
        if block[1] == "X509 CRL":
            found.lists.append(block[0])
        elif block[1] != "CERTIFICATE":
            return False
        elif _is_authority(block[0]):
            found.named.append(canonical_pem(block[0]))
        else:
            found.certificates.append(canonical_pem(block[0]))
    return bool(blocks)


def _read_pkcs12(content: bytes, passphrase: bytes | None, found: _Found) -> None:
    try:
        if passphrase is not None and not _is_authenticated(content):
            raise ValueError("anybody may have written it")
        parts = pkcs12.load_pkcs12(content, passphrase)
    except (ValueError, TypeError, IndexError, UnsupportedAlgorithm):
        raise KeyringError(
            "the file was altered, is no PKCS #12 file, or is closed with another passphrase; say the right "
            "passphrase with --passphrase-file; nothing was imported"
        ) from None
    key = parts.key
    if parts.cert is None or not isinstance(key, RSAPrivateKey | Ed25519PrivateKey):
        raise KeyringError("a PKCS #12 file has no key with its certificate; nothing was imported")
    pem = parts.cert.certificate.public_bytes(Encoding.PEM).decode()
    if _is_authority(pem):
        if not isinstance(key, Ed25519PrivateKey) or Authority.read(pem).public != key.public_key():
            raise KeyringError(
                "the operator's private key does not fit its certificate; nothing was imported"
            )
        found.operator_key = key
        found.trusted.append(pem)
        return
    found.keys.append((pem, key))
    found.trusted += [each.certificate.public_bytes(Encoding.PEM).decode() for each in parts.additional_certs]


def _is_authenticated(content: bytes) -> bool:
    """Return whether a PKCS #12 file has a MAC: OpenSSL reads one without, whatever the passphrase."""
    parts, rest = 0, _content_of(content)[0]
    while rest:
        rest = _content_of(rest)[1]
        parts += 1
    return parts == 3


def _content_of(der: bytes) -> tuple[bytes, bytes]:
    """Return the content of the first element of DER, and what follows that element."""
    start, length = 2, der[1]
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(der[2:start], "big")
    if not 2 < start + length <= len(der):
        raise ValueError("an element is longer than what is there")
    return der[start : start + length], der[start + length :]


def _is_authority(pem: str) -> bool:
    try:
        constraints = x509.load_pem_x509_certificate(pem.encode()).extensions.get_extension_for_class(
            x509.BasicConstraints
        )
    except (ValueError, UnsupportedAlgorithm, x509.ExtensionNotFound, x509.DuplicateExtension):
        return False
    return constraints.value.ca


def _certificate_of(key: PrivateKey, certificate: KeyCertificate) -> KeyCertificate:
    if algorithms.key_id(key.public_key()) != certificate.key_id:
        raise KeyringError(
            f"the private key beside {certificate.key_id} is another one; nothing was imported"
        )
    return certificate
