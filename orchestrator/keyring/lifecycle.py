"""The life of keys in one data folder: made, rotated, revoked, and updated from newer records.

What changes more than one file happens under a lock that processes and threads share.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from orchestrator.errors import KeyringError
from orchestrator.keyring import algorithms
from orchestrator.keyring.algorithms import RSA_OAEP, PrivateKey
from orchestrator.keyring.files import locked, write_whole
from orchestrator.keyring.folder import KeyFolder
from orchestrator.keyring.record import KeyRecord, Use
from orchestrator.log import get_logger
from orchestrator.machine import Clock

_log = get_logger()

#: Seconds that a rotated key may go on signing, so that no process is caught between two keys.
ROTATION_OVERLAP_S = 60

#: White space that XML would not give back as it was.
_BLANKS = re.compile(r"^[ \t\r\n]|[\t\r\n]|  |[ \t\r\n]$")


class KeyLifecycle:
    """What makes keys, and what makes one the current key of its agent or ends that."""

    def __init__(self, keys: KeyFolder, algorithm: str, clock: Clock) -> None:
        self._keys = keys
        self._algorithm = algorithm
        self._clock = clock

    def create(self, agent: str, use: Use = "sign") -> KeyRecord:
        """The agent's current key for ``use``, made now unless it is there.

        Raises:
            KeyringError: it has to be made and this is not the operator's host.
        """
        found = self._keys.current(agent, use)
        if found is not None:
            return found
        if self._keys.operator.pem is not None:
            # Refuses where this is not the operator's host; the folder may be one that cannot be written to.
            self._keys.operator.create()
        with locked(self._keys.folder):
            return self._keys.current(agent, use) or self.add(agent, use, self._generate(use))

    def rotate(self, agent: str, *, use: Use = "sign", overlap_s: float = ROTATION_OVERLAP_S) -> KeyRecord:
        """Give the agent a new key; the old one still verifies what it signs for ``overlap_s`` seconds more.

        Raises:
            KeyringError: this is not the operator's host.
        """
        with locked(self._keys.folder):
            return self.add(agent, use, self._generate(use), overlap_s=overlap_s)

    def revoke(self, key_id: str) -> KeyRecord:
        """Revoke a key for good. The agent gets a new one when it next needs it.

        Raises:
            KeyringError: no such key here, or this is not the operator's host.
        """
        with locked(self._keys.folder):
            record = self._keys.record(key_id)
            if record is None:
                raise KeyringError(
                    f"no key {key_id!r} is in {self._keys.folder}; `orchestra keys list` shows what is"
                )
            if record.revoked_ms is None:
                record = self._keys.operator.vouch(record.changed(revoked_ms=self._clock.now_ms()))
                self.absorb_one(record)
            return record

    def absorb(self, records: Iterable[KeyRecord]) -> None:
        """Take in records that the trusted operator vouches for, where they are newer than what is here."""
        # Mostly none is, and then there is nothing to lock: every process comes by here when it starts.
        news = [record for record in records if self._is_news(record)]
        if not news:
            return
        try:
            with locked(self._keys.folder):
                operator = self._keys.operator.public()
                for record in news:
                    self.require_vouched(record, operator)
                    self.absorb_one(record)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
            # A part whose keys are mounted read-only gets news of them from whoever brought them.
            names = sorted({record.agent for record in news})
            _log.warning("keys-not-updated", agents=names, error=str(error))

    # --- inside the lock -------------------------------------------------------------------

    def _generate(self, use: Use) -> PrivateKey:
        self._keys.operator.create()
        return algorithms.generate(self._algorithm if use == "sign" else RSA_OAEP)

    def new_record(self, agent: str, use: Use, public: algorithms.PublicKey) -> KeyRecord:
        """The record of a key that is made now; nobody vouches for it yet.

        Raises:
            KeyringError: the text is no agent's name.
        """
        if _BLANKS.search(agent) or not agent.strip():
            raise KeyringError(
                f"{agent!r} is not a valid agent name: it is blank, or has spaces that XML does not keep"
            )
        return KeyRecord(
            key_id=algorithms.key_id(public),
            agent=agent,
            use=use,
            algorithm=RSA_OAEP if use == "encrypt" else algorithms.signing_algorithm(public),
            public_pem=algorithms.public_pem(public),
            created_ms=self._clock.now_ms(),
        )

    def add(
        self, agent: str, use: Use, key: PrivateKey, *, overlap_s: float = ROTATION_OVERLAP_S
    ) -> KeyRecord:
        """Make ``key`` the agent's current one. A crash in between leaves the old one current, or both."""
        record = self._keys.operator.vouch(self.new_record(agent, use, key.public_key()))
        known = self._keys.record(record.key_id)
        if known is not None:
            if known.agent != agent:
                raise KeyringError(
                    f"key {known.key_id} is {known.agent!r}'s already; give each agent its own"
                )
            record = known
        rotated = self._keys.current(agent, use) is not None
        write_whole(self._keys.file(record.key_id, "pem"), algorithms.private_pem(key))
        write_whole(self._keys.file(record.key_id, "json"), record.to_json().encode())
        if record.current:
            self._keys.point(record)
        until = self._clock.now_ms() + round(overlap_s * 1000)
        for old in self._keys.list() if rotated else ():
            if (
                (old.agent, old.use) == (agent, use)
                and old.current
                and old.key_id != record.key_id
                and self._keys.has_private(old.key_id)
            ):
                self.absorb_one(self._keys.operator.vouch(old.changed(retired_ms=until)))
        return record

    def _is_news(self, record: KeyRecord) -> bool:
        known = self._keys.record(record.key_id)
        if known is None or known.serial < record.serial:
            return True
        if known.revoked_ms is not None and not self._keys.is_revoked(record.key_id):
            return True
        current = self._keys.current(record.agent, record.use)
        if current is not None and current.revoked_ms is not None:
            return True
        # A process that died between the record and the pointer leaves the pointer to the next process.
        return self._is_to_be_used(known, current)

    def _is_to_be_used(self, record: KeyRecord, current: KeyRecord | None) -> bool:
        newest = current is None or not current.current or record.created_ms > current.created_ms
        return newest and record.current and self._keys.has_private(record.key_id)

    def absorb_one(self, record: KeyRecord) -> None:
        """Take in one record that is vouched for, where it is newer than what is here."""
        known = self._keys.record(record.key_id)
        if known is not None and known.serial >= record.serial:
            record = known
        else:
            write_whole(self._keys.file(record.key_id, "json"), record.to_json().encode())
        if record.revoked_ms is not None:
            self._keys.remember_revoked(record.key_id)
        current = self._keys.current(record.agent, record.use)
        if current is not None and current.revoked_ms is not None:
            self._keys.pointer(record.agent, record.use).unlink(missing_ok=True)
            current = None
        if current is not None and current.key_id == record.key_id:
            # Written again, so that signers that were made of it before are made again.
            self._keys.point(record)
            return
        if self._is_to_be_used(record, current):
            self._keys.point(record)

    def require_vouched(self, record: KeyRecord, operator: algorithms.PublicKey | None) -> None:
        """Return if ``operator`` vouches for a record.

        Raises:
            KeyringError: it does not.
        """
        if not isinstance(operator, Ed25519PublicKey) or not record.is_vouched_by(operator):
            raise KeyringError(
                f"key {record.key_id} of {record.agent!r} is not vouched for by the operator that is trusted in "
                f"{self._keys.folder}"
            )
