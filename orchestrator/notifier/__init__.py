"""Notifications: each question, end and dead callback goes to a webhook or a command, at least once.

Transitions write notices to a stream in the same step. The notifier reads it with a consumer group for each target; an
entry is acknowledged when its target has taken it, or when it was given up and is a dead letter.
"""

from __future__ import annotations

from orchestrator.notifier.service import EVENTS, NOTIFICATION, CloudEvent, Notifier, build_notifier
from orchestrator.notifier.targets import CommandTarget, Target, Webhook, targets_of

__all__ = [
    "EVENTS",
    "NOTIFICATION",
    "CloudEvent",
    "CommandTarget",
    "Notifier",
    "Target",
    "Webhook",
    "build_notifier",
    "targets_of",
]
