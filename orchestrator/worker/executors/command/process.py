"""A process of a command-line agent, behind its guard: fed, read, stopped, and ended with everything it started."""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from orchestrator.errors import AgentProgramError

_GUARD: Final = str(Path(__file__).with_name("guard.py"))
_PIECE: Final = 1 << 16
#: Seconds between two looks at whether the run may go on.
LOOK_S: Final = 0.1
#: Seconds after which a guard that does not end is killed; it waits for ten at most itself.
_GUARD_S: Final = 15.0
#: Seconds that a program may go on after it has closed its output.
_LINGERS_S: Final = 1.0


@dataclass(frozen=True, kw_only=True)
class Exit:
    """The exit status of a program."""

    code: int  #: its exit code; a signal's number, negative

    def __str__(self) -> str:
        return f"exit code {self.code}" if self.code >= 0 else f"signal {-self.code}"


class AgentProcess:
    """A program that runs. Use it as a ``with`` block: nothing of it is left afterwards."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], folder: Path, stop_grace_s: float
    ) -> None:
        """Start the program.

        Args:
            command: the program and its arguments; no shell reads them.
            env: its environment; nothing is inherited.
            folder: where it runs.
            stop_grace_s: seconds between being asked to stop and being killed.

        Raises:
            AgentProgramError: the guard cannot be started.
        """
        self._name = command[0]
        ours, theirs = socket.socketpair()
        self._control = ours
        guard = [sys.executable, "-I", "-S", _GUARD, str(theirs.fileno()), f"{stop_grace_s:g}", *command]
        try:
            self._guard: subprocess.Popen[bytes] = subprocess.Popen(
                guard,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(env),
                cwd=folder,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise AgentProgramError(self._name, f"it cannot be started in {folder}: {error}") from error
        finally:
            theirs.close()
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        assert self._guard.stderr is not None
        self.stdin: IO[bytes] = self._guard.stdin
        self.stdout: IO[bytes] = self._guard.stdout
        self.stderr: IO[bytes] = self._guard.stderr
        self._asked = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.kill()
        for stream in (self.stdin, self.stdout, self.stderr):
            with suppress(OSError):
                stream.close()
        try:
            self._guard.wait(_GUARD_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        self._control.close()

    def stop(self) -> None:
        """Ask the program to stop; it is killed when its grace has passed. Harmless when repeated."""
        self._order(b"T")

    def kill(self) -> None:
        """Kill the program and everything that it started. Harmless when repeated."""
        self._order(b"K")

    def _order(self, order: bytes) -> None:
        if order not in self._asked:
            self._asked += order
            with suppress(OSError):
                self._control.send(order)

    def talk(
        self,
        words: bytes,
        *,
        on_output: Callable[[bytes], None],
        on_error: Callable[[bytes], None],
        look: Callable[[], None],
    ) -> Exit:
        """Give the program its input, take its output until it ends, and say how it ended.

        ``look`` is called several times a second; what it raises ends this call, and the ``with`` block the program.

        Raises:
            AgentProgramError: the program cannot be started.
        """
        with selectors.DefaultSelector() as selector:
            os.set_blocking(self.stdin.fileno(), False)
            left = memoryview(words)
            if left:
                selector.register(self.stdin, selectors.EVENT_WRITE)
            else:
                self.stdin.close()
            selector.register(self.stdout, selectors.EVENT_READ, on_output)
            selector.register(self.stderr, selectors.EVENT_READ, on_error)
            open_streams, looked_at = 2, 0.0
            while open_streams:
                for key, _ in selector.select(LOOK_S):
                    if key.fileobj is self.stdin:
                        left = self._feed(left)
                        if not left:
                            selector.unregister(self.stdin)
                            with suppress(OSError):
                                self.stdin.close()
                        continue
                    piece = os.read(key.fd, _PIECE)
                    if piece:
                        key.data(piece)
                    else:
                        selector.unregister(key.fileobj)
                        open_streams -= 1
                now = time.monotonic()
                if now - looked_at >= LOOK_S:
                    looked_at = now
                    look()
        return self.wait(look)

    def _feed(self, words: memoryview) -> memoryview:
        """Write what the pipe takes; return what is left. A program that does not want its input need not take it."""
        try:
            return words[os.write(self.stdin.fileno(), words[:_PIECE]) :]
        except BlockingIOError:
            return words
        except OSError:
            return words[len(words) :]

    def end(self) -> Exit | None:
        """Wait for a program that has closed its output and return its exit; kill it if it lingers. None if its guard
        was killed.
        """
        until = time.monotonic() + _LINGERS_S

        def look() -> None:
            if time.monotonic() > until:
                self.kill()

        try:
            return self.wait(look)
        except AgentProgramError:
            return None

    def wait(self, look: Callable[[], None]) -> Exit:
        """Wait for the program and return its exit; nothing of it is left then.

        Raises:
            AgentProgramError: it could not be started, or its guard was killed.
        """
        self._control.settimeout(LOOK_S)
        while True:
            try:
                ending = self._control.recv(4096).decode(errors="replace")
            except TimeoutError:
                look()
                continue
            except OSError:
                ending = ""
            break
        kind, _, rest = ending.partition(" ")
        if kind == "error":
            raise AgentProgramError(
                self._name, f"it cannot be started: {rest.removeprefix(f'{self._name}: ')}"
            )
        if kind not in ("exit", "signal"):
            raise AgentProgramError(self._name, "its guard was killed")
        return Exit(code=int(rest) if kind == "exit" else -int(rest))
