"""Identifiers: how each is made, and what can be read from it.

A session id carries its shard, so that every key of a tree can be found from any of its ids::

    ses_03f1c2…    ses_ + two hex digits of shard + 24 hex digits

A run id carries the session's shard likewise; the ids of a callback, a question, an approval and a reply carry the
whole session that they come from or go to. Derived ids are hashes of what they stand for:
the same launch, tried again, has the same id.
"""

from __future__ import annotations

import hashlib
import re
import uuid
import zlib

from orchestrator import machine

_SESSION = re.compile(r"ses_[0-9a-f]{26}")
_QUESTION = re.compile(r"ask_([0-9a-f]{26})[0-9a-f]{12}")
_BEGINNING = re.compile(r"ses_[0-9a-f]{0,26}")

#: Two hex digits: no stack has more shards than this.
MAX_SHARDS = 256


def _digest(*parts: str) -> str:
    return hashlib.sha256("\x1f".join(parts).encode(errors="surrogatepass")).hexdigest()[:24]


def root_session_id(seed: str, shards: int = 1) -> str:
    """The id of the root session that ``seed`` (an idempotency key or Celery task id) stands for."""
    shard = zlib.crc32(seed.encode(errors="surrogatepass")) % shards
    return f"ses_{shard:02x}{_digest('root', seed)}"


def child_session_id(parent: str, effect_key: str) -> str:
    """The id of the child that ``parent`` launches under ``effect_key``."""
    return f"ses_{parent[4:6]}{_digest('child', parent, effect_key)}"


def external_session_id(shard: int, sender: str, message_id: str) -> str:
    """The id of the root session that an external program's message begins in ``shard``."""
    return f"ses_{shard:02x}{_digest('foreign', sender, message_id)}"


def run_id(session: str, number: int) -> str:
    """The id of the ``number``-th run of ``session``."""
    return f"run_{session[4:6]}{_digest('run', session, str(number))}"


def item_id(session: str, effect_key: str) -> str:
    """The id of something that waits in the queue of ``session``."""
    return f"itm_{session[4:6]}{_digest('item', session, effect_key)}"


def question_id(session: str, effect_key: str) -> str:
    """The id of something that ``session`` asks; it names the asker, so that a reply finds its way by it alone."""
    return f"ask_{session[4:]}{_digest('question', session, effect_key)[:12]}"


def asker_of(question: str) -> str | None:
    """Return the session that asked the question of that id; None if the text is no id of a question."""
    found = _QUESTION.fullmatch(question)
    return f"ses_{found[1]}" if found else None


def reply_id(question: str) -> str:
    """The id of the one reply that the question of that id can get."""
    return f"rep_{question[4:]}"


def approval_id(session: str, effect_key: str) -> str:
    """The id of something that a person is to approve for ``session``; it names the session."""
    return f"apr_{session[4:]}{_digest('approval', session, effect_key)[:12]}"


def session_of_approval(approval: str) -> str | None:
    """Return the session that asks for the approval of that id; None if the text is no id of an approval."""
    return asker_of(f"ask_{approval[4:]}") if approval.startswith("apr_") else None


def decision_id(approval: str) -> str:
    """The id of the one answer that the approval of that id can get."""
    return f"dec_{approval[4:]}"


def approval_of(decision: str) -> str | None:
    """Return the approval that the answer of that id is for; None if the text is no id of such an answer."""
    approval = f"apr_{decision[4:]}"
    return approval if decision.startswith("dec_") and session_of_approval(approval) else None


def callback_id(child: str) -> str:
    """Return the id of the one callback for the child session ``child``."""
    return f"cb_{child[4:]}"


def child_of(item: str) -> str | None:
    """Return the child session whose end the callback of that id reports; None if the text is no id of a callback."""
    session = f"ses_{item[3:]}"
    return session if item.startswith("cb_") and is_session_id(session) else None


def question_of(reply: str) -> str | None:
    """Return the question that the reply of that id answers; None if the text is no id of a reply."""
    question = f"ask_{reply[4:]}"
    return question if reply.startswith("rep_") and asker_of(question) else None


def new_claim_id() -> str:
    """A random claim id; claims are compared for equality only."""
    return machine.uuid4().hex


def new_message_id() -> str:
    """A random UUID v4 for an envelope."""
    return str(machine.uuid4())


def derived_uuid(*parts: str) -> str:
    """A UUID in v4 form that is the same for the same parts."""
    raw = hashlib.sha256("\x1f".join(parts).encode(errors="surrogatepass")).digest()[:16]
    return str(uuid.UUID(bytes=raw, version=4))


def shard_of(identifier: str) -> int:
    """The shard that a session, run, item or callback id belongs to.

    Raises:
        ValueError: the text is no such id.
    """
    _, _, rest = identifier.partition("_")
    return int(rest[:2], 16)


def is_session_id(text: str) -> bool:
    """Return True if ``text`` has the form of a session id."""
    return _SESSION.fullmatch(text) is not None


def is_beginning_of_session_id(text: str) -> bool:
    """Return True if a session id may begin with ``text``, which has the ``ses_`` at least."""
    return _BEGINNING.fullmatch(text) is not None


def trace_id(root: str) -> str:
    """The trace of a tree, one for all its sessions, as OpenTelemetry has ids."""
    return hashlib.sha256(f"trace|{root}".encode()).hexdigest()[:32]


def span_id(run: str, attempt: int) -> str:
    """The span of an attempt of a run: the same, whoever sends it and however often."""
    return hashlib.sha256(f"span|{run}|{attempt}".encode()).hexdigest()[:16]


def traceparent(root: str, run: str, attempt: int) -> str:
    """The trace context of an attempt, as W3C Trace Context writes it."""
    return f"00-{trace_id(root)}-{span_id(run, attempt)}-01"
