"""The callback service: on every `session_stop`, resume who has callbacks waiting."""

from orchestrator.reconciler.callbacks.service import CallbackService

__all__ = ["CallbackService"]
