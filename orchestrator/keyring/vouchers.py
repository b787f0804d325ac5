"""Vouches for what agents are, and tells the records that the operator stands for from all others.

Where the operator's private key is, whatever a worker announces is vouched for as it is announced. Another host
announces what was vouched for there and came with the bundle of keys.
"""

from __future__ import annotations

from typing import Final

from orchestrator.errors import KeyringError
from orchestrator.keyring.agent_record import Facts, opened, seal
from orchestrator.keyring.registry import KeyRegistry
from orchestrator.keyring.store import KeyStore

_CACHED: Final = 10_000


class AgentVouchers:
    """The operator's word on agents, as far as one data folder can give and judge it. Safe to share between threads."""

    def __init__(self, registry: KeyRegistry) -> None:
        self._registry = registry
        self._store = registry.store
        # The same few records are looked up again and again; each is verified once.
        self._believed: dict[bytes, Facts] = {}

    def seal(self, facts: Facts) -> bytes:
        """The record as it is put where others read it, with the operator's signature.

        Raises:
            KeyringError: this is not the operator's host, and the operator has not vouched for just this record.
        """
        name = str(facts.get("name"))
        operator = self._registry.settle_operator()
        secret = self._store.operator.private()
        known = self._store.agent_record(name)
        vouched = None if known is None else opened(known, operator)
        if known is not None and vouched == facts:
            return known
        if secret is not None:
            return vouch(self._store, facts)
        if vouched is None:
            raise KeyringError(
                f"the operator has not vouched for agent {name!r}: on the host that has operator.pem, "
                f"`orchestra keys export {name} --agents FILE` with the file that defines it; here, "
                "`orchestra keys import`"
            )
        differing = sorted(key for key in {*vouched, *facts} if vouched.get(key) != facts.get(key))
        raise KeyringError(
            f"agent {name!r} is not what the operator vouched for (it differs in {', '.join(differing)}): on the "
            f"host that has operator.pem `orchestra keys export {name} --agents FILE` with the file that defines it now; "
            "here, `orchestra keys import`"
        )

    def open(self, sealed: bytes) -> Facts | None:
        """What the record says, or None if the operator does not stand for it."""
        known = self._believed.get(sealed)
        if known is None:
            known = opened(sealed, self._registry.settle_operator())
            if known is not None:
                if len(self._believed) >= _CACHED:
                    self._believed.clear()
                self._believed[sealed] = known
        return known


def vouch(store: KeyStore, facts: Facts) -> bytes:
    """The record of an agent with the operator's signature, kept for `orchestra keys export`.

    Raises:
        KeyringError: this is not the operator's host.
    """
    secret = store.operator.private()
    if secret is None:
        raise KeyringError(
            f"{store.folder} has not the operator's private key (operator.pem); vouch for agents on the host that has it"
        )
    sealed = seal(facts, secret)
    store.keep_agent_record(str(facts.get("name")), sealed)
    return sealed
