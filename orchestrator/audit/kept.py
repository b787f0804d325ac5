"""The newest signed head of each audit database, kept in a folder beside the keys: outside of the database and of Redis.

Putting the database and Redis back to an older state, with the heads of that time, does not change this folder.
"""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.audit.heads import Head
from orchestrator.config.settings import Settings
from orchestrator.errors import AuditError
from orchestrator.keyring.files import locked, make_private, read_if_there, write_whole

_NAME = re.compile(r"[0-9a-f]{1,64}")


class KeptHeads:
    """The heads of one data folder. Safe for use by several processes at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, settings: Settings) -> KeptHeads:
        """Return those of the data folder of these settings."""
        return cls(settings.keys_dir / "audit-heads")

    def file(self, database: str) -> Path:
        """Return the path of the head of a database."""
        name = database if _NAME.fullmatch(database) else database.encode().hex()[:64]
        return self.folder / f"{name}.jws"

    def read(self, database: str) -> Head | None:
        """Return the newest head of a database that is kept here, unchecked; None if there is none.

        Raises:
            AuditError: the file is there and cannot be read.
        """
        file = self.file(database)
        try:
            content = read_if_there(file)
        except OSError as error:
            raise AuditError(file, str(error), "let the user of the stack read it") from error
        if content is None:
            return None
        head = Head.from_text(content)
        if head is None:
            raise AuditError(file, "it is not a head", "bring it back from a backup, or remove it")
        return head

    def keep(self, head: Head) -> None:
        """Keep a head, unless the kept one covers more rows.

        Raises:
            AuditError: the folder cannot be written to, or what is here cannot be read.
        """
        file = self.file(head.database)
        try:
            make_private(self.folder)
            with locked(self.folder):
                known = self.read(head.database)
                if known is None or head.follows(known):
                    write_whole(file, head.to_text().encode())
        except OSError as error:
            raise AuditError(file, str(error), "let the user of the stack write to its folder") from error
