"""Reading of a transcript: from the ledger, and what the ledger no longer has from the audit trail."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from orchestrator.agents.registry import OPERATOR
from orchestrator.bootstrap import Container
from orchestrator.client.history import texts_of
from orchestrator.envelope.bodies import StatusUpdate
from orchestrator.errors import OrchestraError, PayloadError, UnknownSession
from orchestrator.ids import approval_of, decision_id
from orchestrator.ledger.journal import read_headers
from orchestrator.ledger.large_text import Decrypted, Seal
from orchestrator.ledger.ledger import Ledger
from orchestrator.ledger.model import CLOSED, Item, Run, Session, SessionState
from orchestrator.ledger.reader import Printed
from orchestrator.ledger.transitions import Claim, Lease
from orchestrator.log import get_logger
from orchestrator.messages.authenticity import callback_from
from orchestrator.messages.factory import Thread, from_session
from orchestrator.policy.budget import Cost
from orchestrator.policy.callback_text import render_callbacks
from orchestrator.transcript.model import (
    TURNS,
    Attempt,
    Delegation,
    RunTranscript,
    Transcript,
    Turn,
    Verdict,
    account,
    during,
    json_object,
    repeated,
)

if TYPE_CHECKING:
    from orchestrator.audit.reader import AuditReader

#: Bytes of a callback in a prompt that is put together here, as an agent gets it.
_MOST_BYTES: Final = 256 * 1024
#: Runs that are read of one session, the latest.
_RUNS: Final = 500


def read_transcript(parts: Container, session: str, trail: AuditReader | None) -> Transcript:
    """Return the transcript of a session.

    Raises:
        UnknownSession: neither the ledger nor the audit trail has it.
    """
    # A worker that writes of a try has no use for databases.
    from orchestrator.transcript.from_trail import from_trail

    try:
        about = parts.ledger.session(session)
    except UnknownSession:
        kept = from_trail(parts, session, trail) if trail is not None else None
        if kept is None:
            raise
        return kept
    if about.state is SessionState.DELETED and trail is not None:
        kept = from_trail(parts, session, trail, message=about.message)
        if kept is not None:
            return kept.model_copy(update={"state": about.state.value, "reason": about.reason})
    return _Reading(parts.ledger, about).transcript()


def write_account(parts: Container, lease: Lease, died: str) -> None:
    """Write what was said in a try whose process died, as its worker does: in the name of its agent, whose key is here.

    Raises:
        redis.RedisError: Redis does not answer.
    """
    ledger, run = parts.ledger, parts.ledger.run(lease.run)
    found = ledger.find([lease.session])
    if run is None or not found:
        return
    [about] = found
    try:
        turns = _Reading(ledger, about).so_far(run)
        if not turns:
            return
        text, said = account(run.id, run.attempt, (), Cost(), turns, died=died)
        above = ledger.find([about.parent]) if about.parent else []
        to = about.delegator or (above[0].agent if above else OPERATOR)
        envelope = parts.message_factory.as_written(
            StatusUpdate(task_id=about.reported_as, status="in-progress", current_activity=text),
            **from_session(about, to, Thread.of(about, after=about.last_said)),
        )
        seal = Seal(label=about.root, by=about.agent, to=(about.delegator,)) if about.encrypted else None
        claim = Claim(
            run=run.id,
            claim=lease.claim,
            session=about.id,
            parent=about.parent,
            root=about.root,
            agent=about.agent,
            seal=seal,
        )
        ledger.effect(claim, effect=f"account:{run.attempt}", envelope=envelope, only_audit=True, text=said)
    except (OrchestraError, ValueError) as error:
        # How the run goes on does not hang on it.
        get_logger().warning("account-not-written", error=str(error))


def being_written(ledger: Ledger, run: Run, since_ms: int) -> list[Turn]:
    """Return the last answer of a run's model that began since then, as far as it is written; none: no text of it is there.

    The text is kept for an hour, and only where the agent streams.
    """
    turns: list[Turn] = []
    after = f"{since_ms}-0"
    while events := ledger.live.read(run.session, after):
        for event in events:
            if event.run == run.id and event.kind == "begin":
                turns = [Turn()]
            elif event.run == run.id and event.kind == "text" and turns:
                turns[0].add("text", event.text, on=True)
        after = events[-1].position
    return [turn for turn in turns if turn.parts]


class _Reading:
    """Reads one session from the ledger."""

    def __init__(self, ledger: Ledger, about: Session) -> None:
        self._ledger = ledger
        self._about = about
        self._items = ledger.items(about.id)
        self._texts = texts_of(ledger, about, self._items)
        self._missing: list[str] = []

    def transcript(self) -> Transcript:
        about = self._about
        runs = self._ledger.runs(about.id)
        if len(runs) > _RUNS:
            self._missing.append(f"{len(runs) - _RUNS} earlier runs are left out")
        printed = {(one.run, one.attempt): one for one in self._ledger.printed.read(about.id)}
        found = [self._run(run, printed) for run in runs[-_RUNS:]]
        children = {
            child.id: child for child in self._ledger.find([i.child for i in self._items if _is_end(i)])
        }
        for item in self._items:
            if _is_end(item):
                at_ms = children[item.child].created_ms if item.child in children else 0
                during(found, at_ms).delegated.append(self._delegation(item, at_ms))
            elif item.kind == "approval" and approval_of(item.id) is None:
                during(found, item.at_ms).approvals.append(self._verdict(item))
        for run in found:
            run.delegated.sort(key=lambda one: one.at_ms)
        return Transcript(
            session=about.id,
            agent=about.agent,
            title=about.title,
            state=about.state.value,
            reason=about.reason,
            parent=about.parent,
            created_ms=about.created_ms,
            ended_ms=about.ended_ms,
            answer="" if about.state in CLOSED else self._texts.get("result", ""),
            runs=[run for run in found if run.run or run.delegated or run.approvals],
            missing=self._missing,
        )

    def _run(self, run: Run, printed: dict[tuple[str, int], Printed]) -> RunTranscript:
        attempts = [
            Attempt(
                number=tried.attempt,
                how=tried.how,
                reason=tried.reason,
                started_ms=tried.started_ms,
                ended_ms=tried.ended_ms,
                again_ms=tried.again_ms,
            )
            for tried in run.tries
        ]
        if run.started_ms and not (attempts and attempts[-1].number == run.attempt):
            attempts.append(
                Attempt(
                    number=run.attempt,
                    how=run.state.value,
                    reason=run.reason,
                    started_ms=run.started_ms,
                    ended_ms=run.ended_ms,
                )
            )
        steps = read_headers(run.last_steps) if run.ended_ms else self._ledger.journal.headers(run.id)
        for attempt in attempts:
            attempt.turns = self._turns(run, attempt.number)
            if not attempt.turns and attempt is attempts[-1] and not run.ended_ms:
                # It is at work, or its worker was lost and the run waits to be tried again.
                attempt.turns = self.so_far(run)
            words = printed.get((run.id, attempt.number))
            if not attempt.turns and words is not None:
                attempt.printed = words.text
        if attempts and not attempts[-1].turns:
            attempts[-1].steps = [
                f"step {one.key} {one.how} after {one.took_ms / 1000:.3f} s" for one in steps
            ]
        repeated(attempts)
        return RunTranscript(
            run=run.id,
            number=run.number,
            cause=run.cause,
            state=run.state.value,
            reason=run.reason,
            prompt=self._prompt(run),
            created_ms=run.created_ms,
            ended_ms=run.ended_ms,
            attempts=attempts,
        )

    def _prompt(self, run: Run) -> str:
        """Return what a run was given: the task, or what it carries in its tags."""
        if run.cause == "start":
            return self._texts.get("prompt", "")
        by_id = {item.id: item for item in self._items}
        carried = [by_id[name] for name in run.items if name in by_id]
        callbacks = [callback_from(i, self._texts.get(i.id, "")) for i in carried if i.kind != "prompt"]
        said = [self._texts.get(item.id, "") for item in carried if item.kind == "prompt"]
        return render_callbacks(callbacks, prompts=said, max_bytes=_MOST_BYTES)

    def _turns(self, run: Run, attempt: int) -> list[Turn]:
        """Return the turns of a try, as its worker noted them when it had ended."""
        which = f"attempt {attempt} of {run.id}"
        try:
            text = self._ledger.account(run.id, attempt)
            if isinstance(text, Decrypted) and text.failed:
                self._missing.append(f"{which} is encrypted, and no key in this data folder opens it")
                return []
            return TURNS.validate_json(text) if text else []
        except (PayloadError, ValidationError, ValueError, KeyError) as error:
            self._missing.append(f"{which} cannot be read: {' '.join(str(error).split())[:200]}")
            return []

    def so_far(self, run: Run) -> list[Turn]:
        """Return what a run that has not ended has recorded of its conversation: the answers of its model and its tools.

        Before them stands what the run was given, after them the answer that its model is writing.
        """
        turns: list[Turn] = []
        since_ms = run.started_ms
        for record in sorted(self._ledger.journal.read(run.id).values(), key=lambda one: one.header.at_ms):
            if record.header.how == "done" and record.header.key.startswith(("model#", "tool:")):
                value = self._ledger.seals.read(record.value.decode(errors="replace"))
                since_ms = record.header.at_ms
                if value and record.header.key.startswith("model#"):
                    turns.append(_answered(value, record.header.at_ms))
                elif value and turns:
                    tool, _, call = record.header.key.removeprefix("tool:").rpartition("#")[0].partition(":")
                    said = json_object(value).get("result", value)
                    shown = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
                    turns[-1].add("result", shown, tool=tool, call=call)
        turns += being_written(self._ledger, run, since_ms)
        if turns:
            given = Turn()
            given.add("prompt", self._prompt(run))
            turns[0].parts[:0] = given.parts
        return turns

    def _delegation(self, item: Item, at_ms: int) -> Delegation:
        return Delegation(
            session=item.child,
            agent=item.agent,
            title=item.title,
            at_ms=at_ms,
            status=item.status,
            state=item.state.value,
            delivered_in=item.run if item.state.value == "delivered" else "",
            result=self._texts.get(item.id, ""),
            reason=item.reason,
        )

    def _verdict(self, item: Item) -> Verdict:
        """Return an approval and its answer, which is an item of its own."""
        found = Verdict.of(json_object(item.extra.get("context")), item.id, item.at_ms)
        answer = next((one for one in self._items if one.id == decision_id(item.id)), None)
        if answer is not None:
            found.answer(json_object(answer.extra.get("context")), answer.at_ms)
        elif item.state.value == "dead":
            found.verdict = "closed"
        return found


def _is_end(item: Item) -> bool:
    return item.kind == "completion" and bool(item.child)


def _answered(text: str, at_ms: int) -> Turn:
    """Return the turn in a recorded answer of a model."""
    turn, answer = Turn(at_ms=at_ms), json_object(text)
    for part in answer.get("parts", ()):
        match part:
            case {"part_kind": "text" | "thinking" as kind, "content": str(said)} if said:
                turn.add(kind, said)
            case {"part_kind": "tool-call", "tool_name": str(tool)}:
                arguments = part.get("args") or "{}"
                shown = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
                turn.add("call", shown, tool=tool, call=str(part.get("tool_call_id", "")))
    usage = answer.get("usage") or {}
    turn.input_tokens, turn.output_tokens = (
        int(usage.get(name) or 0) for name in ("input_tokens", "output_tokens")
    )
    turn.model = str(answer.get("model_name") or "")
    return turn
