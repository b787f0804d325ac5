"""How keys come to another host: as a bundle of keys and records, or as a single key in PEM."""

from __future__ import annotations

from collections.abc import Iterable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from orchestrator.errors import KeyringError
from orchestrator.keyring import algorithms, bundle
from orchestrator.keyring.agent_record import opened
from orchestrator.keyring.files import locked, write_whole
from orchestrator.keyring.folder import KeyFolder, Records
from orchestrator.keyring.lifecycle import KeyLifecycle
from orchestrator.keyring.record import KeyRecord


class KeyTravel:
    """Exports what is in a key folder, and imports what comes from another."""

    def __init__(self, keys: KeyFolder, lifecycle: KeyLifecycle) -> None:
        self._keys = keys
        self._lifecycle = lifecycle

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
        records = [record for record in self._keys.list() if wanted is None or record.agent in wanted]
        missing = (wanted or set()) - {record.agent for record in records}
        if missing:
            raise KeyringError(f"no key of {', '.join(sorted(missing))} is in {self._keys.folder}")
        pem = self._keys.operator.pem
        if pem is None:
            raise KeyringError(
                f"{self._keys.folder} holds no keys yet; make one with `orchestra keys generate`"
            )
        return bundle.pack(
            operator_pem=pem,
            operator_key=self._keys.operator.private() if with_operator else None,
            entries=[
                (
                    record,
                    self._keys.private_key(record.key_id) if self._keys.has_private(record.key_id) else None,
                )
                for record in records
            ],
            agents=[
                sealed
                for agent in sorted({record.agent for record in records})
                if (sealed := self._keys.agent_record(agent)) is not None
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
        with locked(self._keys.folder):
            # Nothing is trusted, not even for the first time, before everything has been checked.
            operator = algorithms.load_public(unpacked.operator_pem)
            for record, _ in unpacked.entries:
                self._lifecycle.require_vouched(record, operator)
            records = {}
            for sealed in unpacked.agents:
                facts = opened(sealed, operator) if isinstance(operator, Ed25519PublicKey) else None
                if facts is None:
                    raise KeyringError(
                        "the record of an agent in the bundle is not vouched for by its operator"
                    )
                records[str(facts.get("name"))] = sealed
            self._keys.operator.pin(unpacked.operator_pem)
            for name, sealed in records.items():
                self._keys.keep_agent_record(name, sealed)
            if unpacked.operator_key is not None:
                self._keys.operator.adopt(unpacked.operator_key)
            for record, key in unpacked.entries:
                if key is not None:
                    write_whole(self._keys.file(record.key_id, "pem"), algorithms.private_pem(key))
                self._lifecycle.absorb_one(record)
        return [record for record, _ in unpacked.entries]

    def _import_pem(self, content: bytes, agent: str | None, passphrase: bytes | None) -> KeyRecord:
        if not agent:
            raise KeyringError("say whose key this is: `orchestra keys import FILE --agent NAME`")
        with locked(self._keys.folder):
            if b"PRIVATE KEY-----" in content:
                return self._lifecycle.add(agent, "sign", algorithms.load_private(content, passphrase))
            public = algorithms.load_public(content)
            record = self._keys.record(algorithms.key_id(public)) or self._keys.operator.vouch(
                self._lifecycle.new_record(agent, "sign", public)
            )
            self._lifecycle.absorb_one(record)
            return record
