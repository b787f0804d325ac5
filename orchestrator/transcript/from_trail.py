"""The transcript of a session that the ledger no longer has, from its messages in the audit trail."""

from __future__ import annotations

import re
from typing import Any, Final, cast

from orchestrator.agents.registry import OPERATOR, REAPER, SYSTEM_AGENTS
from orchestrator.audit.reader import AuditReader
from orchestrator.audit.records import MessageRecord
from orchestrator.bootstrap import Container
from orchestrator.envelope.bodies import ErrorReport, Query, Reply, StatusUpdate, TaskCompletion
from orchestrator.envelope.codec import decode
from orchestrator.envelope.message_types import SESSION_STARTING, LaunchBody
from orchestrator.envelope.model import Body
from orchestrator.envelope.payload import BlobRef, BlobStore
from orchestrator.envelope.prompt_text import prompt_of
from orchestrator.envelope.sealing import Opener
from orchestrator.errors import OrchestraError
from orchestrator.transcript.model import (
    TURNS,
    Attempt,
    Delegation,
    RunTranscript,
    Transcript,
    Verdict,
    during,
    json_object,
    repeated,
)

#: What a worker reports of a try, and after it the turns as JSON.
_ACCOUNT: Final = re.compile(r"(?s)(run_[0-9a-z]+), attempt (\d{1,6}): ([^\n]*)(?:\n(.*))?")
#: The types by which a session tells how it stands and ends.
_TOLD: Final = frozenset({"status-update", "task-completion", "error"})
_REMOVED: Final = "the operator has removed its text"
_NOT_THERE: Final = (
    "the ledger no longer has this session: tries that left no account, and what Python agents were given "
    "when they were resumed, are not in the audit trail"
)


class _Kept:
    """Gives the one body that the trail keeps beside a message, in place of the store that it was sent in."""

    def __init__(self, octets: bytes) -> None:
        self._octets = octets

    def get(self, _ref: BlobRef) -> bytes:
        return self._octets


def from_trail(parts: Container, session: str, trail: AuditReader, *, message: str = "") -> Transcript | None:
    """Return the transcript of a session as its messages tell it; None if the trail has none of them.

    ``message``: the id of its launch, if that is known: a task of an external program has a task-id of the program's own.
    """
    reading = _Reading(parts, trail)
    # A message that was delivered again is there again.
    found = trail.about(session, lambda: message)
    records = list({one.message_id or one.entry_id: one for one in found if not one.dead}.values())
    starts = [one for one in records if one.type in SESSION_STARTING]
    launch = next((one for one in starts if one.message_id == message or one.task_id == session), None)
    names = (session, launch and launch.task_id)
    own = [one for one in records if one.type in _TOLD and one.task_id in names]
    if launch is None and not own:
        return None
    told = Transcript(
        session=session,
        agent=launch.recipient if launch is not None else own[0].sender,
        read_from="audit",
        created_ms=launch.published_ms if launch is not None else 0,
    )
    if launch is not None:
        body = reading.body(launch)
        prompt = prompt_of(body) if isinstance(body, LaunchBody) else reading.why
        told.title = str(getattr(getattr(body, "task", None), "title", "") or "")
        run = RunTranscript(run="", number=1, cause="start", prompt=prompt, created_ms=launch.published_ms)
        told.runs.append(run)
    _add_own(told, own, reading)
    if launch is not None:
        _add_children(told, records, launch, reading)
    _add_approvals(told, records, reading)
    for run in told.runs:
        repeated(run.attempts)
    told.missing.append(_NOT_THERE)
    return told


def _add_own(found: Transcript, own: list[MessageRecord], reading: _Reading) -> None:
    """Add what the messages of the session itself say: accounts of its tries, and its end."""
    for record in own:
        body = reading.body(record)
        if body is None:
            found.missing.append(f"{record.type} {record.message_id} of {record.published}: {reading.why}")
        elif isinstance(body, StatusUpdate) and record.sender == found.agent:
            _add_account(found, body.current_activity or "", record.published_ms)
        elif not _is_end(record, found.agent):
            continue
        elif isinstance(body, TaskCompletion):
            found.answer, found.ended_ms = body.result or body.summary or "", record.published_ms
        elif isinstance(body, ErrorReport):
            found.reason, found.ended_ms = body.message, record.published_ms


