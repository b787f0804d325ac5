"""Submission tokens: what lets a plain Celery message begin a session where ``submissions`` is "token".

Every program that can write to the broker can send any message. A token proves that a holder of the key of `operator`
asked for this work under this task id. The session derives from the task id, so a token that is used twice is one
session.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Final

from orchestrator import machine
from orchestrator.agents.registry import OPERATOR
from orchestrator.errors import SignatureError, SubmissionRefused
from orchestrator.keyring import claims
from orchestrator.keyring.claims import Purpose
from orchestrator.keyring.registry import Keyring
from orchestrator.machine import Clock, SystemClock
from orchestrator.operations.requests import Submit
from orchestrator.operations.table import SUBMIT

#: Seconds that a token can be used for by default.
LIFETIME_S: Final = 3600.0
_MAX_CHARS: Final = 4096
_UNREADABLE: Final = "its token cannot be read; make one with Client.token"


@dataclass(frozen=True, kw_only=True)
class SubmissionToken:
    """A token with the task id that it is for: ``send_task(…, kwargs={…, "token": token.text}, task_id=token.task_id)``."""

    task_id: str  #: the Celery task id that it is for
    text: str  #: the token


def make_token(
    keyring: Keyring,
    request: Submit,
    *,
    task_id: str | None = None,
    lifetime_s: float = LIFETIME_S,
    clock: Clock | None = None,
) -> SubmissionToken:
    """A token for one submission.

    Raises:
        KeyringError: the key of `operator` is not in this data folder.
    """
    signer = keyring.signer(OPERATOR)
    now_ms = (clock or SystemClock()).now_ms()
    task = task_id or str(machine.uuid4())
    said = {
        "task": task,
        "work": _digest(request),
        "issued_ms": now_ms,
        "expires_ms": now_ms + round(lifetime_s * 1000),
    }
    return SubmissionToken(task_id=task, text=claims.sign(said, Purpose.SUBMISSION, signer))


def check_token(
    keyring: Keyring,
    token: object,
    request: Submit,
    *,
    task_id: str,
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
            "Client.token, or submit with Client or `orchestra submit`",
        )
    unsigned = (
        "its token is not signed with a key of `operator` that is valid here; make it where that key is"
    )
    try:
        if len(token) > _MAX_CHARS:
            raise ValueError("too long")
        said, key = claims.verify(token, Purpose.SUBMISSION, keyring.lookup)
    except (ValueError, SignatureError) as error:
        unreadable = isinstance(error, ValueError) or error.args[0] == "signature-malformed"
        raise SubmissionRefused(task_id, _UNREADABLE if unreadable else unsigned) from None
    retired = key.retired_ms is not None and said["issued_ms"] > key.retired_ms
    if key.agent != OPERATOR or key.revoked_ms is not None or retired:
        raise SubmissionRefused(task_id, unsigned)
    if said["task"] != task_id:
        raise SubmissionRefused(task_id, f"its token is for task {said['task']}; send it with that task_id")
    if said["work"] != _digest(request):
        raise SubmissionRefused(
            task_id, "its token is for another agent, prompt, title or task; make one for these"
        )
    if not known and (clock or SystemClock()).now_ms() > said["expires_ms"]:
        raise SubmissionRefused(task_id, "its token has expired; make a new one with Client.token")


def _digest(request: Submit) -> str:
    """The digest of what is submitted: agent, prompt, title and, where there are some, the options."""
    beside = ("agent", "prompt", "title", "key")
    options = SUBMIT.dump({name: value for name, value in request.items() if name not in beside})
    work = [request["agent"], request.get("prompt") or "", request.get("title") or ""]
    if options:
        work.append(hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest())
    return hashlib.sha256(json.dumps(work).encode()).hexdigest()
