"""Router, callback service and as many slots as wanted, in threads around a `Kit`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from orchestrator.ledger import CLOSED, RunRef, Session, SessionState
from orchestrator.reconciler.callbacks import CallbackService
from orchestrator.reconciler.delivery import Delivery
from orchestrator.redisdb import keys
from tests.kit import Kit
from tests.waiting import wait_until


class Workers:
    """Whatever is pending is started, whoever waits is resumed by a real callback service, and runs are executed."""

    def __init__(self, kit: Kit, *, slots: int = 6) -> None:
        self.kit = kit
        self._pool = ThreadPoolExecutor(slots)
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._direct), threading.Thread(target=self._call_back)]
        self._given: set[str] = set()
        self._runs: list[Future[str]] = []
        self.failure: BaseException | None = None
        #: Runs that are not to be executed.
        self.held_back: Callable[[RunRef], bool] = lambda _: False

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        # The callback service waits for an event, for a second at most: it need not.
        self.kit.redis.xadd(keys.session_events(0), {"event": "the end"})
        for thread in self._threads:
            thread.join()
        self._pool.shutdown(wait=kind is None)
        if self.failure is not None and kind is None:
            raise self.failure

    def _direct(self) -> None:
        try:
            while not self._stop.wait(0.01):
                self._round()
        except BaseException as error:
            self.failure = error

    def _round(self) -> None:
        ledger = self.kit.ledger
        for root in list(ledger.all_roots(0)):
            for session in ledger.tree(root):
                waits = session.state is SessionState.PENDING and not session.run
                if waits and (
                    run := self.kit.start(session.id)
                ):  # else it was stopped since it was looked at
                    self._give(run)

    def _call_back(self) -> None:
        try:
            delivery = Delivery(self.kit.ledger, lambda ready: [self._give(run) for run in ready])
            CallbackService(self.kit.redis, delivery, consumer="callbacks").run(self._stop)
        except BaseException as error:
            self.failure = error

    def _give(self, dispatch: RunRef) -> None:
        if dispatch.run not in self._given and not self.held_back(dispatch):
            self._given.add(dispatch.run)
            self._runs.append(self._pool.submit(self.kit.execute, dispatch))

    def give_again(self, dispatch: RunRef) -> None:
        """Execute a run that was lost."""
        self._given.discard(dispatch.run)
        self._give(dispatch)

    def finish(self, session: str, *, timeout_s: float = 120) -> Session:
        """Wait until a session has ended."""

        def over() -> Session | None:
            if self.failure is not None:
                raise self.failure
            found = self.kit.ledger.session(session)
            ended = found.state in CLOSED or (found.state is SessionState.FINISHED and not found.busy)
            return found if ended else None

        def tree() -> list[tuple[str, str, str]]:
            root = self.kit.ledger.session(session).root
            return [(s.agent, s.state.value, s.run) for s in self.kit.ledger.tree(root)]

        found: Session = wait_until(over, "its end", timeout_s, explain=tree)
        return found

    def answer(self, session: str) -> str:
        """The answer of a session, once it has ended."""
        found = self.finish(session)
        assert found.state is SessionState.FINISHED, found.reason
        return self.kit.answer(session) or ""
