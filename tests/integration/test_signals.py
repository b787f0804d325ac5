"""A signal that asks a process to end is heard whatever its main thread is doing."""

from __future__ import annotations

import subprocess
import sys

ROUNDS = 30
#: The main thread looks at an event all the time, and so holds its lock most of the time when a signal comes.
PROGRAM = f"""
import os, signal, threading
from orchestrator.runtime.process import set_soon

asked, heard = threading.Event(), threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: set_soon(asked, heard))

def ask():
    for _ in range({ROUNDS}):
        os.kill(os.getpid(), signal.SIGUSR1)
        heard.wait()
        heard.clear()

threading.Thread(target=ask, daemon=True).start()
for _ in range({ROUNDS}):
    while not asked.wait(0):
        pass
    asked.clear()
print("done")
"""


def test_an_event_that_the_main_thread_looks_at_is_set_by_a_signal() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr
