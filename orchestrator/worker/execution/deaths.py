"""A pool process that died with a run in its hands, seen by the worker's main process at once.

The lease would run out by itself; but a crash, or a system without memory, is the run's own doing more often than the
machine's, so it is reported at once and counted apart. The claim says which process had the run.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, Final

from billiard.exceptions import WorkerLostError
from celery.exceptions import InvalidTaskError, WorkerShutdown, WorkerTerminate
from celery.worker import state
from celery.worker.request import Request

from orchestrator import machine
from orchestrator.errors import OrchestraError
from orchestrator.ids import new_claim_id
from orchestrator.ledger import Lease
from orchestrator.log import get_logger
from orchestrator.redisdb.retry import retry_outages
from orchestrator.worker.container import Runtime

#: What a signal that ends a pool process raises in it: so billiard tells the signal to the worker's main process.
_SIGNALLED: Final = tuple(number - 256 for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))

_log = get_logger()
#: Levels of lists and objects that a message may have.
_MOST_DEPTH: Final = 100
_NESTS: Final = (list, dict, tuple)


def claim_of_this_process() -> str:
    """A new claim id that tells which process made it."""
    return f"{new_claim_id()}@{machine.own_mark()}"


def ends_process(error: BaseException) -> bool:
    """Return True if the error tells this process to end, and is no failure of the agent in which it was raised."""
    if isinstance(error, BaseExceptionGroup):  # of a task group that was at work
        return any(map(ends_process, error.exceptions))
    return isinstance(error, WorkerShutdown | WorkerTerminate) or (
        isinstance(error, SystemExit) and error.code in _SIGNALLED
    )


def release_runs_of(pid: int, runtime: Runtime, died: str = "") -> None:
    """Take the runs of a process from it, in the ledger: of a fork of this one that died, or of this one at its end.

    ``died`` says how it ended, and counts against each run. Without it their worker was lost. Each is released under the
    claim that the process has, so that nothing is taken from anybody else. Where that is not possible now, the leases
    run out.
    """
    parts = runtime.parts
    try:
        leases = retry_outages(
            lambda: [
                lease for shard in range(parts.settings.shards) for lease in parts.ledger.sweep.leases(shard)
            ],
            what="deaths",
            retry_for_s=parts.settings.lease_s,
        )
        for lease in leases:
            if lease.claim.endswith(f"@{machine.mark_of(pid)}"):
                _release(lease, runtime, died)
    except OrchestraError as error:
        _log.warning("dead-process-not-reported", pid=pid, died=died, error=str(error))


def _release(lease: Lease, runtime: Runtime, died: str) -> None:
    parts = runtime.parts

    def release() -> str:
        run, found = parts.ledger.run(lease.run), parts.ledger.find([lease.session])
        if run is None or not found:
            return "deleted"
        definition = runtime.catalogue.get(found[0].agent)
        wait_ms = definition.record.retry_ms(run.died + 1) if definition and died else 0
        # In the name of the agent, whose key is here.
        return parts.ledger.release(lease, died=died, wait_ms=wait_ms, by=found[0].agent)

    outcome = retry_outages(release, what="release", retry_for_s=parts.settings.lease_s)
    if died:
        runtime.events.died(lease, died)
    event = "process-died" if died else "run-released"
    _log.error(event, run=lease.run, session=lease.session, died=died, outcome=outcome)


class SoundRequest(Request):
    """Celery's request for a message, refused if nested too deeply.

    A worker hands it to a process of its pool by pickle, which ends the worker where lists and objects are nested some
    900 levels deep. Celery drops an invalid message.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if _is_deep([self.request_dict, self.args, self.kwargs]):
            raise InvalidTaskError(f"it has more than {_MOST_DEPTH} levels of lists and objects")


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_MOST_DEPTH):
        inner: list[Any] = []
        for one in level:
            inner += one.values() if isinstance(one, dict) else one
        level = [one for one in inner if isinstance(one, _NESTS)]
        if not level:
            return False
    return True


def request_class(runtime: Callable[[], Runtime]) -> type[Request]:
    """Return the class of Celery's requests for notifications of slots."""

    class RunRequest(SoundRequest):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            # Whoever reaches the broker may not end the runs that the slot takes for this message.
            self.time_limits = (None, None)

        def on_failure(
            self,
            exc_info: Any,
            send_failed_event: bool = True,  # noqa: FBT001, FBT002  (Celery's signature)
            return_ok: bool = False,  # noqa: FBT001, FBT002
        ) -> None:
            """Celery gives the message back when its process died; here its death is reported."""
            super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
            error = getattr(exc_info.exception, "exc", exc_info.exception)
            # A worker that is ended cold kills its processes itself.
            if not isinstance(error, WorkerLostError) or not self.worker_pid or state.should_terminate:
                return
            died = self.worker_pid, runtime(), _how(error)
            # Celery's event loop waits for nobody's Redis.
            machine.start_thread(lambda: release_runs_of(*died), "death")

    return RunRequest


def _how(error: WorkerLostError) -> str:
    """Return how the process ended, without the text that billiard puts around it."""
    return (
        str(error).removeprefix("Worker exited prematurely: ").partition(" Job:")[0].rstrip(" .") or "no word"
    )
