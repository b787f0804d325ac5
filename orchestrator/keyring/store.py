"""The private keys of one data folder, one signing and at most one encryption key for each agent.

    <folder>/operator.pub.pem      the operator that is trusted here
    <folder>/operator.pem          its private half, on the operator's host only
    <folder>/<key id>.pem          a private key (PKCS #8)
    <folder>/<key id>.json         its record, vouched for
    <folder>/current/<hash>.<use>  the id of the key that the agent of that name uses now
    <folder>/revoked/<key id>      a revocation once seen, never forgotten

Every file is 0600 in a 0700 folder and is replaced in one step; what changes more than one file
happens under a lock that processes and threads share.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from orchestrator.clock import Clock, SystemClock
from orchestrator.envelope.signature import RSA_SHA256
from orchestrator.errors import KeyringError
from orchestrator.keyring import algorithms, bundle
from orchestrator.keyring.algorithms import RSA_OAEP, PrivateKey
from orchestrator.keyring.files import locked, make_private, read_if_there, write_whole
from orchestrator.keyring.operator import Operator
from orchestrator.keyring.record import KeyRecord, Use
from orchestrator.keyring.trusted import TrustedKey

#: Seconds that a rotated key may go on signing, so that no process is caught between two keys.
ROTATION_OVERLAP_S = 60

Records: TypeAlias = list[KeyRecord]

#: White space that XML would not give back as it was.
_BLANKS = re.compile(r"^[ \t\r\n]|[\t\r\n]|  |[ \t\r\n]$")
_KEY_ID = re.compile(r"key_[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class FileSigner:
    """Signs for one agent with a key from a file."""

    agent: str
    key_id: str
    algorithm: str
    #: What it signs after this does not count; None while its key is current.
    retired_ms: int | None
    _key: PrivateKey = field(repr=False)

    def sign(self, octets: bytes) -> bytes:
        """The raw signature of ``octets``."""
        return algorithms.sign(self._key, octets)


class KeyStore:
    """The key files of one data folder. Safe for use by many threads and processes at once.

    Args:
        folder: where the keys are; made on the first write.
        algorithm: of signing keys that are made from now on; keys that are there keep theirs.
    """

    def __init__(self, folder: Path, algorithm: str = RSA_SHA256, *, clock: Clock | None = None) -> None:
        self.folder = folder
        self.operator = Operator(folder)
        self._algorithm = algorithm
        self._clock = clock or SystemClock()
        self._signers: dict[str, tuple[tuple[int, int], FileSigner]] = {}

    # --- use -------------------------------------------------------------------------------

    def signer(self, agent: str) -> FileSigner:
        """The agent's current signer; its key is made on first use.

        Cheap enough to be asked for each message, which is how a process notices a rotation.

        Raises:
            KeyringError: the key has to be made, or was rotated out, and this is not the operator's host.
        """
        stamp = _stamp(self._pointer(agent, "sign"))
        known = self._signers.get(agent)
        if known is not None and known[0] == stamp:
            signer = known[1]
        else:
            signer = self._load_signer(agent)
            # The stamp from before the pointer was read: a rotation in between is noticed next time.
            if stamp is not None:
                self._signers[agent] = stamp, signer
        if signer.retired_ms is not None and self._clock.now_ms() > signer.retired_ms:
            raise KeyringError(
                f"key {signer.key_id} of {agent!r} was rotated out on the operator's host; export the new one there "
                "(`orchestra keys export`) and import it here (`orchestra keys import`)"
            )
        return signer

    def _load_signer(self, agent: str) -> FileSigner:
        record = self.current(agent) or self.create(agent)
        key = self.private_key(record.key_id)
        return FileSigner(agent, record.key_id, record.algorithm, record.retired_ms, key)

    def private_key(self, key_id: str) -> PrivateKey:
        """The private key of that id.

        Raises:
            KeyringError: it is not in this folder.
        """
        content = read_if_there(self._file(key_id, "pem"))
        if content is None:
            raise KeyringError(
                f"the private key {key_id} is not in {self.folder}; export it where it is and import it here"
            )
        return algorithms.load_private(content)

    def record(self, key_id: str) -> KeyRecord | None:
        """What this folder knows of a key."""
        content = read_if_there(self._file(key_id, "json"))
        return None if content is None else KeyRecord.from_json(content)

    def current(self, agent: str, use: Use = "sign") -> KeyRecord | None:
        """The record of the key that the agent uses now, if this folder has one."""
        content = read_if_there(self._pointer(agent, use))
        return None if content is None else self.record(content.decode())

    def lookup(self, key_id: str) -> TrustedKey | None:
        """The signing key of that id, as far as this folder knows and its operator vouches for it; needs no server."""
        if not _KEY_ID.fullmatch(key_id):
            return None
        record, operator = self.record(key_id), self.operator.public()
        if record is None or record.use != "sign" or operator is None or not record.is_vouched_by(operator):
            return None
        return TrustedKey.of(record)

    def list(self) -> Records:
        """Every record, by agent and age."""
        found = [self.record(path.stem) for path in self.folder.glob("key_*.json")]
        return sorted(
            (record for record in found if record is not None),
            key=lambda record: (record.agent, record.use, record.created_ms, record.key_id),
        )

    def can_sign(self, agent: str) -> bool:
        """Whether messages of the agent can be signed here: its key is here, or may be made here.

        A folder that trusts nobody yet may turn out to be a second host's when it meets its Redis.
        """
        return (
            self.operator.pem is None
            or self.operator.private() is not None
            or self.current(agent) is not None
        )

    def has_private(self, key_id: str) -> bool:
        """Whether the private half is here."""
        return self._file(key_id, "pem").exists()

    # --- change ----------------------------------------------------------------------------

    def create(self, agent: str, use: Use = "sign") -> KeyRecord:
        """The agent's current key for ``use``, made now unless it is there.

        Raises:
            KeyringError: it has to be made and this is not the operator's host.
        """
        with locked(self.folder):
            return self.current(agent, use) or self._add(agent, use, self._generate(use))

    def rotate(self, agent: str, *, use: Use = "sign", overlap_s: float = ROTATION_OVERLAP_S) -> KeyRecord:
        """Give the agent a new key; the old one still verifies what it signs for ``overlap_s`` seconds more.

        Raises:
            KeyringError: this is not the operator's host.
        """
        with locked(self.folder):
            return self._add(agent, use, self._generate(use), overlap_s=overlap_s)

    def revoke(self, key_id: str) -> KeyRecord:
        """Mark a key as one that never counts again. The agent gets a new one when it next needs it.

        Raises:
            KeyringError: no such key here, or this is not the operator's host.
        """
        with locked(self.folder):
            record = self.record(key_id)
            if record is None:
                raise KeyringError(
                    f"no key {key_id!r} is in {self.folder}; `orchestra keys list` shows what is"
                )
            if record.revoked_ms is None:
                record = self.operator.vouch(record.changed(revoked_ms=self._clock.now_ms()))
                self._absorb(record)
            return record

    def absorb(self, records: Iterable[KeyRecord]) -> None:
        """Take in records that the trusted operator vouches for, where they are newer than what is here."""
        # Mostly none is, and then there is nothing to lock: every process comes by here when it starts.
        news = [record for record in records if self._is_news(record)]
        if not news:
            return
        with locked(self.folder):
            operator = self.operator.public()
            for record in news:
                self._require_vouched(record, operator)
                self._absorb(record)

    def remember_revoked(self, key_id: str) -> None:
        """Never forget that a key was revoked, even if Redis is made to."""
        # A folder that cannot be written must not turn a refusal into an acceptance or a crash.
        with suppress(OSError):
            make_private(self.folder / "revoked")
            write_whole(self.folder / "revoked" / key_id, b"")

    def is_revoked(self, key_id: str) -> bool:
        """Whether this folder has ever seen that key revoked."""
        return (self.folder / "revoked" / key_id).exists()

    # --- travel ----------------------------------------------------------------------------

    def export(
        self,
        agents: Iterable[str] | None = None,
        *,
        passphrase: bytes | None = None,
        with_operator: bool = False,
    ) -> bytes:
        """A bundle for another host: private keys and records of agents, and whom to trust.

        Args:
            agents: whose keys; None for all.
            passphrase: encrypts the private keys in it.
            with_operator: put the operator's private key in as well, so that the other host can make keys.

        Raises:
            KeyringError: an agent has no key here.
        """
        wanted = None if agents is None else set(agents)
        records = [record for record in self.list() if wanted is None or record.agent in wanted]
        missing = (wanted or set()) - {record.agent for record in records}
        if missing:
            raise KeyringError(f"no key of {', '.join(sorted(missing))} is in {self.folder}")
        pem = self.operator.pem
        if pem is None:
            raise KeyringError(f"{self.folder} holds no keys yet; make one with `orchestra keys generate`")
        return bundle.pack(
            operator_pem=pem,
            operator_key=self.operator.private() if with_operator else None,
            entries=[
                (record, self.private_key(record.key_id) if self.has_private(record.key_id) else None)
                for record in records
            ],
            passphrase=passphrase,
        )

    def import_(
        self, content: bytes, *, agent: str | None = None, passphrase: bytes | None = None
    ) -> Records:
        """Take in a bundle, or a PEM key of ``agent`` (private: it signs from now on; public: it only verifies).

        A bundle pins the operator if nobody is trusted here yet.

        Raises:
            KeyringError: it cannot be read, another operator is trusted here, or a record is not vouched for.
        """
        if content.lstrip().startswith(b"-----BEGIN"):
            return [self._import_pem(content, agent, passphrase)]
        unpacked = bundle.unpack(content, passphrase)
        with locked(self.folder):
            # Nothing is trusted, not even for the first time, before everything has been checked.
            operator = algorithms.load_public(unpacked.operator_pem)
            for record, _ in unpacked.entries:
                self._require_vouched(record, operator)
            self.operator.pin(unpacked.operator_pem)
            if unpacked.operator_key is not None:
                self.operator.adopt(unpacked.operator_key)
            for record, key in unpacked.entries:
                if key is not None:
                    write_whole(self._file(record.key_id, "pem"), algorithms.private_pem(key))
                self._absorb(record)
        return [record for record, _ in unpacked.entries]

    def _import_pem(self, content: bytes, agent: str | None, passphrase: bytes | None) -> KeyRecord:
        if not agent:
            raise KeyringError("say whose key this is: `orchestra keys import FILE --agent NAME`")
        with locked(self.folder):
            if b"PRIVATE KEY-----" in content:
                return self._add(agent, "sign", algorithms.load_private(content, passphrase))
            public = algorithms.load_public(content)
            record = self.record(algorithms.key_id(public)) or self.operator.vouch(
                self._new_record(agent, "sign", public)
            )
            self._absorb(record)
            return record

    # --- inside the lock -------------------------------------------------------------------

    def _generate(self, use: Use) -> PrivateKey:
        self.operator.create()
        return algorithms.generate(self._algorithm if use == "sign" else RSA_OAEP)

    def _new_record(self, agent: str, use: Use, public: algorithms.PublicKey) -> KeyRecord:
        if _BLANKS.search(agent) or not agent.strip():
            raise KeyringError(
                f"{agent!r} is no agent's name: it is blank, or has blanks that XML does not keep"
            )
        return KeyRecord(
            key_id=algorithms.key_id(public),
            agent=agent,
            use=use,
            algorithm=RSA_OAEP if use == "encrypt" else algorithms.signing_algorithm(public),
            public_pem=algorithms.public_pem(public),
            created_ms=self._clock.now_ms(),
        )

    def _add(
        self, agent: str, use: Use, key: PrivateKey, *, overlap_s: float = ROTATION_OVERLAP_S
    ) -> KeyRecord:
        """Make ``key`` the agent's current one. A crash in between leaves the old one current."""
        record = self.operator.vouch(self._new_record(agent, use, key.public_key()))
        known = self.record(record.key_id)
        if known is not None:
            if known.agent != agent:
                raise KeyringError(
                    f"key {known.key_id} is {known.agent!r}'s already; give each agent its own"
                )
            record = known
        old = self.current(agent, use)
        write_whole(self._file(record.key_id, "pem"), algorithms.private_pem(key))
        write_whole(self._file(record.key_id, "json"), record.to_json().encode())
        if record.current:
            self._point(record)
        if old is not None and old.current and old.key_id != record.key_id:
            until = self._clock.now_ms() + round(overlap_s * 1000)
            self._absorb(self.operator.vouch(old.changed(retired_ms=until)))
        return record

    def _is_news(self, record: KeyRecord) -> bool:
        known = self.record(record.key_id)
        if known is None or known.serial < record.serial:
            return True
        if known.revoked_ms is not None and not self.is_revoked(record.key_id):
            return True
        current = self.current(record.agent, record.use)
        if current is not None and current.revoked_ms is not None:
            return True
        # A process that died between the record and the pointer left that to whoever comes next.
        return self._is_to_be_used(known, current)

    def _is_to_be_used(self, record: KeyRecord, current: KeyRecord | None) -> bool:
        newest = current is None or not current.current or record.created_ms > current.created_ms
        return newest and record.current and self.has_private(record.key_id)

    def _absorb(self, record: KeyRecord) -> None:
        known = self.record(record.key_id)
        if known is not None and known.serial >= record.serial:
            record = known
        else:
            write_whole(self._file(record.key_id, "json"), record.to_json().encode())
        if record.revoked_ms is not None:
            self.remember_revoked(record.key_id)
        current = self.current(record.agent, record.use)
        if current is not None and current.revoked_ms is not None:
            self._pointer(record.agent, record.use).unlink(missing_ok=True)
            current = None
        if current is not None and current.key_id == record.key_id:
            # Written again, so that signers that were made of it before are made anew.
            self._point(record)
            return
        if self._is_to_be_used(record, current):
            self._point(record)

    def _point(self, record: KeyRecord) -> None:
        make_private(self.folder / "current")
        write_whole(self._pointer(record.agent, record.use), record.key_id.encode())

    def _require_vouched(self, record: KeyRecord, operator: algorithms.PublicKey | None) -> None:
        if not isinstance(operator, Ed25519PublicKey) or not record.is_vouched_by(operator):
            raise KeyringError(
                f"key {record.key_id} of {record.agent!r} is not vouched for by the operator that is trusted in "
                f"{self.folder}"
            )

    def _pointer(self, agent: str, use: Use) -> Path:
        return self.folder / "current" / f"{_file_name(agent)}.{use}"

    def _file(self, key_id: str, ending: str) -> Path:
        if not _KEY_ID.fullmatch(key_id):
            raise KeyringError(f"{key_id!r} is no key id; `orchestra keys list` shows them")
        return self.folder / f"{key_id}.{ending}"


@lru_cache(maxsize=1024)
def _file_name(agent: str) -> str:
    # A hash, because a name may hold any character and some file systems fold case.
    return hashlib.sha256(agent.encode()).hexdigest()[:32]


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns
