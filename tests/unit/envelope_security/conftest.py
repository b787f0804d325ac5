"""Keys and messages for tests of signatures, encryption and payloads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from orchestrator.envelope.bodies import Message
from orchestrator.envelope.model import AgentMessage, Header, Party
from orchestrator.envelope.model_values import Timestamp
from orchestrator.envelope.signature import Signer
from orchestrator.ids import new_message_id
from orchestrator.keyring.certificates import KeyCertificate
from orchestrator.keyring.store import KeyStore

NOW_MS = 1_700_000_000_000


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

    def build(content: str = "hello", *, sender: str = "lead", message_id: str | None = None) -> AgentMessage:
        return AgentMessage(
            header=Header(
                message_id=message_id or new_message_id(),
                timestamp=Timestamp.from_ms(NOW_MS),
                sender=Party(agent_name=sender, agent_role="coordinator"),
                recipient=Party(agent_name="reviewer", agent_role="specialist"),
            ),
            body=Message(content=content),
        )

    return build
