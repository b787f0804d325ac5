"""Makes a worker's agents known to the stack, with the public keys they sign with."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.agents.definition import BUNDLED_QUEUE, AgentDefinition
from orchestrator.agents.registry import AgentRecord
from orchestrator.bootstrap import Container
from orchestrator.log import get_logger
from orchestrator.runtime.service import is_served, living_agents

_log = get_logger()


def queues_of(catalogue: Mapping[str, AgentDefinition]) -> dict[str, str]:
    """Return the agents that a worker serves, and the queue that it reads for each."""
    records = [definition.record for definition in catalogue.values()]
    return {record.name: record.queue for record in records if not record.external}


def versions_of(catalogue: Mapping[str, AgentDefinition]) -> dict[str, str]:
    """The agents that a worker serves, and the version that it has of each."""
    records = [definition.record for definition in catalogue.values()]
    return {record.name: record.version for record in records if not record.external}


def announce(parts: Container, catalogue: Mapping[str, AgentDefinition]) -> None:
    """Make the agents known; to be repeated well within the lifetime of an announcement.

    Raises:
        OrchestraError: the keys cannot be made or registered.
        redis.RedisError: Redis does not answer.
    """
    records = [d.record for d in catalogue.values() if _may_announce(parts, d.record)]
    own = [record for record in records if not record.external]
    for record in own:
        parts.keyring.signer(record.name)
    parts.agents.announce(records)
    parts.concurrency.announce({record.name: (record.queue, record.runs_at_once) for record in own})
    _log.debug("agents-announced", agents=[record.name for record in records])


def _may_announce(parts: Container, record: AgentRecord) -> bool:
    """A bundled agent gives way to a user's of the same name, as long as a living worker serves that."""
    if record.queue != BUNDLED_QUEUE:
        return True
    known = parts.agents.get(record.name)
    if known is None or known.queue == record.queue:
        return True
    return not is_served(known, living_agents(parts.redis))
