"""A kit of a ledger alone: its transitions, one at a time, and the services over it."""

from __future__ import annotations

import pytest
import redis as redis_py

from orchestrator.ledger import Ledger, TreeLimits
from tests.kit import Kit
from tests.services import Services


@pytest.fixture
def ledger(redis: redis_py.Redis) -> Ledger:
    """A ledger with small limits."""
    return Ledger(redis, limits=TreeLimits(resume_max_items=50, max_lost_workers=2))


@pytest.fixture
def kit(ledger: Ledger) -> Kit:
    return Kit.of(ledger)


@pytest.fixture
def services(kit: Kit) -> Services:
    return kit.services
