"""Checks who wrote the items and answers of the ledger, and the callbacks in a text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from orchestrator.agents.registry import OPERATOR, REAPER, ROUTER
from orchestrator.errors import KeyringError, SignatureError
from orchestrator.ids import approval_of, derived_uuid
from orchestrator.keyring.codes import Codes
from orchestrator.keyring.registry import Keyring
from orchestrator.ledger.decode import TASK, Statement
from orchestrator.ledger.model import Item, ItemState, Session
from orchestrator.ledger.reader import LedgerReader
from orchestrator.log import RateLimitedLog, get_logger

if TYPE_CHECKING:
    from orchestrator.envelope.message_types import DetailedBody
    from orchestrator.envelope.model_values import Priority
    from orchestrator.policy.callback import Callback

#: Signers that may write in the name of others: the operator, and the router, which brings messages of external programs.
_FOR_OTHERS: Final = frozenset({OPERATOR, ROUTER})

_URGENCIES: Final[dict[str, Priority]] = {p: p for p in ("critical", "high", "normal", "low")}

_log = get_logger()


class Authenticity:
    """Attests what this process writes into the ledger, and verifies what others have written.

    With ``required=False`` unsigned items are accepted, as unsigned messages are.
    """

    def __init__(self, keyring: Keyring, *, required: bool = True, codes: Codes | None = None) -> None:
        self._keyring = keyring
        self._codes = codes or Codes(keyring)
        self._required = required
        self._seldom = RateLimitedLog()

    def attest(self, statement: Statement, *, by: str, to: str) -> str:
        """Return the proof that ``by`` wrote this, for the agent ``to`` and for the operator; empty if the key is not
        here.

        By default a prompt is the operator's, and anything else the reaper's. No transition fails for want of a key:
        readers refuse what lacks a proof, with a visible reason.
        """
        speaker = by or (OPERATOR if statement.kind == "prompt" else REAPER)
        try:
            return self._codes.make(statement.octets(), by=speaker, to=[to or OPERATOR, OPERATOR])
        except KeyringError as error:
            if self._seldom.due(speaker):
                _log.error("not-attested", agent=speaker, item=statement.id, error=str(error))
            return ""

    def fault(self, statement: Statement, proof: str, *, reader: str) -> str:
        """Return why ``reader`` cannot believe that this comes from the agent that it names; empty if it can."""
        if not proof and not self._required:
            return ""
        try:
            writer = self._codes.writer(statement.octets(), proof, reader=reader)
        except SignatureError as error:
            return f"{error.args[0]}: {error.args[1]}"
        if (
            statement.id == TASK
        ):  # that its delegator may give it has been seen to when the session was launched
            return ""
        if approval_of(statement.id) and writer != OPERATOR and not (writer == REAPER and statement.failed):
            return f"signer-sender: {writer!r} answered an approval, which only the operator does"
        if writer == statement.agent or writer in _FOR_OTHERS or (writer == REAPER and statement.failed):
            return ""
        return f"signer-sender: {writer!r} wrote it in the name of {statement.agent!r}"

    def item_fault(self, session: str, item: Item, text: str, *, reader: str) -> str:
        """:meth:`fault` of an item in the queue of ``session``."""
        return self.fault(
            Statement.of_item(session, item, text), str(item.extra.get("proof", "")), reader=reader
        )

    def judge_answer(
        self,
        session: Session,
        text: str,
        whole: Mapping[str, Any] | None,
        attachments: Mapping[str, Any],
        body: str = "",
    ) -> tuple[str, str]:
        """Return how a session's final answer was given, `completed` or `partial-success`, and the :meth:`fault` of it with
        its attachments, as the operator can tell by its proof.
        """
        completed, partial = (
            self.fault(
                Statement.of_end(
                    session, status, text, whole, attachments, message=session.report, body=body
                ),
                session.proof,
                reader=OPERATOR,
            )
            for status in ("completed", "partial-success")
        )
        return ("partial-success", "") if completed and not partial else ("completed", completed)

    @property
    def reads_as_operator(self) -> bool:
        """True if the operator's key is here, without which nobody can check on his behalf."""
        return self._keyring.store.current(OPERATOR) is not None


def checked_callbacks(
    ledger: LedgerReader, authenticity: Authenticity, session: str, text: str
) -> tuple[Callback, ...]:
    """Return the callbacks in ``text``; `genuine` are those that a run of ``session`` carried, word for word.

    With the key of `operator` in the data folder, only those that the ledger has from whom they say.
    """
    from orchestrator.policy.callback_text import parse_callbacks

    return tuple(
        replace(c, genuine=_is_genuine(ledger, authenticity, session, c)) for c in parse_callbacks(text)
    )


def callback_from(item: Item, text: str) -> Callback:
    """Return an item of a session's queue as the callback that its agent gets."""
    from orchestrator.envelope.prompt_text import details_of, unpack_body
    from orchestrator.policy.callback import Callback

    body = unpack_body(str(item.extra.get("body", "")), text)
    return Callback(
        id=item.id,
        kind=item.kind,
        session=item.child,
        agent=item.agent,
        status=item.status,
        title=item.title,
        text=text,
        priority=item.priority if item.kind != "completion" else "",
        question=str(item.extra.get("answers", "")),
        context=json.loads(item.extra.get("context", "null")),
        attachments=tuple(sorted(item.extra.get("attachments") or ())),
        details=details_of(body, text) if body is not None else "",
        body=body or _plain_body(item, text),
    )


def _plain_body(item: Item, text: str) -> DetailedBody | None:
    """Return the body of an item that consists of a text alone."""
    from orchestrator.envelope.bodies import ErrorReport, Query, TaskCompletion
    from orchestrator.envelope.model_values import UNKNOWN_TASK
    from orchestrator.messages.factory import summary

    match item.kind, item.status:
        case "completion", "failed":
            return ErrorReport(error_id=derived_uuid("error", item.id), message=text)
        case "completion", "completed" | "partial-success":
            return TaskCompletion(task_id=item.child or UNKNOWN_TASK, summary=summary(text), result=text)
        case _ if item.extra.get("question"):
            return Query(subject=text, urgency=_URGENCIES.get(item.priority))
    return None


def _is_genuine(ledger: LedgerReader, authenticity: Authenticity, session: str, callback: Callback) -> bool:
    item = ledger.item(session, callback.id)
    if item is None or item.state not in (ItemState.CLAIMED, ItemState.DELIVERED):
        return False
    kept = ledger.texts(session, [item.id]).get(item.id, "")
    if authenticity.reads_as_operator and authenticity.item_fault(session, item, kept, reader=OPERATOR):
        return False
    from orchestrator.policy.callback import same_callback

    # What was sent encrypted the ledger has only in that form.
    text = callback.text if item.extra.get("sealed") else kept
    return same_callback(callback, callback_from(item, text))
