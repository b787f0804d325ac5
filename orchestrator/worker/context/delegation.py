"""Delegation: how an agent gives work to others, by delegations, calls that wait, reviews and escalations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from typing_extensions import Unpack

from orchestrator.agents.registry import AgentRecord
from orchestrator.envelope.bodies import Escalation, EscalationMatter, File, Review, ReviewRequest, Task
from orchestrator.envelope.model_values import with_values
from orchestrator.envelope.prompt_text import prompt_of
from orchestrator.errors import InputError
from orchestrator.ids import child_session_id
from orchestrator.ledger import ItemState, Outgoing
from orchestrator.messages.factory import Terms
from orchestrator.operations import requests
from orchestrator.operations.table import CALL, DELEGATE, DELEGATE_ALL, ESCALATE, REQUEST_REVIEW
from orchestrator.policy.callback import Callback
from orchestrator.policy.moments import check_timeout
from orchestrator.worker.context.launches import LaunchRequest, child_of, heading_of
from orchestrator.worker.context.view import View

#: Delegations that are waited for at once; no policy for other groups concerns them.
CALL_GROUP: Final = "call:"

_Described = TypeVar("_Described", Review, EscalationMatter)


@dataclass(frozen=True)
class Collected:
    """Callbacks that a run collected from its children, and the children that are still at work."""

    callbacks: tuple[Callback, ...]  #: in the order in which they came
    outstanding: tuple[str, ...]  #: the sessions that have not ended


@dataclass(frozen=True)
class Piece:
    """A part of a text."""

    text: str  #: the part that was asked for
    status: str  #: of the child: `completed`, `partial-success` or `failed`
    size: int  #: characters of all of it
    following: int | None  #: where it goes on; None: it does not


class Delegating(View):
    """The part of a run's context with which its agent delegates."""

    def agents(self, tag: str = "") -> tuple[AgentRecord, ...]:
        """Return the registered agents that this one may delegate to, by name.

        Args:
            tag: only those that have this tag.

        Raises:
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        return tuple(record for record in self._parts.launches.delegates() if not tag or tag in record.tags)

    @property
    def outstanding(self) -> int:
        """The number of callbacks still to come for this session, those of children of this run included.

        Raises:
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        pending = self._find(self.session).pending
        return pending - sum(callback.kind == "completion" for callback in self.callbacks)

    def delegate(
        self, agent: str, task: str | Task | Mapping[str, Any], **options: Unpack[requests.DelegateOptions]
    ) -> str:
        """Launch a session of ``agent`` and go on; its end comes back as a callback.

        Args:
            agent: the name of a registered agent.
            task: what it is to do, its `ctx.prompt`: text, or a `Task` with objectives, criteria, expected outputs and
                context, for each of which the prompt has a section. The child has it as `ctx.task`.
            options: see `DelegateOptions`. The priority is `high` by default.

        Returns:
            The child's session id.

        Raises:
            LimitExceeded: this session or its tree is as large as it may be.
            KeyInUse: the key was used before in this run, for another agent or with other options.
            InputError: there is no agent's name or nothing to do, or a value is invalid.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        request: requests.Delegate = DELEGATE.read({"agent": agent, "task": task, **options})
        kept = DELEGATE.options(request)
        return self._parts.launches.launch(child_of(request, request["task"], kept=kept))

    def delegate_all(
        self,
        agent: str,
        tasks: Iterable[str | Task | Mapping[str, Any]],
        **options: Unpack[requests.ChildOptions],
    ) -> list[str]:
        """:meth:`delegate` for each of many tasks, in much less time than one after the other.

        Each is a launch of its own, and the very one that `delegate` would make: a run that is tried again
        gets the same children. When one is refused, those before it are launched.

        Args:
            agent: the name of a registered agent.
            tasks: the task of each child: text, or a `Task`.
            options: those of each child, see `ChildOptions`.

        Returns:
            The children's session ids, in the order of the tasks.

        Raises:
            LimitExceeded: this session or its tree is as large as it may be.
            InputError: there is no agent's name or nothing to do, or a value is invalid.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        request: requests.DelegateAll = DELEGATE_ALL.read({"agent": agent, **options})
        kept, prepare = DELEGATE_ALL.options(request), self._parts.launches.prepare
        return self._parts.launches.launch_all(prepare(child_of(request, task, kept=kept)) for task in tasks)

    def call(
        self,
        agent: str,
        task: str | Task | Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        answer: Callable[[Callback], str] | None = None,
        **options: Unpack[requests.WorkOptions],
    ) -> Callback:
        """Launch a session of ``agent`` and wait for its end, which is delivered by this very run.

        It never holds up what it waits for: meanwhile this worker's slot runs what the child needs.

        Args:
            agent: the name of a registered agent.
            task: its task, as for `delegate`.
            timeout_s: seconds to wait at most; by default as long as this run may take.
            answer: answers a question that the child asks meanwhile. Without it, the child hears at once
                that there will be no reply, as its parent cannot be resumed before it ends.
            options: see `WorkOptions`.

        Returns:
            The child's callback; its `status` says whether it completed.

        Raises:
            TimeoutError: it has not ended yet. It goes on, and its end comes as a callback.
            WouldDeadlock: too many runs wait for one another in this worker's slot.
            LimitExceeded, KeyInUse, InputError, ClaimLost, SessionStopped, ServerUnavailable: as for `delegate`.
        """
        check_timeout(timeout_s)
        self._parts.blocking.check_depth(f"a call of {agent!r}")
        request: requests.Call = CALL.read({"agent": agent, "task": task, **options})
        kept = CALL.options(request)
        child = self._parts.launches.launch(child_of(request, request["task"], kept=kept, group=CALL_GROUP))
        reply = None if answer is None else lambda item, text: answer(self._callback(item, text))
        taken = self._parts.blocking.child(child, timeout_s=timeout_s, answer=reply)
        if taken is None:
            raise TimeoutError(
                f"session {child} of {agent!r} has not ended after {timeout_s:g} s; its end comes as a callback"
            )
        self._all = None
        return self._callback(*taken)

    def collect(
        self, sessions: Sequence[str] = (), *, timeout_s: float = 0.0, known: Collection[str] = ()
    ) -> Collected:
        """Collect what children have sent: their ends, which are delivered by this very run, and their open
        questions.

        It waits until there is something whose id is not ``known``, for ``timeout_s`` seconds at most. Answer a question with
        `reply`: as long as this run goes on, nobody else does.

        Args:
            sessions: the children; by default all whose callbacks are outstanding, also those that only an earlier try of
                the run has launched: whoever collects them takes them up.

        Raises:
            InputError: a session is no child of this one with a callback.
            WouldDeadlock: too many runs wait for one another in this worker's slot.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        if isinstance(sessions, str):  # it would be taken for a list of its characters
            raise InputError(f"sessions = {sessions!r} is one text; give a list: sessions=[{sessions!r}]")
        check_timeout(timeout_s)
        if timeout_s > 0:
            self._parts.blocking.check_depth("a wait for children")
        items = self._effects.retrying("children", lambda: self._ledger.items(self.session))
        children = {i.child: i for i in items if i.kind == "completion" and i.callback}
        unknown = [session for session in sessions if session not in children]
        if unknown:
            raise InputError(f"session {unknown[0]} is not a child of {self.session} with a callback")
        awaited = list(sessions) or [
            child for child, item in children.items() if item.state in (ItemState.OWED, ItemState.QUEUED)
        ]
        taken = self._parts.blocking.look(awaited, timeout_s=timeout_s, known=known)
        self._all = None
        callbacks = tuple(self._callback(*one) for one in taken)
        ended = {callback.session for callback in callbacks if callback.kind == "completion"}
        return Collected(
            callbacks=callbacks, outstanding=tuple(child for child in awaited if child not in ended)
        )

    def read_result(self, session: str, attachment: str = "", *, offset: int = 0, length: int) -> Piece:
        """Return a part of a child's answer, or of an attachment of it.

        Args:
            session: the child, which has ended.
            attachment: the name of the attachment; empty: the answer, or the error, itself.
            offset: where the part begins, in characters.
            length: how many characters it has at most.

        Raises:
            InputError: the session is no child of this one that has ended, or has no such attachment.
            PayloadError: the text is not kept any more, or was altered.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        found = [callback for callback in self.all_results if callback.session == session]
        if not found:
            raise InputError(f"session {session} is no task of yours that has ended")
        text = found[-1].attachment(attachment) if attachment else found[-1].full()
        if text is None:
            names = ", ".join(found[-1].attachments) or "none"
            raise InputError(f"session {session} has attached nothing as {attachment!r} (there are: {names})")
        end = offset + length
        return Piece(
            text[offset:end],
            status=found[-1].status,
            size=len(text),
            following=end if end < len(text) else None,
        )

    def request_review(self, description: str = "", **options: Unpack[requests.ReviewOptions]) -> str:
        """Ask the code-reviewer (see the routing table) for a review and go on; it comes back as a callback.

        Args:
            description: what is to be reviewed, and for what.
            options: see `ReviewOptions`.

        Returns:
            The id of the reviewer's session.

        Raises:
            InputError: there is nothing to review, or a value is invalid.
            LimitExceeded, KeyInUse, ClaimLost, SessionStopped, ServerUnavailable: as for `delegate`.
        """
        request: requests.RequestReview = REQUEST_REVIEW.read({"description": description, **options})
        review = _described(cast("Review", request.get("review") or Review()), request)
        files = request.get("files") or ()
        if not review.description.strip():
            raise InputError("a review request needs a description of what is to be reviewed")
        reviewer, effects = self._parts.launches.table.code_reviewer, self._effects
        to_review = tuple(File(path=path, text="to be reviewed") for path in files)

        def write(child: str) -> Outgoing:
            return effects.message_factory.review_request(
                **effects.launch_parties(reviewer),
                task_id=child,
                reviewed=self.session,
                review=with_values(review, files=(*review.files, *to_review)),
                terms=Terms.of(request),
            )

        prompt = prompt_of(ReviewRequest(review=review))
        if files:
            prompt = "\n".join([prompt, "", "Files:", *(f"- {name}" for name in files)])
        return self._parts.launches.launch(
            LaunchRequest(
                agent=reviewer,
                kind="review",
                title=review.title,
                description=prompt,
                options=cast("requests.DelegateOptions", request),
                kept=REQUEST_REVIEW.options(request),
                write=write,
            )
        )

    def escalate(self, description: str = "", **options: Unpack[requests.EscalateOptions]) -> str | None:
        """Hand what cannot be settled here to the tech-lead (see the routing table); its answer is a callback.

        For coordinators; a specialist asks its parent, see `raise_callback`.

        Args:
            description: what is the matter, and what is needed.
            options: see `EscalateOptions`.

        Returns:
            The id of the tech-lead's session; None if no worker serves a tech-lead: then the operator finds it
            in the audit trail, and no callback comes.

        Raises:
            InputError: there is no description, or a value is invalid.
            LimitExceeded, KeyInUse, ClaimLost, SessionStopped, ServerUnavailable: as for `delegate`.
        """
        request: requests.Escalate = ESCALATE.read({"description": description, **options})
        matter = _described(cast("EscalationMatter", request.get("matter") or EscalationMatter()), request)
        if not matter.description.strip():
            raise InputError("an escalation needs a description of what is the matter")
        effects, table = self._effects, self._parts.launches.table
        has_lead = table.tech_lead != self.agent and self._parts.launches.knows(table.tech_lead)

        def write(child: str) -> Outgoing:
            return effects.message_factory.escalation(
                **effects.launch_parties(table.tech_lead if has_lead else table.operator),
                task_id=child,
                escalated=self.session,
                matter=with_values(matter, reason=request.get("reason") or matter.reason),
                terms=Terms.of(request),
            )

        if has_lead:
            return self._parts.launches.launch(
                LaunchRequest(
                    agent=table.tech_lead,
                    kind="escalate",
                    title=matter.title,
                    description=prompt_of(Escalation(escalation=matter)),
                    options=cast("requests.DelegateOptions", request),
                    kept=ESCALATE.options(request),
                    write=write,
                )
            )
        effect = effects.key("escalate", matter.title, matter.description, given=request.get("key"))
        child = child_session_id(self.session, f"{self.run}:{effect}")
        outgoing = effects.write(lambda: write(child))
        effects.attempt(
            "escalate",
            lambda: self._ledger.effect(self._held.claim, effect=effect, envelope=outgoing),
            effect=effect,
        )
        return None


def _described(matter: _Described, request: requests.RequestReview | requests.Escalate) -> _Described:
    """Return the further parts of a request with its description and title, which may stand in either."""
    description = request.get("description") or matter.description
    title = request.get("title") or matter.title or heading_of(description)
    return with_values(matter, description=description, title=title)
