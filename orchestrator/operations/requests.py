"""The request of each verb: a TypedDict whose docstring and descriptions are what people and models read.

A field that is None is left out. What is not marked otherwise is kept with the session that a request launches, and must be
the same when its key is used again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Required

from pydantic import ConfigDict, Field, PlainSerializer, WithJsonSchema, with_config
from typing_extensions import Doc, TypedDict

from orchestrator.envelope.bodies import Artifact, Blocker, EscalationReason, Metric
from orchestrator.envelope.model_values import Priority
from orchestrator.operations import values as v
from orchestrator.operations.values import Mark


@with_config(ConfigDict(extra="forbid", strict=True))
class Request(TypedDict, total=False):
    """The fields of a verb."""


# --- what begins sessions -------------------------------------------------------------------------


class LaunchOptions(Request, total=False):
    """The options of every verb that begins a session."""

    title: v.Title | None
    priority: v.Urgency | None
    budget: Annotated[
        v.BudgetGiven | None,
        Doc(
            "What it and everything below it may spend: some of requests, tokens and usd, such as "
            "`usd=0.5,tokens=50000`, or an object with these names."
        ),
    ]
    expires_s: Annotated[v.Seconds | None, Doc("Seconds after which it fails if it has not begun.")]
    retry_policy: Annotated[
        v.RetryGiven | None,
        Doc(
            "How often and how fast its delivery is tried: max_attempts, backoff_strategy, timeout_seconds. "
            "Default: as the routing table says."
        ),
    ]
    time_limit_s: Annotated[v.Seconds | None, Doc("Seconds after which it fails if it has not ended.")]


class WorkOptions(LaunchOptions, total=False):
    """The options of `call`, and of whatever else gives another agent a task."""

    key: v.Key | None
    objectives: Annotated[
        Sequence[str] | None, Doc("What the task must reach."), Mark.FOR_MODELS, Mark.ENCRYPTED
    ]
    acceptance_criteria: Annotated[
        Sequence[str] | None, Doc("When the work is accepted."), Mark.FOR_MODELS, Mark.ENCRYPTED
    ]


class ChildOptions(LaunchOptions, total=False):
    """The options of `delegate_all`, and of every child that its parent does not wait for in the call."""

    callback: Annotated[bool | None, Doc("False: nothing comes back. Default: its end does.")]
    group: v.Group | None
    on_failure: Annotated[
        v.OnFailure | None,
        Doc(
            "What its failure means: it is delivered (the default), it fails this session, or it is ignored "
            "(counted as dead, with that reason)."
        ),
    ]
    on_close: Annotated[
        v.OnClose | None,
        Doc("What becomes of it when this session is closed first. Default: as `when_closed` says."),
    ]


class DelegateOptions(WorkOptions, ChildOptions, total=False):
    """The options of `delegate`."""

    after: Annotated[
        Sequence[str] | None, Doc("Sessions of this tree to complete first; it fails if one of them does.")
    ]


class Delegate(DelegateOptions, total=False):
    """Give work to another agent and go on. Returns the id of its session; its end comes back as a callback."""

    agent: Required[v.Agent]
    task: Required[
        Annotated[
            v.TaskGiven,
            Doc("What it is to do, complete: it knows nothing else. Text, or the fields of a Task."),
            Mark.FOR_MODELS,
            Mark.ENCRYPTED,
        ]
    ]


class DelegateAll(ChildOptions, total=False):
    """Give the same agent many tasks and go on."""

    agent: Required[v.Agent]


class Call(WorkOptions, total=False):
    """Give work to another agent and wait for its end."""

    agent: Required[v.Agent]
    task: Required[Annotated[v.TaskGiven, Mark.ENCRYPTED]]


class ReferralOptions(Request, total=False):
    """The options of what is handed to a role of the routing table."""

    title: v.Title | None
    priority: v.Urgency | None
    group: v.Group | None
    key: v.Key | None


class ReviewOptions(ReferralOptions, total=False):
    """The options of `request_review`."""

    files: Annotated[Sequence[str] | None, Doc("Paths of the files."), Mark.FOR_MODELS, Mark.ENCRYPTED]
    review: Annotated[
        v.ReviewGiven | None, Doc("More of it: focus areas, criteria, context, the time."), Mark.ENCRYPTED
    ]


class RequestReview(ReviewOptions, total=False):
    """Have the code reviewer review something."""

    description: Annotated[
        str | None, Doc("What is to be reviewed, and for what."), Mark.FOR_MODELS, Mark.ENCRYPTED
    ]


class EscalateOptions(ReferralOptions, total=False):
    """The options of `escalate`."""

    reason: Annotated[
        EscalationReason | None, Doc("`task-failed`, `timeout`, `blocked`, `decision-needed`, `conflict`, …")
    ]
    matter: Annotated[
        v.MatterGiven | None, Doc("More of it: attempted solutions, options, severity."), Mark.ENCRYPTED
    ]


class Escalate(EscalateOptions, total=False):
    """Give what you cannot settle to the tech lead."""

    description: Annotated[
        str | None, Doc("What is the matter, and what you have tried."), Mark.FOR_MODELS, Mark.ENCRYPTED
    ]


class RootOptions(LaunchOptions, total=False):
    """The options of every verb that begins a root."""

    key: v.Key | None
    retry_for_s: Annotated[
        float | None,
        Field(ge=0),
        Doc("Seconds of an outage of Redis that the call outlasts; the session is made once."),
        Mark.THIS_CALL,
    ]


class SubmitOptions(RootOptions, total=False):
    """The options of `submit`."""

    task: Annotated[
        v.TaskParts | None,
        Doc(
            "More about the task: objectives, criteria, expected outputs, context. The agent has it as "
            "`ctx.task`, and the prompt has a section for each list."
        ),
        Mark.ENCRYPTED,
    ]
    at: Annotated[
        v.BeginGiven | None,
        Doc(
            "When it begins: a `datetime` with a time zone, in seconds since the epoch or in ISO 8601, or a "
            "`timedelta` from now. "
            "Until then its state is `scheduled`, and `stop` cancels it. A time in the past is now."
        ),
        Mark.THIS_CALL,
    ]


class Submit(SubmitOptions, total=False):
    """Give an agent a prompt. Returns the id of its session."""

    agent: Required[v.Agent]
    prompt: Annotated[
        str, Doc("What the agent is to do. Default: the description of the task."), Mark.ENCRYPTED
    ]


class ForkOptions(RootOptions, total=False):
    """The options of `fork`."""

    prompt: Annotated[
        str | None, Doc("What replaces the task or the prompt that the run was given."), Mark.ENCRYPTED
    ]


class Fork(ForkOptions, total=False):
    """Begin a new tree where a run of a session began. That session and its tree stay as they are."""

    session: Required[Annotated[str, Doc("Any session, a child as well."), Mark.THIS_CALL]]
    at: Required[Annotated[str, Doc("The id of the run, or its number: 1 is the first."), Mark.THIS_CALL]]


# --- what sessions say to one another ---------------------------------------------------------------


Question = Annotated[str, Doc("The question, with everything that is needed to answer it."), Mark.FOR_MODELS]


class QuestionOptions(Request, total=False):
    """The options of a question."""

    kind: Annotated[
        str | None,
        Doc(
            "`query` (the default), `blocker`, `clarification`, `error` or a word of your own; or what is asked "
            "for: `ask-for-help`, `request-review`, `request-analysis`. A blocker is always critical."
        ),
        Mark.FOR_MODELS,
    ]
    context: v.Context | None
    priority: v.Urgency | None
    problem: Annotated[str | None, Doc("What the matter is, at length.")]
    attempted: Annotated[Sequence[str] | None, Doc("What you have tried, in order."), Mark.FOR_MODELS]
    file: Annotated[
        v.FilesGiven | None, Doc("The files that matter: paths, or `FileReference`s with what stands there.")
    ]
    error: Annotated[str | None, Doc("The full message of an error."), Mark.FOR_MODELS]
    urgency: Annotated[Priority | None, Doc("How urgent the answer is; it is the priority of the question.")]
    required_by: Annotated[v.Moment | None, Doc("When the answer is needed: a time with a zone.")]


class Ask(QuestionOptions, total=False):
    """Ask who gave you your task and wait for the reply. If none came, call `answer` with the id of the question."""

    message: Required[Question]
    timeout_s: v.WaitSeconds | None


class AskLater(QuestionOptions, total=False):
    """Ask a child, or who gave you your task, and go on."""

    message: Required[Question]
    to: Annotated[
        str | None,
        Doc("A child's session, which delegate has named. Default: who gave you your task."),
        Mark.FOR_MODELS,
    ]
    key: v.Key | None


class Answer(Request, total=False):
    """Wait for the reply to a question that you have asked."""

    question: Required[Annotated[str, Doc("The id of the question.")]]
    timeout_s: v.WaitSeconds | None


class RaiseCallback(Request, total=False):
    """Tell who gave you your task of a problem and go on; `answer` waits for the reply."""

    message: Required[Annotated[str, Doc("What there is to say.")]]
    kind: Annotated[str | None, Doc("`query`, `blocker`, `clarification`, `error` or a word of your own.")]
    context: v.Context | None
    #: Any text is taken: to raise something never fails for a word.
    priority: Annotated[
        Annotated[str, WithJsonSchema({"type": "string", "enum": ["critical", "high", "normal", "low"]})]
        | None,
        Doc("How urgent it is. Default: by its type."),
    ]


class RequestApproval(Request, total=False):
    """Ask a person for a yes or no before you do something. If none came, call `decision` with the approval's id."""

    tool: Required[Annotated[str, Doc("What you want to do, in a word.")]]
    arguments: Annotated[
        Mapping[str, Any] | None, Doc("With what, as JSON values: the yes is for this alone.")
    ]
    reason: Annotated[str | None, Doc("Why, for the person who decides.")]
    key: Annotated[
        str | None, Doc("The same key is the same approval. Give one if you repeat a call."), Mark.THIS_CALL
    ]
    timeout_s: v.WaitSeconds | None


