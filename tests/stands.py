"""Loaded by the fork server of the tests: its children write on SIGUSR2 where each of their threads stands."""

from __future__ import annotations

import faulthandler
import signal

# The other user signal means something to Celery.
faulthandler.register(signal.SIGUSR2, all_threads=True)
