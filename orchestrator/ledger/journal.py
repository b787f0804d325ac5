"""Steps that runs recorded: the result of each, so that another try of the run does not repeat it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal

import redis

from orchestrator.envelope.payload import BlobRef, BlobStore
from orchestrator.errors import DamagedRecord, LimitExceeded, PayloadError
from orchestrator.ids import shard_of
from orchestrator.ledger import decode
from orchestrator.ledger.core import LedgerCore
from orchestrator.ledger.decode import Statement
from orchestrator.ledger.large_text import Decrypted, Seal
from orchestrator.ledger.transitions import Claim
from orchestrator.policy.sealed_text import has_sealed
from orchestrator.redisdb import ledger_keys
from orchestrator.redisdb.key_table import is_wrong_type

#: Seconds that a stored value lives which no record refers to yet.
UNUSED_TTL_S: Final = 3600
#: Steps that are dropped in one transition.
_AT_ONCE: Final = 1000

#: done: it gave a value; failed: an error, and no retry is left; retry: an error, and retries are left.
How = Literal["done", "failed", "retry"]


@dataclass(frozen=True, kw_only=True)
class StepHeader:
    """Metadata of a recorded step, without its value."""

    key: str  #: its name and count, after those of the step around it
    how: How
    codec: str = ""  #: how the value is written
    order: int = -1  #: its place among the steps that the agent asked for itself, one after the other, or -1
    tries: int = 1  #: calls of its function so far
    left: int = 0  #: retries that remain
    took_ms: int = 0  #: duration of the last call
    size: int = 0  #: bytes of the value
    claim: str = ""  #: of the try that recorded it
    stored: dict[str, Any] | None = None  #: refers to the value, where it is stored beside the journal
    at_ms: int = 0  #: when it was recorded
    note: str = ""  #: what people see of it, such as the beginning of an error
    proof: str = ""  #: of the agent that recorded it


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """A recorded step."""

    header: StepHeader
    value: bytes = field(default=b"", repr=False)

    def statement(self, run: str, agent: str) -> Statement:
        """Return the statement that the run's agent attests when it records the step."""
        facts = {name: value for name, value in asdict(self.header).items() if name not in ("at_ms", "proof")}
        digest = hashlib.sha256(self.value).hexdigest()
        return Statement.of_own("step", run, agent, digest, about=json.dumps(facts, sort_keys=True))