def _is_end(record: MessageRecord, agent: str) -> bool:
    """Return True if a message says how a session of an agent ended: it says so itself, or a part of the stack does."""
    if record.type == "task-completion":
        return record.sender == agent
    return record.type == "error" and record.sender in {agent, *SYSTEM_AGENTS}


def _add_account(found: Transcript, text: str, at_ms: int) -> None:
    """Add the try that a worker's report is about; other reports of a status are none."""
    match = _ACCOUNT.fullmatch(text)
    if match is None:
        return
    name, attempt, summary, turns = match[1], int(match[2]), match[3], match[4] or "[]"
    run = next((one for one in found.runs if one.run in ("", name)), None)
    if run is None:
        run = RunTranscript(run=name, number=len(found.runs) + 1, created_ms=at_ms)
        found.runs.append(run)
    run.run = name
    tried = Attempt(number=attempt, how="", ended_ms=at_ms, steps=[summary])
    try:
        tried.turns = TURNS.validate_json(turns)
    except ValueError:
        tried.steps.append("its turns cannot be read")
    if not run.prompt and tried.turns:
        run.prompt = next((one.text for one in tried.turns[0].parts if one.kind == "prompt"), "")
    run.attempts.append(tried)


def _add_children(
    found: Transcript, records: list[MessageRecord], launch: MessageRecord, reading: _Reading
) -> None:
    """Add what the session launched, and how that ended."""
    for child in records:
        if child is launch or child.type not in SESSION_STARTING or child.sender != found.agent:
            continue
        body = reading.body(child)
        title = str(getattr(getattr(body, "task", None), "title", "") or "")
        given = Delegation(
            session=child.task_id, agent=child.recipient, title=title, at_ms=child.published_ms
        )
        ends = [one for one in records if _is_end(one, child.recipient) and one.task_id == given.session]
        if ends:
            end, said = ends[-1], reading.body(ends[-1])
            given.status = end.status or "failed"
            given.result = str(
                getattr(said, "result", None)
                or getattr(said, "message", None)
                or ("" if said else reading.why)
            )
        before = [run for run in found.runs if run.created_ms <= child.published_ms]
        (before or found.runs)[-1].delegated.append(given)


def _add_approvals(found: Transcript, records: list[MessageRecord], reading: _Reading) -> None:
    """Add what the session asked a person to approve, and what came of it."""
    replies: dict[str, tuple[dict[str, Any], int]] = {}
    for record in records:
        body = reading.body(record) if record.type == "reply" else None
        decision = json_object(body.answer) if isinstance(body, Reply) else {}
        # Whoever else replies is not believed: a run would not have gone on by it either.
        if record.sender == OPERATOR or (record.sender == REAPER and decision.get("expired")):
            replies.setdefault(getattr(body, "in_reply_to", ""), (decision, record.published_ms))
    for record in records:
        body = reading.body(record) if record.type == "query" and record.sender == found.agent else None
        request = json_object(body.context.problem) if isinstance(body, Query) and body.context else {}
        # A session below may be of the same agent; what has no tool is a question.
        if "tool" not in request or request.get("session") != found.session:
            continue
        decision, answered_ms = replies.get(record.message_id, ({}, 0))
        asked = Verdict.of(request, str(decision.get("approval", "")), record.published_ms)
        if decision:
            asked.answer(decision, answered_ms)
        named = [run for run in found.runs if run.run == request.get("run")]
        (named[0] if named else during(found.runs, record.published_ms)).approvals.append(asked)


class _Reading:
    """Opens messages of the trail with the keys of the data folder."""

    def __init__(self, parts: Container, trail: AuditReader) -> None:
        self._parts = parts
        self._trail = trail
        #: Why the last message that gave no body gave none.
        self.why = ""

    def body(self, record: MessageRecord) -> Body | None:
        """Return the body of a message; None if it cannot be had, and `why` says why."""
        if not record.xml:
            self.why = _REMOVED
            return None
        try:
            kept = self._trail.store.body(record.body) or b""
            opener = Opener(
                cast("BlobStore", _Kept(kept)),
                find_key=self._parts.keyring.decryption_key,
                max_bytes=self._parts.settings.max_payload_bytes,
            )
            return opener.open(decode(record.xml)).body
        except OrchestraError as error:
            self.why = " ".join(str(error).split())
            return None
