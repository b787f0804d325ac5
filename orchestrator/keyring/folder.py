"""The files of one data folder's keys: where each is, and what it says.

    <folder>/operator.crt          the operator that is trusted here (certificate)
    <folder>/operator.pem          its private key, on the operator's host only
    <folder>/operator.crl          the newest list of revocations that was seen here
    <folder>/<key id>.pem          a private key (PKCS #8)
    <folder>/<key id>.crt          its certificate, issued by the operator
    <folder>/current/<hash>.<use>  the id of the key that the agent of that name uses now
    <folder>/agents/<hash>.jws     the record of the agent of that name, signed by the operator

Every file is 0600 in a 0700 folder and is replaced in one step.
"""

from __future__ import annotations

import hashlib
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from orchestrator.errors import KeyringError
from orchestrator.keyring import algorithms
from orchestrator.keyring.algorithms import PrivateKey
from orchestrator.keyring.certificates import KeyCertificate, Revocations, Use
from orchestrator.keyring.files import make_private, read_if_there, write_whole
from orchestrator.keyring.operator import Operator
from orchestrator.machine import Clock

Certificates: TypeAlias = list[KeyCertificate]
#: What of a file changes when it is replaced.
Stamp: TypeAlias = tuple[int, int]

#: What becomes of a file of a key that is damaged.
_REPAIR = "bring the file back from a backup, or move it away and make or import the key anew"

_KEY_ID = re.compile(r"key_[0-9a-f]{32}")


class KeyFolder:
    """The contents of the folder. It makes no key; whatever it changes, it changes one file."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder = folder
        self.operator = Operator(folder, clock)
        self._list = folder / "operator.crl"
        self._known: tuple[Stamp | None, Revocations] = None, Revocations()
        # Asked for with each signature, and pathlib takes its time.
        self._pointers: dict[tuple[str, Use], Path] = {}

    def private_key(self, key_id: str) -> PrivateKey:
        """Return the private key of that id.

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

    def certificate(self, key_id: str) -> KeyCertificate | None:
        """Return the certificate of a key, as the revocations that were seen here leave it.

        Raises:
            KeyringError: it cannot be read, or another operator has issued it.
        """
        file = self.file(key_id, "crt")
        content, authority = read_if_there(file), self.operator.authority()
        if content is None or authority is None:
            return None
        try:
            return authority.certificate_of(content.decode()).under(self.revocations())
        except (KeyringError, UnicodeDecodeError) as error:
            raise KeyringError(f"{file}: {error}; {_REPAIR}") from error

    def current(self, agent: str, use: Use = "sign") -> KeyCertificate | None:
        """Return the certificate of the key that the agent uses now, if this folder has one that was not revoked."""
        content = read_if_there(self.pointer(agent, use))
        certificate = None if content is None else self.certificate(content.decode())
        return None if certificate is None or certificate.revoked_ms is not None else certificate

    def lookup(self, key_id: str) -> KeyCertificate | None:
        """Return the signing key of that id, as far as this folder knows it; needs no server."""
        if not is_key_id(key_id):
            return None
        certificate = self.certificate(key_id)
        return certificate if certificate is not None and certificate.use == "sign" else None

    def list(self) -> Certificates:
        """Return every certificate, by agent and age."""
        certificates = [self.certificate(path.stem) for path in self.folder.glob("key_*.crt")]
        return sorted((each for each in certificates if each is not None), key=by_agent_and_age)

    def can_sign(self, agent: str) -> bool:
        """Return True if messages of the agent can be signed here: its key is here, or may be made here.

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
        """Return True if the private half is here."""
        return self.file(key_id, "pem").exists()

    def agent_record(self, agent: str) -> bytes | None:
        """Return the record of an agent that the operator has signed, as far as it was done or imported here."""
        return read_if_there(self._agent_file(agent))

    def keep_agent_record(self, agent: str, signed: bytes) -> None:
        """Keep the record of an agent that the operator has signed."""
        file = self._agent_file(agent)
        make_private(file.parent)
        write_whole(file, signed)

    # --- revocations -----------------------------------------------------------------------

    @property
    def revocations_stamp(self) -> Stamp | None:
        """The stamp of the list of revocations, which changes with it."""
        return stamp_of(os.fspath(self._list))

    def revocations(self) -> Revocations:
        """Return the newest list of revocations that was seen here.

        Raises:
            KeyringError: it was damaged.
        """
        stamp = self.revocations_stamp
        if stamp is None:
            return Revocations()
        if stamp != self._known[0]:
            content, authority = read_if_there(self._list), self.operator.authority()
            if content is None or authority is None:
                return Revocations()
            try:
                self._known = stamp, authority.revocations(content.decode())
            except (KeyringError, UnicodeDecodeError) as error:
                raise KeyringError(f"{self._list}: {error}; bring the file back from a backup") from error
        return self._known[1]

    def keep_revocations(self, revocations: Revocations) -> Revocations:
        """Keep a list of revocations that the operator has signed."""
        write_whole(self._list, revocations.pem.encode())
        return revocations

    # --- files -----------------------------------------------------------------------------

    def point(self, certificate: KeyCertificate) -> None:
        """Make a key the current one of its agent."""
        make_private(self.folder / "current")
        write_whole(self.pointer(certificate.agent, certificate.use), certificate.key_id.encode())

    def pointer(self, agent: str, use: Use) -> Path:
        """Return the file that names the current key of an agent."""
        path = self._pointers.get((agent, use))
        if path is None:
            path = self._pointers[agent, use] = self.folder / "current" / f"{_file_name(agent)}.{use}"
        return path

    def _agent_file(self, agent: str) -> Path:
        return self.folder / "agents" / f"{_file_name(agent)}.jws"

    def file(self, key_id: str, ending: str) -> Path:
        """Return the file of a key: `pem` is the private half, `crt` its certificate.

        Raises:
            KeyringError: the text is no key id.
        """
        if not is_key_id(key_id):
            raise KeyringError(f"{key_id!r} is not a key id; `orchestra keys list` shows them")
        return self.folder / f"{key_id}.{ending}"


def stamp_of(path: str) -> Stamp | None:
    """Return a stamp that changes when a file is replaced; None if there is no such file."""
    try:
        status = os.stat(path)  # noqa: PTH116 - with each signature, and pathlib takes its time
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def is_key_id(text: str) -> bool:
    """Return whether a text has the form of a key id."""
    return _KEY_ID.fullmatch(text) is not None


def by_agent_and_age(each: KeyCertificate) -> tuple[str, str, bool, int, str]:
    """Return the sort key of certificates: of two that were issued in one second the current one is the newer."""
    return each.agent, each.use, each.current, each.created_ms, each.key_id


@lru_cache(maxsize=1024)
def _file_name(agent: str) -> str:
    # A hash, because a name may hold any character and some file systems fold case.
    return hashlib.sha256(agent.encode()).hexdigest()[:32]
