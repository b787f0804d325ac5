"""Bodies that travelled apart from their envelopes, kept whole in the audit database, each once.

The envelope of a message names its body by digest, so that the chain, which covers the envelope, covers the body too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from sqlalchemy import Connection, select

from orchestrator.audit.schema import BODIES, MESSAGES
from orchestrator.envelope import payload
from orchestrator.errors import PayloadError

#: Octets that a body may have: more than any limit of a stack.
_MOST: Final = 1 << 30
_IS_REFERRED_TO: Final = select(MESSAGES.c.seq).where(MESSAGES.c.body == BODIES.c.sha256).exists()


def keep(db: Connection, bodies: Mapping[str, bytes]) -> None:
    """Write bodies by their digests that are not there yet, compressed."""
    there = {row[0] for row in db.execute(select(BODIES.c.sha256).where(BODIES.c.sha256.in_(bodies)))}
    rows = [
        {"sha256": sha256, "content": payload.compress(octets)}
        for sha256, octets in bodies.items()
        if sha256 not in there
    ]
    if rows:
        db.execute(BODIES.insert(), rows)


def forget(db: Connection) -> None:
    """Remove the bodies that no message refers to any more."""
    db.execute(BODIES.delete().where(~_IS_REFERRED_TO))


def body_of(sha256: str, content: bytes) -> bytes | None:
    """Return the body in a row as it was stored; None if it does not match its digest, as somebody has changed it."""
    try:
        octets = payload.inflate(content, limit=_MOST)
    except PayloadError:
        return None
    return octets if hashlib.sha256(octets).hexdigest() == sha256 else None
