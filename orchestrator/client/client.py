"""The stack from Python: submit work, wait for answers, look at trees, resume and stop.

    with Client() as client:
        answer = client.submit("lead", "review src/").result(timeout_s=600)

`orchestrator.AsyncClient` has the same methods for asyncio.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

import redis

from orchestrator import machine
from orchestrator.bootstrap import Container, build_container
from orchestrator.client.waiting import LOOK_AGAIN_S, Steps, Stopping, Waiting, Watching, is_over, subtree
from orchestrator.config.settings import Settings, load_settings
from orchestrator.config.stack import resolve, resolve_redis_url
from orchestrator.config.urls import redact_url
from orchestrator.display.text import counted
from orchestrator.errors import (
    DecryptionError,
    EmptyPrompt,
    InputError,
    NotGenuine,
    ServerUnavailable,
    UnknownAgent,
)
from orchestrator.ids import asker_of, item_id, session_of_approval, shard_of
from orchestrator.ledger.large_text import Decrypted, check_text
from orchestrator.ledger.model import Session, SessionState
from orchestrator.log import get_logger
from orchestrator.policy.budget import BudgetState
from orchestrator.redisdb.client import RETRY_FOR_S, Outage, connect, explain

if TYPE_CHECKING:
    from orchestrator.agents.registry import AgentRecord
    from orchestrator.client.answering import Answering
    from orchestrator.client.approvals import Approval
    from orchestrator.client.history import Event
    from orchestrator.client.submission_tokens import SubmissionToken
    from orchestrator.envelope.bodies import TaskCompletion
    from orchestrator.ledger import Ledger, Run, StopVerdict, Submitted
    from orchestrator.ledger.live_text import LiveEvent
    from orchestrator.operations.requests import Fork, ForkOptions, Submit, SubmitOptions
    from orchestrator.policy.callback import Callback

T = TypeVar("T")
R = TypeVar("R", "Submit", "Fork")


@dataclass(frozen=True)
class SessionHandle:
    """A submitted session."""

    id: str  #: the session
    _client: Client
    #: False: the key was used before, for this session.
    new: bool = True

    @overload
    def result(self, timeout_s: float | None = None) -> str: ...
    @overload
    def result(self, timeout_s: float | None = None, *, type: type[T]) -> T: ...
    def result(self, timeout_s: float | None = None, *, type: Any = str) -> Any:
        """As :meth:`Client.result`."""
        return self._client.result(self.id, timeout_s=timeout_s, type=type)

    def session(self) -> Session:
        """As :meth:`Client.session`."""
        return self._client.session(self.id)


def _log_outage(sentence: str) -> None:
    get_logger().warning("redis-away", about=sentence)


class Client:
    """A connection to one stack. Safe to share between threads.

    Args:
        settings: the settings of the stack; by default from the environment and `orchestra.toml`.
        redis_url: the ledger's Redis; by default the one that is set, else that of the stack on the data folder.
        data: the data folder, which holds the operator's key.
        on_outage: called with a sentence when a call that waits begins to wait for Redis; by default it is logged.
        parts: what this process works with already, instead of a connection of its own.

    Raises:
        ConfigurationError: no stack can be found, or its Redis is not usable.
        ServerUnavailable: its Redis does not answer.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        redis_url: str | None = None,
        data: Path | str | None = None,
        on_outage: Callable[[str], None] | None = None,
        parts: Container | None = None,
    ) -> None:
        self._on_outage = on_outage or _log_outage
        if parts is None:
            found = resolve(settings or load_settings(redis_url=redis_url, data=data))
            client = connect(resolve_redis_url(found), settings=found, name="orchestra-client")
            parts = build_container(client, found)
        self._parts, self._redis, self.settings = parts, parts.redis, parts.settings
        self._url = resolve_redis_url(self.settings)
        self._reader = parts.reader

    @property
    def _ledger(self) -> Ledger:
        """The ledger with its transitions, for what changes a session."""
        return self._parts.ledger

    def close(self) -> None:
        """Close the connections; idempotent."""
        self._redis.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except redis.RedisError as error:
            raise explain(error, self._url) from error
        except ServerUnavailable as error:
            cause = error.__cause__
            if isinstance(cause, redis.RedisError):
                raise explain(cause, self._url) from cause
            raise

    def _outage(self, retry_for_s: float = RETRY_FOR_S) -> Outage:
        """Return the handling of an outage of Redis for a call that waits."""
        server = f"Redis at {redact_url(self._url)}"

        def notify(error: BaseException, first: bool, _pause_s: float) -> None:  # noqa: FBT001  (by position)
            if first:
                self._on_outage(f"waiting for {server}: {' '.join(str(error).split())}")

        return Outage(notify, retry_for_s=retry_for_s, longest_pause_s=LOOK_AGAIN_S, server=server)

    def _outlast(self, call: Callable[[], T], retry_for_s: float) -> T:
        """Return the result of ``call``, which is made again while Redis is away, for ``retry_for_s`` seconds at
        most.
        """
        outage = self._outage(retry_for_s)
        with self._clear_errors():
            while True:
                try:
                    return call()
                except (redis.RedisError, OSError) as error:
                    if retry_for_s <= 0:
                        raise
                    outage.bear(error)

    # --- work ----------------------------------------------------------------------------------

    def submit(self, agent: str, prompt: str = "", **options: Unpack[SubmitOptions]) -> SessionHandle:
        """Give ``agent`` a prompt: a new root session, in the ledger when this returns.

        Args:
            agent: the name of an agent that a worker serves.
            prompt: what the agent is to do; by default the description of the task.
            options: see `SubmitOptions`.

        Raises:
            EmptyPrompt: there is nothing to do.
            InputError: the task, ``at`` or another value is invalid; a time may be a century ahead at most.
            KeyInUse: the key was used before, for another agent or prompt, or with other options.
            UnknownAgent: no worker serves such an agent.
            ServerUnavailable: Redis does not answer.
        """
        return self._begin({"agent": agent, "prompt": prompt, **options})

    def _begin(self, values: Mapping[str, Any], *, planned: bool = False) -> SessionHandle:
        """Submit a root with the values of a request; ``planned``: its prompt is a plan."""
        from orchestrator.client.submission import Submission
        from orchestrator.operations.table import SUBMIT

        request: Submit = SUBMIT.read(values)
        retry_for_s, at = request.get("retry_for_s") or 0, request.get("at")
        if isinstance(at, timedelta):  # by the clock of Redis; the same in every try
            request["at"] = self._outlast(self._ledger.server_ms, retry_for_s) / 1000 + at.total_seconds()
        submit = partial(Submission(self._parts).begin, planned=planned)
        return self._submit_once(submit, request, retry_for_s)

    def _submit_once(self, submit: Callable[[R], Submitted], request: R, retry_for_s: float) -> SessionHandle:
        # All tries have one key: a try whose answer is lost may have arrived.
        key = request.get("key")
        request["key"] = key or machine.uuid4().hex
        submitted = self._outlast(lambda: submit(request), retry_for_s)
        return SessionHandle(submitted.session, self, new=submitted.created or key is None)

    def submit_plan(
        self, plan: str, *, agent: str = "", key: str | None = None, title: str = "", retry_for_s: float = 0
    ) -> SessionHandle:
        """Have a plan carried out by a new root session of ``agent``.

        Args:
            plan: a JSON array of assignments, see `ctx.carry_out`.
            agent: the agent that carries the plan out, and is resumed with the callbacks that name it as their caller.
                By default the only caller in the plan.
            key, title, retry_for_s: as for :meth:`submit`.

        Raises:
            PlanError: the plan is invalid; nothing was submitted.
            UnknownAgent: no worker serves the agent; nothing was submitted.
            KeyInUse, ServerUnavailable: as :meth:`submit`.
        """
        from orchestrator.policy.plan import agent_of, parse_plan

        read = parse_plan(plan)
        agent = agent or agent_of(read)
        names = self._outlast(self._parts.agents.names, retry_for_s)
        if agent not in names:
            raise UnknownAgent(agent, names)
        read.check(agents=names, callers=[agent])
        title = title or f"plan of {counted(len(read.assignments), 'assignment')}"
        request = {"agent": agent, "prompt": plan, "title": title, "key": key, "retry_for_s": retry_for_s}
        return self._begin(request, planned=True)

    def fork(self, session: str, at: str, **options: Unpack[ForkOptions]) -> SessionHandle:
        """Begin a new tree where a run of ``session`` began. That session and its tree stay as they are.

        The new root has the same agent. Its first run finds what that run found: the saved state or the memory, the
        callbacks, messages and prompts of that run, and the results so far. It is also given the results and replies
        that earlier runs were waiting for and that have come since; it is told that the others will not come. Nothing
        that the run did is repeated: the agent decides anew.

        Args:
            session: any session, a child as well.
            at: the id of the run, or its number: 1 is the first.
            options: see `ForkOptions`.

        Raises:
            UnknownSession: there is no such session.
            InputError: there is no such run, or what the run found is no longer kept.
            KeyInUse: the key was used before, for something else.
            UnknownAgent: no worker serves the session's agent.
            PayloadError: what the run was given is no longer kept, or is too large.
            ServerUnavailable: Redis does not answer.
        """
        from orchestrator.client.forking import Forking
        from orchestrator.operations.table import FORK

        request: Fork = FORK.read({"session": session, "at": at, **options})
        return self._submit_once(Forking(self._parts).fork, request, request.get("retry_for_s") or 0)

    def completion(self, session: str, *, timeout_s: float | None = None) -> TaskCompletion:
        """Return the report of a session on its finished task: criteria met, deliverables, metrics; waits for it.

        If the answer is plain text, the report has a status, a summary and the result.

        Raises:
            SessionFailed, SessionStopped, SessionDeleted, NotGenuine, TimeoutError, UnknownSession, ServerUnavailable: as
                :meth:`result`.
        """
        from orchestrator.envelope.bodies import TaskCompletion
        from orchestrator.envelope.prompt_text import unpack_body
        from orchestrator.messages.factory import summary

        answer = self.result(session, timeout_s=timeout_s)
        with self._clear_errors():
            *_, body = self._reader.answer_as_kept(session)
        found = unpack_body(body, answer)
        if isinstance(found, TaskCompletion):
            return found
        return TaskCompletion(task_id=session, summary=summary(answer), result=answer)

    def incomplete(self, session: str) -> str:
        """Return what is missing of a session's answer, as its report says, if it was cut off at a limit; else empty.

        Raises:
            UnknownSession, ServerUnavailable: as :meth:`result`.
        """
        with self._clear_errors():
            *_, body = self._reader.answer_as_kept(session)
        report = json.loads(body or "{}")
        return str(report.get("summary", "")) if report.get("status") == "partial-success" else ""

    def token(
        self,
        agent: str,
        prompt: str = "",
        *,
        title: str = "",
        task_id: str | None = None,
        lifetime_s: float | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> SubmissionToken:
        """Return the token with which a plain Celery message submits this work, where the setting `submissions` is
        "token".

        Args:
            agent, prompt, title: as in the message.
            task_id: the Celery task id of the message; by default a new one.
            lifetime_s: seconds within which the message must reach a worker; by default an hour.
            options: the other arguments in the message, see `SubmitOptions`.

        Raises:
            KeyringError: the key of `operator` is not in this data folder.
        """
        from orchestrator.client.submission_tokens import LIFETIME_S, make_token
        from orchestrator.operations.table import SUBMIT

        request: Submit = SUBMIT.read({"agent": agent, "prompt": prompt, **(options or {}), "title": title})
        with self._clear_errors():
            return make_token(
                self._parts.keyring,
                request,
                task_id=task_id,
                lifetime_s=LIFETIME_S if lifetime_s is None else lifetime_s,
            )

    @overload
    def result(self, session: str, *, timeout_s: float | None = None) -> str: ...
    @overload
    def result(self, session: str, *, timeout_s: float | None = None, type: type[T]) -> T: ...
    def result(self, session: str, *, timeout_s: float | None = None, type: Any = str) -> Any:
        """Return the final answer of a session; waits for it.

        Args:
            session: the session.
            timeout_s: seconds to wait at most; by default as long as it takes.
            type: the type of the answer, such as the output type of a model agent; by default text.

        Raises:
            InputError: the answer does not fit the type.
            SessionFailed, SessionStopped, SessionDeleted: it ended without an answer.
            NotGenuine: somebody has changed it in the ledger.
            TimeoutError: the session has not ended after ``timeout_s`` seconds.
            UnknownSession: there is no such session.
        """
        answering = self.answering(session, timeout_s=timeout_s)
        while (answer := self.step(answering)) is None:
            pass
        if type is str:
            return answer
        from orchestrator.policy.response_tag import typed

        return typed(answer, type, what=f"session {session}")

    def open_text(self, text: str) -> str:
        """Return the plain text of a sealed text, such as Celery's `AsyncResult.get()` returns for an encrypted
        session.

        Any other text is returned as it is.

        Raises:
            DecryptionError: no key in the data folder opens it.
        """
        with self._clear_errors():
            opened = self._reader.seals.read(text)
        if isinstance(opened, Decrypted) and opened.failed:
            raise DecryptionError("the text is sealed, and no key in this data folder opens it")
        return opened

    def answer(self, session: str) -> str:
        """Return the final answer of a session that has ended; empty if it has none yet.

        Raises:
            SessionFailed, SessionStopped, SessionDeleted: it ended without an answer.
            NotGenuine: somebody has changed it in the ledger.
            UnknownSession: there is no such session.
        """
        from orchestrator.client.answering import read_answer

        with self._clear_errors():
            return read_answer(self._reader, self._parts.authenticity, session) or ""

    def wait(self, session: str, *, timeout_s: float | None = None, item: str = "") -> Session:
        """Wait until a session has ended; with ``item``, also until that item of its queue is delivered or dead.

        Every call that waits outlasts an outage of Redis of two minutes.

        Raises:
            TimeoutError: the session has not ended after ``timeout_s`` seconds.
            ServerUnavailable: Redis stayed away for longer.
            UnknownSession: there is no such session.
        """
        waiting = self.waiting(session, timeout_s=timeout_s, item=item)
        while (over := self.step(waiting)) is None:
            pass
        return over

    def waiting(self, session: str, *, timeout_s: float | None = None, item: str = "") -> Waiting:
        """As :meth:`wait`, in steps: call :meth:`step` with it until that returns the session."""
        return Waiting(self._reader, session, outage=self._outage(), timeout_s=timeout_s, item=item)

    def answering(self, session: str, *, timeout_s: float | None = None, item: str = "") -> Answering:
        """As :meth:`result`, in steps: call :meth:`step` with it until that returns the answer."""
        from orchestrator.client.answering import Answering

        waiting = self.waiting(session, timeout_s=timeout_s, item=item)
        return Answering(self._reader, self._parts.authenticity, waiting, session)

    def watching(self, session: str, *, timeout_s: float | None = None) -> Watching:
        """As :meth:`watch`, in steps: call :meth:`step` with it until it has ended."""
        return Watching(self._reader, session, outage=self._outage(), timeout_s=timeout_s)

    def stopping(self, session: str) -> Stopping:
        """Return a view, in steps, of what is at work below a session and stops with it: call :meth:`step` before and
        after.
        """
        return Stopping(self._reader, session, outage=self._outage())

    def step(self, steps: Steps[T]) -> T:
        """Take one step of waiting or watching, a quarter of a second at most.

        Raises:
            TimeoutError: its time has passed.
        """
        with self._clear_errors():
            return steps.step()

    def resume(self, session: str, prompt: str, *, key: str | None = None, retry_for_s: float = 0) -> str:
        """Give a session another prompt; it runs as soon as the session is not busy. The id of the prompt.

        Args:
            session: the session.
            prompt: what the agent is to do next.
            key: the same key is the same prompt, no matter how often it is given.
            retry_for_s: seconds of an outage of Redis that the call outlasts; the prompt is given once.

        Raises:
            EmptyPrompt: there is nothing to say.
            KeyInUse: the session was given another prompt under this key.
            UnknownSession: there is no such session.
            WrongState: the session has failed, or was stopped or deleted.
            LimitExceeded: its tree has had as many runs as it may.
        """
        from orchestrator.agents.registry import OPERATOR
        from orchestrator.messages.factory import to_session

        about = self._outlast(lambda: self._reader.session(session), retry_for_s)
        check_text("prompt", prompt)
        check_text("key", key or "")
        if not prompt.strip():
            raise EmptyPrompt(about.agent)
        with self._clear_errors():
            envelope = self._parts.message_factory.message(text=prompt, **to_session(about))
        # All tries have one id: a try whose answer is lost may have arrived.
        item = item_id(session, key or envelope.message_id)
        self._outlast(
            lambda: self._ledger.enqueue(
                session,
                prompt,
                item_id=item,
                envelope=envelope,
                extra={"message": envelope.message_id},
                by=OPERATOR,
            ),
            retry_for_s,
        )
        return item

    def reply(self, question: str, text: str) -> str:
        """Answer a question of an agent instead of the session that was asked; the id of the asking session.

        The answer goes to the call that waits for it, or resumes the session.

        Raises:
            InputError: this is not the id of a question, or the answer is empty.
            UnknownSession: the session that asked is gone.
            WrongState: the question has its reply or was withdrawn, or its session will not run again.
        """
        from orchestrator.client.replies import answer_question

        asker = asker_of(question)
        if asker is None and session_of_approval(question):
            raise InputError(f"{question} is an approval: say yes or no with `orchestra approve` or `deny`")
        if asker is None:
            raise InputError(f"{question!r} is not the id of a question; `orchestra questions` lists them")
        check_text("reply", text)
        if not text.strip():
            raise InputError(f"the reply to {question} is empty")
        with self._clear_errors():
            answer_question(self._parts, asker, question, text)
        return asker

    def approvals(self, session: str = "") -> list[Approval]:
        """Return the open approvals, oldest first; with ``session`` only those of it and of the tree below it.

        Raises:
            UnknownSession: there is no such session.
        """
        from orchestrator.client.approvals import open_approvals

        with self._clear_errors():
            return open_approvals(self._parts, session=session)

    def approve(self, approval: str, comment: str = "", *, digest: str = "", by: str = "") -> Approval:
        """Approve what an approval asks, and nothing else; return what was approved.

        Args:
            approval: its id, as :meth:`approvals` lists it.
            comment: for the agent and for the audit trail.
            digest: the digest that was shown, or at least its first 8 digits; any other is refused.
            by: the person who decides; by default the user of this process. The operator signs.

        Raises:
            InputError: this is not an approval, the comment is too long, or the digest is of another call.
            ApprovalRefused: an agent or a program that it started answers, or the ledger has something else than what
                the agent asked.
            WrongState: it was answered, its time has passed, or its session has ended.
        """
        return self._decide(approval, comment, approved=True, digest=digest, by=by)

    def deny(self, approval: str, comment: str = "", *, by: str = "") -> Approval:
        """Deny what an approval asks; the agent gets the comment. Arguments and errors as for :meth:`approve`."""
        return self._decide(approval, comment, approved=False, digest="", by=by)

    def _decide(self, approval: str, comment: str, *, approved: bool, digest: str, by: str) -> Approval:
        from orchestrator.client.approvals import answer_approval

        check_text("comment", comment)
        with self._clear_errors():
            return answer_approval(
                self._parts, approval, approved=approved, comment=comment, digest=digest, by=by
            )

    def stop(self, session: str, reason: str = "stopped by a user") -> StopVerdict:
        """Stop a session and, by its policy, everything below it. `ended`: it has ended; `asked`: its run was asked.

        Children without a callback may still be at work below a finished session: they are stopped, too.

        Raises:
            UnknownSession: there is no such session.
        """
        return self._end(session, reason, "stopped")

    def delete(self, session: str, reason: str = "deleted by a user") -> StopVerdict:
        """Delete a session and, by its policy, everything below it; a tombstone with the counts stays.

        `ended`: the session is deleted; `asked`: its run was asked to stop, after which the session is deleted.

        Raises:
            UnknownSession: there is no such session.
        """
        return self._end(session, reason, "deleted")

    def _end(self, session: str, reason: str, state: Literal["stopped", "deleted"]) -> StopVerdict:
        from orchestrator.agents.registry import OPERATOR

        with self._clear_errors():
            about = self._reader.session(session)
            verdict = self._ledger.stop(session, reason, state=state, by=OPERATOR)
            if verdict.outcome == "ended" and about.parent == "" and about.task:
                self._parts.settle(session)
            if verdict.outcome == "over" and verdict.detail == SessionState.FINISHED:
                below = self._parts.delivery.stop_below(subtree(self._reader, session), reason)
                return replace(verdict, below=below)
            return verdict

    # --- looking -------------------------------------------------------------------------------

    def session(self, session: str) -> Session:
        """Return the present state of a session.

        Raises:
            UnknownSession: there is no such session.
        """
        with self._clear_errors():
            return self._reader.session(session)

    def budgets(self, session: str) -> dict[str, BudgetState]:
        """Return the budgets that a session counts against, by the session that has the budget, the root's first.

        Last comes that of its agent, which all sessions of the agent share, as `agent NAME`: since its first call, and
        with several shards the share of one.

        Raises:
            UnknownSession: there is no such session.
        """
        with self._clear_errors():
            about = self._reader.session(session)
            spending = self._ledger.spending
            found = {name: spending.budget(name) for name in about.budgets}
            found[f"agent {about.agent}"] = spending.of_agent(session, about.agent)
            return {name: state for name, state in found.items() if state is not None}

    def attachment(self, session: str, name: str) -> str | None:
        """Return what a session attached to its answer under this name; None if nothing.

        Raises:
            UnknownSession: there is no such session.
            NotGenuine: somebody has changed the answer in the ledger, or its attachments.
            PayloadError: the attachment is no longer kept, or was altered.
        """
        with self._clear_errors():
            about, text, whole, attached, body = self._reader.answer_as_kept(session)
            ref = attached.get(name)
            if ref is None:
                return None
            authenticity = self._parts.authenticity
            if authenticity.reads_as_operator and (
                fault := authenticity.judge_answer(about, text, whole, attached, body)[1]
            ):
                raise NotGenuine(session, about.agent, fault)
            return self._reader.large_texts.read(ref)

    def sessions(self, *, limit: int = 50, where: Callable[[Session], bool] | None = None) -> list[Session]:
        """Return the latest root sessions, newest first; with ``where`` the latest of those for which it is true."""
        with self._clear_errors():
            found = [
                root
                for shard in range(self.settings.shards)
                for root in (
                    self._reader.roots(shard, limit=limit)
                    if where is None
                    else islice(filter(where, self._reader.newest_roots(shard)), limit)
                )
            ]
        return sorted(found, key=lambda root: root.created_ms, reverse=True)[:limit]

    def scheduled(self) -> list[Session]:
        """Return the sessions that were submitted to begin later, the next one first."""
        with self._clear_errors():
            found = [s for shard in range(self.settings.shards) for s in self._reader.scheduled(shard)]
        return sorted(found, key=lambda session: session.due_ms)

    def tree(self, session: str) -> list[Session]:
        """Return a session and everything below it, each after its parent, in the order of their launches.

        Raises:
            UnknownSession: there is no such session.
        """
        with self._clear_errors():
            return subtree(self._reader, session)

    def watch(self, session: str, *, timeout_s: float | None = None) -> Iterator[list[Session]]:
        """Pictures of a session's tree, one for each change; the last one shows that the session has ended.

        Raises:
            TimeoutError: the session has not ended after ``timeout_s`` seconds.
            UnknownSession: there is no such session.
        """
        watching = self.watching(session, timeout_s=timeout_s)
        while not watching.over:
            picture = self.step(watching)
            if picture is not None:
                yield picture

    def stream(self, session: str, *, after: str = "", timeout_s: float | None = None) -> Iterator[LiveEvent]:
        """Yield the text that a model agent writes, piece by piece, until its session has ended.

        The text is no result: it is kept for an hour, and its length is bounded. :meth:`result` has the answer.

        Args:
            session: the session.
            after: the position of the last event that was read; empty: from the first event that is kept.
            timeout_s: seconds to read at most.

        Raises:
            TimeoutError: the session has not ended after ``timeout_s`` seconds.
            InputError: ``after`` is no position.
            UnknownSession: there is no such session.
        """
        until = None if timeout_s is None else machine.monotonic() + timeout_s
        while True:
            events, over = self.stream_step(session, after)
            for event in events:
                after = event.position
                yield event
            if over and not events:
                return
            if until is not None and machine.monotonic() >= until:
                raise TimeoutError(f"session {session} has not ended after {timeout_s:g} s")

    def stream_step(self, session: str, after: str = "") -> tuple[list[LiveEvent], bool]:
        """As :meth:`stream`, in steps of a quarter of a second: events, and whether the session had ended before.

        The call outlasts an outage of Redis, as :meth:`wait`.

        Raises:
            UnknownSession: there is no such session.
        """

        def read() -> tuple[list[LiveEvent], bool]:
            over = is_over(self._reader.session(session))
            return self._ledger.live.read(session, after, wait_s=0 if over else LOOK_AGAIN_S), over

        return self._outlast(read, RETRY_FOR_S)

    def held_back(self, sessions: Iterable[Session]) -> list[str]:
        """Return the pauses and limits that hold queued runs of these sessions back, a sentence each."""
        waiting = {(s.agent, s.root) for s in sessions if s.busy and s.state is not SessionState.RUNNING}
        with self._clear_errors():
            held = [
                self._parts.concurrency.held_back(agent, shard=shard_of(root), root=root)
                for agent, root in sorted(waiting)
            ]
        return list(dict.fromkeys(one.waits_for for one in held if one is not None))

    def parse_callbacks(self, session: str, text: str) -> tuple[Callback, ...]:
        """Return the callbacks in a text that ``session`` was given. Those that one of its runs carried are
        `genuine`.

        Each is compared with the session's records word for word: a callback that was copied from another session, or
        altered, is not genuine.
        """
        from orchestrator.messages.authenticity import checked_callbacks

        with self._clear_errors():
            return checked_callbacks(self._reader, self._parts.authenticity, session, text)

    def questions(self, session: str | None = None) -> list[Callback]:
        """Return the open questions in the tree of a session; without a session the questions of roots to you, oldest
        first.

        Answer one with :meth:`reply`.

        Raises:
            UnknownSession: there is no such session.
        """
        from orchestrator.client.replies import open_questions
        from orchestrator.messages.authenticity import callback_from

        with self._clear_errors():
            if session is not None:
                askers = subtree(self._reader, session)
                return [callback_from(*one) for one in open_questions(self._reader, askers)]
            roots = [root for shard in range(self.settings.shards) for root in self._reader.asking(shard)]
            found = open_questions(self._reader, roots)
            return [callback_from(*one) for one in sorted(found, key=lambda one: one[0].at_ms)]

    def runs(self, session: str) -> list[Run]:
        """Return the runs of a session, oldest first; each names the callbacks it carried."""
        with self._clear_errors():
            return self._reader.runs(session)

    def history(self, session: str, *, texts: bool = False) -> list[Event]:
        """Return the events of a session, oldest first; with ``texts`` also its inputs and outputs.

        Raises:
            UnknownSession: there is no such session.
        """
        from orchestrator.client.history import history

        with self._clear_errors():
            return history(self._ledger, session, texts=texts)

    def agents(self) -> list[AgentRecord]:
        """Return the registered agents, by name."""
        with self._clear_errors():
            return self._parts.agents.all()

    def serves(self, agent: str) -> bool:
        """Return True if a living worker serves an agent now; an external program counts as served.

        Work for an agent that no worker serves waits until a worker serves it.
        """
        from orchestrator.runtime.service import is_served, living_agents

        with self._clear_errors():
            record = self._parts.agents.get(agent)
            return record is not None and is_served(record, living_agents(self._parts.redis))
