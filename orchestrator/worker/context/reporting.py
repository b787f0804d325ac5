"""What an agent reports of its task: how far it is, what went wrong, how it ended, and what is attached to that."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from orchestrator.envelope.bodies import (
    Artifact,
    Blocker,
    ErrorReport,
    Metric,
    StatusUpdate,
    TaskCompletion,
)
from orchestrator.envelope.structured import part_of
from orchestrator.errors import InputError, TaskFailed
from orchestrator.ledger import Claimed
from orchestrator.ledger.large_text import beginning
from orchestrator.messages.given import check_text
from orchestrator.worker.context.arguments import check_list, check_progress
from orchestrator.worker.context.parts import RunParts
from orchestrator.worker.context.view import View

#: Bytes that an attachment may have; of a longer one the beginning is kept.
MAX_ATTACHMENT_BYTES: Final = 4 * 1024 * 1024
#: Texts that one answer may have attached.
MAX_ATTACHMENTS: Final = 100
#: The name of an attachment: it stands in prompts and commands.
_ATTACHMENT: Final = re.compile(r"[A-Za-z0-9._/-]{1,100}")


class Reporting(View):
    """One run of a session, with the reports that its agent may give."""

    def __init__(self, held: Claimed, parts: RunParts) -> None:
        super().__init__(held, parts)
        #: What is attached to the answer of this run, by name.
        self.attachments: dict[str, str] = {}

    def status(
        self,
        progress: int | None = None,
        activity: str = "",
        *,
        status: Literal["in-progress", "blocked"] | None = None,
        blockers: Sequence[Blocker | Mapping[str, Any] | str] = (),
        artifacts: Sequence[Artifact | Mapping[str, Any]] = (),
        metrics: Mapping[str, Any] | Sequence[Metric | Mapping[str, Any]] = (),
        next_steps: Sequence[str] = (),
    ) -> None:
        """Show how far this session is: ``progress`` in percent, and what it is doing now.

        A parent is resumed with the status of a child that is blocked, and need not reply; ask it with `ask` for a reply.

        Args:
            progress: percent that are done.
            activity: what it is doing now.
            status: by default `blocked` if a blocker is critical, else `in-progress`.
            blockers: what keeps it from going on: text, or a `Blocker` with the severity `critical`, `warning` or `info`.
            artifacts: what it has made.
            metrics: values by name.
            next_steps: what it does next, in order.

        Raises:
            InputError: a value is invalid, or the progress is no whole number from 0 to 100.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        check_progress(progress)
        check_list("blockers", blockers)
        check_list("next_steps", next_steps)
        if status not in (None, "in-progress", "blocked"):
            raise InputError(f"status = {status!r}: choose from 'in-progress', 'blocked'")
        if not (status or blockers or artifacts or metrics or next_steps):
            self._effects.status(progress, activity)
            return
        named = (
            [{"name": name, "text": str(value)} for name, value in metrics.items()]
            if isinstance(metrics, Mapping)
            else metrics
        )
        body = part_of(
            StatusUpdate,
            {
                "task_id": self._held.session.reported_as,
                "progress_percentage": progress,
                "current_activity": activity or None,
                "blockers": tuple(blockers),
                "artifacts_created": tuple(artifacts),
                "metrics": tuple(named),
                "next_steps": tuple({"order": n, "text": s} for n, s in enumerate(next_steps, 1)),
            },
            name="status",
        )
        blocked = any(blocker.severity == "critical" for blocker in body.blockers)
        self.report_status(
            body.model_copy(update={"status": status or ("blocked" if blocked else "in-progress")})
        )

    def report_status(self, body: StatusUpdate) -> None:
        """As `status`, with a status-update that was made before.

        Raises:
            InputError: it is too large.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        self._message_sender.status(body)

    def report_error(self, error: ErrorReport | Mapping[str, Any]) -> None:
        """Tell the parent of an error, and go on; the parent is resumed with it and need not reply.

        An error that ends the task is returned instead: `return ErrorReport(…)`.

        Raises:
            InputError: this is a root, or it is no error report.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        report = part_of(ErrorReport, error, name="error")
        if not self.has_caller:
            raise InputError(f"session {self.session} has no parent to report an error to; return the report")
        self._message_sender.report(report)

    def attach(self, name: str, text: str) -> None:
        """Attach a text to the answer of this run; the parent reads it with `callback.attachment(name)`.

        A later one of the same name replaces it. Of a text above 4 MiB the beginning is kept. Only what the
        run attaches that ends the session is kept: what an earlier run attached, attach it again (decision 36).

        Args:
            name: up to 100 letters, digits, dots, dashes, underscores and slashes.
            text: what is attached.

        Raises:
            InputError: the name is not allowed, ``text`` is no text, or this run has attached 100 texts.
            ClaimLost, SessionStopped: this run cannot go on.
        """
        if not _ATTACHMENT.fullmatch(name):
            raise InputError(
                f"attach({name!r}): a name has 1 to 100 letters, digits, dots, dashes, underscores and slashes"
            )
        check_text("text", text)
        self._claim_status.check()
        if name not in self.attachments and len(self.attachments) >= MAX_ATTACHMENTS:
            raise InputError(f"attach({name!r}): an answer has {MAX_ATTACHMENTS} attachments at most")
        # Stored by the commit, and only if this run ends the session with an answer (decision 36).
        self.attachments[name] = beginning(text, MAX_ATTACHMENT_BYTES)

    def end_with(self, end: TaskCompletion | ErrorReport) -> str:
        """Report the end of this run in full; its answer as text. An agent returns ``end`` instead of calling this.

        Raises:
            TaskFailed: it says that the task has failed.
        """
        if isinstance(end, ErrorReport):
            self._effects.failure = end
            raise TaskFailed(end.message)
        self._effects.completion = end
        answer = end.result if end.result is not None else end.summary
        if end.status == "failed":
            raise TaskFailed(answer)
        return answer
