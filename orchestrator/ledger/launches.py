"""Transitions that begin sessions: a user's submit, a delegation, and the start of the first run."""

from __future__ import annotations

import json
from collections.abc import Sequence

from orchestrator.errors import ClaimLost, LimitExceeded
from orchestrator.ids import callback_id, shard_of
from orchestrator.ledger import decode, layout
from orchestrator.ledger.books import Books
from orchestrator.ledger.model import SessionState
from orchestrator.ledger.transitions import Claim, Delegated, Dispatch, Launch, Limits, Outgoing, Submitted
from orchestrator.redisdb import keys
from orchestrator.redisdb.scripts import Arg, Scripts


class Launches(Books):
    """What clients, workers and the router do to begin sessions."""

    scripts: Scripts
    limits: Limits
    _now: str  #: '' for the server's clock; tests set milliseconds

    def submit(
        self,
        session_id: str,
        *,
        agent: str,
        prompt: str,
        envelope: Outgoing,
        correlation: str,
        title: str = "",
        task: str = "",
    ) -> Submitted:
        """Make a root session and publish its task-delegation.

        The same id, submitted again, changes nothing and tells what is there. ``task`` is the id of
        the Celery result that the root owes.
        """
        facts: dict[str, Arg] = {
            "agent": agent,
            "title": title,
            "task": task,
            "priority": envelope.priority,
            "correlation": correlation,
            "message": envelope.message_id,
            "chain": json.dumps([envelope.message_id]),
        }
        shard = shard_of(session_id)
        reply = self.scripts.run(
            "submit",
            [
                keys.session(session_id),
                keys.bodies(session_id),
                keys.tree(session_id),
                keys.roots(shard),
                keys.totals(shard),
                layout.stream(session_id, envelope),
            ],
            [self._now, session_id, prompt, envelope.data, *layout.pairs(facts)],
        )
        created = reply[0] == b"created"
        return Submitted(
            session=session_id,
            created=created,
            state=SessionState(reply[1].decode()),
            agent=agent if created else decode.text(reply[2]),
        )

    def delegate(self, claim: Claim, launch: Launch) -> Delegated:
        """Launch a child of a running session.

        The same effect key gives the same child, however often the run is tried.

        Raises:
            ClaimLost: the run is not held under this claim any more.
            LimitExceeded: the parent or its tree is as large as it may be.
        """
        return self._delegated(claim, self.scripts.run("delegate", *self._launch_call(claim, launch)))

    def delegate_all(self, claim: Claim, launches: Sequence[Launch]) -> list[Delegated]:
        """:meth:`delegate` for many children in one round trip, each a transition of its own, in their order.

        Raises:
            ClaimLost, LimitExceeded: as :meth:`delegate`; those before the first that was refused are launched.
            redis.RedisError: a launch failed; the others were carried out, and all may be asked for again.
        """
        batch = self.scripts.batch()
        for launch in launches:
            batch.script("delegate", *self._launch_call(claim, launch))
        answers = batch.execute()
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return [self._delegated(claim, answer) for answer in answers]

    def _launch_call(self, claim: Claim, launch: Launch) -> tuple[list[str], list[Arg]]:
        parent, shard, envelope = claim.session, shard_of(claim.session), launch.envelope
        about: dict[str, Arg] = {
            "agent": launch.agent,
            "correlation": launch.correlation,
            "message": envelope.message_id,
            "chain": json.dumps([envelope.message_id, *launch.chain]),
        }
        return (
            [
                keys.session(parent),
                keys.items(parent),
                keys.run(claim.run),
                keys.effects(claim.run),
                keys.session(launch.child_id),
                keys.bodies(launch.child_id),
                keys.tree(claim.root),
                keys.totals(shard),
                layout.stream(parent, envelope),
                keys.session(claim.root),
            ],
            [
                self._now,
                claim.claim,
                launch.effect,
                launch.child_id,
                callback_id(launch.child_id),
                "1" if launch.callback else "0",
                launch.group,
                launch.on_failure,
                envelope.priority,
                launch.title,
                launch.description,
                envelope.data,
                self.limits.max_children,
                self.limits.max_depth,
                self.limits.max_tree_sessions,
                launch.on_close,
                self.limits.max_tree_runs,
                *layout.pairs(about),
            ],
        )

    @staticmethod
    def _delegated(claim: Claim, reply: Sequence[bytes]) -> Delegated:
        match reply[0]:
            case b"lost":
                raise ClaimLost(claim.run)
            case b"limit":
                raise LimitExceeded(decode.text(reply[1]), int(reply[2]), f"session {claim.session}")
        return Delegated(child=decode.text(reply[1]), created=reply[0] == b"created")

    def start_args(
        self,
        *,
        session_id: str,
        run_id: str,
        message_id: str,
        stream: str,
        group: str,
        entry: str,
        mark_ms: int,
    ) -> tuple[list[str], list[Arg]]:
        """KEYS and ARGV of ``start``, for the router's batches; `started` reads the answer."""
        shard = shard_of(session_id)
        return (
            [
                keys.session(session_id),
                keys.runs(session_id),
                keys.run(run_id),
                keys.dispatch(shard),
                keys.seen(shard, message_id),
                stream,
            ],
            [self._now, run_id, message_id, group, entry, mark_ms, self.limits.redispatch_ms],
        )

    @staticmethod
    def started(session_id: str, reply: Sequence[bytes]) -> Dispatch | None:
        """The run to dispatch after ``start``, or None when there is nothing to send."""
        if reply[0] != b"started":
            return None
        return Dispatch(
            run=decode.text(reply[1]),
            session=session_id,
            agent=decode.text(reply[2]),
            cause=decode.text(reply[3]),
        )
