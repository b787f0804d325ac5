"""Failures of a model agent: in one sentence, without secrets, and with or without another attempt."""

from __future__ import annotations

import os
import re
from typing import Any, Final

from pydantic import ValidationError
from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelServerError,
    ModelUnavailableError,
    OutputTokenLimitExceeded,
    UnexpectedModelBehavior,
    UsageLimitExceeded,
    UserError,
)

from orchestrator.errors import (
    MAX_RETRY_AFTER_S,
    ConfigurationError,
    ModelFailed,
    OrchestraError,
    Retry,
    StepFailed,
)

#: Names of environment variables whose values are secret.
_SECRET_NAME: Final = re.compile(r"(API_?KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL)", re.IGNORECASE)
#: What the keys of the known providers look like.
_KEY: Final = re.compile(r"\b(?:sk|pk|rk|key|xai|gsk|AIza)[-_][A-Za-z0-9*_-]{6,}")
#: Shorter values are words, and appear everywhere.
_SHORTEST: Final = 8


def redact(text: str) -> str:
    """The text without the secrets of this process's environment and without anything that looks like a provider's key."""
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST and _SECRET_NAME.search(name):
            text = text.replace(value, "[secret]")
    return _KEY.sub("[secret]", text)


def one_line(error: BaseException) -> str:
    """Return an error's text on one line and without secrets."""
    return redact(" ".join(str(error).split()))


#: What llama.cpp, vLLM, Ollama and gateways say of a conversation that is larger than the context.
_TOO_LARGE: Final = re.compile(
    r"exceed_context_size|context_length_exceeded|maximum context length|context (window|size|length)|prompt is too long",
    re.IGNORECASE,
)
#: Characters of a provider's own words that an error repeats.
_SHOWN_CHARS = 300
#: Characters that an error shows of what a model said in a wrong place.
_SAID_CHARS = 100
#: Failures of the provider that pass by themselves.
_PASSING = (ModelRateLimitError, ModelUnavailableError, ModelServerError, ModelConnectionError)


class BrokenAnswer(ModelConnectionError):
    """The stream of an answer ended without saying why: the rest of it is missing."""

    def __init__(self, model_name: str) -> None:
        super().__init__(model_name, "the stream ended without a finish_reason", phase="read", in_stream=True)

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return type(self), (self.model_name,)


def is_too_large(error: Exception) -> bool:
    """Return True if a conversation exceeds its model's context. Each server says so in its own words."""
    return isinstance(error, ModelContextWindowExceededError) or (
        isinstance(error, ModelHTTPError)
        and error.status_code in (400, 413, 422)
        and _TOO_LARGE.search(str(error.body)) is not None
    )


def translate(error: Exception, agent: str, turns: Any = ()) -> Exception:
    """The error that ends the run, for whatever was raised while a model agent ran; ``turns``: those of its transcript."""
    match error:
        case StepFailed():
            return _of_step(error, agent)
        case OrchestraError():
            return error
        case ModelQuotaExceededError() | ModelAuthenticationError() | ModelNotFoundError():
            return ModelFailed(agent, f"{_kind(error)}: {_short(error)}")
        case _ if is_too_large(error):
            return ModelFailed(
                agent,
                "the conversation is larger than the model's context; lower memory_tokens or callbacks_bytes "
                f"of its limits: {_short(error)}",
            )
        case _ if isinstance(error, _PASSING) or _is_passing_status(error):
            return _again(error, agent)
        case ModelRequestRejectedError() | ModelAPIError():
            return ModelFailed(agent, f"the provider refused the request: {_short(error)}")
        case UsageLimitExceeded():
            return ModelFailed(
                agent, f"it used up a limit of its run: {_short(error)}; raise it in its limits"
            )
        case OutputTokenLimitExceeded():
            return ModelFailed(
                agent,
                f"the answer was cut off by the token limit; raise max_tokens in its settings: {_short(error)}",
            )
        case ContentFilterError():
            said = _said(turns, "text", "thinking")
            how = "it refused to answer" if said else "the provider's content filter stopped the answer"
            return ModelFailed(agent, f"{how}: {said or error.message}")
        case UnexpectedModelBehavior():
            return ModelFailed(agent, _rule_of(error, turns))
        case UserError():
            return ConfigurationError(f"agent {agent!r}: {_short(error)}")
        case _:
            return error


def _again(error: Exception, agent: str) -> Retry:
    """Return the retry that a passing failure of the model calls for."""
    if isinstance(error, BrokenAnswer):
        return Retry(
            f"the model of agent {agent!r} gave half an answer: its stream ended without a finish_reason, as when a server "
            "or gateway drops a request; its log says why"
        )
    after_s = getattr(error, "retry_after", None)
    wait = min(float(after_s), MAX_RETRY_AFTER_S) if after_s is not None and after_s >= 0 else None
    return Retry(f"the model of agent {agent!r} is not available: {_short(error)}", after_s=wait)


def _of_step(error: StepFailed, agent: str) -> Exception:
    """The failure of a model, or of its configuration, wherever it was recorded; other steps failed as they say."""
    if isinstance(error.__cause__, ModelFailed | ConfigurationError):
        return error.__cause__
    if error.kind == ModelFailed.__name__:
        return ModelFailed(agent, error.message.partition(": ")[2])
    if error.kind == ConfigurationError.__name__:
        return ConfigurationError(error.message)
    return error


def explain(error: BaseException) -> str:
    """Return a line for the agent's delegator about what ended its run."""
    text = one_line(error)
    if isinstance(error, OrchestraError):
        return text or type(error).__name__
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _is_passing_status(error: Exception) -> bool:
    return isinstance(error, ModelHTTPError) and (
        error.status_code in (408, 409, 429) or error.status_code >= 500
    )


def _said(turns: Any, *kinds: str) -> str:
    """Return the last words of these kinds in a transcript, in short; empty if there are none."""
    return next((_short(Exception(said)) for turn in reversed(turns) if (said := turn.said(*kinds))), "")


def _rule_of(error: Exception, turns: Any) -> str:
    """Return which rule an answer broke, and what it said; else the library's message."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ValidationError):
        cause = cause.__cause__
    if cause is None:
        asked_again = error.__cause__
        rule = _short(asked_again) if isinstance(asked_again, Exception) else _said(turns, "retry")
        said = _said(turns, "text", "call")
        words = (rule, said and f"and it said {said!r}")
        return "; ".join(filter(None, (", ".join(filter(None, words)), getattr(error, "message", ""))))
    first = cause.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the answer"
    said = one_line(Exception(repr(first["input"])))[:_SAID_CHARS]
    more = f" (and {cause.error_count() - 1} more)" if cause.error_count() > 1 else ""
    return f"{where}: {first['msg']}, and it said {said}{more}; {_short(error)}"


def _kind(error: Exception) -> str:
    if isinstance(error, ModelAuthenticationError):
        return "the provider refused the key; check the provider's API key in the worker's environment"
    if isinstance(error, ModelQuotaExceededError):
        return "the provider's quota or credit is used up"
    return "the provider does not have this model; correct its name"


def _short(error: Exception) -> str:
    text = one_line(error)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
