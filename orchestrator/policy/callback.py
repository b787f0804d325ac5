"""Callbacks: messages of other sessions to a session, as its agent reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from orchestrator.ids import asker_of
from orchestrator.policy.response_tag import typed, value_of

if TYPE_CHECKING:
    from orchestrator.envelope.bodies import ErrorReport, Query, StatusUpdate, TaskCompletion

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Callback:
    """Message of another session: a child's end, or something that it asks, says or answers."""

    id: str  #: its id; of a question what `orchestra reply` takes.
    #: `completion`; of a question `query`, `blocker`, `clarification`, `error` or a word of the agent's own; `reply`,
    #: `message`.
    kind: str = "completion"
    session: str  #: the session that it comes from.
    agent: str = ""  #: the agent of that session.
    #: Of a completion: `completed`, `partial-success` (as an external program says) or `failed`; of a reply that will
    #: not come: `failed`; else empty.
    status: str = ""
    title: str = ""  #: what people call that session.
    text: str = ""  #: the answer, the error or the question.
    priority: str = ""  #: `critical`, `high`, `normal` or `low`.
    size: int = -1  #: bytes of the whole text, where `text` is only its beginning; else -1
    question: str = ""  #: of a reply: the id of the question that it answers
    context: Any = None  #: of a question: what its asker added to it, as JSON values; else null.
    attachments: tuple[str, ...] = ()  #: the names of what the child attached to its answer
    #: What its structured part says beside the text, under headings: criteria, deliverables, attempted solutions, …
    details: str = ""
    genuine: bool | None = None  #: whether the ledger knows the id; None: not asked
    #: Reads the whole text, where `text` is only its beginning.
    fetch: Callable[[], str] | None = field(default=None, repr=False, compare=False)

    #: The structured part itself, as a model, which the properties read by its type, such as `query`.
    body: Any = field(default=None, repr=False, compare=False)
    #: Reads what the child attached to its answer under a name.
    fetch_attachment: Callable[[str], str | None] | None = field(default=None, repr=False, compare=False)

    @property
    def completion(self) -> TaskCompletion | None:
        """The child's report of the end of its task; None for anything else.

        A failure has one only if the child reported it so, with the status `failed`; else see `error_report`.
        """
        return cast("TaskCompletion | None", self._body("task-completion"))

    @property
    def query(self) -> Query | None:
        """The question, with what was tried before and when it is needed; None for anything else."""
        return cast("Query | None", self._body("query"))

    @property
    def error_report(self) -> ErrorReport | None:
        """The child's failure, or an error that it reports, with the ways out; None for anything else."""
        return cast("ErrorReport | None", self._body("error"))

    @property
    def status_update(self) -> StatusUpdate | None:
        """The progress of a child that reports that it is blocked; None for anything else."""
        return cast("StatusUpdate | None", self._body("status-update"))

    def _body(self, kind: str) -> Any:
        return self.body if getattr(self.body, "type", "") == kind else None

    def attachment(self, name: str) -> str | None:
        """Return what the child attached to its answer under this name; None if nothing.

        Raises:
            PayloadError: it is not kept any more, or was altered.
        """
        return self.fetch_attachment(name) if self.fetch_attachment is not None else None

    def full(self) -> str:
        """Return the whole text, read from where it is kept if `text` is only its beginning.

        Raises:
            PayloadError: it is not kept any more, or was altered.
        """
        return self.text if self.fetch is None else self.fetch()

    def __str__(self) -> str:
        return self.text

    @property
    def can_reply(self) -> bool:
        """True for a question, which `ctx.reply` answers; false for a message, a progress report and an end."""
        return asker_of(self.id) is not None

    @property
    def result(self) -> str:
        """The child's whole answer; empty if it gave none.

        Raises:
            PayloadError: it is a large one, and is not kept any more.
        """
        return self.full() if self.status in ("completed", "partial-success") else ""

    @property
    def value(self) -> Any:
        """The child's answer as a JSON value; as text, if it is not JSON; None if it gave none.

        Raises:
            PayloadError: it is a large one, and is not kept any more.
        """
        return value_of(self.result) if self.status in ("completed", "partial-success") else None

    def value_as(self, type: type[T]) -> T:
        """Return the child's answer as a value of a type, such as the output type of a model agent.

        Raises:
            InputError: it does not fit the type, or the child gave none.
            PayloadError: it is a large one, and is not kept any more.
        """
        return typed(self.result, type, what=f"session {self.session}")

    @property
    def error(self) -> str:
        """The reason why the child failed; empty if it did not."""
        return self.text if self.status == "failed" else ""


def same_callback(callback: Callback, genuine: Callback) -> bool:
    """Return True if a parsed callback equals the genuine one of its id, or its text is the beginning of that."""
    found, known = (replace(c, text="", size=-1, genuine=None, fetch=None) for c in (callback, genuine))
    if found != known:
        return False
    return callback.text == genuine.text or (callback.size >= 0 and genuine.text.startswith(callback.text))
