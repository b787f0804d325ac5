"""The callback service: on every `session_stop`, resume who has callbacks waiting."""

from orchestrator.reconciler.callbacks.callback_service import CallbackService

__all__ = ["CallbackService"]
