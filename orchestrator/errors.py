"""Every error this project raises, in one tree below `OrchestraError`.

Arguments are kept raw and the sentence is made in ``__str__``: Celery pickles exceptions
by their arguments, and a formatted one would not come back as what it was.
Each sentence names the thing, the cause and the next step.
"""

from __future__ import annotations

import difflib
from typing import ClassVar, Final

#: Names of agents that an error lists.
_SHOWN_NAMES: Final = 20

#: The longest wait that an agent may ask for, in seconds.
MAX_RETRY_AFTER_S = 2_592_000


class OrchestraError(Exception):
    """Something went wrong in agent-orchestra."""

    #: Whether the same call may succeed later with nothing changed by the caller.
    retryable: ClassVar[bool] = False
    #: The sentence, with the raw arguments' positions as fields.
    template: ClassVar[str | None] = None

    def __str__(self) -> str:
        if self.template is not None:
            try:
                return self.template.format(*self.args)
            except (IndexError, KeyError):
                pass
        if self.args:
            return ": ".join(str(a) for a in self.args)
        return (self.__doc__ or type(self).__name__).strip().splitlines()[0]


class ConfigurationError(OrchestraError):
    """The set-up is not usable as it is."""


class NoStack(ConfigurationError):
    """No stack runs where one was looked for."""


class AgentsFileError(ConfigurationError):
    """An agents file could not be loaded."""

    template = "cannot load agents from {0}: {1}"


class AgentSettingError(ConfigurationError):
    """A setting of an agent is unknown or has a bad value. Raised with (agent, key, what is wrong with it)."""

    template = "agent {0!r}: {2}"

    @property
    def key(self) -> str:
        """The key of the setting, as it stands in the agent's table."""
        return str(self.args[1])


class AuditError(ConfigurationError):
    """The audit database cannot be used. Raised with (path, cause, next step)."""

    template = "the audit database {0}: {1}; {2}"


class KeyringError(ConfigurationError):
    """A key is missing, cannot be read, or is not trusted here. Raised with one sentence."""


class UnsupportedServer(ConfigurationError):
    """The Redis server lacks what the project needs."""

    template = (
        "the Redis server at {0} is version {1}; agent-orchestra needs Redis 6.2 or newer, or Valkey: "
        "upgrade it, or leave --redis-url out to use the embedded Valkey"
    )


class UnsupportedFormat(ConfigurationError):
    """Another version of the project wrote the ledger. Raised with (URL, its format, ours, what to do)."""

    template = (
        "the ledger at {0} has format {1}, and this version of agent-orchestra works with format {2}: {3}"
    )


class SettingsDisagree(ConfigurationError):
    """A setting differs from that of the rest of the stack. Raised with (URL, setting, its value there, here, variable)."""

    template = (
        "the stack on {0} has {1} = {2}, and this part of it {1} = {3}: set {4}={2} here; "
        "to change the value, stop all parts of the stack first"
    )


class InputError(OrchestraError):
    """The input cannot be used."""


class PlanError(InputError):
    """A plan that cannot be carried out. Raised with (what is wrong, a sentence each)."""

    #: Problems that the sentence names; it says how many more there are.
    SHOWN: ClassVar[int] = 10

    @property
    def problems(self) -> tuple[str, ...]:
        """The problems, a sentence each."""
        return tuple(map(str, self.args))

    @property
    def shown(self) -> str:
        """The first problems, and how many more there are."""
        more = len(self.problems) - self.SHOWN
        return "; ".join(self.problems[: self.SHOWN]) + (f"; and {more} more" if more > 0 else "")

    def __str__(self) -> str:
        return f"the plan is not valid: {self.shown}"


class UnknownAgent(InputError):
    """No worker serves an agent of that name. Raised with (name, known names)."""

    def __str__(self) -> str:
        name = self.args[0] if self.args else "?"
        return (
            f"no agent named {name!r} is registered ({self.known}); start a worker that serves it, "
            "for example: orchestra up --agents my_agents.py"
        )

    @property
    def known(self) -> str:
        """Which agents there are, the one that was probably meant first."""
        name, *rest = self.args or ("?",)
        names = sorted(rest[0]) if rest else []
        near = difflib.get_close_matches(str(name), names, n=1)
        shown = ", ".join(names[:_SHOWN_NAMES]) or "none"
        more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
        return f"{f'did you mean {near[0]!r}? ' if near else ''}registered: {shown}{more}"


class UnknownSession(InputError):
    """No session of that id."""

    template = "no session {0!r} is in this ledger; `orchestra sessions` lists what is there"