class Decide(Request, total=False):
    """Wait for a person's answer to an approval that you have asked for. Without `approved: true` do nothing."""

    approval: Required[Annotated[str, Doc("The id of the approval.")]]
    timeout_s: v.WaitSeconds | None


class Reply(Request, total=False):
    """Answer a question of an agent to which you have delegated a task."""

    question: Required[
        Annotated[str, Doc("The id of the question, as its agent-callback gives it."), Mark.FOR_MODELS]
    ]
    text: Required[Annotated[str, Doc("The answer."), Mark.FOR_MODELS]]


class MessageOptions(Request, total=False):
    """The options of `message`."""

    priority: Annotated[Priority | None, Doc("Where it stands in the queue of the other session.")]
    key: v.Key | None


class Message(MessageOptions, total=False):
    """Say something to your parent or to a child; no answer comes."""

    to: Required[Annotated[str, Doc("The session of a child, or `parent`.")]]
    text: Required[Annotated[str, Doc("The message.")]]


class StatusOptions(Request, total=False):
    """The options of `status`."""

    status: Annotated[
        Literal["in-progress", "blocked"] | None,
        Doc("Default: `blocked` if a blocker is critical, else `in-progress`."),
    ]
    blockers: Annotated[
        Sequence[Blocker | Mapping[str, Any] | str] | None,
        Doc(
            "What keeps you from going on: text, or a `Blocker` with the severity `critical`, `warning` or "
            "`info`."
        ),
        PlainSerializer(lambda value: [v.as_fields(one) for one in value or ()]),
        WithJsonSchema({"type": "array", "items": {"anyOf": [{"type": "string"}, v.ANY_OBJECT]}}),
        Mark.FOR_MODELS,
    ]
    artifacts: Annotated[
        Sequence[Artifact | Mapping[str, Any]] | None,
        Doc("What you have made."),
        PlainSerializer(lambda value: [v.as_fields(one) for one in value or ()]),
        WithJsonSchema({"type": "array", "items": v.ANY_OBJECT}),
    ]
    metrics: Annotated[
        Mapping[str, Any] | Sequence[Metric | Mapping[str, Any]] | None,
        Doc("Values by name."),
        PlainSerializer(
            lambda value: [v.as_fields(one) for one in value] if isinstance(value, list | tuple) else value
        ),
        WithJsonSchema(v.ANY_OBJECT),
    ]
    next_steps: Annotated[Sequence[str] | None, Doc("What you do next, in order."), Mark.FOR_MODELS]


