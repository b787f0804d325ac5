"""Removes what runs of command-line agents leave: worktrees whose results are taken, folders of killed workers."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Final

import redis

from orchestrator.errors import OrchestraError
from orchestrator.ids import callback_id
from orchestrator.ledger import ItemState, Ledger
from orchestrator.log import get_logger
from orchestrator.worker.gateway.server import FOLDER_PREFIX
from orchestrator.worker.scratch import remove_left_over
from orchestrator.worker.worktrees import Worktree, Worktrees

#: Seconds after which the folder of a run that nobody has locked is left over.
YOUNG_S: Final = 30.0

_log = get_logger()


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
            (Path(tempfile.gettempdir()), FOLDER_PREFIX),
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
