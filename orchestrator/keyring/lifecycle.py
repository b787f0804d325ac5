"""The life of keys in one data folder: made, rotated, revoked, and taken in from elsewhere.

What changes more than one file happens under a lock that processes and threads share.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Mapping
from typing import Final

from orchestrator.errors import KeyringError
from orchestrator.keyring import algorithms
from orchestrator.keyring.algorithms import RSA_OAEP, PrivateKey, PublicKey
from orchestrator.keyring.certificates import (
    KeyCertificate,
    Revocation,
    Revocations,
    Use,
    issue,
    up_to_second,
)
from orchestrator.keyring.files import locked, write_whole
from orchestrator.keyring.folder import KeyFolder
from orchestrator.keyring.operator import verified_agent
from orchestrator.log import get_logger
from orchestrator.machine import Clock

_log = get_logger()

#: Seconds that a rotated key may go on signing, so that no process is caught between two keys.
ROTATION_OVERLAP_S: Final = 60

#: White space that XML would not give back as it was.
_BLANKS: Final = re.compile(r"^[ \t\r\n]|[\t\r\n]|  |[ \t\r\n]$")


class KeyLifecycle:
    """Changes of keys: makes them, and makes one the current key of its agent or ends that."""

    def __init__(self, keys: KeyFolder, algorithm: str, clock: Clock) -> None:
        self._keys = keys
        self._algorithm = algorithm
        self._clock = clock

    def create(self, agent: str, use: Use = "sign") -> KeyCertificate:
        """Return the certificate of the agent's current key for ``use``, made now unless it is there.

        Raises:
            KeyringError: it has to be made and this is not the operator's host.
        """
        certificate = self._keys.current(agent, use)
        if certificate is not None:
            return certificate
        if self._keys.operator.pem is not None:
            # Refuses where this is not the operator's host; the folder may be one that cannot be written to.
            self._keys.operator.create()
        with locked(self._keys.folder):
            return self._keys.current(agent, use) or self.add(agent, use, self._generate(use))

    def rotate(
        self, agent: str, *, use: Use = "sign", overlap_s: float = ROTATION_OVERLAP_S
    ) -> KeyCertificate:
        """Give the agent a new key; the old one still verifies what it signs for ``overlap_s`` seconds more.

        Raises:
            KeyringError: this is not the operator's host.
        """
        with locked(self._keys.folder):
            return self.add(agent, use, self._generate(use), overlap_s=overlap_s)

    def revoke(self, key_id: str) -> KeyCertificate:
        """Revoke a key for good. The agent gets a new one when it next needs it.

        Raises:
            KeyringError: no such key here, or this is not the operator's host.
        """
        with locked(self._keys.folder):
            certificate = self._keys.certificate(key_id)
            if certificate is None:
                raise KeyringError(
                    f"no key {key_id!r} is in {self._keys.folder}; `orchestra keys list` shows what is"
                )
            if certificate.revoked_ms is not None:
                return certificate
            entry = Revocation(compromised=True, at_ms=up_to_second(self._clock.now_ms()))
            return certificate.under(self._put_on_list({key_id: entry}))

    def absorb(
        self, certificates: Iterable[KeyCertificate] = (), revocations: Revocations | None = None
    ) -> None:
        """Take in what is new here of certificates and revocations of the trusted operator."""
        # Mostly nothing is, and then there is nothing to lock: every process comes by here when it starts.
        news = [each for each in certificates if self._is_news(each)]
        if revocations is not None and revocations.pem == self._keys.revocations().pem:
            revocations = None
        if not news and revocations is None:
            return
        try:
            with locked(self._keys.folder):
                if revocations is not None:
                    self.take_in(revocations)
                for each in news:
                    self.absorb_one(each)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
            # A part whose keys are mounted read-only gets news of them from whoever brought them.
            names = sorted({each.agent for each in news})
            _log.warning("keys-not-updated", agents=names, error=str(error))

    # --- inside the lock -------------------------------------------------------------------

    def _generate(self, use: Use) -> PrivateKey:
        self._keys.operator.create()
        return algorithms.generate(self._algorithm if use == "sign" else RSA_OAEP)

    def certify(self, agent: str, use: Use, public: PublicKey) -> KeyCertificate:
        """Return the certificate of a key, issued now unless it has one.

        Raises:
            KeyringError: the text is no agent's name, the key is another agent's, or this is not the operator's host.
        """
        if _BLANKS.search(agent) or not agent.strip():
            raise KeyringError(
                f"{agent!r} is not a valid agent name: it is blank, or has spaces that XML does not keep"
            )
        known = self._keys.certificate(algorithms.key_id(public))
        if known is not None and known.agent != agent:
            raise KeyringError(f"key {known.key_id} is {known.agent!r}'s already; give each agent its own")
        if known is not None:
            return known
        authority, secret = self._keys.operator.create()
        signed = self._keys.agent_record(agent)
        record = None if signed is None else verified_agent(signed, authority)
        role = "" if record is None else str(record.get("role", ""))
        now_ms = self._clock.now_ms()
        return issue(authority, secret, agent=agent, role=role, use=use, public=public, now_ms=now_ms)

    def add(
        self, agent: str, use: Use, key: PrivateKey, *, overlap_s: float = ROTATION_OVERLAP_S
    ) -> KeyCertificate:
        """Make ``key`` the agent's current one. A crash in between leaves the old one current, or both."""
        new = self.certify(agent, use, key.public_key())
        rotated = self._keys.current(agent, use) is not None
        write_whole(self._keys.file(new.key_id, "pem"), algorithms.private_pem(key))
        write_whole(self._keys.file(new.key_id, "crt"), new.pem.encode())
        if new.current:
            self._keys.point(new)
        until = up_to_second(self._clock.now_ms() + round(overlap_s * 1000))
        retired = {
            old.key_id: Revocation(compromised=False, at_ms=until)
            for old in (self._keys.list() if rotated else ())
            if (old.agent, old.use) == (agent, use)
            and old.current
            and old.key_id != new.key_id
            and self._keys.has_private(old.key_id)
        }
        if retired:
            self._put_on_list(retired)
        return new

    def take_in(self, found: Revocations) -> None:
        """Keep a list of revocations of this operator, unless one with a higher number is here.

        Where two hosts have the operator's key, each may have revoked what the other does not know of: the next list has both.
        """
        known = self._keys.revocations()
        if found.number > known.number and found.covers(known):
            self._keys.keep_revocations(found)
        elif not known.covers(found) and self._keys.operator.private() is not None:
            self._put_on_list(found.entries, after=found.number)

    def _put_on_list(self, entries: Mapping[str, Revocation], *, after: int = 0) -> Revocations:
        following = self._keys.revocations().following(entries, after=after)
        return self._keys.keep_revocations(self._keys.operator.issue_list(following))

    def _is_news(self, certificate: KeyCertificate) -> bool:
        known = self._keys.certificate(certificate.key_id)
        # A process that died between the certificate and the pointer leaves the pointer to the next process.
        return known is None or self._is_to_be_used(known)

    def _is_to_be_used(self, certificate: KeyCertificate) -> bool:
        current = self._keys.current(certificate.agent, certificate.use)
        newest = (
            current is None
            or not current.current
            or (certificate.key_id != current.key_id and certificate.created_ms > current.created_ms)
        )
        return newest and certificate.current and self._keys.has_private(certificate.key_id)

    def absorb_one(self, certificate: KeyCertificate) -> None:
        """Take in one certificate; it is of the operator that is trusted here."""
        known = self._keys.certificate(certificate.key_id)
        if known is None:
            write_whole(self._keys.file(certificate.key_id, "crt"), certificate.pem.encode())
            known = certificate.under(self._keys.revocations())
        if self._is_to_be_used(known):
            self._keys.point(known)