class Status(StatusOptions, total=False):
    """Show how far you are. If `stopping` is not empty, end your work now."""

    progress: Annotated[int | None, Field(ge=0, le=100), Doc("Per cent done."), Mark.FOR_MODELS]
    activity: Annotated[str, Doc("What you do now, in a few words."), Mark.FOR_MODELS]


# --- what a session may look at ------------------------------------------------------------------


class ShowSession(Request, total=False):
    """Show your session: its ids, your agent's name, why you run and what you were given to do."""


class Wait(Request, total=False):
    """Wait until a child has ended or asks something. Answer each of its questions with `reply`."""

    sessions: Annotated[Sequence[str] | None, Doc("Children to wait for; none: all of them.")]
    timeout_s: v.WaitSeconds | None


class Results(Request, total=False):
    """Show the ends of all your children so far."""


class ReadResult(Request, total=False):
    """Read what a child has answered, or attached to its answer, from a position on. `next_offset` says where to go on."""

    session: Required[Annotated[str, Doc("A child that has ended."), Mark.FOR_MODELS]]
    attachment: Annotated[
        str | None,
        Doc("The name of an attachment, as the agent-callback gives it. Default: the answer itself."),
        Mark.FOR_MODELS,
    ]
    offset: Annotated[int | None, Field(ge=0), Doc("Where to begin, in characters."), Mark.FOR_MODELS]
    length: Annotated[
        int | None, Field(ge=1, le=v.MAX_READ_CHARS), Doc("How many characters to read."), Mark.FOR_MODELS
    ]


