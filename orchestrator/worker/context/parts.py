"""Parts of which the context of one run is composed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.config.settings import Settings
from orchestrator.worker.context.approvals import ApprovalRequests
from orchestrator.worker.context.effects import Effects
from orchestrator.worker.context.launches import Launches
from orchestrator.worker.context.messages import MessageSender
from orchestrator.worker.context.spending import ProviderLimits, RunSpending
from orchestrator.worker.context.steps import Steps
from orchestrator.worker.context.verification import Verifier
from orchestrator.worker.context.waits import Blocking


@dataclass(frozen=True, kw_only=True)
class RunParts:
    """The parts of one run, in one try of it."""

    settings: Settings
    effects: Effects
    verifier: Verifier
    message_sender: MessageSender
    blocking: Blocking
    launches: Launches
    steps: Steps
    spending: RunSpending
    limits: ProviderLimits
    approvals: ApprovalRequests
    #: The environment of programs that take part in the run.
    environment: Callable[[], dict[str, str]]
