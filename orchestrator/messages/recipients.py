"""The keys that the stack's own messages are encrypted to: made where they can be, and never for a program."""

from __future__ import annotations

from typing import Final

from orchestrator import machine
from orchestrator.agents.registry import AgentRegistry
from orchestrator.envelope.encryption import Recipient
from orchestrator.errors import KeyringError
from orchestrator.keyring.registry import Keyring

#: Seconds for which a key is taken from memory, and of how many agents.
_KEPT_S: Final = 1.0
_KEPT: Final = 4096


class EncryptionKeys:
    """Finds the encryption key of a recipient. Safe to share between threads."""

    def __init__(self, keyring: Keyring, agents: AgentRegistry) -> None:
        self._keyring = keyring
        self._agents = agents
        self._known: dict[str, tuple[float, Recipient]] = {}

    def recipient(self, agent: str) -> Recipient:
        """Return the key to encrypt to an agent with; on the operator's host it is made, if the agent is the stack's
        own.

        Raises:
            KeyringError: it has none, and it cannot be made here.
        """
        now = machine.monotonic()
        known = self._known.get(agent)
        if known is None or now - known[0] > _KEPT_S:
            if len(self._known) >= _KEPT:
                self._known.clear()
            known = self._known[agent] = now, self._find(agent)
        return known[1]

    def can_encrypt_to(self, agent: str) -> bool:
        """Return True if an agent has a key to encrypt with, or one can be made here."""
        try:
            self.recipient(agent)
        except KeyringError:
            return False
        return True

    def _find(self, agent: str) -> Recipient:
        try:
            return self._keyring.recipient(agent)
        except KeyringError as missing:
            record = self._agents.get(agent)
            if record is None or record.external:
                raise
            try:
                self._keyring.offer_encryption(agent)
            except KeyringError:
                raise missing from None
            return self._keyring.recipient(agent)
