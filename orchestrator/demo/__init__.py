"""The bundled agents: ``lead`` reviews a source tree with the help of ``reviewer``. No model, no key needed.

They have a queue of their own, so that a worker without a user's agents never takes up the work of a user's
agent that happens to be called `lead`.
"""

from __future__ import annotations

from orchestrator.demo.lead import lead
from orchestrator.demo.reviewer import reviewer

__all__ = ["lead", "reviewer"]
