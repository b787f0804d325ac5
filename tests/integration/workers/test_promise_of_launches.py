"""The doctor finds the promise kept of every launch that an agent can make: the audit trail knows them all."""

from __future__ import annotations

import pytest

from orchestrator.audit.reader import AuditReader
from orchestrator.audit.store import AuditStore
from orchestrator.audit.writer import AuditWriter
from orchestrator.doctor import Doctor, Problem, Severity
from orchestrator.streams import all_streams
from orchestrator.worker.context.context import Context

from .conftest import StackHarness
from .theatre import Harness


def breaks(stage: StackHarness) -> list[Problem]:
    """What the doctor finds broken, with the audit trail of all that was said."""
    store = AuditStore(stage.settings.audit_database)
    try:
        writer = AuditWriter(stage.redis, store, consumer="w", sources=all_streams(1))
        while writer.run_once():
            pass
        diagnosis = Doctor(stage.parts, audit=AuditReader(store), sleep=lambda _: None).examine(
            watch_leases=False
        )
    finally:
        store.close()
    assert diagnosis.audited
    return [finding for finding in diagnosis.findings if finding.severity is Severity.BREAK]


@pytest.mark.parametrize("tech_lead", [True, False])
def test_a_review_and_an_escalation_are_launches_too(
    stage: StackHarness, theatre: Harness, *, tech_lead: bool
) -> None:
    """Also what a reviewer launches; an escalation that nobody but the operator can take begins no session."""

    @stage.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("worker", "do it")
            ctx.request_review("Is this safe?")
            ctx.escalate("Two rules contradict each other", reason="conflict")
            ctx.wait_for("all")
        return "done"

    @stage.agent("worker")
    def worker(ctx: Context) -> str:
        return "done"

    @stage.agent("code-reviewer", role="coordinator")
    def reviewer(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("worker", "look closer")
        return "safe"

    if tech_lead:

        @stage.agent("tech-lead", role="coordinator")
        def decider(ctx: Context) -> str:
            if ctx.cause == "start":
                ctx.delegate("worker", "measure")
            return "decided"

    root = stage.submit("lead")
    assert theatre.answer(root) == "done"
    assert stage.ledger.session(root).launched == (3 if tech_lead else 2)
    assert breaks(stage) == []
