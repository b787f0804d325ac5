"""Stands between a worker and one command-line agent, so that nothing of the agent outlives its run.

    python -I -S guard.py CONTROL GRACE_S COMMAND…

CONTROL is the number of a socket to the worker. The guard ends everything that the command started, also what made
itself a daemon, as soon as the command ends, the worker says so, or the worker is gone: on Linux it is the subreaper
of all that the command starts, and collects what nobody else does. It imports nothing but the standard library, as
it begins in some milliseconds and runs beside every agent.

From the worker: `T` asks the agent to stop and kills it after GRACE_S seconds, `K` kills it at once, the end of the
stream likewise. To the worker, once nothing is left: `exit CODE`, `signal NUMBER` or `error TEXT`.

If the guard itself is killed, the kernel kills the command (PR_SET_PDEATHSIG), but not what became a daemon before.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time

_PDEATHSIG = 1
_CHILD_SUBREAPER = 36
#: Seconds between two looks at whether the worker is there: its end closes the socket, unless it has forked.
_LOOK_S = 1.0
#: Seconds that killed processes are waited for: one that hangs in the kernel cannot be killed.
_LAST_S = 10.0


def main() -> None:
    """Run the command that the arguments name."""
    control, grace_s, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    worker = os.getppid()
    _prctl(_CHILD_SUBREAPER, 1)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    child, failure = _start(command, control)
    if failure:
        _say(control, f"error {failure}")
        return
    for number in (0, 1, 2):  # the agent has them; their ends are the agent's ends
        os.close(number)
    ending = _watch(child, control, woken, worker, grace_s)
    _kill_all(child)
    _say(control, ending)


def _prctl(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _start(command: list[str], control: int) -> tuple[int, str]:
    """The process id of the command, and why it could not be started."""
    guard = os.getpid()
    failed, fail = os.pipe()  # closed by a successful exec
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            _prctl(_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guard:
                os._exit(127)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            os.set_inheritable(control, False)
            os.execvp(command[0], command)  # noqa: S606  (no shell is wanted)
        except OSError as error:
            os.write(fail, f"{command[0]}: {error.strerror}".encode())
        finally:
            os._exit(127)
    os.close(fail)
    failure = os.read(failed, 4096)
    os.close(failed)
    if failure:
        os.waitpid(child, 0)
    return child, failure.decode(errors="replace")


def _watch(child: int, control: int, woken: int, worker: int, grace_s: float) -> str:
    """Wait for the end of the command, or for the order to end it; how it ended."""
    kill_at = float("inf")
    while True:
        left_s = max(0.0, min(_LOOK_S, kill_at - time.monotonic()))
        ready, _, _ = select.select([control, woken], [], [], left_s)
        if woken in ready:
            os.read(woken, 4096)
        status = _reap(child)
        if status is not None:
            code = os.waitstatus_to_exitcode(status)
            return f"exit {code}" if code >= 0 else f"signal {-code}"
        if control in ready:
            order = _read(control)
            if order == b"T" and kill_at == float("inf"):
                kill_at = time.monotonic() + grace_s
                _signal_group(child, signal.SIGTERM)
            elif order != b"T":
                kill_at = 0.0
        if os.getppid() != worker or time.monotonic() >= kill_at:
            return f"signal {int(signal.SIGKILL)}"


def _read(control: int) -> bytes:
    try:
        return os.read(control, 1)
    except OSError:
        return b""


def _reap(child: int) -> int | None:
    """Collect processes that have ended; return the status of the command if it is among them."""
    status = None
    while True:
        try:
            pid, ended = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == child:
            status = ended


def _kill_all(child: int) -> None:
    """End everything below this process.

    Only children are killed, which cannot be another process by now, as nobody but this one collects them. What they
    leave behind become children then.
    """
    _signal_group(child, signal.SIGKILL)
    ends_at = time.monotonic() + _LAST_S
    while time.monotonic() < ends_at:
        _reap(child)
        left = _children()
        if not left:
            return
        for pid in left:
            _signal(pid, signal.SIGKILL)
        time.sleep(0.005)


def _signal_group(child: int, number: signal.Signals) -> None:
    try:
        os.killpg(child, number)
    except (ProcessLookupError, PermissionError):
        return


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _children() -> list[int]:
    """Return the processes whose parent this one is; empty if the system does not say."""
    own, found = str(os.getpid()), []
    try:
        names = os.listdir("/proc")  # noqa: PTH208  (pathlib costs more time than the rest of this program)
    except OSError:
        return []
    for name in names:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                    facts = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if len(facts) > 1 and facts[1] == own:
                found.append(int(name))
    return found


def _say(control: int, text: str) -> None:
    try:
        os.write(control, text.encode()[:4096])
    except OSError:
        return


if __name__ == "__main__":
    main()
