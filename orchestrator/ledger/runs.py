"""Transitions of runs: claim, renew, commit, and an agent's effects on its own session."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from orchestrator.errors import ClaimLost, DamagedRecord, PayloadError
from orchestrator.ledger import decode, layout
from orchestrator.ledger.core import LedgerCore
from orchestrator.ledger.large_text import MAX_BESIDE_BYTES, Decrypted, Seal, Truncated, beginning, digest_of
from orchestrator.ledger.model import OVERDUE, Item, Session, SessionState
from orchestrator.ledger.transitions import (
    Claim,
    ClaimedRun,
    Committed,
    EndedRun,
    Outcome,
    Outgoing,
    PollRequest,
    Renewal,
    RetryLater,
    RunRef,
    Settled,
    TooLate,
)
from orchestrator.log import get_logger
from orchestrator.redisdb import ledger_keys
from orchestrator.redisdb.scripts import Arg, request

_log = get_logger()

#: Keys and arguments of a script.
_Call = tuple[list[str], list[Arg]]


class Runs:
    """Claims runs, renews and commits them, and records the effects of their agents."""

    def __init__(self, core: LedgerCore) -> None:
        self._core = core

    def claim(
        self, run_id: str, claim_id: str, *, session_id: str, worker: str, version: str = ""
    ) -> ClaimedRun | None:
        """Claim a certain queued run under a random claim id; None if another has it or it has ended.

        ``version`` is what the worker has of it, as in a slot.
        """
        asked = {"run": run_id, "claim": claim_id, "worker": worker, "version": version}
        return self._held(claim_id, self._core.transition("claim", session_id, **asked))

    def claim_next(self, shard: int, poll: PollRequest) -> None:
        """Take the next ready run that a slot serves, if there is one, and put it into ``poll``."""
        self._fulfil(poll, self._core.scripts.run("claim_next", *self._next_call(shard, poll)))

    def _next_call(self, shard: int, poll: PollRequest) -> tuple[list[str], list[Arg]]:
        slot = poll.slot
        asked = request(
            now=self._core.now,
            claim=poll.claim,
            worker=slot.worker,
            slot=slot.name,
            woken=poll.woken,
            rank="" if poll.rank is None else str(poll.rank),
            agents=slot.agents,
            versions=[slot.versions.get(agent, "") for agent in slot.agents],
        )
        return [ledger_keys.running(shard)], [asked]

    def _fulfil(self, poll: PollRequest, reply: Sequence[Any]) -> None:
        poll.asked = True
        damaged = iter(reply[-1])
        for run, what in zip(damaged, damaged, strict=True):
            _log.error("run-damaged", run=decode.text(run), error=decode.text(what))
        poll.held = self._held(poll.claim, reply)
        poll.more = tuple(poll.slot.agents[int(n) - 1] for n in reply[10]) if poll.held is not None else ()

    def _held(self, claim_id: str, reply: Sequence[Any]) -> ClaimedRun | None:
        if reply[0] != b"held":
            return None
        read = self._core.seals.read
        of_session, of_run = json.loads(reply[1]), json.loads(reply[2])
        session = self._core.seals.model(decode.session(of_session, of_run.get("session", "")))
        run, damage = decode.run_as_far_as_it_goes({**of_run, "id": session.run})
        run = self._core.seals.run(run)
        damage += session.damage
        self._core.replicate("claim", run.id)
        texts = self._core.own_texts_in(session, [reply[3], reply[4], reply[7], reply[8]])
        if isinstance(texts.prompt, Decrypted) and not session.encrypted:
            # Somebody has taken the mark off its record, to have it speak in clear.
            session = replace(session, encrypted=True)
        damage += texts.damage
        items: list[Item] = []
        for name, record in zip(run.items, reply[5], strict=False):
            try:
                items += [self._core.seals.item(decode.item(name, record))] if record else []
            except DamagedRecord as error:
                damage += (f"{error.args[0]}: {error.args[1]}",)
        return ClaimedRun(
            claim=Claim(
                run=run.id,
                claim=claim_id,
                session=session.id,
                parent=session.parent,
                root=session.root,
                agent=session.agent,
                seal=Seal(label=session.root, by=session.agent, to=(session.delegator,))
                if session.encrypted
                else None,
            ),
            session=session,
            run=run,
            prompt=texts.prompt,
            state=texts.state,
            items=tuple(items),
            texts={
                name: read(decode.text(body))
                for name, body in zip(run.items, reply[6], strict=False)
                if body is not None
            },
            task=texts.task,
            own=texts.own,
            damage=damage,
        )

    def renew(self, claim: Claim) -> Renewal:
        """The heartbeat of a holder: moves the renewal counter that the reaper watches."""
        reply = self._core.scripts.run("renew", [ledger_keys.run(claim.run)], [claim.claim])
        held = reply[0] == b"held"
        return Renewal(held=held, stop=decode.text(reply[1]) if held else "")

    def commit(self, run: EndedRun) -> Settled:
        """End a run with its agent's answer or failure.

        Raises:
            ClaimLost: the run is not held under this claim any more, or the server has lost an effect of it; nothing was
                changed.
            PayloadError: the answer is larger than the store takes; nothing was changed.
        """
        (done,) = self.commit_all([run])
        if isinstance(done, Exception):
            raise done
        return done

    def commit_all(
        self, runs: Sequence[EndedRun], polls: Sequence[PollRequest] = (), *, shard: int = 0
    ) -> list[Settled | Exception]:
        """End runs in the order given, and take the next ones of a shard, in one round trip if nothing is asked back.

        Each run ends, or does not, for itself: an exception stands where :meth:`commit` would raise it. A poll that
        failed was not asked; its error says nothing of the commits.

        Raises:
            redis.ConnectionError: the server is out of reach; any of the runs may have been ended.
        """
        commits = [self._committing(ended) for ended in runs]
        done: dict[int, Settled | Exception] = {}
        replies: dict[int, Any] = dict.fromkeys(range(len(runs)))
        asked = list(polls)
        while replies or asked:
            batch, sent = self._core.scripts.batch(), []
            for n, reply in replies.items():
                try:
                    if isinstance(reply, Exception):
                        raise reply
                    batch.script("commit", *commits[n].send(reply))
                    sent.append(n)
                except StopIteration as end:
                    done[n] = end.value
                except Exception as error:  # noqa: BLE001  (it stands for its run, and the others end all the same)
                    done[n] = error
            for poll in asked:
                batch.script("claim_next", *self._next_call(shard, poll))
            answers = batch.execute()
            replies = dict(zip(sent, answers, strict=False))
            for poll, answer in zip(asked, answers[len(sent) :], strict=True):
                if not isinstance(answer, Exception):
                    self._fulfil(poll, answer)
            asked = []
        return [done[n] for n in range(len(runs))]

    def _committing(self, run: EndedRun) -> Generator[_Call, Any, Settled]:
        """Yield each call of the script, and take its reply, until the run has ended."""
        claim, outcome, about = run.claim, run.outcome, run.about
        make_envelope, answer_questions = run.make_envelope, run.answer_questions
        seal, write = claim.seal, self._core.seals.write
        short, body = self._said(outcome, claim.session, seal)
        parent = claim.parent
        envelope = (
            make_envelope() if run.expect_over or outcome.status not in ("completed", "parked") else None
        )
        status = outcome.told if outcome.status == "completed" else "failed"
        state = "" if outcome.state is None else write(json.dumps(outcome.state), claim.own_seal)
        if state:
            state = f"{self._core.attest_own('state', claim.session, claim.agent, state)}\n{state}"
        memory = self._keep_memory(claim, outcome)
        ended = layout.end_of_try(
            outcome.status, outcome.text, outcome.traceback, write=partial(write, seal=claim.seal)
        )
        questions = "open" if answer_questions is not None else ""
        attached = self._keep_attachments(claim, outcome, seal) if envelope is not None else {}
        while True:
            asked = request(
                now=self._core.now,
                run=claim.run,
                claim=claim.claim,
                parent=parent,
                status=outcome.status,
                attempts=outcome.attempts,
                wait_ms=outcome.parked_ms if outcome.status == "parked" else outcome.retry_ms,
                provider=outcome.provider,
                **({"try": ended} if outcome.status in ("failed", "parked") else {}),
                waiting="" if outcome.waiting is None else json.dumps(outcome.waiting),
                last_effect=outcome.last_effect,
                last_taken=outcome.last_taken,
                questions=questions,
                left_out=outcome.steps_left_out,
                steps_failed=outcome.steps_failed,
                proof=self._prove_end(
                    about, envelope, short, {"status": status, "attachments": attached, "body": body}
                ),
                whole=short.json,
                memory=self._memory_reference(claim, memory),
                attachments=json.dumps(attached) if attached else "",
                attached=[str(ref["sha256"]) for ref in attached.values()],
                keep_runs=self._core.limits.fork_runs,
                # The digest of a sealed text would tell what everybody can guess.
                digest=digest_of(outcome.text) if outcome.once and short.ref is None and seal is None else "",
                stream=layout.stream_name(envelope),
                message=envelope.message_id if envelope is not None else "",
                told=status,
            )
            reply = yield (
                [ledger_keys.session(claim.session)],
                [asked, short.text, state, layout.payload(envelope), body],
            )
            match reply[0]:
                case b"envelope":
                    envelope = make_envelope()
                    attached = self._keep_attachments(claim, outcome, seal)
                case b"whole":
                    short = self._core.shorten(claim.session, outcome.text, seal)
                    memory = self._keep_memory(claim, outcome)
                    attached = attached and self._keep_attachments(claim, outcome, seal)
                case b"questions":
                    assert answer_questions is not None
                    names = [decode.text(name) for name in reply[1:]]
                    questions = "answered" if answer_questions(names) else ""
                case b"parent":  # handed to an heir since it was claimed
                    parent = decode.text(reply[1])
                    about = about and self._core.session(about.id)
                    if seal is not None and about is not None:
                        seal = seal.reading(about.delegator)
                        short, body = self._said(outcome, claim.session, seal)
                        attached = attached and self._keep_attachments(claim, outcome, seal)
                case b"lost":
                    raise ClaimLost(claim.run)
                case b"late":
                    return TooLate(reason=OVERDUE[decode.text(reply[1])])
                case b"retry" | b"parked":
                    return RetryLater(failures=int(reply[1]))
                case _:
                    self._core.replicate("commit", claim.run)
                    return Committed(
                        session_state=SessionState(decode.text(reply[1])),
                        over=reply[2] == b"1",
                        first=reply[3] == b"1",
                        result_unpublished=reply[4] == b"1",
                        wake=tuple(decode.text(agent) for agent in reply[5]),
                    )

    def reject(self, claim: Claim, item_id: str, reason: str) -> bool:
        """Let an item of a run die, because its proof does not hold; False if it is not the run's any more.

        Raises:
            ClaimLost: the run is not held under this claim any more.
        """
        reply = self._core.effect_of(claim, "reject", item=item_id, reason=reason)
        return bool(reply[0] == b"rejected")

    def _said(self, outcome: Outcome, session: str, seal: Seal | None) -> tuple[Truncated, str]:
        """Return the answer or the reason of an end, and the report's other parts, as the ledger stores them."""
        if outcome.status == "completed":
            short = self._core.shorten(session, outcome.text, seal)
        else:
            short = Truncated(text=self._core.seals.write(beginning(outcome.text), seal), ref=None)
        return short, self._core.seals.write(outcome.body, seal)

    def _prove_end(
        self, about: Session | None, envelope: Outgoing | None, short: Truncated, said: Mapping[str, Any]
    ) -> str:
        """The proof that the agent of a session says how it ends; empty while the session does not end."""
        if about is None or envelope is None:
            return ""
        end = decode.Statement.of_end(
            about,
            said["status"],
            short.text,
            short.ref,
            said["attachments"],
            message=envelope.message_id,
            body=said["body"],
        )
        return self._core.attest_end(about, end, by=about.agent)

    def _keep_memory(self, claim: Claim, outcome: Outcome) -> Truncated:
        """Store an executor's memory of its conversation; it expires by itself if the commit does not come."""
        if outcome.memory is None or outcome.status != "completed":
            return Truncated(text="", ref=None)
        return self._core.large_texts.shorten(
            claim.session, outcome.memory, above_bytes=0, seal=claim.own_seal
        )

    def _memory_reference(self, claim: Claim, memory: Truncated) -> str:
        """Return the reference to a memory as JSON, with the proof of its agent; empty if there is no new memory."""
        if memory.ref is None:
            return ""
        proof = self._core.attest_own("memory", claim.session, claim.agent, memory.json)
        return json.dumps({**memory.ref, "proof": proof})

    def _keep_attachments(self, claim: Claim, outcome: Outcome, seal: Seal | None) -> dict[str, Any]:
        """Store the attachments of an answer; return their references by name. They expire if the commit does not
        come.
        """
        if outcome.status != "completed":
            return {}
        return {
            name: self._core.large_texts.put(claim.session, text, seal=seal)
            for name, text in sorted(outcome.attachments.items())
        }

    def memory(self, session_id: str) -> str:
        """Return the memory that the executor saved at the session's last commit; empty if none.

        Raises:
            PayloadError: it is not kept any more, or was altered.
        """
        ref = decode.text(self._core.redis.hget(ledger_keys.bodies(session_id), "memory"))
        if not ref:
            return ""
        root, encrypted = self._core.redis.hmget(ledger_keys.session(session_id), "root", "encrypted")
        found = self._core.large_texts.read(json.loads(ref), label=decode.text(root) if encrypted else "")
        if isinstance(found, Decrypted) and found.failed:
            raise PayloadError(
                f"the memory of session {session_id} is sealed, and no key here opens it for its tree"
            )
        return found

    def effect(
        self,
        claim: Claim,
        *,
        effect: str,
        envelope: Outgoing | None = None,
        value: str = "",
        facts: Mapping[str, Arg] | None = None,
        only_audit: bool = False,
        text: str = "",
    ) -> str:
        """Record an effect that changes only its own session, and publish its envelope once.

        ``only_audit``: the envelope is for the audit trail, and nobody acts upon it. ``text``: kept as long as the session;
        the value refers to it.
        Returns ``value``, or what an earlier try of the run recorded under the same key.

        Raises:
            ClaimLost: the run is not held under this claim any more.
        """
        ref = self._core.large_texts.put(claim.session, text, seal=claim.own_seal) if text else None
        kept = json.dumps(ref) if ref else self._core.seals.write(value, claim.own_seal)
        reply = self._core.effect_of(
            claim,
            "effect",
            layout.payload(envelope),
            kept,
            *layout.pairs(facts or {}),
            effect=effect,
            stream=layout.stream_name(envelope),
            only_audit=only_audit,
            whole=ref and ref["sha256"],
        )
        return self._core.seals.read(decode.text(reply[1])) if reply[0] == b"exists" else value

    def status(
        self, claim: Claim, *, effect: str, progress: int | None, activity: str, envelope: Outgoing | None
    ) -> str:
        """Record how far a session is: ``progress`` in percent, and what it is doing. Returns the id of the message
        that says so, which an earlier try of the run may have sent.

        Raises:
            ClaimLost: the run is not held under this claim any more.
        """
        # Each look at the session reads it.
        shown = beginning(activity, MAX_BESIDE_BYTES)
        facts: dict[str, Arg] = {"activity": self._core.seals.write(shown, claim.seal)}
        if progress is not None:
            facts["progress"] = progress
        message = envelope.message_id if envelope is not None else ""
        if message:
            facts["last_said"] = message
        return self.effect(claim, effect=effect, envelope=envelope, value=message, facts=facts)

    def take_external(self, dispatch: RunRef) -> bool:
        """Put a queued run into the hands of the program outside of the stack that its agent is.

        It reads of its task in the stream, holds no lease, and reports by envelope. False: the run is not queued.
        """
        asked = {"run": dispatch.run, "agent": dispatch.agent}
        return bool(self._core.transition("claim_external", dispatch.session, **asked))
