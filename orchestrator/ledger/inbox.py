"""Transitions of a session's queue: prompts, questions, replies, messages, and their delivery."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, cast

from orchestrator.errors import ClaimLost, LimitExceeded, PromptKeyInUse, UnknownSession, WrongState
from orchestrator.ids import run_id
from orchestrator.ledger import decode, layout
from orchestrator.ledger.core import LedgerCore
from orchestrator.ledger.large_text import digest_of
from orchestrator.ledger.model import Item
from orchestrator.ledger.sealing import Seal
from orchestrator.ledger.transitions import Claim, Flushed, Outgoing, RunRef, RunsSoFar
from orchestrator.log import Seldom, get_logger
from orchestrator.redisdb import ledger_keys
from orchestrator.redisdb.client import is_outage
from orchestrator.redisdb.scripts import Arg, keys_of

_log = get_logger()

_NOTHING: Mapping[str, RunsSoFar] = MappingProxyType({})


class Inbox:
    """Puts items into the queues of sessions, and takes them out."""

    def __init__(self, core: LedgerCore) -> None:
        self._core = core
        #: Which damaged session to name in the log again.
        self._seldom = Seldom()

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

        ``by`` vouches for it: an agent whose key is at hand, by default the operator for a prompt, and the reaper for the rest.

        Raises:
            UnknownSession: there is no such session.
            PromptKeyInUse: it is a user's prompt, and another prompt is there under the same id.
            LimitExceeded: it is a user's prompt, and the session's tree has had as many runs as it may.
            WrongState: the session is closed and will not run again, or the question has its reply.
        """
        record = {"kind": kind, "priority": priority, "child": speaker, **(extra or {})}
        if opens:
            record["question"] = True
        limited = kind == "prompt"
        facts = self._core.redis.hmget(ledger_keys.session(session_id), "root", "agent", "encrypted")
        root, agent = decode.text(facts[0]) if limited else "", decode.text(facts[1])
        seal = (
            Seal(label=decode.text(facts[0]), by=by, to=(agent,))
            if by and (facts[2] or (envelope is not None and envelope.encrypted))
            else None
        )
        given, text = text, self._core.seals.write(text, seal)
        record = self._core.seals.write_record(record, seal)
        record["proof"] = self._core.vouch_for_item(item_id, session_id, record, text, by=by, to=agent)
        reply = self._core.call(
            "enqueue",
            [
                self._core.now,
                item_id,
                json.dumps(record),
                text,
                layout.payload(envelope),
                "1" if opens else "0",
                answers,
                self._core.limits.max_tree_runs if limited else "",
            ],
            session=session_id,
            speaker=speaker or session_id,
            root=root or session_id,
            stream=layout.stream(session_id, envelope),
        )
        if reply[0] == b"limit":
            raise LimitExceeded(decode.text(reply[1]), int(reply[2]), f"the tree of session {session_id}")
        if kind == "prompt" and reply[:2] == [b"exists", b"0"]:
            # Sealed twice, the same text is another one.
            if seal is None or self._core.texts(session_id, [item_id]).get(item_id) != given:
                raise PromptKeyInUse(session_id)
            return False
        return self._placed(session_id, reply) == "queued"

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
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """Put what an agent says into the queue of another session: a question, a reply, a message.

        Returns the item's id; the same effect key gives the same item.

        Raises:
            ClaimLost: the run is not held under this claim any more.
            UnknownSession: there is no such session.
            WrongState: the session is closed, or the question has its reply.
            LimitExceeded: it answers nothing, and the ``conversation`` has had more messages than it may.
            PayloadError: the text is larger than the store takes.
        """
        record = {"kind": kind, "priority": priority, "child": claim.session, **(extra or {})}
        if opens:
            record["question"] = True
        facts = self._core.redis.hmget(ledger_keys.session(session_id), "agent", "encrypted")
        to, seal = decode.text(facts[0]), None
        if claim.seal is not None or facts[1]:
            seal = Seal(label=claim.root, by=claim.agent, to=(to,))
        record = self._core.seals.write_record(record, seal)
        while True:
            short = self._core.shorten(claim.session, text, seal)
            if short.ref is not None:
                record["whole"] = short.ref
            by = str(record.get("agent", ""))
            record["proof"] = self._core.vouch_for_item(item_id, session_id, record, short.text, by=by, to=to)
            reply = self._core.call_held(
                claim,
                "send",
                [
                    self._core.now,
                    item_id,
                    json.dumps(record),
                    short.text,
                    layout.payload(envelope),
                    "1" if opens else "0",
                    answers,
                    claim.claim,
                    effect,
                    self._core.limits.question_ms,
                    self._core.limits.conversation_messages if conversation else 0,
                    digest_of(text)
                    if kind == "message" and session_id == claim.parent and seal is None
                    else "",
                ],
                session=session_id,
                speaker=claim.session,
                sha256=short.sha256,
                correlation=conversation,
                stream=layout.stream(session_id, envelope),
            )
            if reply[0] != b"whole":
                break
        if reply[0] == b"limit":
            raise LimitExceeded(decode.text(reply[1]), int(reply[2]), f"conversation {conversation}")
        self._placed(session_id, reply)
        return decode.text(reply[1])

    def ask_user(
        self,
        claim: Claim,
        text: str,
        *,
        effect: str,
        item_id: str,
        kind: str,
        priority: str,
        envelope: Outgoing,
        conversation: str,
        open_ms: int,
        extra: Mapping[str, Any],
    ) -> str:
        """A root asks the user; the question's id. The same effect key is the same question.

        Raises:
            ClaimLost: the run is not held under this claim any more.
            LimitExceeded: the conversation has had more messages than it may, or the session has as many open questions.
        """
        session = claim.session
        record = {"kind": kind, "priority": priority, "child": session, **extra, "question": True}
        text = self._core.seals.write(text, claim.own_seal)
        record = self._core.seals.write_record(record, claim.own_seal)
        record["proof"] = self._core.vouch_for_item(
            item_id, session, record, text, by=str(extra.get("agent", "")), to=str(extra.get("agent", ""))
        )
        reply = self._core.call_held(
            claim,
            "ask_user",
            [
                self._core.now,
                item_id,
                json.dumps(record),
                text,
                layout.payload(envelope),
                claim.claim,
                effect,
                open_ms,
                self._core.limits.conversation_messages,
                self._core.limits.open_questions,
            ],
            correlation=conversation,
            stream=layout.stream(session, envelope),
        )
        if reply[0] == b"limit":
            limit = decode.text(reply[1])
            whose = f"session {session}" if limit == "max_open_questions" else f"conversation {conversation}"
            raise LimitExceeded(limit, int(reply[2]), whose)
        return decode.text(reply[1])

    @staticmethod
    def _placed(session_id: str, reply: list[bytes]) -> str:
        match reply[0]:
            case b"unknown":
                raise UnknownSession(session_id)
            case b"closed":
                raise WrongState(f"session {session_id}", decode.text(reply[1]), "it will not run again")
            case b"answered":
                raise WrongState(f"the question to {session_id}", "answered", "it has its reply already")
            case b"person":
                raise WrongState(
                    f"the approval of {session_id}",
                    "a person's to give",
                    "it is answered with `orchestra approve` or `orchestra deny`, by no agent and no program",
                )
        return decode.text(reply[0])

    def withdraw(
        self, question: str, *, asker: str, asked: str, reason: str, claim: Claim | None = None
    ) -> bool:
        """Close a question without an answer; False if it was not open.

        It leaves the queue of the session that was asked, if it is still there. With a ``claim`` this is
        an effect of the asker's own run.

        Raises:
            ClaimLost: the run is not held under this claim any more.
        """
        reply = self._core.call(
            "withdraw",
            [question, reason, claim.claim if claim else ""],
            session=asked,
            asker=asker,
            run=claim.run if claim else "",
        )
        if claim is not None and reply[0] == b"lost":
            raise ClaimLost(claim.run)
        return bool(reply[0] == b"open")

    def claim_item(
        self, claim: Claim, item_id: str, *, waits: Literal["wait", "give up", ""] = ""
    ) -> tuple[Item, str] | None:
        """Take one queued item into the current run: how a blocking call gets its answer; None: not there yet.

        ``waits`` tells everybody who looks that the run stands still for it from now on, or does no longer.

        Raises:
            ClaimLost: the run is not held under this claim any more.
        """
        reply = self._core.call_held(claim, "claim_item", [claim.claim, item_id, waits, self._core.now])
        if reply[0] != b"taken":
            return None
        return self._core.seals.item(decode.item(item_id, reply[1])), self._core.seals.read(
            decode.text(reply[2])
        )

    def flush(self, session_id: str) -> Flushed:
        """Let one new run claim what is queued, if the session is not busy and its waiting policy is met."""
        return self.flush_all([session_id])[0]

    def flush_all(
        self, session_ids: Sequence[str], known: Mapping[str, RunsSoFar] = _NOTHING
    ) -> list[Flushed]:
        """:meth:`flush` for many sessions in one or two round trips; the verdicts in the same order.

        ``known`` says how far sessions were a moment ago, which need not be asked for then.

        Raises:
            redis.RedisError: Redis is away; some may have been carried out, and all may be asked for again.
        """
        facts = self._core.scripts.batch()
        unknown = [session_id for session_id in session_ids if session_id not in known]
        for session_id in unknown:
            facts.command("HMGET", ledger_keys.session(session_id), "runs", "root", "agent")
        found: dict[str, RunsSoFar] = {}
        for session_id, answer in zip(unknown, facts.execute(), strict=True):
            if isinstance(answer, Exception):
                if is_outage(answer):
                    raise answer
                answer = (None, None, None)  # its flush meets the damage, too, and says so
            runs, root, agent = answer
            found[session_id] = RunsSoFar(
                runs=int(runs) if (runs or b"").isdigit() else 0,
                root=decode.text(root) or session_id,
                agent=decode.text(agent),
            )
        so_far = [known.get(session_id) or found[session_id] for session_id in session_ids]
        guesses = [one.runs + 1 for one in so_far]
        verdicts: dict[int, Flushed] = {}
        left = list(range(len(session_ids)))
        while left:
            batch = self._core.scripts.batch()
            for i in left:
                batch.script("flush", *self._flush_args(session_ids[i], guesses[i], so_far[i]))
            again = []
            for i, reply in zip(left, batch.execute(), strict=True):
                if isinstance(reply, Exception):
                    if is_outage(reply):
                        raise reply
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

    def _flush_args(self, session_id: str, number: int, about: RunsSoFar) -> tuple[list[str], list[Arg]]:
        run, limits = run_id(session_id, number), self._core.limits
        ids = {"session": session_id, "run": run, "root": about.root, "agent": about.agent}
        bounds = [limits.resume_max_items, limits.resume_max_bytes, limits.redispatch_ms]
        return keys_of("flush", ids), [self._core.now, run, number, *bounds]

    @staticmethod
    def _flushed(session_id: str, reply: Sequence[bytes]) -> Flushed:
        detail = decode.text(reply[1]) if len(reply) > 1 else ""
        match reply[0]:
            case b"run":
                agent, cause = decode.text(reply[2]), decode.text(reply[3])
                dispatch = RunRef(
                    run=detail,
                    session=session_id,
                    agent=agent,
                    cause=cause,
                    version=decode.text(reply[6]),
                    ring=reply[5] == b"1",
                )
                return Flushed(outcome="run", dispatch=dispatch, more=reply[4] == b"1")
            case outcome:
                return Flushed(
                    outcome=cast('Literal["busy", "waits", "closed", "empty"]', decode.text(outcome)),
                    detail=detail,
                )
