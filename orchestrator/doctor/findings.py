"""Findings of the doctor: lost or doubled callbacks, what is stuck, and what deserves a look."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

#: A break of the promise in one session: the rule, the subject, and what is said of the session.
Broken = tuple[str, str, str]


class Severity(StrEnum):
    """Severity of a finding."""

    BREAK = "break"  #: a callback is lost or doubled, or a record is wrong
    STUCK = "stuck"  #: nothing is lost, but it will not move by itself, or is late
    WARNING = "warning"  #: a set-up that weakens a guarantee


@dataclass(frozen=True)
class Problem:
    """A problem, in one sentence that says what is wrong and, where there is one, the next step."""

    #: How bad it is: `break`, `stuck` or `warning` of `doctor`; `error`, `warning` or `info` of `validate`.
    severity: Severity
    #: The rule that is broken; rules are never renamed.
    rule: str
    #: The callback, run or service concerned; else empty.
    subject: str
    #: What is wrong and, where there is one, the next step.
    message: str
    #: The session concerned; empty: the stack as a whole.
    session: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """The identity of a finding across examinations."""
        return self.rule, self.session, self.subject


@dataclass(frozen=True)
class Blocker:
    """The thing for which something pending waits, what will move it, and by when."""

    #: The session concerned.
    session: str
    #: The callback or other item that is pending, or the session itself.
    subject: str
    #: What it waits for, in words.
    waits_for: str
    #: What will move it: a worker, a timer, an entry, a policy, a person.
    mover: str
    #: By when, in words; empty: only an agent's own work decides.
    by: str


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Counts of callbacks over many sessions: launched = delivered + pending + dead."""

    #: Sessions.
    sessions: int
    #: Delegations with a callback.
    launched: int
    #: Callbacks that were delivered.
    delivered: int
    #: Callbacks that are neither delivered nor dead.
    pending: int
    #: Callbacks that will not be delivered, each with a reason.
    dead: int

    def __str__(self) -> str:
        return f"{self.launched} launched = {self.delivered} delivered + {self.pending} pending + {self.dead} dead"


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Everything one examination found."""

    #: The promise in numbers.
    tally: Tally
    #: Trees that were looked at.
    trees: int
    #: What breaks the promise, is stuck or deserves a look.
    findings: tuple[Problem, ...]
    #: What is pending, and what will move it.
    waits: tuple[Blocker, ...]
    #: Whether launches were compared with the audit trail.
    audited: bool
    #: Whether everything was looked at, and not only what changed.
    full: bool = True
    #: Trees at rest that were not looked at.
    at_rest: int = 0

    @property
    def holds(self) -> bool:
        """True if every callback that was launched is delivered, pending or dead."""
        return not any(f.severity == Severity.BREAK for f in self.findings)

    @property
    def promise(self) -> str:
        """The promise in numbers, as one line."""
        return str(self.tally)

    @property
    def exit_code(self) -> int:
        """The exit code. 0: nothing is broken, and all moves; 1: something is; 3: nothing is, and something is stuck."""
        if not self.holds:
            return 1
        return 3 if any(f.severity == Severity.STUCK for f in self.findings) else 0


def stuck(rule: str, subject: str, message: str, *, session: str = "") -> Problem:
    """Return a problem that will not resolve by itself, or is late."""
    return Problem(Severity.STUCK, rule, subject, message, session)


def warning(rule: str, subject: str, message: str, *, session: str = "") -> Problem:
    """Return a set-up that weakens a guarantee."""
    return Problem(Severity.WARNING, rule, subject, message, session)
