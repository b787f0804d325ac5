"""Makes a worker's agents known to the stack, with the public keys they sign with."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.agents.definition import BUNDLED_QUEUE, AgentDefinition
from orchestrator.agents.registry import AgentRecord
from orchestrator.bootstrap import Container
from orchestrator.log import get_logger
from orchestrator.policy.versions import lane_queue
from orchestrator.runtime.service import is_served, living_agents

_log = get_logger()


def queues_of(catalogue: Mapping[str, AgentDefinition]) -> dict[str, str]:
    """The agents that a worker serves, the lanes of versions among them, and the queue that it reads for each."""
    own = [definition for definition in catalogue.values() if not definition.record.external]
    queues = {definition.name: definition.record.queue for definition in own}
    return queues | {lane: lane_queue(lane) for definition in own for lane in definition.lanes[1:]}


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
    settings = parts.settings
    parts.concurrency.announce(
        {r.name: (r.queue, r.runs_at_once or settings.agent_runs_at_once) for r in own},
        trees=settings.tree_runs_at_once,
    )
    _log.debug("agents-announced", agents=[record.name for record in records])


def _may_announce(parts: Container, record: AgentRecord) -> bool:
    """A bundled agent gives way to a user's of the same name, as long as a living worker serves that."""
    if record.queue != BUNDLED_QUEUE:
        return True
    known = parts.agents.get(record.name)
    if known is None or known.queue == record.queue:
        return True
    return not is_served(known, living_agents(parts.redis))