class ListAgents(Request, total=False):
    """List the agents that you may delegate to, with what each is for."""

    tag: Annotated[str | None, Doc("Only those that have this tag. Default: all."), Mark.FOR_MODELS]


# --- what a person's assistant asks for the operator -----------------------------------------------

_Session = Annotated[str, Doc("The id of a session.")]
_Comment = Annotated[str, Doc("For the agent that asked.")]


class OfSession(Request, total=False):
    """A request that concerns one session."""

    session: Required[_Session]


class SubmitPlan(Request, total=False):
    """Have a plan carried out. Returns the id of its session."""

    plan: Required[Annotated[str, Doc("A JSON array of objects with role, task, sequence and caller.")]]
    agent: Annotated[str, Doc("Who carries it out; by default the only caller.")]
    key: Annotated[str, Doc("The same key is the same session, however often it is submitted.")]


class AwaitSession(OfSession, total=False):
    """Wait for the final answer of a session."""

    timeout_s: v.WaitSeconds


class ListSessions(Request, total=False):
    """List the latest sessions that were submitted, newest first."""

    limit: Annotated[int, Field(ge=1, le=200), Doc("How many; 20 by default.")]
    states: Annotated[Sequence[v.State], Doc("Only those in one of these states.")]
    agents: Annotated[Sequence[str], Doc("Only those of one of these agents.")]
    since: Annotated[str, Doc("Not launched before: how long ago (15m, 2h, 7d) or a time in ISO 8601.")]
    until: Annotated[str, Doc("Not launched after: the same.")]
    cost_from: Annotated[str, Doc("Only those whose own calls of models cost so many US dollars or more.")]
    cost_to: Annotated[str, Doc("That much or less.")]


class ShowTree(OfSession, total=False):
    """Show how a session and everything below it stands."""


class ListQuestions(OfSession, total=False):
    """List the open questions of a session and everything below it. Answer one with `reply`."""


class AnswerQuestion(Reply, total=False):
    """Answer a question in the place of the session that was asked."""


class ListApprovals(Request, total=False):
    """List what waits for the person's yes or no; with a session only what it and its tree ask. Show it to them."""

    session: _Session


class Deny(Request, total=False):
    """Say no for the person, who has told you to."""

    approval: Required[Annotated[str, Doc("The id of the approval.")]]
    comment: _Comment


class Approve(Deny, total=False):
    """Say yes for the person, who has seen tool and arguments and has told you to. Never decide this yourself."""

    digest: Required[Annotated[str, Doc("As `approvals` gave it, with what the person has seen.")]]


class Resume(OfSession, total=False):
    """Give a session another prompt."""

    prompt: Required[Annotated[str, Doc("What the agent is to do.")]]
    key: Annotated[str, Doc("The same key is the same prompt, however often it is given.")]


class Stop(OfSession, total=False):
    """Stop a session and, by its policy, everything below it. `stopping` counts what is still at work below it.

    `ended`: it has ended; `asked`: its agent was asked to stop; `over`: it had ended before. Call it again after
    ask_again_s seconds to see whether all have ended.
    """

    reason: Annotated[str, Doc("Why, for those who wait for it.")]


class ListAllAgents(Request, total=False):
    """List the agents that work can be given to."""
