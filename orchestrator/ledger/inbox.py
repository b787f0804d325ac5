"""Transitions of a session's queue: prompts, questions, approvals, replies, messages, and their delivery."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, cast

from orchestrator import machine
from orchestrator.errors import ClaimLost, DamagedRecord, PromptKeyInUse
from orchestrator.ids import run_id, session_of_approval
from orchestrator.ledger import decode, layout
from orchestrator.ledger.core import LedgerCore
from orchestrator.ledger.large_text import Seal, Truncated, digest_of
from orchestrator.ledger.model import CLOSED, Item, Session
from orchestrator.ledger.transitions import Claim, Flushed, Outgoing
from orchestrator.log import RateLimitedLog, get_logger
from orchestrator.policy.approval import ApprovalRequest, read_request
from orchestrator.redisdb import ledger_keys
from orchestrator.redisdb.client import is_outage
from orchestrator.redisdb.scripts import Arg, request

#: Whether a run stands still for what it asks for from now on, or does so no longer.
Waits = Literal["wait", "give up", ""]

_log = get_logger()


class Inbox:
    """Puts items into the queues of sessions, and takes them out."""

    def __init__(self, core: LedgerCore) -> None:
        self._core = core
        #: Which damaged session to name in the log again.
        self._seldom = RateLimitedLog()
        #: The calls that flush sessions and were not answered yet: sent again, each has the same name.
        self._unanswered: dict[str, str] = {}

    def enqueue(
        self,
        session_id: str,
        text: str,
        *,
        item_id: str,
        kind: str = "prompt",
        priority: str = "normal",
        speaker: str = "",
        opens: bool = False,
        answers: str = "",
        envelope: Outgoing | None = None,
        extra: Mapping[str, Any] | None = None,
        by: str = "",
    ) -> bool:
        """Put something into a session's queue from outside any run; False when it is there already.

        ``by`` attests it: an agent whose key is at hand, by default the operator for a prompt, and the reaper for the rest.

        Raises:
            UnknownSession: there is no such session.
            PromptKeyInUse: it is a user's prompt, and another prompt is there under the same id.
            LimitExceeded: it is a user's prompt, and the session's tree has had as many runs as it may.
            WrongState: the session is closed and will not run again, or the question has its reply.
        """
        record = {"kind": kind, "priority": priority, "child": speaker, **(extra or {})}
        if opens:
            record["question"] = True
        facts = self._core.redis.hmget(ledger_keys.session(session_id), "root", "agent", "encrypted")
        agent = decode.text(facts[1])
        seal = (
            Seal(label=decode.text(facts[0]), by=by, to=(agent,))
            if by and (facts[2] or (envelope is not None and envelope.encrypted))
            else None
        )
        reply = self._core.post(
            session_id,
            self._core.seals.write_record(record, seal),
            self._core.seals.write(text, seal),
            item=item_id,
            by=by,
            to=agent,
            envelope=envelope,
            opens=(speaker or session_id) if opens else "",
            answers=answers,
            most_runs=self._core.limits.max_tree_runs if kind == "prompt" else 0,
        )
        another = kind == "prompt" and reply[0] == b"exists" and reply[2] == b"0"
        # Sealed twice, the same text is another one.
        if another and (seal is None or self._core.texts(session_id, [item_id]).get(item_id) != text):
            raise PromptKeyInUse(session_id)
        return reply[0] == b"queued"

    def send(
        self,
        claim: Claim,
        session_id: str,
        text: str,
        *,
        effect: str,
        item_id: str,
        kind: str,
        priority: str,
        envelope: Outgoing | None = None,
        opens: bool = False,
        answers: str = "",
        conversation: str = "",
        open_ms: int | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """Put a message of an agent into the queue of another session: a question, a reply, a message.

        A question to its own session is one to the user. ``open_ms``: how long a question may stay open, 0 for as
        long as it takes; None: as the limits say.
        Returns the item's id; the same effect key gives the same item.

        Raises:
            ClaimLost: the run is not held under this claim any more.
            UnknownSession: there is no such session.
            WrongState: the session is closed, or the question has its reply.
            LimitExceeded: it answers nothing, and the ``conversation`` has had more messages than it may; or the session
                has as many open questions to the user.
            PayloadError: the text is larger than the store takes.
        """
        limits, to_user = self._core.limits, opens and session_id == claim.session
        record = {"kind": kind, "priority": priority, "child": claim.session, **(extra or {})}
        if opens:
            record["question"] = True
        facts = self._core.redis.hmget(ledger_keys.session(session_id), "agent", "encrypted")
        to, seal = decode.text(facts[0]), None
        if to_user:
            seal = claim.own_seal
        elif claim.seal is not None or facts[1]:
            seal = Seal(label=claim.root, by=claim.agent, to=(to,))
        record = self._core.seals.write_record(record, seal)
        to_parent = kind == "message" and session_id == claim.parent and seal is None
        while True:
            if to_user:  # who looks at it sees all of it
                short = Truncated(text=self._core.seals.write(text, seal), ref=None)
            else:
                short = self._core.shorten(claim.session, text, seal)
            if short.ref is not None:
                record["whole"] = short.ref
            reply = self._core.post(
                session_id,
                record,
                short.text,
                item=item_id,
                by=str(record.get("agent", "")),
                to=to,
                envelope=envelope,
                run=claim.run,
                claim=claim.claim,
                speaker=claim.session,
                effect=effect,
                opens=claim.session if opens else "",
                person="asked" if to_user else "",
                answers=answers,
                open_ms=(limits.question_ms if open_ms is None else open_ms) if opens else 0,
                conversation=conversation,
                most_messages=limits.conversation_messages if conversation else 0,
                most_open=limits.open_questions if to_user else 0,
                digest=digest_of(text) if to_parent else "",
            )
            if reply[0] != b"whole":
                return decode.text(reply[1])

    def withdraw(
        self, question: str, *, asker: str, asked: str, reason: str, claim: Claim | None = None
    ) -> bool:
        """Close a question without an answer; False if it was not open.

        It leaves the queue of the session that was asked, if it is still there. With a ``claim`` this is
        an effect of the asker's own run.

        Raises:
            ClaimLost: the run is not held under this claim any more.
        """
        held = {"run": claim.run, "claim": claim.claim} if claim is not None else {}
        reply = self._core.transition("withdraw", asked, id=question, asker=asker, reason=reason, **held)
        if claim is not None and reply[0] == b"lost":
            raise ClaimLost(claim.run)
        return bool(reply[0] == b"open")

    def claim_item(
        self, claim: Claim, item_id: str, *, waits: Waits = "", last_effect: str = ""
    ) -> tuple[Item, str] | None:
        """Take one queued item into the current run, as a blocking call does for its answer; None if it is not there
        yet.

        ``waits`` tells everybody who looks that the run stands still for it from now on, or does no longer.
        ``last_effect`` is the key of the last effect that this try was told of.

        Raises:
            ClaimLost: the run is not held under this claim any more, or the server has lost its last effect.
        """
        reply = self._core.effect_of(claim, "claim_item", item=item_id, waits=waits, last_effect=last_effect)
        if reply[0] != b"taken":
            return None
        return self._core.seals.item(decode.item(item_id, reply[1])), self._core.seals.read(
            decode.text(reply[2])
        )

    def flush(self, session_id: str) -> Flushed:
        """Start one new run that claims what is queued, if the session is not busy and its waiting policy is met."""
        return self.flush_all([session_id])[0]

    def flush_all(self, session_ids: Sequence[str], known: Mapping[str, int] | None = None) -> list[Flushed]:
        """:meth:`flush` for many sessions in one or two round trips; the verdicts in the same order.

        ``known`` says how many runs sessions had a moment ago, which need not be asked for then.

        Raises:
            redis.RedisError: Redis is away; some may have been carried out, and all may be asked for again.
        """
        facts = self._core.scripts.batch()
        runs = dict(known or {})
        unknown = [session_id for session_id in session_ids if session_id not in runs]
        for session_id in unknown:
            facts.command("HGET", ledger_keys.session(session_id), "runs")
        for session_id, answer in zip(unknown, facts.execute(), strict=True):
            if is_outage(answer):
                raise answer
            # Its flush meets the damage, too, and says so.
            runs[session_id] = int(answer) if isinstance(answer, bytes) and answer.isdigit() else 0
        guesses = [runs[session_id] + 1 for session_id in session_ids]
        verdicts: dict[int, Flushed] = {}
        left = list(range(len(session_ids)))
        while left:
            batch = self._core.scripts.batch()
            for i in left:
                batch.script("flush", *self._flush_args(session_ids[i], guesses[i]))
            again = []
            for i, reply in zip(left, batch.execute(), strict=True):
                if is_outage(reply):
                    raise reply
                self._unanswered.pop(session_ids[i], None)
                if isinstance(reply, Exception):
                    # Damaged records of one session must not keep the callbacks of all others from them.
                    if self._seldom.due(session_ids[i]):
                        _log.error("flush-failed", session=session_ids[i], error=str(reply))
                    verdicts[i] = Flushed(outcome="damaged", detail=str(reply))
                elif reply[0] == b"number":  # another run was made and has ended since
                    guesses[i] = int(reply[1]) + 1
                    again.append(i)
                else:
                    verdicts[i] = self._flushed(session_ids[i], reply)
            left = again
        return [verdicts[i] for i in range(len(session_ids))]

    def _flush_args(self, session_id: str, number: int) -> tuple[list[str], list[Arg]]:
        limits = self._core.limits
        asked = request(
            now=self._core.now,
            run=run_id(session_id, number),
            number=number,
            max_items=limits.resume_max_items,
            max_bytes=limits.resume_max_bytes,
            look_ms=limits.redispatch_ms,
            ttl_ms=limits.tree_ttl_ms,
            call=self._unanswered.setdefault(session_id, machine.token_hex(8)),
        )
        return [ledger_keys.session(session_id)], [asked]

    @staticmethod
    def _flushed(session_id: str, reply: Sequence[bytes]) -> Flushed:
        detail = decode.text(reply[1]) if len(reply) > 1 else ""
        match reply[0]:
            case b"run":
                _, run, agent, cause, more, wake = reply
                dispatch = layout.ready_run(session_id, run, agent, cause, wake)
                return Flushed(outcome="run", dispatch=dispatch, more=more == b"1")
            case outcome:
                said = cast('Literal["busy", "waits", "closed", "empty"]', decode.text(outcome))
                return Flushed(outcome=said, detail=detail)


#: The part of the system that says that the time of an approval is up.
SWEEPER: Final = "reaper"


class OpenApproval(NamedTuple):
    """An approval that nobody has answered yet, as the ledger has it."""

    session: Session
    item: Item
    text: str
    request: ApprovalRequest


class Approvals:
    """The approvals of one ledger. Safe to share between threads."""

    def __init__(self, ledger: LedgerCore) -> None:
        self._ledger = ledger

    def request(
        self,
        claim: Claim,
        request: ApprovalRequest,
        *,
        approval: str,
        effect: str,
        title: str,
        envelope: Outgoing,
    ) -> tuple[str, ApprovalRequest]:
        """Ask a person for approval; return its id and the request, which may be that of an earlier try of the run.

        Raises:
            ClaimLost: the run is not held under this claim any more.
            LimitExceeded: the session has as many open questions as it may.
            DamagedRecord: what an earlier try asked for cannot be read.
        """
        ledger, session = self._ledger, claim.session
        record: dict[str, Any] = {
            "kind": "approval",
            "priority": "high",
            "child": session,
            "agent": request.agent,
            "title": title,
            "message": envelope.message_id,
            # As text: the scripts know neither empty lists nor long numbers.
            "context": request.model_dump_json(),
        }
        # Its default counts when its time is up, which the reaper says.
        seal = claim.seal and claim.seal.reading(SWEEPER)
        text = ledger.seals.write(str(request), seal)
        record = ledger.seals.write_record(record, seal)
        reply = ledger.post(
            session,
            record,
            text,
            item=approval,
            by=request.agent,
            to=request.agent,
            envelope=envelope,
            run=claim.run,
            claim=claim.claim,
            speaker=session,
            effect=effect,
            opens=session,
            person="delivered",
            due_ms=request.expires_ms,
            most_open=ledger.limits.open_questions,
        )
        name = decode.text(reply[1])
        if reply[0] == b"exists":
            item = ledger.item(session, name)
            return name, read_request(name, item.extra.get("context") if item is not None else None)
        return name, request

    def listed(self, shard: int, *, limit: int = -1) -> list[str]:
        """The ids in the index of open approvals, oldest first."""
        found = self._ledger.redis.zrange(ledger_keys.approvals(shard), 0, limit - 1 if limit > 0 else -1)
        return [decode.text(one) for one in found]

    def find(self, approvals: Iterable[str]) -> list[OpenApproval]:
        """Those of these approvals that are open, in their order.

        What one asks that cannot be read is empty, with a digest that fits nothing: it can be denied.
        """
        wanted = {one: session_of_approval(one) for one in approvals}
        sessions = {s.id: s for s in self._ledger.find(list(dict.fromkeys(filter(None, wanted.values()))))}
        found = []
        for approval, name in wanted.items():
            session = sessions.get(name) if name else None
            if session is None or approval not in session.questions or session.state in CLOSED:
                continue
            item = self._ledger.item(session.id, approval)
            if item is None:
                continue  # the doctor names it
            text = self._ledger.texts(session.id, [approval]).get(approval, "")
            try:
                request = read_request(approval, item.extra.get("context"))
            except DamagedRecord:
                request = ApprovalRequest(
                    tool="",
                    arguments="{}",
                    digest="",
                    agent=item.agent,
                    session=session.id,
                    run=item.run,
                )
            found.append(OpenApproval(session, item, text, request))
        return found

    def strays(self, shard: int) -> list[str]:
        """Return the indexed approvals whose question is no longer open."""
        return [approval for approval in self.listed(shard) if not self._is_open(approval)]

    def drop_strays(self, shard: int) -> int:
        """Remove from the index the approvals that are no longer open; return how many."""
        # An id is asked for once, so what is not open now never will be.
        found = self.strays(shard)
        return int(self._ledger.redis.zrem(ledger_keys.approvals(shard), *found)) if found else 0

    def _is_open(self, approval: str) -> bool:
        session = session_of_approval(approval)
        known = self._ledger.find([session]) if session else []
        return any(approval in one.questions and one.state not in CLOSED for one in known)
