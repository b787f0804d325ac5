"""Keys and messages for tests of signatures, encryption and payloads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from orchestrator.envelope.model import AgentMessage
from orchestrator.envelope.signature import Signer
from orchestrator.keyring.certificates import KeyCertificate
from orchestrator.keyring.store import KeyStore
from tests.messages import NOW_MS, message


@dataclass
class Keys:
    """Signers of two algorithms, and a look-up in which facts about keys can be changed at will."""

    stores: dict[str, KeyStore]
    changes: dict[str, dict[str, object]] = field(default_factory=dict)

    def signer(self, agent: str = "lead", algorithm: str = "RSA-SHA256") -> Signer:
        return replace(self.stores[algorithm].signer(agent), created_ms=NOW_MS - 1000)

    def lookup(self, key_id: str) -> KeyCertificate | None:
        for store in self.stores.values():
            key = store.lookup(key_id)
            if key is not None:
                facts = {"created_ms": NOW_MS - 1000, **self.changes.get(key_id, {})}
                return replace(key, **facts)
        return None


@pytest.fixture(scope="session")
def _stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, KeyStore]:
    folder: Path = tmp_path_factory.mktemp("keyring")
    return {name: KeyStore(folder / name, name) for name in ("RSA-SHA256", "Ed25519")}


@pytest.fixture
def keys(_stores: dict[str, KeyStore]) -> Keys:
    return Keys(_stores)


@pytest.fixture
def write() -> Callable[..., AgentMessage]:
    """A small valid message."""
    return message
