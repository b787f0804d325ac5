"""The files of one data folder's keys: where each is, and what it says.

    <folder>/operator.pub.pem      the operator that is trusted here
    <folder>/operator.pem          its private half, on the operator's host only
    <folder>/<key id>.pem          a private key (PKCS #8)
    <folder>/<key id>.json         its record, vouched for
    <folder>/current/<hash>.<use>  the id of the key that the agent of that name uses now
    <folder>/revoked/<key id>      a revocation once seen, never forgotten

Every file is 0600 in a 0700 folder and is replaced in one step.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from orchestrator.errors import KeyringError
from orchestrator.keyring import algorithms
from orchestrator.keyring.algorithms import PrivateKey
from orchestrator.keyring.files import make_private, read_if_there, write_whole
from orchestrator.keyring.operator import Operator
from orchestrator.keyring.record import KeyRecord, TrustedKey, Use

Records: TypeAlias = list[KeyRecord]

#: What becomes of a file of a key that is damaged.
_REPAIR = "bring the file back from a backup, or move it away and make or import the key anew"

_KEY_ID = re.compile(r"key_[0-9a-f]{32}")


class KeyFolder:
    """What is in the folder. It makes no key; whatever it changes, it changes one file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.operator = Operator(folder)
        # Asked for with each signature, and pathlib takes its time.
        self._pointers: dict[tuple[str, Use], Path] = {}

    def private_key(self, key_id: str) -> PrivateKey:
        """The private key of that id.

        Raises:
            KeyringError: it is not in this folder, or damaged.
        """
        file = self.file(key_id, "pem")
        content = read_if_there(file)
        if content is None:
            raise KeyringError(
                f"the private key {key_id} is not in {self.folder}; export it where it is and import it here"
            )
        try:
            return algorithms.load_private(content)
        except KeyringError as error:
            raise KeyringError(f"{file}: {error}; {_REPAIR}") from error

    def record(self, key_id: str) -> KeyRecord | None:
        """What this folder knows of a key.

        Raises:
            KeyringError: what it knows cannot be read.
        """
        file = self.file(key_id, "json")
        content = read_if_there(file)
        if content is None:
            return None
        try:
            return KeyRecord.from_json(content)
        except KeyringError as error:
            raise KeyringError(f"{file}: {error}; {_REPAIR}") from error

    def current(self, agent: str, use: Use = "sign") -> KeyRecord | None:
        """The record of the key that the agent uses now, if this folder has one."""
        content = read_if_there(self.pointer(agent, use))
        return None if content is None else self.record(content.decode())

    def lookup(self, key_id: str) -> TrustedKey | None:
        """The signing key of that id, as far as this folder knows and its operator vouches for it; needs no server."""
        if not _KEY_ID.fullmatch(key_id):
            return None
        record, operator = self.record(key_id), self.operator.public()
        if record is None or record.use != "sign" or operator is None or not record.is_vouched_by(operator):
            return None
        return TrustedKey(record)

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

    def require(self, *agents: str, otherwise: str = "") -> None:
        """Return if messages of all these agents can be signed here; ``otherwise`` is what else would help.

        Raises:
            KeyringError: keys of some of them are on another host.
        """
        missing = sorted(name for name in agents if not self.can_sign(name))
        if missing:
            names, keys = " ".join(missing), "keys" if len(missing) > 1 else "key"
            raise KeyringError(
                f"the {keys} of {', '.join(missing)} {'are' if len(missing) > 1 else 'is'} not in {self.folder}: "
                f"on the host that has operator.pem, `orchestra keys generate {names}` and "
                f"`orchestra keys export {names}`; here, `orchestra keys import`{otherwise}"
            )

    def has_private(self, key_id: str) -> bool:
        """Whether the private half is here."""
        return self.file(key_id, "pem").exists()

    def remember_revoked(self, key_id: str) -> None:
        """Never forget that a key was revoked, even if Redis is made to."""
        # A folder that cannot be written must not turn a refusal into an acceptance or a crash.
        with suppress(OSError):
            make_private(self.folder / "revoked")
            write_whole(self.folder / "revoked" / key_id, b"")

    def is_revoked(self, key_id: str) -> bool:
        """Whether this folder has ever seen that key revoked."""
        return (self.folder / "revoked" / key_id).exists()

    def agent_record(self, agent: str) -> bytes | None:
        """What the operator vouched for about an agent, as far as it was done or brought here."""
        return read_if_there(self._agent_file(agent))

    def keep_agent_record(self, agent: str, sealed: bytes) -> None:
        """Keep what the operator vouched for about an agent."""
        file = self._agent_file(agent)
        make_private(file.parent)
        write_whole(file, sealed)

    # --- files -----------------------------------------------------------------------------

    def point(self, record: KeyRecord) -> None:
        """Make a key the current one of its agent."""
        make_private(self.folder / "current")
        write_whole(self.pointer(record.agent, record.use), record.key_id.encode())

    def pointer(self, agent: str, use: Use) -> Path:
        """The file that names the current key of an agent."""
        found = self._pointers.get((agent, use))
        if found is None:
            found = self._pointers[agent, use] = self.folder / "current" / f"{_file_name(agent)}.{use}"
        return found

    def _agent_file(self, agent: str) -> Path:
        return self.folder / "agents" / f"{_file_name(agent)}.json"

    def file(self, key_id: str, ending: str) -> Path:
        """The file of a key: `pem` is the private half, `json` its record.

        Raises:
            KeyringError: the text is no key id.
        """
        if not _KEY_ID.fullmatch(key_id):
            raise KeyringError(f"{key_id!r} is not a key id; `orchestra keys list` shows them")
        return self.folder / f"{key_id}.{ending}"


@lru_cache(maxsize=1024)
def _file_name(agent: str) -> str:
    # A hash, because a name may hold any character and some file systems fold case.
    return hashlib.sha256(agent.encode()).hexdigest()[:32]
