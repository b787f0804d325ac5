"""Loaded by the fork server of `test_silence`: its workers bear less silence than those of a user, CHAOS_SILENCE_S seconds."""

from __future__ import annotations

import os

from orchestrator.worker.execution import ending

ending.LEAST_WAIT_S = float(os.environ["CHAOS_SILENCE_S"])
ending.END_S = ending.LEAST_WAIT_S / 2
