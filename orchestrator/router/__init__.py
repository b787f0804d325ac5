"""The router: messages from the streams, validated, authorised and acted upon by type.

The way of an entry, by modules: `service` reads it, and puts `aside` what nobody waits for; `admission` judges it, by what `intake` and `dependencies` say;
`acts` and `foreign` name the step for it; `execution` carries the steps of a round out, those of `marking` many at
a time. What has to wait goes to `redelivery` by the rules of `retries`, and waits in `parking`; what is given up
becomes a dead letter in `undelivered`.
"""

from __future__ import annotations

from orchestrator.router.build import build_router
from orchestrator.router.report_buffer import ReportBuffer
from orchestrator.router.router import Handled, Router

__all__ = ["Handled", "ReportBuffer", "Router", "build_router"]
