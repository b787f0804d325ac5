"""The one place where settings become objects: what services, workers and clients share."""

from __future__ import annotations

from dataclasses import dataclass

import redis

from orchestrator.keyring.registry import KeyRegistry
from orchestrator.keyring.ring import Keyring
from orchestrator.keyring.store import KeyStore
from orchestrator.ledger import Ledger, Limits
from orchestrator.letters import Letters
from orchestrator.registry import AgentRegistry
from orchestrator.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What works on one Redis under one set of settings. Safe to share between threads."""

    settings: Settings
    redis: redis.Redis
    ledger: Ledger
    agents: AgentRegistry
    keyring: Keyring
    letters: Letters


def assemble(client: redis.Redis, settings: Settings) -> Parts:
    """Everything that needs nothing but Redis and the data folder's keys; connects to nothing."""
    agents = AgentRegistry(client)
    store = KeyStore(settings.keys_dir, settings.signature_algorithm)
    keyring = Keyring(store, KeyRegistry(client, store))
    return Parts(
        settings=settings,
        redis=client,
        ledger=Ledger(client, limits=ledger_limits(settings)),
        agents=agents,
        keyring=keyring,
        letters=Letters(keyring, agents),
    )


def ledger_limits(settings: Settings) -> Limits:
    """The bounds that the ledger's transitions keep, from the settings of the same names."""
    return Limits(
        max_children=settings.max_children,
        max_depth=settings.max_depth,
        max_tree_sessions=settings.max_runs_per_tree,
        resume_max_items=settings.resume_max_items,
        resume_max_bytes=settings.resume_max_bytes,
        max_lost_workers=settings.max_lost_workers,
        redispatch_ms=round(settings.redispatch_after_s * 1000),
        tree_ttl_ms=round(settings.tree_ttl_s * 1000),
    )
