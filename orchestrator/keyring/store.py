"""The private keys of one data folder, one signing and at most one encryption key for each agent.

Its parts are modules of their own: the files (`folder`), what changes keys (`lifecycle`), and how they come to another
host (`transfer`). Here is what they are for: signing.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TypeAlias

from orchestrator.envelope.signature import ED25519, Signer
from orchestrator.errors import KeyringError
from orchestrator.keyring import algorithms, transfer
from orchestrator.keyring.folder import KeyFolder, Stamp, stamp_of
from orchestrator.keyring.lifecycle import KeyLifecycle
from orchestrator.machine import Clock, SystemClock

_Stamps: TypeAlias = tuple[Stamp, Stamp | None]


class KeyStore(KeyFolder):
    """The key files of one data folder. Safe for use by many threads and processes at once.

    Args:
        folder: where the keys are; made on the first write.
        algorithm: of signing keys that are made from now on; keys that are there keep theirs.
    """

    def __init__(self, folder: Path, algorithm: str = ED25519, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        super().__init__(folder, self._clock)
        self._signers: dict[str, tuple[_Stamps, Signer]] = {}
        lifecycle = KeyLifecycle(self, algorithm, self._clock)
        self.create = lifecycle.create
        self.rotate = lifecycle.rotate
        self.revoke = lifecycle.revoke
        self.absorb = lifecycle.absorb
        self.export = partial(transfer.export, self)
        self.trust_bundle = partial(transfer.trust_bundle, self)
        self.import_ = partial(transfer.import_, self, lifecycle)

    def signer(self, agent: str) -> Signer:
        """Return the agent's current signer; its key is made on first use.

        Cheap enough to be asked for each message, which is how a process notices a rotation and a revocation.

        Raises:
            KeyringError: the key has to be made, or was rotated out, and this is not the operator's host.
        """
        stamps = self._stamps(agent)
        known = self._signers.get(agent)
        if known is not None and known[0] == stamps:
            signer = known[1]
        else:
            signer = self._load_signer(agent)
            # The stamps from before the files were read: a rotation in between is noticed next time.
            if stamps is not None:
                self._signers[agent] = stamps, signer
        if signer.retired_ms is not None and self._clock.now_ms() > signer.retired_ms:
            raise KeyringError(
                f"key {signer.key_id} of {agent!r} was rotated out on the operator's host; export the new one there "
                "(`orchestra keys export`) and import it here (`orchestra keys import`)"
            )
        return signer

    def _stamps(self, agent: str) -> _Stamps | None:
        pointer = stamp_of(os.fspath(self.pointer(agent, "sign")))
        return None if pointer is None else (pointer, self.revocations_stamp)

    def _load_signer(self, agent: str) -> Signer:
        certificate = self.current(agent) or self.create(agent)
        key = self.private_key(certificate.key_id)
        return Signer(
            agent,
            certificate.key_id,
            certificate.algorithm,
            certificate.created_ms,
            certificate.retired_ms,
            algorithms.signing(key),
        )
