"""A process that has everything imported and forks services and workers from itself on demand.

Starting one takes milliseconds this way and not seconds, so that a test can afford to kill many. What is
forked runs the same entry points as ``orchestra router`` or ``celery -A workers worker`` and is a process of
its own. Reads JSON lines from standard input (argv, environment, log file) and answers with process ids.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import warnings

# What the services and the worker would import; not `orchestrator.celery`, which reads its settings when imported.
PRELOAD = (
    "celery.__main__",
    "celery.apps.worker",
    "celery.bin.worker",
    "celery.concurrency.prefork",
    "celery.fixups.django",
    "celery.worker.consumer",
    "kombu.transport.redis",
    "orchestrator.audit",
    "orchestrator.reconciler.callbacks",
    "orchestrator.cli.audit",
    "orchestrator.cli.callbacks",
    "orchestrator.cli.reaper",
    "orchestrator.cli.router",
    "orchestrator.cli.submit",
    "orchestrator.dispatch.publishing",
    "orchestrator.router",
    "orchestrator.router.build",
    "orchestrator.client.submission",
    "orchestrator.worker.announce",
    "orchestrator.worker.execution.runner",
    "orchestrator.worker.tasks",
)


def main() -> None:
    """Fork what is asked for until standard input ends; what was forked ends then, too."""
    import importlib

    from orchestrator.runtime.parent_death import die_with_parent

    for name in (*PRELOAD, *os.environ.get("CHAOS_PRELOAD", "").split()):
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # collects the dead by itself
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            die_with_parent(signal.SIGKILL)
            _become(**order)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


def _become(argv: list[str], env: dict[str, str], log: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.environ.clear()
    os.environ.update(env)
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(number, target)
    # A test that fails asks everybody where he stands; the other user signal means something to Celery.
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    sys.argv = argv
    # A plan to crash is read from the environment when the module is imported, and it is already.
    from orchestrator import crashpoints

    crashpoints._plan = crashpoints._Plan(env.get(crashpoints.VARIABLE, ""))
    code: object = 0
    try:
        if argv[0] == "celery":
            from celery.__main__ import main as run
        else:
            from orchestrator.cli import main as run
        run()
    except SystemExit as end:
        code = end.code
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code or 0))  # type: ignore[call-overload]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
