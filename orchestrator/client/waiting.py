"""Waiting for sessions without asking again and again: the ledger's events say when to look.

Waiting is done in steps of a quarter of a second at most, so that it can be interrupted between two steps.
An outage of Redis is outlasted in steps as short.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import redis

from orchestrator import machine
from orchestrator.ledger.model import CLOSED, Item, ItemState, Session, SessionState
from orchestrator.ledger.reader import LedgerReader, SessionEvents
from orchestrator.redisdb.client import Outage

#: Longest time in seconds that a session's end can go unnoticed when its event was missed.
LOOK_AGAIN_S = 0.25
#: Seconds between two pictures of a tree.
PICTURE_EVERY_S = 0.2

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Steps(Protocol[T_co]):
    """Something that is done in steps."""

    def step(self) -> T_co:
        """Do one."""
        ...


def is_over(session: Session) -> bool:
    """Return True if a session has given its answer, or will not give one."""
    return session.state in CLOSED or (session.state is SessionState.FINISHED and not session.busy)


def subtree(ledger: LedgerReader, session: str) -> list[Session]:
    """Return a session and everything below it, each after its parent, in the order of their launches.

    Raises:
        UnknownSession: there is no such session.
    """
    top = ledger.session(session)
    members = {top.id: top}
    for member in ledger.tree(top.root):
        if member.parent in members:
            members[member.id] = member
    return list(members.values())


class Waiting:
    """Waits for the end of a session; with ``item``, also until that item of its queue is delivered or dead."""

    def __init__(
        self,
        ledger: LedgerReader,
        session: str,
        *,
        outage: Outage,
        timeout_s: float | None = None,
        item: str = "",
    ) -> None:
        self._ledger = ledger
        self._session = session
        self._item = item
        self._outage = outage
        self._timeout_s = timeout_s
        self._deadline = None if timeout_s is None else machine.monotonic() + timeout_s
        self._state = "unknown"
        self._events: SessionEvents | None = None

    def step(self, *, listen: bool = True) -> Session | None:
        """Return the session if it has ended, else None after an event of it or a quarter of a second; at once
        without.

        Raises:
            TimeoutError: the session has not ended after ``timeout_s`` seconds.
            ServerUnavailable: Redis stayed away for too long.
            UnknownSession: there is no such session.
        """
        return self.try_to(lambda: self._look(listen=listen))

    def try_to(self, call: Callable[[], T]) -> T | None:
        """Return what ``call`` returns; None, after a pause, if Redis is away.

        Raises:
            TimeoutError: the time to wait has passed.
            ServerUnavailable: Redis stayed away for too long.
        """
        try:
            result = call()
        except (redis.RedisError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            self._outage.bear(error)
            self._check_time()
            return None
        self._outage.end()
        return result

    def _look(self, *, listen: bool) -> Session | None:
        found = self._ledger.session(self._session)
        self._state = found.state.value
        if is_over(found) and self._item_is_done():
            return found
        self._check_time()
        if listen and self._events is None:
            # The next step looks before it waits, so that no event is missed in between.
            self._events = self._ledger.events(self._session)
        elif listen and self._events is not None:
            self._events.wait(LOOK_AGAIN_S)
        return None

    def _check_time(self) -> None:
        if self._deadline is not None and machine.monotonic() >= self._deadline:
            raise TimeoutError(f"session {self._session} is {self._state} after {self._timeout_s:g} s")

    def _item_is_done(self) -> bool:
        if not self._item:
            return True
        found = self._ledger.item(self._session, self._item)
        return found is None or found.state in (ItemState.DELIVERED, ItemState.DEAD)


class Watching:
    """Takes pictures of a tree in steps."""

    def __init__(
        self, ledger: LedgerReader, session: str, *, outage: Outage, timeout_s: float | None = None
    ) -> None:
        self._ledger = ledger
        self._session = session
        self._waiting = Waiting(ledger, session, outage=outage, timeout_s=timeout_s)
        self._last: list[Session] | None = None
        self._next_at = 0.0
        self.over = False

    def step(self) -> list[Session] | None:
        """Return a picture if the tree has changed since the last one.

        Raises:
            TimeoutError, ServerUnavailable, UnknownSession: as :meth:`Waiting.step`.
        """
        machine.sleep(max(0.0, self._next_at - machine.monotonic()))
        began = machine.monotonic()
        over = self._waiting.step(listen=self._last is not None) is not None
        picture = self._waiting.try_to(lambda: subtree(self._ledger, self._session))
        if picture is None:
            return None
        self.over = over
        # A large tree takes long to read: the server must have time for other commands.
        self._next_at = machine.monotonic() + max(
            PICTURE_EVERY_S, 4 * (machine.monotonic() - began - LOOK_AGAIN_S)
        )
        changed = picture != self._last
        self._last = picture
        return picture if changed or self.over else None


class Stopping:
    """Looks in steps at what is still at work below a session and is stopped with it.

    That is by the policy of each session in between: what one has abandoned or handed on is left out.
    The first step is to be taken before the session is stopped: what a user has resumed below a closed session goes on.
    """

    def __init__(self, ledger: LedgerReader, session: str, *, outage: Outage) -> None:
        self._ledger = ledger
        self._session = session
        self._waiting = Waiting(ledger, session, outage=outage)
        self._next_at = 0.0
        self._resumed: frozenset[str] | None = None
        #: What the delegation of a child says, which goes with its parent when that is deleted.
        self._on_close: dict[tuple[str, str], str] = {}

    def step(self) -> list[Session] | None:
        """Return the sessions still at work; None, after a pause, if Redis is away.

        Raises:
            ServerUnavailable: Redis stayed away for too long.
            UnknownSession: there is no such session.
        """
        machine.sleep(max(0.0, self._next_at - machine.monotonic()))
        began = machine.monotonic()
        found = self._waiting.try_to(self._look)
        self._next_at = machine.monotonic() + max(PICTURE_EVERY_S, 4 * (machine.monotonic() - began))
        return found

    def _look(self) -> list[Session]:
        members = {member.id: member for member in subtree(self._ledger, self._session)}
        delegations: dict[str, dict[str, Item]] = {}
        at_work = []
        for member in members.values():
            if is_over(member):
                continue
            below = member
            while below.id != self._session and self._policy(below, members, delegations) == "stop":
                below = members[below.parent]
            if below.id == self._session and member is not below:
                at_work.append(member)
        if self._resumed is None:
            closed = members[self._session].state in CLOSED
            self._resumed = frozenset(
                member.id
                for member in at_work
                if closed
                and (item := delegations[member.parent].get(member.id)) is not None
                and not item.child_at_work
            )
        return [member for member in at_work if member.id not in self._resumed]

    def _policy(
        self, child: Session, members: Mapping[str, Session], delegations: dict[str, dict[str, Item]]
    ) -> str:
        parent = members[child.parent]
        if parent.id not in delegations:
            items = self._ledger.items(parent.id)
            delegations[parent.id] = {i.child: i for i in items if i.kind == "completion"}
            self._on_close |= {(parent.id, i.child): i.on_close for i in delegations[parent.id].values()}
        return parent.policy_for(self._on_close.get((parent.id, child.id), ""))
