"""The private keys of one data folder, one signing and at most one encryption key for each agent.

Its layers are modules of their own: the files (`folder`), and what changes keys (`lifecycle`). Here is what they
are for: signing, and bringing them to another host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from orchestrator.clock import Clock
from orchestrator.envelope.signature import ED25519
from orchestrator.errors import KeyringError
from orchestrator.keyring import algorithms, bundle
from orchestrator.keyring.agent_record import opened
from orchestrator.keyring.files import locked, write_whole
from orchestrator.keyring.folder import Records
from orchestrator.keyring.lifecycle import KeyLifecycle
from orchestrator.keyring.record import KeyRecord


@dataclass(frozen=True, slots=True)
class FileSigner:
    """Signs for one agent with a key from a file."""

    agent: str
    key_id: str
    algorithm: str
    #: What it signs after this does not count; None while its key is current.
    retired_ms: int | None
    _sign: Callable[[bytes], bytes] = field(repr=False)

    def sign(self, octets: bytes) -> bytes:
        """The raw signature of ``octets``."""
        return self._sign(octets)


class KeyStore(KeyLifecycle):
    """The key files of one data folder. Safe for use by many threads and processes at once.

    Args:
        folder: where the keys are; made on the first write.
        algorithm: of signing keys that are made from now on; keys that are there keep theirs.
    """

    def __init__(self, folder: Path, algorithm: str = ED25519, *, clock: Clock | None = None) -> None:
        super().__init__(folder, algorithm, clock=clock)
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
        return FileSigner(agent, record.key_id, record.algorithm, record.retired_ms, algorithms.signing(key))

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
            agents=[
                sealed
                for agent in sorted({record.agent for record in records})
                if (sealed := self.agent_record(agent)) is not None
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
            records = {}
            for sealed in unpacked.agents:
                facts = opened(sealed, operator) if isinstance(operator, Ed25519PublicKey) else None
                if facts is None:
                    raise KeyringError(
                        "the record of an agent in the bundle is not vouched for by its operator"
                    )
                records[str(facts.get("name"))] = sealed
            self.operator.pin(unpacked.operator_pem)
            for name, sealed in records.items():
                self.keep_agent_record(name, sealed)
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


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns
