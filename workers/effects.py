"""What an agent does to the world outside of its run: each thing once, however often the run is tried.

An effect is one transition of the ledger and one signed envelope, in one atomic step, under the claim of the
run and an effect key: the run, a fingerprint of the call, and how often the same call was made before in this
try. A run that is tried again makes the same calls under the same keys and gets the same children back.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from orchestrator.crashpoints import reach
from orchestrator.envelope.model_values import Priority
from orchestrator.errors import ServerUnavailable
from orchestrator.ids import child_session_id, shard_of
from orchestrator.ledger import Claimed, Ledger
from orchestrator.letters import Letters, Thread
from orchestrator.registry import OPERATOR
from orchestrator.streams import StreamId
from orchestrator.streams.pressure import Backpressure
from workers.heartbeat import Standing
from workers.patience import persist

OnFailure = Literal["deliver", "ignore"]
T = TypeVar("T")


class Effects:
    """The effects of one run, in one try of it."""

    def __init__(
        self,
        held: Claimed,
        *,
        ledger: Ledger,
        letters: Letters,
        standing: Standing,
        pressure: Backpressure | None = None,
    ) -> None:
        self._held = held
        self._ledger = ledger
        self._letters = letters
        self._standing = standing
        self._pressure = pressure
        self._made: Counter[str] = Counter()
        self._thread = Thread.of(held.session)
        self._delegator: str | None = None
        #: Set when an effect failed because the ledger was out of reach: the agent is not to blame.
        self.outage: ServerUnavailable | None = None
        #: Whether this try launched anything.
        self.launched = False

    def delegate(
        self,
        agent: str,
        *,
        title: str,
        description: str,
        priority: Priority,
        callback: bool,
        group: str,
        on_failure: OnFailure,
        key: str | None,
    ) -> str:
        """Launch a child; its session id.

        Raises:
            ClaimLost, SessionStopped: this run may not go on.
            LimitExceeded: the session or its tree is as large as it may be.
            StreamFull: the routers are too far behind for new work.
            ServerUnavailable: Redis stayed away.
        """
        claim, session = self._held.claim, self._held.session
        effect = self._key("delegate", agent, title, description, priority, callback, group, given=key)
        child = child_session_id(session.id, f"{claim.run}:{effect}")
        letter = self._letters.delegation(
            sender=session.agent,
            recipient=agent,
            task_id=child,
            title=title,
            description=description,
            thread=self._thread,
            priority=priority,
        )
        if self._pressure is not None:
            stream = StreamId(shard_of(child), letter.type, letter.priority)
            pressure = self._pressure
            self._attempt("pressure", lambda: pressure.admit(stream))
        self.launched = True
        launched = self._attempt(
            "delegate",
            lambda: self._ledger.delegate(
                claim,
                effect=effect,
                child_id=child,
                agent=agent,
                description=description,
                envelope=letter,
                correlation=self._thread.correlation,
                chain=self._thread.chain,
                title=title,
                callback=callback,
                group=group,
                on_failure=on_failure,
            ),
        )
        return launched.child

    def status(self, progress: int | None, activity: str) -> None:
        """Record how far the session is.

        Raises:
            ClaimLost, SessionStopped, ServerUnavailable: as :meth:`delegate`.
        """
        effect = self._key("status", progress, activity)
        letter = self._letters.status(
            sender=self._held.session.agent,
            recipient=self.delegator,
            task_id=self._held.session.id,
            progress=progress,
            activity=activity,
            thread=self._thread,
        )
        self._attempt(
            "status",
            lambda: self._ledger.status(
                self._held.claim, effect=effect, progress=progress, activity=activity, envelope=letter
            ),
        )

    @property
    def delegator(self) -> str:
        """The agent that gave this session its task: the parent's, a foreign program, or `operator`."""
        if self._delegator is None:
            parent = self._held.session.parent
            found = persist(lambda: self._ledger.find([parent]), what="delegator") if parent else []
            self._delegator = found[0].agent if found else self._held.session.delegator or OPERATOR
        return self._delegator

    def _key(self, kind: str, *call: Any, given: str | None = None) -> str:
        if given is not None:
            return f"{kind}:key:{given}"
        text = json.dumps(call, ensure_ascii=True, separators=(",", ":"))
        fingerprint = f"{kind}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        self._made[fingerprint] += 1
        return f"{fingerprint}:{self._made[fingerprint]}"

    def _attempt(self, what: str, call: Callable[[], T]) -> T:
        self._standing.check()
        try:
            done = persist(call, what=what)
        except ServerUnavailable as error:
            self.outage = error
            raise
        reach("worker.effect")
        return done
