"""Submission of a root session: checked, then written into the ledger with its envelope in one step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from orchestrator import machine
from orchestrator.agents.registry import OPERATOR
from orchestrator.bootstrap import Container
from orchestrator.client.submission_tokens import check_token
from orchestrator.crashpoints import failpoint
from orchestrator.envelope.bodies import Task
from orchestrator.envelope.prompt_text import pack, prompt_of_task, task_of
from orchestrator.errors import EmptyPrompt, KeyInUse, UnknownAgent
from orchestrator.ids import derived_uuid, root_session_id, shard_of
from orchestrator.ledger import SessionState, Submitted
from orchestrator.ledger.large_text import Seal, check_size
from orchestrator.ledger.launches import Fork
from orchestrator.messages.factory import Terms, Thread, summary
from orchestrator.operations.requests import Submit
from orchestrator.operations.table import SUBMIT
from orchestrator.policy.budget import Budget
from orchestrator.policy.moments import moment_ms
from orchestrator.streams import StreamId


class Submission:
    """Submits roots for the operator."""

    def __init__(self, parts: Container) -> None:
        self._parts = parts

    def check_token(self, token: object, request: Submit, *, task_id: str) -> None:
        """Return if a Celery message with this token may be submitted.

        Raises:
            SubmissionRefused: it may not.
            redis.RedisError: the server was away or refused it.
        """
        check_token(
            self._parts.keyring,
            token,
            request,
            task_id=task_id,
            known=self.is_known(task_id),
        )

    def is_known(self, key: str) -> bool:
        """Return True if there is a session of that key."""
        return bool(self._parts.ledger.find([root_session_id(key, self._parts.settings.shards)]))

    def begin(
        self,
        request: Submit,
        *,
        kept: str = "",
        result_of: str = "",
        planned: bool = False,
        make_fork: Callable[[str], Fork] | None = None,
        encrypted: bool = False,
    ) -> Submitted:
        """Give an agent a prompt. The same key is the same session, however often it is submitted.

        Args:
            request: what was asked for. Without a key each call makes another session.
            kept: what the session keeps of its options, by default as `submit` does.
            result_of: the Celery task id under which the final answer is stored.
            planned: the prompt is a plan, which the session carries out before its agent is called.
            make_fork: stores what a session of this id begins with, if it is a fork.
            encrypted: encrypt it although neither its agent nor the setting requires it.

        Raises:
            KeyringError: it is encrypted, and its agent has no key to encrypt to.
            InputError: the title is longer than 16 KiB, or ``at`` is not a time.
            EmptyPrompt: there is nothing to do.
            KeyInUse: the key was used before, for another agent or prompt, or with other options.
            UnknownAgent: no worker serves such an agent.
            StreamFull: the routers are too far behind for new work.
            redis.RedisError: Redis does not answer, or refuses; the call may be repeated with the same key.
        """
        agent, prompt, title = request["agent"], request.get("prompt") or "", request.get("title") or ""
        key, at = request.get("key"), request.get("at")
        kept = kept or SUBMIT.options(request)
        words, structured = prompt, cast("Any", request.get("task"))
        if structured is not None:
            structured = task_of(structured, description=prompt, title=title)
            title, words = structured.title, structured.description
            prompt = prompt_of_task(structured)
        if not words.strip():
            raise EmptyPrompt(agent)
        check_size("title", title)
        parts = self._parts
        record = parts.agents.get(agent)
        if record is None or record.system:
            raise UnknownAgent(agent, parts.agents.names())
        session = root_session_id(key or machine.uuid4().hex, parts.settings.shards)
        thread = Thread(correlation=derived_uuid("conversation", session), encrypted=encrypted)
        heading = title or summary(words)
        now_ms = 0 if at is None else parts.ledger.server_ms()
        at_ms = 0 if at is None else moment_ms(at, now_ms=now_ms, what="at")
        if (expires_s := request.get("expires_s")) is not None:
            expires_s += max(0, at_ms - now_ms) / 1000  # until it begins it does not expire
        budget = Budget.of(request.get("budget")) or Budget.of(parts.settings.tree_budget)
        terms = Terms.of({**request, "budget": budget, "expires_s": expires_s}, plan=planned)
        envelope = parts.message_factory.delegation(
            sender=OPERATOR,
            recipient=agent,
            task_id=session,
            task=(structured or Task()).model_copy(update={"title": heading, "description": words}),
            thread=thread,
            terms=terms,
        )
        parts.pressure.admit(StreamId(shard_of(session), envelope.type, envelope.priority))
        failpoint("submit.checked")
        submitted = parts.ledger.submit(
            session,
            agent=agent,
            prompt=prompt,
            envelope=envelope,
            correlation=thread.correlation,
            title=heading,
            task=result_of,
            planned=planned,
            budget=terms.budget,
            make_fork=partial(make_fork, session) if make_fork is not None else None,
            at_ms=at_ms,
            structured="" if structured is None else pack(structured),
            time_limit_ms=terms.time_limit_ms,
            options=kept,
            seal=Seal(label=session, by=OPERATOR, to=(agent,)) if envelope.encrypted else None,
        )
        failpoint("submit.written")
        if submitted.agent != agent:
            raise KeyInUse(key, session, submitted.agent, "agent")
        if submitted.other_prompt:
            raise KeyInUse(key, session, submitted.agent, "prompt")
        if not submitted.created:
            for there in parts.ledger.find([session]):
                if there.state is not SessionState.DELETED and there.options != kept:
                    raise KeyInUse(key, session, submitted.agent, "set of options")
        return submitted
