"""Makes a worker's agents known to the stack, with the public keys they sign with, again and again."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import redis

from orchestrator.agents.definition import BUNDLED_QUEUE, AgentDefinition
from orchestrator.agents.registry import AgentRecord
from orchestrator.bootstrap import Container
from orchestrator.errors import OrchestraError
from orchestrator.log import get_logger
from orchestrator.policy.versions import lane_queue
from orchestrator.runtime.service import is_served, living_agents

#: Seconds between two announcements; an agent stays known for a day after the last.
INTERVAL_S = 30.0

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


class Announcer:
    """Announces from a thread of its own, until the process ends."""

    def __init__(self, parts: Container, catalogue: Mapping[str, AgentDefinition]) -> None:
        self._parts = parts
        self._catalogue = catalogue

    def start(self) -> None:
        """Announce now, then go on in the background.

        Raises:
            OrchestraError: the keys cannot be made or registered.
            redis.RedisError: Redis does not answer.
        """
        self.announce()
        threading.Thread(target=self._repeat, name="announce", daemon=True).start()

    def announce(self) -> None:
        """Announce once."""
        records = [d.record for d in self._catalogue.values() if self._may_announce(d.record)]
        for record in records:
            if not record.external:
                self._parts.keyring.signer(record.name)
        self._parts.agents.announce(records)
        settings = self._parts.settings
        own = [record for record in records if not record.external]
        self._parts.concurrency.announce(
            {r.name: (r.queue, r.runs_at_once or settings.agent_runs_at_once) for r in own},
            trees=settings.tree_runs_at_once,
        )
        _log.debug("agents-announced", agents=[record.name for record in records])

    def _may_announce(self, record: AgentRecord) -> bool:
        """A bundled agent gives way to a user's of the same name, as long as a living worker serves that."""
        if record.queue != BUNDLED_QUEUE:
            return True
        known = self._parts.agents.get(record.name)
        if known is None or known.queue == record.queue:
            return True
        return not is_served(known, living_agents(self._parts.redis))

    def _repeat(self) -> None:
        waiting = threading.Event()
        while not waiting.wait(INTERVAL_S):
            try:
                self.announce()
            except (OrchestraError, redis.RedisError, OSError) as error:
                _log.warning("announcement-failed", error=str(error))
