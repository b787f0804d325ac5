"""``orchestra doctor`` and ``orchestra why``: every callback accounted for, and one session explained."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.names import session_argument
from orchestrator.cli.options import json_option, stack_options
from orchestrator.cli.output import print_json, say
from orchestrator.cli.stack import open_stack
from orchestrator.cli.trail import to_amend
from orchestrator.display.text import counted

if TYPE_CHECKING:
    from orchestrator.audit.reader import AuditReader
    from orchestrator.bootstrap import Container
    from orchestrator.config.settings import Settings
    from orchestrator.doctor import Diagnosis

_MARKS = {"break": ("BREAK", "red"), "stuck": ("stuck", "yellow"), "warning": ("warning", "cyan")}
#: Pending callbacks that are shown one by one; the JSON has all.
_SHOWN_WAITS = 10


def _trail(settings: Settings) -> AuditReader | None:
    """Return the audit trail; None if it was not begun, or its server is away."""
    from orchestrator.audit.reader import AuditReader
    from orchestrator.audit.store import AuditStore
    from orchestrator.errors import AuditUnavailable

    where = settings.audit_database
    if isinstance(where, Path) and not where.exists():
        return None
    try:
        return AuditReader(AuditStore(where, read_only=True))
    except AuditUnavailable:
        return None


@click.command("doctor")
@click.option(
    "--fix",
    is_flag=True,
    help="First repair what the ledger still knows, and run the reconciliation sweep.",
)
@click.option(
    "--full",
    is_flag=True,
    help="Look at everything that is kept, and not only at what changed: a few milliseconds for each session.",
)
@click.option(
    "--accept",
    "accepted",
    multiple=True,
    metavar="SESSION",
    help="First note in the audit trail that a session which the ledger lost (`session-lost`) stays so, with those below it.",
)
@click.option("--quick", is_flag=True, help="Do not watch leases, which takes a heartbeat.")
@json_option
@stack_options
@click.pass_context
def doctor(
    ctx: click.Context,
    settings: Settings,
    *,
    fix: bool,
    full: bool,
    accepted: tuple[str, ...],
    quick: bool,
    as_json: bool,
) -> None:
    """Check that no callback is lost or doubled; name what is wrong and what is stuck.

    It looks at all trees that are not at rest, and at those that came to rest within the last hour. With --full it
    looks at every session that is kept, reads all large texts, and looks through all keys for what nobody refers to: once
    a day, and after damage or a restore.

    With --fix, indexes, counters and texts that are wrong or missing are rebuilt from the ledger's records, and
    what cannot be rebuilt is named. A lease that is not renewed is watched for its whole time; then its run goes to
    another worker.

    --accept needs the operator's key, and names a session that need not be submitted again.

    Exit code 0: every callback is accounted for and everything moves (warnings allowed); 1: something is broken; 2: could
    not look; 3: nothing is broken, and something is stuck.
    """
    import redis

    from orchestrator.doctor import Doctor
    from orchestrator.errors import OrchestraError

    if accepted:
        _accept(settings, accepted)
    try:
        if fix:
            _restore_format(settings)
        with open_stack(settings, "doctor") as parts:
            examiner = Doctor(parts, audit=_trail(settings))
            before = examiner.examine(watch_leases=False, full=full) if fix else None
            if before is not None:
                examiner.repair(before)
                _sweep(parts)
            diagnosis = examiner.examine(watch_leases=not quick, full=full)
        if before is not None:
            _say_what_was_fixed(before, diagnosis)
    except (OrchestraError, redis.RedisError, OSError) as error:
        say(f"Error: could not look: {error}", err=True)
        ctx.exit(2)
    if as_json:
        from orchestrator.cli.documents.stack import DiagnosisDocument

        print_json(DiagnosisDocument.of(diagnosis))
    else:
        _print(diagnosis)
    ctx.exit(diagnosis.exit_code)


def _accept(settings: Settings, sessions: tuple[str, ...]) -> None:
    from orchestrator.audit.heads import EitherKeys, proof_of
    from orchestrator.audit.reader import AuditReader
    from orchestrator.audit.store import AuditStore
    from orchestrator.doctor.repair import LostSessions

    database, signer = to_amend(settings)
    with open_stack(settings, "doctor") as parts:
        audit = AuditReader(AuditStore(settings.audit_database, read_only=True))
        proof = proof_of(EitherKeys(parts.keyring, parts.keyring.store), settings)
        lost = LostSessions(parts, audit, proof)
        for session in sessions:
            say(lost.accept(session, database, signer), err=True)


def _restore_format(settings: Settings) -> None:
    from orchestrator.config.stack import resolve, resolve_redis_url
    from orchestrator.doctor.repair import restore_format
    from orchestrator.redisdb.client import connect

    with connect(resolve_redis_url(resolve(settings)), ledger=False) as client:
        restore_format(client)


def _sweep(parts: Container) -> None:
    from orchestrator.deployment.local_stack import build_reaper

    settings = parts.settings
    reaper = build_reaper(parts.redis, settings)
    swept = reaper.run_once()
    leases = reaper.leases()
    if leases:
        time.sleep(settings.heartbeat_s * 1.5)
    if any(lease in leases for lease in reaper.leases()):
        # Only a lease that does not move for its whole time may be given to another worker.
        say(f"sweep: a lease is not renewed; watching it for {settings.lease_s:g} s", err=True)
        until = time.monotonic() + settings.lease_s
        while time.monotonic() < until:
            time.sleep(min(settings.heartbeat_s, settings.lease_s / 4))
            swept += reaper.run_once()
    done = ", ".join(f"{v} {k}" for k, v in dataclasses.asdict(swept).items() if v)
    say(f"sweep: {done or 'nothing to do'}", err=True)


def _say_what_was_fixed(before: Diagnosis, after: Diagnosis) -> None:
    from orchestrator.ledger.leftovers import RULES

    left = {finding.key for finding in after.findings}
    for finding in (f for f in before.findings if f.severity == "break" or f.rule in RULES):
        mark, colour = ("not fixed: ", "red") if finding.key in left else ("fixed: ", "green")
        prefix = "" if finding.session in finding.message else f"{finding.session}: "
        say(f"{prefix}{finding.message}  [{finding.rule}]", mark=mark, colour=colour, err=True)


def _print(diagnosis: Diagnosis) -> None:
    for finding in sorted(diagnosis.findings, key=lambda f: (list(_MARKS).index(f.severity), f.session)):
        mark, colour = _MARKS[finding.severity]
        prefix = f"{finding.session}: " if finding.session and finding.session not in finding.message else ""
        say(f"{prefix}{finding.message}  [{finding.rule}]", mark=f"{mark:<8}", colour=colour)
    for wait in diagnosis.waits[:_SHOWN_WAITS]:
        say(f"pending  {wait.subject}: {wait.waits_for}; moved by {wait.mover}; {wait.by}")
    if len(diagnosis.waits) > _SHOWN_WAITS:
        say(f"pending  … and {len(diagnosis.waits) - _SHOWN_WAITS} more (--json lists all)")
    counts = Counter(str(f.severity) for f in diagnosis.findings)
    verdict, colour = ("all accounted for", "green") if diagnosis.holds else ("BROKEN", "red")
    evidence = "ledger, runs and audit trail" if diagnosis.audited else "ledger and runs"
    say(f": {diagnosis.tally}", mark=verdict, colour=colour)
    say(
        f"{counted(diagnosis.tally.sessions, 'session')} in {counted(diagnosis.trees, 'tree')}, from {evidence}; "
        f"{counted(counts['break'], 'break')}, {counts['stuck']} stuck, {counted(counts['warning'], 'warning')}"
    )
    if diagnosis.at_rest:
        trees = counted(diagnosis.at_rest, "tree")
        say(f"{trees} at rest for over an hour not looked at: orchestra doctor --full")


@click.command("why")
@session_argument()
@json_option
@stack_options
@click.pass_context
def why(ctx: click.Context, settings: Settings, *, session: str, as_json: bool) -> None:
    """Say what SESSION waits for, what will move it, and by when, and which session holds it up in the end."""
    from orchestrator.doctor import Doctor

    with open_stack(settings, "doctor") as parts:
        examiner = Doctor(parts, audit=_trail(settings))
        known, wait, problems = examiner.why(session)
        steps = [] if wait is None else examiner.held_up_by(session)
    if as_json:
        from orchestrator.cli.documents.stack import HeldUpBy, Why

        below = [HeldUpBy.of(step.session, wait=step.wait) for step in steps]
        more = {"reason": known.reason, "wait": wait, "held_up_by": below, "findings": problems}
        print_json(Why.of(known, **more))
    else:
        reason = f": {known.reason}" if known.reason else ""
        say(f"{known.id} ({known.agent}) is {known.state}{reason}")
        if wait is None:
            say("  it waits for nothing")
        else:
            for label, text in (
                ("waits for", wait.waits_for),
                ("moved by", wait.mover),
                ("by when", wait.by),
            ):
                say(f"  {label + ':':<10} {text}")
        for step in steps:
            sentence = f"{step.session.id} ({step.session.agent}) is {step.session.state}"
            say(f"held up by {sentence}{f': {step.wait.waits_for}' if step.wait else ''}")
        if steps and steps[-1].wait is not None:
            say(f"  {'moved by:':<10} {steps[-1].wait.mover}")
            say(f"  {'by when:':<10} {steps[-1].wait.by}")
        for finding in problems:
            mark, colour = _MARKS[finding.severity]
            say(f"{finding.message}  [{finding.rule}]", mark=f"  {mark} ", colour=colour)
    ctx.exit(1 if any(finding.severity == "break" for finding in problems) else 0)
