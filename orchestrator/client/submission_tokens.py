"""Submission tokens: what lets a plain Celery message begin a session where ``submissions`` is "token".

Every program that can write to the broker can send any message. A token proves that a holder of the key of `operator`
asked for this work under this task id. The session derives from the task id, so a token that is used twice is one
session.
"""

from __future__ import annotations

import hashlib
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from orchestrator import machine
from orchestrator.agents.registry import OPERATOR
from orchestrator.errors import EnvelopeError, SubmissionRefused
from orchestrator.keyring.ring import Keyring
from orchestrator.machine import Clock, SystemClock

#: Seconds that a token can be used for by default.
LIFETIME_S: Final = 3600.0
#: Prefix of the signed bytes, so that a signature of something else is never valid here.
_DOMAIN: Final = b"agent-orchestra submission 1\n"
_MAX_CHARS: Final = 4096


@dataclass(frozen=True, kw_only=True)
class _Claims:
    """What a token is good for. Times are milliseconds since the epoch."""

    task: str  #: the Celery task id
    work: str  #: digest of agent, prompt, title and what else the message says
    issued_ms: int
    expires_ms: int
    key: str  #: the id of the key of `operator` that signed it

    def octets(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def read(cls, octets: bytes) -> Self:
        facts: dict[str, Any] = json.loads(octets)
        claims = cls(**facts)
        kinds = {"issued_ms": int, "expires_ms": int}
        if any(type(value) is not kinds.get(name, str) for name, value in facts.items()):
            raise ValueError("a claim of the wrong type")
        return claims


@dataclass(frozen=True, kw_only=True)
class SubmissionToken:
    """A token with the task id that it is for: ``send_task(…, kwargs={…, "token": token.text}, task_id=token.task_id)``."""

    task_id: str  #: the Celery task id that it is for
    text: str  #: the token


def make_token(
    keyring: Keyring,
    *,
    agent: str,
    prompt: str,
    title: str = "",
    more: str = "",
    task_id: str | None = None,
    lifetime_s: float = LIFETIME_S,
    clock: Clock | None = None,
) -> SubmissionToken:
    """A token for one submission. ``more`` is the digest of its options.

    Raises:
        KeyringError: the key of `operator` is not in this data folder.
    """
    signer = keyring.signer(OPERATOR)
    now_ms = (clock or SystemClock()).now_ms()
    task = task_id or str(machine.uuid4())
    claims = _Claims(
        task=task,
        work=_digest(agent, prompt, title, more),
        issued_ms=now_ms,
        expires_ms=now_ms + round(lifetime_s * 1000),
        key=signer.key_id,
    ).octets()
    parts = (claims, signer.sign(_DOMAIN + claims))
    return SubmissionToken(
        task_id=task, text=".".join(urlsafe_b64encode(part).decode().rstrip("=") for part in parts)
    )


def check_token(
    keyring: Keyring,
    token: object,
    *,
    agent: str,
    prompt: str,
    title: str,
    task_id: str,
    more: str = "",
    known: bool,
    clock: Clock | None = None,
) -> None:
    """Return if the token is for this very submission.

    Args:
        known: the session of this task is in the ledger already: a message that the broker delivers again, at
            whatever time, is no new submission.

    Raises:
        SubmissionRefused: it is not, or it has expired, or nobody who may submit signed it.
    """
    if not isinstance(token, str) or not token:
        raise SubmissionRefused(
            task_id,
            'this stack takes a task from Celery only with a token (submissions = "token"); make one with '
            "`orchestra token` or Client.token, or submit with Client or `orchestra submit`",
        )
    try:
        if len(token) > _MAX_CHARS:
            raise ValueError("too long")
        octets, signature = (_decode(part) for part in token.split("."))
        claims = _Claims.read(octets)
        key = keyring.lookup(claims.key)
    except (ValueError, TypeError, AttributeError, RecursionError, EnvelopeError):
        raise SubmissionRefused(
            task_id, "its token cannot be read; make one with `orchestra token`"
        ) from None
    if (
        key is None
        or key.agent != OPERATOR
        or key.revoked_ms is not None
        or (key.retired_ms is not None and claims.issued_ms > key.retired_ms)
        or not key.verifies(signature, _DOMAIN + octets)
    ):
        raise SubmissionRefused(
            task_id,
            "its token is not signed with a key of `operator` that is valid here; make it where that key is",
        )
    if claims.task != task_id:
        raise SubmissionRefused(task_id, f"its token is for task {claims.task}; send it with that task_id")
    if claims.work != _digest(agent, prompt, title, more):
        raise SubmissionRefused(
            task_id, "its token is for another agent, prompt, title or task; make one for these"
        )
    if not known and (clock or SystemClock()).now_ms() > claims.expires_ms:
        raise SubmissionRefused(task_id, "its token has expired; make a new one with `orchestra token`")


def _digest(agent: str, prompt: str, title: str, more: str) -> str:
    work = [agent, prompt, title, *([more] if more else [])]
    return hashlib.sha256(json.dumps(work).encode()).hexdigest()


def _decode(part: str) -> bytes:
    return urlsafe_b64decode(part + "=" * (-len(part) % 4))
