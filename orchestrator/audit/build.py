"""An audit writer from the settings and the parts of a stack."""

from __future__ import annotations

from typing import Protocol

import redis

from orchestrator.agents.registry import OPERATOR
from orchestrator.audit.facts import FactsReader
from orchestrator.audit.heads import HeadSigner
from orchestrator.audit.kept import KeptHeads
from orchestrator.audit.proof import EitherKeys
from orchestrator.audit.store import AuditStore
from orchestrator.audit.writer import AuditWriter
from orchestrator.config.settings import Settings
from orchestrator.envelope.parse import ParseLimits
from orchestrator.envelope.sealing import Opener
from orchestrator.errors import KeyringError
from orchestrator.keyring.ring import Keyring
from orchestrator.streams import all_streams


class AuditParts(Protocol):
    """Parts of a stack that an audit writer needs."""

    @property
    def redis(self) -> redis.Redis: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def keyring(self) -> Keyring: ...
    @property
    def opener(self) -> Opener: ...


def build_writer(parts: AuditParts, *, consumer: str) -> AuditWriter:
    """Return a writer to the audit database of the settings.

    Raises:
        AuditError: the database cannot be opened or made, or the head of it that is kept cannot be read.
    """
    settings, keyring = parts.settings, parts.keyring
    heads = HeadSigner(lambda: keyring.signer(OPERATOR), EitherKeys(keyring, keyring.store))
    store = AuditStore(settings.audit_database, heads=heads)
    try:
        keyring.require(OPERATOR)
    except KeyringError as error:
        store.unsigned = str(error)
    return AuditWriter(
        parts.redis,
        store,
        consumer=consumer,
        sources=all_streams(settings.shards),
        # A commit on a slow disk takes longer than anything a worker does between two signs of life.
        reclaim_idle_ms=round(settings.lease_s * 4000),
        facts=FactsReader(
            limits=ParseLimits(size=settings.max_message_bytes),
            opener=parts.opener,
            keys=keyring if settings.signatures_required else None,
        ),
        kept=KeptHeads.of(settings),
    )
