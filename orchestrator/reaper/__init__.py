"""The reaper: finds what has stopped moving, and completes what a crash left between two steps."""

from orchestrator.reaper.service import Reaper

__all__ = ["Reaper"]
