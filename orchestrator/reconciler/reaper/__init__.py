"""The reaper: finds what has stopped moving, and completes what a crash left between two steps."""

from orchestrator.reconciler.reaper.reaper import Reaper

__all__ = ["Reaper"]
