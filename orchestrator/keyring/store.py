"""The private keys of one data folder, one signing and at most one encryption key for each agent.

Its parts are modules of their own: the files (`folder`), what changes keys (`lifecycle`), and what brings them to
another host (`travel`). Here is what they are for: signing.
"""

from __future__ import annotations

from pathlib import Path

from orchestrator.envelope.signature import ED25519, Signer
from orchestrator.errors import KeyringError
from orchestrator.keyring import algorithms
from orchestrator.keyring.folder import KeyFolder
from orchestrator.keyring.lifecycle import KeyLifecycle
from orchestrator.keyring.travel import KeyTravel
from orchestrator.machine import Clock, SystemClock


class KeyStore(KeyFolder):
    """The key files of one data folder. Safe for use by many threads and processes at once.

    Args:
        folder: where the keys are; made on the first write.
        algorithm: of signing keys that are made from now on; keys that are there keep theirs.
    """

    def __init__(self, folder: Path, algorithm: str = ED25519, *, clock: Clock | None = None) -> None:
        super().__init__(folder)
        self._clock = clock or SystemClock()
        self._signers: dict[str, tuple[tuple[int, int], Signer]] = {}
        lifecycle = KeyLifecycle(self, algorithm, self._clock)
        self.create = lifecycle.create
        self.rotate = lifecycle.rotate
        self.revoke = lifecycle.revoke
        self.absorb = lifecycle.absorb
        travel = KeyTravel(self, lifecycle)
        self.export = travel.export
        self.import_ = travel.import_

    def signer(self, agent: str) -> Signer:
        """The agent's current signer; its key is made on first use.

        Cheap enough to be asked for each message, which is how a process notices a rotation.

        Raises:
            KeyringError: the key has to be made, or was rotated out, and this is not the operator's host.
        """
        stamp = _stamp(self.pointer(agent, "sign"))
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

    def _load_signer(self, agent: str) -> Signer:
        record = self.current(agent) or self.create(agent)
        key = self.private_key(record.key_id)
        return Signer(
            agent,
            record.key_id,
            record.algorithm,
            record.created_ms,
            record.retired_ms,
            algorithms.signing(key),
        )


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns
