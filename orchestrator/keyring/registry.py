"""The public keys of a stack, in Redis, as far as the operator vouches for them.

Redis is where keys are found, not why they are believed: every record carries the operator's
signature and is checked against the operator's public key that the data folder has pinned.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import redis
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from orchestrator.envelope.encryption import Recipient
from orchestrator.errors import KeyringError, SignatureError
from orchestrator.keyring.files import locked
from orchestrator.keyring.folder import Records
from orchestrator.keyring.record import KeyRecord, TrustedKey
from orchestrator.keyring.store import KeyStore
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
        self._cache: dict[str, tuple[float, TrustedKey]] = {}
        self._operator: Ed25519PublicKey | None = None
        self._lock = threading.Lock()

    def has_operator(self) -> bool:
        """Whether this Redis has an operator."""
        return self._operator_pem() is not None

    def settle_operator(self) -> Ed25519PublicKey:
        """Agree with Redis on who the operator is, and pin the answer.

        The first data folder that comes to an empty Redis is the operator's; later ones trust on first use,
        unless a bundle named the operator before.

        Raises:
            KeyringError: this folder trusts another operator than the one of this Redis.
        """
        operator = self.store.operator
        ours, theirs = operator.pem, self._operator_pem()
        public = operator.public()
        if public is not None and ours is not None and theirs is None:
            self._client.setnx(keys.operator_key(), ours)
            theirs = self._operator_pem()
        if public is not None and ours is not None and theirs is not None and theirs.strip() == ours.strip():
            # Nothing to settle, and so nothing to lock: the holder of the lock may wait for Redis, or be frozen.
            self._operator = public
            return public
        with locked(self.store.folder):
            ours = operator.pem
            if ours is None:
                theirs = self._operator_pem()
                if theirs is not None:
                    operator.pin(theirs)
                    ours = theirs
                else:
                    operator.create()
                    ours = operator.pem
            assert ours is not None
            theirs = self._operator_pem()
            if theirs is None:
                self._client.setnx(keys.operator_key(), ours)
                theirs = self._operator_pem()
            if theirs is not None and theirs.strip() != ours.strip():
                if self.store.list():
                    raise KeyringError(
                        f"{self.store.folder} trusts another operator than the keys in this Redis are vouched for by: "
                        "use the data folder that belongs to this Redis, or an empty one and `orchestra keys import`"
                    )
                # Two empty folders met an empty Redis at once, or nothing was ever vouched for here.
                operator.forget()
                operator.pin(theirs)
            public = operator.public()
            assert public is not None
            self._operator = public
            return public

    def register(self, record: KeyRecord) -> KeyRecord:
        """Make a record known; harmless to repeat.

        Returns:
            The record that stands: this one, or a newer version that another host has made known before.
        """
        answer = self._scripts.run(
            "register_key", [keys.public_keys()], [record.key_id, record.serial, record.to_json()]
        )
        with self._lock:
            self._cache.pop(record.key_id, None)
        self._ids = _NONE
        return KeyRecord.from_json(answer)

    def register_all(self) -> None:
        """Make every record of this data folder known, and learn what became of them elsewhere.

        Raises:
            KeyringError: this folder trusts another operator than the one of this Redis.
        """
        operator = self.settle_operator()
        registered = [self.register(record) for record in self.store.list()]
        self.store.absorb(record for record in registered if record.is_vouched_by(operator))

    def revoke(self, key_id: str) -> KeyRecord:
        """Revoke a key that Redis or this folder knows, everywhere.

        Raises:
            KeyringError: nobody knows it, or this is not the operator's host.
        """
        self.settle_operator()
        record = self.record(key_id)
        if record is not None:
            self.store.absorb([record])
        return self.register(self.store.revoke(key_id))

    def lookup(self, key_id: str) -> TrustedKey | None:
        """The trusted signing key of that id, or None.

        What is found is kept for ``cache_s`` seconds. After one that is not found, Redis is not asked for
        ``MISSES_S`` seconds for ids that it did not have then: a flood of invented ids costs no round trip each.

        Raises:
            SignatureError: ``key-not-vouched``: a record is there, but the operator does not stand for it.
        """
        now = self._clock.monotonic()
        cached = self._cache.get(key_id)
        if cached is not None and now - cached[0] < self._cache_s:
            return cached[1]
        taken_at, ids = self._ids
        if now - taken_at < MISSES_S and key_id not in ids:
            return None
        record = self.record(key_id) or self._own(key_id)
        if record is None:
            self._ids = (now, frozenset(map(_text, self._client.hkeys(keys.public_keys()))))
        if record is None or record.use != "sign":
            return None
        key = TrustedKey(self._with_memory(record))
        with self._lock:
            if len(self._cache) >= _CACHE_ENTRIES:
                self._cache.pop(next(iter(self._cache)))
            self._cache[key_id] = (now, key)
        return key

    def encryption_key(self, agent: str) -> Recipient | None:
        """The key to encrypt to ``agent`` with: its newest that is not rotated out or revoked."""
        fitting = [record for record in self._records(agent, "encrypt") if record.current]
        if not fitting:
            return None
        record = max(fitting, key=lambda record: (record.created_ms, record.key_id))
        assert isinstance(record.public, RSAPublicKey)
        return Recipient(record.key_id, record.public)

    def signing_keys(self, agent: str) -> list[TrustedKey]:
        """The keys with which an agent signs or has signed, but for revoked ones; the newest first."""
        fitting = [record for record in self._records(agent, "sign") if record.revoked_ms is None]
        fitting.sort(key=lambda record: (record.created_ms, record.key_id), reverse=True)
        return [TrustedKey(record) for record in fitting]

    def record(self, key_id: str) -> KeyRecord | None:
        """The record of that id in Redis, checked.

        Raises:
            SignatureError: ``key-not-vouched``: the operator does not stand for it.
        """
        raw = self._client.hget(keys.public_keys(), key_id)
        return None if raw is None else self._checked(key_id, raw)

    def _own(self, key_id: str) -> KeyRecord | None:
        """The record of a key of this data folder that Redis has lost: it is made known again."""
        with suppress(KeyringError):  # a message may name anything as its key
            record = self.store.record(key_id)
            if record is not None and record.is_vouched_by(self.settle_operator()):
                return self.register(record)
        return None

    def list(self) -> Records:
        """Every record in Redis that the operator stands for, by agent and age."""
        return sorted(
            self._records(), key=lambda record: (record.agent, record.use, record.created_ms, record.key_id)
        )

    def _records(self, agent: str = "", use: str = "") -> Iterator[KeyRecord]:
        """The records in Redis that the operator stands for; with an agent and a use those alone."""
        for name, raw in self._client.hgetall(keys.public_keys()).items():
            with suppress(KeyringError, SignatureError):
                record = KeyRecord.from_json(raw)
                # Most records are of others. They are passed over before their signatures are checked.
                if not agent or (record.agent, record.use) == (agent, use):
                    yield self._with_memory(self._checked(_text(name), raw))

    def _checked(self, key_id: str, raw: bytes | str) -> KeyRecord:
        operator = self._operator or self.settle_operator()
        try:
            record = KeyRecord.from_json(raw)
            if record.key_id == key_id and record.is_vouched_by(operator):
                return record
        except KeyringError:
            pass
        raise SignatureError(
            "key-not-vouched",
            f"the record of key {key_id!r} in Redis does not carry the signature of the operator that is trusted "
            "here; register it from the operator's host",
        )

    def _with_memory(self, record: KeyRecord) -> KeyRecord:
        """An old record put back into Redis does not undo a revocation that was seen here."""
        if record.revoked_ms is not None:
            if not self.store.is_revoked(record.key_id):
                self.store.remember_revoked(record.key_id)
        elif self.store.is_revoked(record.key_id):
            return record.changed(revoked_ms=self._clock.now_ms())
        return record

    def _operator_pem(self) -> str | None:
        raw = self._client.get(keys.operator_key())
        return None if raw is None else _text(raw)


def _text(raw: object) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)
