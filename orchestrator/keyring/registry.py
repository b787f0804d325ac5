"""The public keys of a stack, in Redis, as far as the operator has certified them; and the ring that checks with them.

Redis is where certificates are found, not why they are believed: each is verified against the operator's certificate that
the data folder has pinned, and the list of revocations in Redis counts unless one with a higher number was seen before.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import redis
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey

from orchestrator.envelope.encryption import Recipient
from orchestrator.envelope.signature import Signer
from orchestrator.errors import KeyringError, SignatureError
from orchestrator.keyring.certificates import Authority, KeyCertificate, Revocations
from orchestrator.keyring.files import locked
from orchestrator.keyring.folder import Certificates, by_agent_and_age, is_key_id
from orchestrator.keyring.store import KeyStore
from orchestrator.log import get_logger
from orchestrator.machine import Clock, SystemClock
from orchestrator.redisdb import keys
from orchestrator.redisdb.scripts import Scripts

#: Seconds that a looked-up key is taken from memory: a revocation is seen everywhere within this time.
CACHE_S: Final = 2.0
#: Keys kept in memory at most; more than that many agents only cost look-ups.
_CACHE_ENTRIES: Final = 4096
#: Seconds for which it is remembered which ids Redis had, once one was asked for that it had not.
MISSES_S: Final = 0.05
_NONE: Final[tuple[float, frozenset[str]]] = (float("-inf"), frozenset())
#: The field of the list of revocations, beside those of the certificates.
REVOCATIONS: Final = "crl"
#: How often a list is published once more, as another host has published one meanwhile.
_TRIES: Final = 8

_log = get_logger()


class KeyRegistry:
    """Finds public keys, and makes those of this data folder known. Safe to share between threads."""

    def __init__(
        self, client: redis.Redis, store: KeyStore, *, cache_s: float = CACHE_S, clock: Clock | None = None
    ) -> None:
        self.store = store
        self._client = client
        self._scripts = Scripts(client)
        self._ids = _NONE
        self._cache_s = cache_s
        self._clock = clock or SystemClock()
        self._cache: dict[str, tuple[float, KeyCertificate]] = {}
        self._operator: Authority | None = None
        #: The newest list of revocations that was found in Redis: the folder may be one that cannot be written to.
        self._revocations = Revocations()
        self._read = ""
        self._lock = threading.Lock()

    def has_operator(self) -> bool:
        """Return whether this Redis has an operator."""
        return self._operator_pem() is not None

    def settle_operator(self) -> Authority:
        """Agree with Redis on who the operator is, and pin the answer.

        The first data folder that comes to an empty Redis is the operator's; later ones trust on first use,
        unless an import named the operator before.

        Raises:
            KeyringError: this folder trusts another operator than the one of this Redis.
        """
        operator = self.store.operator
        ours, theirs = operator.authority(), self._operator_pem()
        if ours is not None and theirs is None:
            theirs = self._publish_operator(ours)
        if ours is not None and ours.pem == theirs:
            # Nothing to settle, and so nothing to lock: the holder of the lock may wait for Redis, or be frozen.
            self._operator = ours
            return ours
        with locked(self.store.folder):
            ours, theirs = operator.authority(), self._operator_pem()
            if ours is None and theirs is not None:
                ours = Authority.read(theirs)
                operator.pin(ours)
            ours = ours or operator.create()[0]
            if theirs is None:
                theirs = self._publish_operator(ours)
            if theirs != ours.pem:
                if self.store.list():
                    raise KeyringError(
                        f"{self.store.folder} trusts another operator than the one who certified the keys in this Redis: "
                        "use the data folder that belongs to this Redis, or an empty one and `orchestra keys import`"
                    )
                # Two empty folders met an empty Redis at once, or nothing was ever certified here.
                ours = Authority.read(theirs)
                operator.forget()
                operator.pin(ours)
            self._operator = ours
            return ours

    def register(self, certificate: KeyCertificate) -> None:
        """Make a certificate known, and learn what was revoked elsewhere; harmless to repeat."""
        self._publish([certificate])

    def register_all(self) -> None:
        """Make every certificate of this data folder known, and learn what was revoked elsewhere.

        Raises:
            KeyringError: this folder trusts another operator than the one of this Redis.
        """
        self.settle_operator()
        self._publish(self.store.list())
        self.store.absorb(self.store.list())

    def revoke(self, key_id: str) -> KeyCertificate:
        """Revoke a key that Redis or this folder knows, everywhere.

        Raises:
            KeyringError: nobody knows it, or this is not the operator's host.
        """
        self.settle_operator()
        certificate = self.certificate(key_id)
        if certificate is not None:
            self.store.absorb([certificate])
        self._publish([])
        revoked = self.store.revoke(key_id)
        self._publish([revoked])
        return revoked

    def lookup(self, key_id: str) -> KeyCertificate | None:
        """Return the signing key of that id that the operator has certified, or None.

        What is found is kept for ``cache_s`` seconds. After one that is not found, Redis is not asked for
        ``MISSES_S`` seconds for ids that it did not have then: a flood of invented ids costs no round trip each.

        Raises:
            SignatureError: ``key-not-certified``: a certificate is there, but not one of the operator.
        """
        now = self._clock.monotonic()
        cached = self._cache.get(key_id)
        if cached is not None and now - cached[0] < self._cache_s:
            return cached[1]
        taken_at, ids = self._ids
        if now - taken_at < MISSES_S and key_id not in ids:
            return None
        certificate = self.certificate(key_id) or self._own(key_id)
        if certificate is None:
            self._ids = (now, frozenset(map(_text, self._client.hkeys(keys.public_keys()))))
        if certificate is None or certificate.use != "sign":
            return None
        with self._lock:
            if len(self._cache) >= _CACHE_ENTRIES:
                self._cache.pop(next(iter(self._cache)))
            self._cache[key_id] = (now, certificate)
        return certificate

    def encryption_key(self, agent: str) -> Recipient | None:
        """Return the key to encrypt to ``agent`` with: its newest that is not rotated out or revoked."""
        fitting = [each for each in self._certificates(agent, "encrypt") if each.current]
        if not fitting:
            return None
        newest = max(fitting, key=by_agent_and_age)
        assert isinstance(newest.public, RSAPublicKey)
        return Recipient(newest.key_id, newest.public)

    def signing_keys(self, agent: str) -> Certificates:
        """Return the keys with which an agent signs or has signed, but for revoked ones; the newest first."""
        fitting = [each for each in self._certificates(agent, "sign") if each.revoked_ms is None]
        return sorted(fitting, key=by_agent_and_age, reverse=True)

    def certificate(self, key_id: str) -> KeyCertificate | None:
        """Return the certificate of that id in Redis, verified.

        Raises:
            SignatureError: ``key-not-certified``: it is not one of the operator.
        """
        if not is_key_id(key_id):
            return None
        raw, listed = self._client.hmget(keys.public_keys(), [key_id, REVOCATIONS])
        return None if raw is None else self._verified(key_id, raw, self._learned(listed))

    def _own(self, key_id: str) -> KeyCertificate | None:
        """Return the certificate of a key of this data folder that Redis has lost: it is made known again."""
        with suppress(KeyringError):  # a message may name anything as its key
            self.settle_operator()
            certificate = self.store.lookup(key_id)
            if certificate is not None:
                self.register(certificate)
                return certificate
        return None

    def list(self) -> Certificates:
        """Return every certificate in Redis that the operator has issued, by agent and age."""
        return sorted(self._certificates(), key=by_agent_and_age)

    def _certificates(self, agent: str = "", use: str = "") -> Iterator[KeyCertificate]:
        raw_certificates = self._client.hgetall(keys.public_keys())
        revocations = self._learned(raw_certificates.pop(REVOCATIONS.encode(), None))
        for name, raw in raw_certificates.items():
            with suppress(SignatureError):
                each = self._verified(_text(name), raw, revocations)
                if not agent or (each.agent, each.use) == (agent, use):
                    yield each

    def _verified(self, key_id: str, raw: bytes | str, revocations: Revocations) -> KeyCertificate:
        operator = self._operator or self.settle_operator()
        with suppress(KeyringError):
            certificate = operator.certificate_of(_text(raw))
            if certificate.key_id == key_id:
                return certificate.under(revocations).under(self.store.revocations())
        raise SignatureError(
            "key-not-certified",
            f"the certificate of key {key_id!r} in Redis is not one of the operator that is trusted here; register "
            "it from the operator's host",
        )

    # --- revocations -----------------------------------------------------------------------

    def _learned(self, raw: bytes | str | None) -> Revocations:
        """Return what is known of revocations once the list in Redis was read."""
        pem = "" if raw is None else _text(raw)
        if pem and pem != self._read:
            try:
                crl = (self._operator or self.settle_operator()).revocations(pem)
            except KeyringError as error:
                _log.error("revocations-not-signed", error=str(error), action="they count for nothing")
            else:
                known = max(self._revocations.number, self.store.revocations().number)
                if crl.number < known:
                    _log.error("revocations-rolled-back", number=crl.number, known=known, action="refused")
                else:
                    self._revocations = crl
                    self.store.absorb(revocations=crl)
            self._read = pem
        return self._revocations

    def _publish(self, certificates: Certificates) -> None:
        """Make certificates known, and agree with Redis on the newest list of revocations."""
        for _ in range(_TRIES):
            pipeline = self._client.pipeline(transaction=False)
            if certificates:
                pipeline.hset(keys.public_keys(), mapping={each.key_id: each.pem for each in certificates})
            pipeline.hget(keys.public_keys(), REVOCATIONS)
            raw = pipeline.execute()[-1]
            theirs, ours = self._learned(raw), self.store.revocations()
            if not ours.pem or (raw is not None and _text(raw) == ours.pem):
                break
            if theirs.number >= ours.number and theirs.pem == _text(raw or b""):
                break  # a folder that cannot be written to is behind
            names = [keys.public_keys()]
            if self._scripts.run("replace_revocations", names, [REVOCATIONS, raw or b"", ours.pem]):
                break
        with self._lock:
            for each in certificates:
                self._cache.pop(each.key_id, None)
        self._ids = _NONE

    # --- operator --------------------------------------------------------------------------

    def _operator_pem(self) -> str | None:
        raw = self._client.get(keys.operator_key())
        return None if raw is None else _text(raw)

    def _publish_operator(self, authority: Authority) -> str:
        """Register the operator if none is registered; return the certificate that stands."""
        self._client.setnx(keys.operator_key(), authority.pem)
        return self._operator_pem() or authority.pem


def _text(raw: object) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)


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
