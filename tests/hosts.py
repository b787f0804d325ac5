"""Keys that are brought from one data folder to another."""

from __future__ import annotations

from typing import Final

from orchestrator.keyring.store import KeyStore

PASSPHRASE: Final = b"correct horse battery"


def bring_keys(source: KeyStore, target: KeyStore, *agents: str, with_operator: bool = False) -> None:
    """Export keys of agents (none named: of all) and import them elsewhere."""
    files = source.export(agents or None, passphrase=PASSPHRASE, with_operator=with_operator)
    target.import_(files.values(), passphrase=PASSPHRASE)
