"""Writers on an audit database of either kind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.audit import AuditStore, AuditWriter
from orchestrator.audit.heads import HeadSigner
from orchestrator.streams import all_streams
from tests.kit import Kit
from tests.postgres import TrailDatabase


@pytest.fixture
def writer(kit: Kit, trail_database: TrailDatabase) -> Callable[..., AuditWriter]:
    """Makes writers on one database."""

    def make(consumer: str = "a1", **options: int) -> AuditWriter:
        keyring = kit.parts.keyring
        heads = HeadSigner(lambda: keyring.signer("operator"), keyring)
        store = AuditStore(trail_database.where, heads=heads)
        return AuditWriter(kit.redis, store, consumer=consumer, sources=all_streams(), **options)

    return make