class AmbiguousSession(InputError):
    """The beginning of several session ids. Raised with (beginning, how many ids have it, which)."""

    template = "{1} session ids begin with {0!r}: {2}; give more of the id"


class KeyInUse(InputError):
    """An idempotency key that stands for other work. Raised with (key, session id, its agent, what differs)."""

    template = (
        "key {0!r} is that of session {1} of agent {2!r}, which was launched with another {3}; choose another key, "
        "or launch what that session was launched with"
    )


class PromptKeyInUse(KeyInUse):
    """An idempotency key under which a session was given another prompt. Raised with (session id)."""

    template = "session {0} was given another prompt under the same key; choose another key, or give it the same prompt"


class EmptyPrompt(InputError):
    """A prompt with nothing in it."""

    template = "the prompt for agent {0!r} is empty; say what it should do"


class Refused(OrchestraError):
    """A rule refused the request; nothing was changed."""


class LimitExceeded(Refused):
    """A limit refused new work. Raised with (limit name, limit, what it is about)."""

    template = "limit {0} = {1} reached for {2}; wait for work to finish, or split it"


class BudgetExceeded(Refused):
    """A call would cost more than a budget has left. Raised with (whose budget, what of it, why)."""

    template = "the budget of {0} does not allow this call: {2}"
    #: How much of that resource the budget has left for this call: of money billionths of a US dollar.
    left: int = 0

    @property
    def resource(self) -> str:
        """The resource that does not suffice: `requests`, `tokens`, or `nano` (money)."""
        return str(self.args[1])


class StreamFull(Refused):
    """The streams are longer than their limit, so new work is refused."""

    retryable = True
    template = "stream {0} holds {1} entries (limit {2}); new work is refused until the routers catch up"


class ClaimLost(Refused):
    """The run is no longer held under this claim; whatever it does now has no effect."""

    template = "run {0} is no longer held by this claim; another worker has it or it has ended"


class NoReply(Refused):
    """A question will not be answered. Raised with (what was asked, why)."""

    template = "no reply to {0!r}: {1}"


class Unverified(Refused):
    """A message's signature does not verify, so it is not sent again. Raised with (what, rule, reason, next step)."""

    template = "{0} was not replayed: {1}: {2}; {3}"


class NotGenuine(Refused):
    """An answer in the ledger is not the one that its agent gave. Raised with (session, agent, why)."""

    template = (
        "the answer of session {0} cannot be authenticated as that of agent {1!r}: {2}; "
        "`orchestra audit show {0}` has what was signed"
    )


class ApprovalRefused(Refused):
    """An approval cannot be given so. Raised with (approval, why and what to do)."""

    template = "approval {0} is not given: {1}"


class SubmissionRefused(Refused):
    """A Celery message may not begin a session. Raised with (task id, why and what to do)."""

    template = "task {0} begins no session: {1}"


class StepMismatch(Refused):
    """A try of a run asks for another step than an earlier one. Raised with (run id, asked, recorded)."""

    template = (
        "run {0} asks for step {1!r} where an earlier try of it recorded {2!r}: the agent's code has changed, or decides "
        'by something that no step recorded; run the version that began it, or allow new steps with steps = "replace"'
    )


class WouldDeadlock(Refused):
    """A call that blocks would wait for something that cannot happen while it does."""

    template = "{0} would wait for ever: {1}; delegate, end the run and be resumed instead"


class WrongState(Refused):
    """The thing is in a state that does not allow this. Raised with (what, state, wanted)."""

    template = "{0} is {1}; {2}"


class DamagedRecord(OrchestraError):
    """Something in the ledger cannot be read. Raised with (what, what is wrong with it)."""

    template = "the ledger's record of {0} is damaged: {1}; `orchestra doctor` says what can be done"


class RunParked(OrchestraError):
    """A run frees its slot until a provider takes calls again. Raised with (whose limits, seconds).

    Let it pass through: the run is tried again when its time has come, and no attempt is used up.
    """

    retryable = True
    template = "the limits of {0} allow the next call in {1} s; the run waits without its slot"
    #: The provider that it waits for; empty: it waits for something else.
    provider: str = ""


class WorkerEnds(RunParked):
    """A run was given to a worker that was asked to end meanwhile. Raised with (run, seconds until it may be taken)."""

    template = "the worker that took run {0} was asked to end; another one takes it"


class ProviderAway(RunParked):
    """A run frees its slot until a model server is there again. Raised with (which, seconds until it asks again, why).

    Let it pass through: the run is tried again when its time has come, and no attempt is used up.
    """

    template = "{0} {2}; the run waits without its slot and asks again in {1} s"


