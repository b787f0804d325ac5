"""The records of agents, which the operator signs: what each may do.

Where the operator's private key is, whatever a worker announces is signed as it is announced. Another host announces
what was signed there and was imported with the keys.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from orchestrator.errors import KeyringError
from orchestrator.keyring import claims
from orchestrator.keyring.claims import Purpose
from orchestrator.keyring.operator import verified_agent
from orchestrator.keyring.registry import KeyRegistry
from orchestrator.keyring.store import KeyStore

Fields: TypeAlias = dict[str, Any]

_CACHED: Final = 10_000


class AgentRecords:
    """Signs and verifies records of agents, as far as one data folder can. Safe to share between threads."""

    def __init__(self, registry: KeyRegistry) -> None:
        self._registry = registry
        self._store = registry.store
        # The same few records are looked up again and again; each is verified once.
        self._verified: dict[bytes, Fields] = {}

    def signed(self, fields: Fields) -> bytes:
        """Return the record as it is put where others read it.

        Raises:
            KeyringError: this is not the operator's host, and the operator has not signed just this record.
        """
        name = str(fields.get("name"))
        operator = self._registry.settle_operator()
        known = self._store.agent_record(name)
        attested = None if known is None else verified_agent(known, operator)
        if known is not None and attested == fields:
            return known
        if self._store.operator.private() is not None:
            return sign(self._store, fields)
        if attested is None:
            raise KeyringError(
                f"the operator has not signed the record of agent {name!r}: on the host that has operator.pem, "
                f"`orchestra keys export {name} --agents FILE` with the file that defines it; here, "
                "`orchestra keys import`"
            )
        differing = sorted(key for key in {*attested, *fields} if attested.get(key) != fields.get(key))
        raise KeyringError(
            f"agent {name!r} is not what the operator has signed (it differs in {', '.join(differing)}): on the "
            f"host that has operator.pem `orchestra keys export {name} --agents FILE` with the file that defines it now; "
            "here, `orchestra keys import`"
        )

    def verify(self, signed: bytes) -> Fields | None:
        """Return what the record says, or None if the operator has not signed it."""
        known = self._verified.get(signed)
        if known is None:
            known = verified_agent(signed, self._registry.settle_operator())
            if known is not None:
                if len(self._verified) >= _CACHED:
                    self._verified.clear()
                self._verified[signed] = known
        return known


def sign(store: KeyStore, fields: Fields) -> bytes:
    """Return the record of an agent with the operator's signature; kept for `orchestra keys export`.

    Raises:
        KeyringError: this is not the operator's host.
    """
    if store.operator.private() is None:
        raise KeyringError(
            f"{store.folder} has not the operator's private key (operator.pem); sign records of agents on the host that has it"
        )
    signed = claims.sign(fields, Purpose.AGENT, store.operator.signer()).encode()
    store.keep_agent_record(str(fields.get("name")), signed)
    return signed
