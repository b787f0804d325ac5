"""Every Redis key of the stack, for rights, scripts and the reference."""

from __future__ import annotations

from typing import Final

from orchestrator.redisdb import keys, ledger_keys
from orchestrator.redisdb.key_table import registered

REGISTRY: Final = registered(ledger_keys, keys)