class Journal:
    """The recorded steps of any run. Safe to share between threads."""

    def __init__(self, core: LedgerCore) -> None:
        self._core = core
        self._client = core.redis
        self._seals = core.seals
        self.limits = core.limits.journal

    def read(self, run: str) -> dict[str, StepRecord]:
        """Return the steps that earlier tries of a run recorded, by key.

        Raises:
            DamagedRecord: the journal is no hash, or an entry of it cannot be read.
        """
        raw = self._hash(run)
        return {
            name[2:].decode(errors="replace"): StepRecord(
                header=_header(run, text), value=raw.get(b"p:" + name[2:], b"")
            )
            for name, text in raw.items()
            if name.startswith(b"h:")
        }

    def headers(self, run: str) -> list[StepHeader]:
        """The recorded steps of a run that has not ended, without their values, in the order of their records.

        What cannot be read is left out: `read` refuses it.
        """
        try:
            # A scan may give a field twice.
            raw = dict(self._client.hscan_iter(ledger_keys.steps(run), "h:*", count=500))
            found = [_header(run, text) for text in raw.values()]
        except (DamagedRecord, redis.ResponseError):
            return []
        shown = [replace(one, note=self._seals.read(one.note)) for one in found]
        return sorted(shown, key=lambda header: header.at_ms)

    def usage(self, run: str) -> tuple[int, int]:
        """Return the number of recorded steps of a run, and the bytes of their values.

        Raises:
            DamagedRecord: the journal is no hash.
        """
        try:
            size: Any = self._client.hget(ledger_keys.steps(run), "bytes")
        except redis.ResponseError as error:
            raise self._not_a_hash(run, error) from error
        number: Any = self._client.hget(ledger_keys.run(run), "steps")
        return int(number or 0), int(size or 0)

    def record(self, claim: Claim, header: StepHeader, value: bytes) -> StepRecord:
        """Record the result of a step. Return the record that is kept: an earlier one of the same step stays.

        Raises:
            ClaimLost: the run is not held under this claim any more.
            LimitExceeded: the journal of the run is full.
            PayloadError: the value is larger than the store takes.
            DamagedRecord: the journal is no hash.
        """
        if claim.own_seal is not None:
            value = self._sealed(value, claim.own_seal)
            header = replace(header, note=self._seals.write(header.note, claim.own_seal))
        header = replace(header, claim=claim.claim, size=len(value))
        inline = value
        if len(value) > self.limits.inline_bytes:
            header, inline = replace(header, stored=self._store(claim.run, value)), b""
        while True:
            sha256 = str(header.stored["sha256"]) if header.stored else ""
            if self._core.attest is not None:
                said = StepRecord(header=header, value=inline).statement(claim.run, claim.agent)
                header = replace(header, proof=self._core.attest(said, by=claim.agent, to=claim.agent))
            try:
                reply = self._core.effect_of(
                    claim,
                    "step",
                    _written(header),
                    inline,
                    key=header.key,
                    size=len(value),
                    sha256=sha256,
                    most_steps=self.limits.steps,
                    most_bytes=self.limits.bytes,
                )
            except redis.ResponseError as error:
                raise self._not_a_hash(claim.run, error) from error
            match reply[0]:
                case b"full":
                    raise LimitExceeded(decode.text(reply[1]), decode.text(reply[2]), f"step {header.key!r}")
                case b"value":
                    header = replace(header, stored=self._store(claim.run, value))
                case b"exists":
                    return StepRecord(header=_header(claim.run, reply[1]), value=reply[2])
                case _:
                    self._core.replicate("step", claim.run)
                    return StepRecord(header=header, value=inline)

    def _sealed(self, value: bytes, seal: Seal) -> bytes:
        return self._seals.write(value.decode(errors="surrogateescape"), seal).encode()

    def value(self, claim: Claim, record: StepRecord) -> bytes:
        """The bytes that a step recorded.

        Raises:
            DamagedRecord: they were stored beside the journal and are not there any more, or were altered.
        """
        ref, run = record.header.stored, claim.run
        if ref is None:
            return self._opened(claim, record, record.value)
        try:
            return self._opened(claim, record, self._values(run).get(BlobRef(**ref)))
        except (PayloadError, TypeError) as error:
            raise DamagedRecord(f"step {record.header.key!r} of run {run}", str(error)) from error

    def _opened(self, claim: Claim, record: StepRecord, value: bytes) -> bytes:
        if claim.seal is None or not has_sealed(value):
            return value
        text = self._seals.read(value.decode(errors="replace"), label=claim.seal.label)
        if isinstance(text, Decrypted) and text.failed:
            raise DamagedRecord(
                f"step {record.header.key!r} of run {claim.run}",
                "its value is sealed, and no key in this data folder opens it",
            )
        return text.encode(errors="surrogateescape")

    def forget(self, claim: Claim, steps: Sequence[str]) -> None:
        """Drop recorded steps, which the agent of a run does not take any more.

        Raises:
            ClaimLost: the run is not held under this claim any more.
        """
        for start in range(0, len(steps), _AT_ONCE):
            self._core.effect_of(claim, "forget_steps", steps=steps[start : start + _AT_ONCE])

    def _hash(self, run: str) -> dict[bytes, bytes]:
        try:
            found: Any = self._client.hgetall(ledger_keys.steps(run))
        except redis.ResponseError as error:
            raise self._not_a_hash(run, error) from error
        return dict(found)

    @staticmethod
    def _not_a_hash(run: str, error: redis.ResponseError) -> Exception:
        if not is_wrong_type(error):
            return error
        return DamagedRecord(f"the steps of run {run}", f"its key {ledger_keys.steps(run)} is no hash")

    def _store(self, run: str, value: bytes) -> dict[str, Any]:
        return asdict(self._values(run).put(value, ttl_s=UNUSED_TTL_S))

    def _values(self, run: str) -> BlobStore:
        return BlobStore(self._client, shard_of(run), name=partial(ledger_keys.step_value, run))


def _written(header: StepHeader) -> str:
    """A header as the scripts take it; the time is theirs to say."""
    facts = {name: value for name, value in asdict(header).items() if value not in ("", None)}
    facts.pop("at_ms")
    return json.dumps(facts)


def _header(run: str, text: bytes) -> StepHeader:
    try:
        return StepHeader(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise DamagedRecord(f"the steps of run {run}", f"an entry cannot be read: {error}") from None


def read_headers(text: str) -> tuple[StepHeader, ...]:
    """The last steps of a run that has ended, as it keeps them for people; nothing where they cannot be read."""
    try:
        return tuple(StepHeader(**facts) for facts in json.loads(text or "[]"))
    except (ValueError, TypeError):
        return ()
