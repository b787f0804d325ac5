"""The Celery app of a stack: ``celery -A workers worker``, ``… flower``, ``… orchestra``.

Celery wants one object at module level; this is it. Agents are loaded when a worker starts, so that
Flower and clients need none.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import redis
from billiard.util import get_pdeathsig
from celery import Celery, signals
from celery.signals import celeryd_init, setup_logging, worker_process_init, worker_ready, worker_shutdown

from orchestrator.config.settings import Settings, load_settings, unknown_variables
from orchestrator.config.stack import resolve, resolve_redis_url
from orchestrator.dispatch import DEFAULT_QUEUE, build_celery
from orchestrator.dispatch.dispatcher import check_broker
from orchestrator.display.text import visible
from orchestrator.errors import KeyringError, NoStack, OrchestraError, ServerUnavailable, SettingsDisagree
from orchestrator.keyring.registry import KeyRegistry
from orchestrator.keyring.store import KeyStore
from orchestrator.log import configure_logging, get_logger
from orchestrator.redisdb.client import check_server, connect
from orchestrator.runtime.process import die_with_parent
from orchestrator.runtime.service import SignsOfLife, notify_ready, spare_the_collector
from orchestrator.worker.container import RuntimeOfProcess
from orchestrator.worker.executors import check_models
from orchestrator.worker.flower import FlowerApp, guard_flower, is_flower
from orchestrator.worker.tasks import register_tasks

#: Seconds between two announcements, and two looks at what may go. A registration lasts longer, and a message
#: waits longer for an agent that has none.
UPKEEP_S: Final = 10.0
#: The process that imported this: the worker itself, of which the pool's processes are forks.
_MASTER = os.getpid()


def _is_celery_program() -> bool:
    program = Path(sys.argv[0])
    return program.stem == "celery" or program.parent.name in ("celery", "worker", "workers")


def _give_up(error: OrchestraError) -> SystemExit:
    """The end of this process, with the exit code of all commands."""
    print(visible(f"Error: {' '.join(str(error).split())}"), file=sys.stderr)
    return SystemExit(4 if isinstance(error, NoStack | ServerUnavailable) else 2)


def _make_app() -> tuple[Celery, Settings]:
    try:
        settings = resolve(load_settings())
        if _is_celery_program():
            for sentence in unknown_variables():
                print(sentence, file=sys.stderr)  # logs are not set up yet
        if settings.redis_url is None and _is_celery_program() and "orchestra" in sys.argv:
            # `celery -A workers orchestra up` makes the stack that this app would talk to.
            return Celery("orchestra", set_as_current=False), settings
        kind = FlowerApp if _is_celery_program() and is_flower(sys.argv[1:]) else Celery
        made = build_celery(settings, kind=kind)
    except OrchestraError as error:
        if not _is_celery_program():
            raise
        # Celery would print its own traceback around the one line that matters.
        raise _give_up(error) from error
    if _is_celery_program():
        guard_flower(sys.argv[1:], os.environ)
    made.conf.update(worker_concurrency=settings.concurrency)
    return made, settings


app, _settings = _make_app()
_runtime = RuntimeOfProcess(app, _settings)
register_tasks(app, _runtime)
if _is_celery_program():
    from orchestrator.worker.execution.shutdown import MainLoop

    app.steps["consumer"].add(MainLoop)


@celeryd_init.connect(weak=False)
def _choose_queues(conf: Any, **_: Any) -> None:
    """A worker reads the queues of the agents that it serves, and the one for submissions if it can sign those."""
    try:
        catalogue = _runtime.load_catalogue()
        _check_servers()
        _runtime.check_keys()  # by now it is known whose host this is
        advice = check_models(catalogue.values(), _settings)
    except OrchestraError as error:
        raise _give_up(error) from error
    if advice:
        print(advice, file=sys.stderr)  # logs are not set up yet
    if _settings.remote_control:
        from orchestrator.worker.tasks import register_commands

        register_commands(lambda: _runtime.get().parts)
    served = {definition.record.queue for definition in catalogue.values() if not definition.record.external}
    if _runtime.can_submit():
        served.add(DEFAULT_QUEUE)
    else:
        folder = _settings.keys_dir
        if not served:
            raise _give_up(
                KeyringError(
                    "this worker has nothing to do: it serves no agent, and takes no plain submissions without the key of "
                    f"'operator', which is not in {folder}; name agents (setting `agents`), and bring their keys here: "
                    "`orchestra keys export AGENT… -o FOLDER --passphrase-file FILE` on the host that has operator.pem, "
                    "`orchestra keys import FOLDER --passphrase-file FILE` here"
                )
            )
        # Logs are not set up yet.
        print(
            f"plain submissions are left to other workers: the key of 'operator' is not in {folder}",
            file=sys.stderr,
        )
    conf.task_queues = {name: {} for name in sorted(served)}


def _check_servers() -> None:
    """End with one line where waiting would be of no use; a server that is away is waited for, as Celery does."""
    try:
        with (
            connect(resolve_redis_url(_settings), settings=_settings, begins=True) as client,
            contextlib.suppress(redis.RedisError, OSError),  # of which those who sign hear
        ):
            # A folder without keys is another host's if Redis knows an operator already.
            KeyRegistry(client, KeyStore(_settings.keys_dir)).settle_operator()
        if _settings.broker_url is not None:
            check_broker(_settings.broker_url)
    except ServerUnavailable as error:
        print(f"waiting: {error}", file=sys.stderr)  # logs are not set up yet
    except OrchestraError as error:
        raise _give_up(error) from error


@setup_logging.connect(weak=False)
def _log_like_the_services(**_: Any) -> None:
    configure_logging(_settings, service="worker")
    if _settings.log_level == "info":
        # Our own lines say of a run what Celery says of its message, and each line costs time before the next run.
        for name in ("celery.worker.strategy", "celery.app.trace"):
            logging.getLogger(name).setLevel(logging.WARNING)
    for name in ("celery.worker.consumer.consumer", "celery.worker.request"):
        logging.getLogger(name).addFilter(_without_traceback)


def _without_traceback(record: logging.LogRecord) -> bool:
    """Say what a worker's connection met on one line: Celery writes 45 for one that was dropped.

    What a request says at the level of errors is about its task, and keeps its traceback.
    """
    of_task = (record.name, record.levelno) == ("celery.worker.request", logging.ERROR)
    if record.exc_info and record.exc_info[1] is not None and record.levelno > logging.DEBUG and not of_task:
        record.msg, record.args = f"{record.getMessage()} ({record.exc_info[1]!r})", None
        record.exc_info = None
    return True


@worker_process_init.connect(weak=False)
def _end_with_the_master(**_: Any) -> None:
    """End a pool process whose master was killed: it would keep its run, and nobody could stop it."""
    if os.getpid() != _MASTER:
        die_with_parent(signal.SIGKILL)


@signals.worker_before_create_process.connect(weak=False)
@worker_process_init.connect(weak=False)
def _spare_the_collector(**_: Any) -> None:
    """Spare it before the pool forks, too: else each process gets a copy of what its first collection marks."""
    with contextlib.suppress(OSError):
        get_pdeathsig()  # it loads a parser of C with which each process of the pool sets this
    spare_the_collector()


@worker_ready.connect(weak=False)
def _announce(sender: Any = None, **_: Any) -> None:
    from orchestrator.worker.announce import announce, queues_of, versions_of
    from orchestrator.worker.execution.ending import LEAST_WAIT_S, Watchdog

    parts, catalogue = _runtime.get().parts, _runtime.load_catalogue()
    # What Celery's -Q leaves out is not served, though its agent is announced.
    served = {name: queue for name, queue in queues_of(catalogue).items() if name in _runtime.get().served}
    slots = int(getattr(getattr(sender, "pool", None), "num_processes", 0) or 0)
    life = SignsOfLife(
        "worker", parts.redis, _settings, serves=served, versions=versions_of(catalogue), slots=slots
    )

    def appear() -> None:
        check_server(parts.redis, resolve_redis_url(_settings), settings=_settings, begins=True)
        life.begin()
        announce(parts, catalogue)
        notify_ready()

    appeared = False
    try:
        appear()
        appeared = True
    except (redis.RedisError, OSError, ServerUnavailable) as error:
        # With a broker of its own, a worker is ready although the ledger is away or takes no writes.
        get_logger().warning("redis-away", error=str(error))
    except OrchestraError as error:
        # Without its keys the worker can sign nothing.
        life.end()
        raise _give_up(error) from error
    worker_shutdown.connect(lambda **_: life.end(), weak=False)
    Watchdog(
        sender,
        _runtime.with_ready_runs,
        lambda agent: _runtime.get().wake(agent),
        silent_for_s=max(LEAST_WAIT_S, _settings.lease_s * 2, _settings.sweep_interval_s * 3),
    ).start()
    if appeared:
        sender.main_loop.watch(sender, life, heartbeat_s=_settings.heartbeat_s)
    given = {"appeared": appeared}
    threading.Thread(target=_keep_up, args=(appear,), kwargs=given, name="upkeep", daemon=True).start()


def _keep_up(appear: Callable[[], None], *, appeared: bool) -> None:
    """Announce the agents again, and remove what their runs have left, until the process ends."""
    from orchestrator.worker.announce import Janitor
    from orchestrator.worker.worktrees import Worktrees

    parts, waiting = _runtime.get().parts, threading.Event()
    janitor = Janitor(parts.ledger, Worktrees(_settings.data))
    while not waiting.wait(UPKEEP_S if appeared else 1.0):
        try:
            appear()
            appeared = True
            janitor.clean()
        except SettingsDisagree as error:
            # The stack was started anew with other settings while this worker could not reach it.
            get_logger().error(
                "settings-disagree", error=str(error), action="the worker ends when its runs have"
            )
            os.kill(os.getpid(), signal.SIGTERM)
            return
        except Exception as error:  # noqa: BLE001  (what it did not do is done the next time)
            get_logger().warning("upkeep-failed", error=repr(error))
