"""Replays what the audit trail holds: one message or many, oldest first, each once however often it is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from orchestrator.audit import AuditReader, MessageRecord
from orchestrator.bootstrap import Container
from orchestrator.envelope.message_types import SESSION_STARTING
from orchestrator.envelope.payload import BlobRef, BlobStore
from orchestrator.envelope.sealing import Opener
from orchestrator.errors import Refused, Unverified
from orchestrator.router.deadletters.replay import Replayed, Replays

How = Literal["message", "task", "refused", "skipped"]
_FIRST: Final = "1"


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result, or expected result, of the replay of one message of the trail."""

    record: MessageRecord
    how: How
    #: The new message or session; empty: there is none.
    id: str = ""
    #: The rule and the words of a refusal; why it was skipped.
    rule: str = ""
    reason: str = ""
    done: bool = False


class TrailReplay:
    """Replays messages of the trail.

    Args:
        label: distinguishes replays of a message. With the same label a message is replayed once.
        sign_unverified: see :meth:`Replays.again`.
        dry_run: nothing is published.
        pause: called after each message that was sent; bounds the speed.
    """

    def __init__(
        self,
        parts: Container,
        reader: AuditReader,
        *,
        label: str = _FIRST,
        sign_unverified: bool = False,
        dry_run: bool = False,
        pause: Callable[[], object] = lambda: None,
    ) -> None:
        self._parts = parts
        self._reader = reader
        self._label = label
        self._sign_unverified = sign_unverified
        self._dry_run = dry_run
        self._pause = pause
        settings = parts.settings
        opener = Opener(
            _KeptBodies(parts, reader),
            find_key=parts.keyring.decryption_key,
            max_bytes=settings.max_payload_bytes,
        )
        self._replays = Replays(parts, opener=opener)

    def run(self, records: Sequence[MessageRecord]) -> Iterator[Result]:
        """Replay messages, given oldest first; another attempt of the same message counts once.

        Messages that followed upon a replayed task are skipped: its work begins anew and sends its own.
        """
        seen: set[str] = set()
        follows: dict[str, str] = {}  # a message → the task that it follows upon
        for record in records:
            if record.message_id and record.message_id in seen:
                continue
            seen.add(record.message_id)
            task = follows.get(record.parent_id) if record.parent_id else None
            if task is not None:
                follows[record.message_id] = task
                reason = f"it follows upon {task}, whose work begins anew"
                yield Result(record=record, how="skipped", reason=reason)
                continue
            result = self._one(record)
            if result.id and record.type in SESSION_STARTING and result.id.startswith("ses_"):
                follows[record.message_id] = record.message_id
            yield result
            if result.done:
                self._pause()

    def _one(self, record: MessageRecord) -> Result:
        seed = f"{self._label}|{record.message_id}"
        try:
            planned = self._replays.plan(record.xml, sign_unverified=self._sign_unverified, seed=seed)
        except Unverified as error:
            return Result(record=record, how="refused", rule=str(error.args[1]), reason=str(error))
        except Refused as error:
            return Result(record=record, how="refused", reason=str(error))
        how: How = "task" if planned.how == "task" else "message"
        result = Result(record=record, how=how, id=planned.id)
        if self._is_there(planned):
            reason = f"it was replayed before as {planned.id}; --label NAME replays it once more"
            return replace(result, how="skipped", reason=reason)
        if self._dry_run:
            return result
        if record.body and (octets := self._reader.store.body(record.body)) is not None:
            BlobStore(self._parts.redis).put(octets, ttl_s=self._parts.settings.blob_ttl_s)
        self._replays.again(record.xml, sign_unverified=self._sign_unverified, seed=seed)
        return replace(result, done=True)

    def _is_there(self, planned: Replayed) -> bool:
        """Return True if that message or session exists already, as far as the trail and the ledger know."""
        if planned.how == "task":
            return bool(self._parts.ledger.find([planned.id]) or self._reader.find(planned.id))
        return bool(self._reader.search(message_id=planned.id, limit=1))


class _KeptBodies(BlobStore):
    """Stored bodies, from the trail where it has them: Redis may have forgotten them."""

    def __init__(self, parts: Container, reader: AuditReader) -> None:
        super().__init__(parts.redis, max_bytes=parts.settings.max_payload_bytes)
        self._store = reader.store

    def get(self, ref: BlobRef) -> bytes:
        """See :meth:`BlobStore.get`."""
        kept = self._store.body(ref.sha256)
        return super().get(ref) if kept is None else kept
