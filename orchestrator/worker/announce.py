"""Makes a worker's agents known to the stack, with the public keys they sign with, and cleans up after workers that are gone."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

import redis

from orchestrator.agents.definition import BUNDLED_QUEUE, AgentDefinition
from orchestrator.agents.registry import AgentRecord
from orchestrator.bootstrap import Container
from orchestrator.errors import OrchestraError
from orchestrator.ids import callback_id
from orchestrator.ledger import ItemState, Ledger
from orchestrator.log import get_logger
from orchestrator.runtime.service import is_served, living_agents
from orchestrator.worker.gateway import FOLDER_PREFIX, folder_of_sockets
from orchestrator.worker.git import remove_left_over
from orchestrator.worker.worktrees import Worktree, Worktrees

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


#: Seconds after which the folder of a run that nobody has locked is left over.
YOUNG_S: Final = 30.0


class Janitor:
    """Looks after the worktrees of one data folder. Several may: each removal is done by one."""

    def __init__(self, ledger: Ledger, worktrees: Worktrees) -> None:
        self._ledger = ledger
        self._worktrees = worktrees

    def clean(self) -> list[str]:
        """Remove what is not needed, a run's folder only if it is not young; the sessions whose worktrees are gone."""
        removed = []
        for worktree in self._worktrees.all():
            try:
                if not self._worktrees.remove(worktree, unless=self.why_kept):
                    continue
            except (OrchestraError, redis.RedisError, OSError) as error:
                _log.warning("worktree-not-removed", session=worktree.session, error=str(error))
                continue
            _log.info("worktree-removed", session=worktree.session, branch=worktree.branch)
            removed.append(worktree.session)
        for above, prefix in (
            (self._worktrees.data / "scratch", "run-"),
            (folder_of_sockets(), FOLDER_PREFIX),
        ):
            remove_left_over(above, prefix, older_than_s=YOUNG_S, now_s=time.time())
        return removed

    def is_at_work(self, worktree: Worktree) -> bool:
        """Return True if the session of a worktree has a run that has not ended.

        Raises:
            redis.RedisError: the ledger does not answer.
        """
        return any(session.busy for session in self._ledger.find([worktree.session]))

    def why_kept(self, worktree: Worktree) -> str:
        """Return why a worktree must stay; empty if it may be removed.

        Raises:
            redis.RedisError: the ledger does not answer.
        """
        if worktree.keep == "always":
            return "it is kept until it is removed by hand"
        for session in self._ledger.find([worktree.session]):
            if session.busy:
                return "its session is at work"
            if not session.ended_ms:
                return "its session goes on"
            if not session.parent:
                return "its session is a root, and may be resumed"
            item = self._ledger.item(session.parent, callback_id(session.id))
            if item is not None and item.state in (ItemState.OWED, ItemState.QUEUED, ItemState.CLAIMED):
                return "its parent has not taken the result yet"
        return ""