class AwaitsApproval(RunParked):
    """A run frees its slot until a person has said yes or no. Raised with (approval, seconds until it looks again).

    Let it pass through: the run goes on when the answer is there, and its recorded steps are not executed again.
    """

    template = "approval {0} is a person's to give; the run waits without its slot"


class RunSleeps(RunParked):
    """A run frees its slot until a time has come or a person has replied. Raised with (what it waits for, seconds).

    Let it pass through: the run is tried again then, and no attempt is used up.
    """

    template = "waits for {0}, without its slot"


class StepFailed(OrchestraError):
    """A durable step gave an error, now or in an earlier try of its run. Raised with (key, error type, message)."""

    template = "step {0!r} failed: {1}: {2}"

    @property
    def key(self) -> str:
        """The step."""
        return str(self.args[0])

    @property
    def kind(self) -> str:
        """The name of the exception class that the function raised."""
        return str(self.args[1])

    @property
    def message(self) -> str:
        """The message of that exception."""
        return str(self.args[2])


class DefinitionChanged(Refused):
    """A session refuses to go on with another version of its agent. Raised with (agent, its version, the present one)."""

    template = (
        'the definition of agent {0!r} has changed: the session began with version {1} and refuses (on_deploy = "refuse") '
        "to go on with version {2}; submit its task again"
    )


class ModelFailed(OrchestraError):
    """A model agent got no answer from its model, and would get none by trying again. Raised with (agent, cause)."""

    template = "the model of agent {0!r} gave no usable answer: {1}"


class RunFailed(OrchestraError):
    """A run ended without an answer. Raised with (run id, reason)."""

    template = "run {0} failed: {1}"


class AgentProgramError(OrchestraError):
    """A command-line agent could not be run, or failed. Raised with (the program, what happened)."""

    template = "the program {0}: {1}"


class WorktreeError(AgentProgramError):
    """The git worktree of a session could not be made, read or removed. Raised with (git's arguments, why)."""

    template = "git {0}: {1}"


class TaskFailed(OrchestraError):
    """An agent wrote itself that its task has failed. Raised with (what it wrote)."""

    template = "{0}"


class NoResponse(OrchestraError):
    """An agent left out the tag that marks its answer, twice. Raised with (that sentence, what was wrong)."""

    template = "{0}: {1}"


class Retry(OrchestraError):
    """The run asks to be tried again. Raised by an agent with (why), and in how many seconds.

    It uses up one of the agent's attempts; without ``after_s`` the run waits as after any other failure.
    """

    retryable = True

    def __init__(self, *args: object, after_s: float | None = None) -> None:
        number = isinstance(after_s, int | float) and 0 <= after_s <= MAX_RETRY_AFTER_S
        if after_s is not None and not number:
            raise InputError(
                f"Retry(after_s={after_s!r}): give a number of seconds from 0 to {MAX_RETRY_AFTER_S} (30 days)"
            )
        super().__init__(*args)
        self.after_s = after_s


class SessionFailed(OrchestraError):
    """A session ended without an answer. Raised with (session id, reason)."""

    template = "session {0} failed: {1}"
    #: The state in which the session ended.
    state: ClassVar[str] = "failed"


class SessionStopped(SessionFailed):
    """A session was stopped before it gave an answer."""

    template = "session {0} was stopped: {1}"
    state = "stopped"


class SessionDeleted(SessionFailed):
    """A session was deleted before it gave an answer."""

    template = "session {0} was deleted: {1}"
    state = "deleted"


class EnvelopeError(OrchestraError):
    """An envelope that cannot be taken as it is."""


class InvalidEnvelope(EnvelopeError):
    """An envelope that breaks a rule. Raised with (first finding's sentence, findings)."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else "the envelope is not valid"


class SignatureError(EnvelopeError):
    """A signature is missing, wrong, or by the wrong key. Raised with (rule, sentence)."""

    template = "{1}"


class DecryptionError(EnvelopeError):
    """A body could not be decrypted."""


class PayloadError(EnvelopeError):
    """A compressed or referenced payload is missing, altered or too large."""


class ServerUnavailable(OrchestraError):
    """A server does not answer."""

    retryable = True
    template = "cannot reach {0}: {1}; check that it runs and that the URL and password are right"


class AuditUnavailable(AuditError, ServerUnavailable):
    """The server of the audit database does not answer. Raised with (name, cause, next step)."""

    template = AuditError.template
