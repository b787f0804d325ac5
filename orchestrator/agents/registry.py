"""The agents that workers serve, as every client, router and service finds them in Redis.

Workers announce their agents again and again, so that no client and no router needs an agents file. An agent stays
registered when its last worker has left, until it is withdrawn or the setting `registration_ttl_s` says so: what it is
given meanwhile waits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator import machine
from orchestrator.errors import KeyringError
from orchestrator.keyring import claims
from orchestrator.keyring.claims import Purpose
from orchestrator.keyring.operator import verified_agent
from orchestrator.keyring.registry import KeyRegistry
from orchestrator.keyring.store import KeyStore
from orchestrator.log import get_logger
from orchestrator.machine import Clock
from orchestrator.policy.retry import Backoff, run_backoff_ms
from orchestrator.policy.versions import OnDeploy
from orchestrator.redisdb import keys
from orchestrator.redisdb.raw_pipeline import ServerClock

if TYPE_CHECKING:
    from orchestrator.policy.routing import Principal


_log = get_logger()

Role = Literal["orchestrator", "coordinator", "specialist"]
Tier = Literal["opus", "sonnet", "haiku"]

#: The score of an agent that is never forgotten by itself.
_FOR_EVER_MS = 1 << 52
#: Seconds that a looked-up agent is taken from memory.
CACHE_S = 1.0

#: The longest wait of a run before it is tried again, in seconds: a day.
MAX_BACKOFF_S = 86_400

#: The agents of the system itself: they send, and no worker runs them.
OPERATOR = "operator"
ROUTER = "router"
REAPER = "reaper"
SYSTEM_AGENTS = frozenset({OPERATOR, ROUTER, REAPER})


#: How a word that agents are found by is spelt.
TAG_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}"
Tag = Annotated[str, Field(pattern=f"^{TAG_PATTERN}$")]


class AgentRecord(BaseModel):
    """Record of an agent: what the system must know to send it work and to check what it sends."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    #: Its name.
    name: Annotated[str, Field(min_length=1, max_length=200)]
    #: `coordinator`, `specialist` or `orchestrator`.
    role: Role = "specialist"
    #: `opus`, `sonnet` or `haiku`; null: none.
    tier: Tier | None = None
    #: What runs it; `foreign`: an external program.
    executor: str = "python"
    #: The Celery queue of its runs.
    queue: str = "orchestra"
    #: How often a run may fail before its session fails.
    attempts: Annotated[int, Field(ge=1)] = 1
    #: How the wait between two tries grows: `exponential` or `linear`.
    backoff: Backoff = "exponential"
    #: Seconds of the first wait.
    backoff_s: Annotated[float, Field(gt=0, le=MAX_BACKOFF_S)] = 1
    #: Seconds of the longest wait.
    backoff_max_s: Annotated[float, Field(gt=0, le=MAX_BACKOFF_S)] = 300
    #: Seconds that one run may take; null: as the settings say.
    time_limit_s: Annotated[float, Field(gt=0)] | None = None
    #: How many of its runs are executed at once by its definition; null: as the settings say.
    runs_at_once: Annotated[int, Field(ge=1)] | None = None
    #: Who its errors and escalations go to; empty: its parent.
    escalates_to: str = ""
    #: Only to these it may send; null: as the rules say.
    may_send_to: tuple[str, ...] | None = None
    #: Only from these it accepts; null: as the rules say.
    accepts_from: tuple[str, ...] | None = None
    #: What it is found by.
    tags: tuple[Tag, ...] = ()
    #: What it is for.
    description: str = ""
    #: What its answers are: `text`, or a `plan` of assignments that is carried out (see `policy.plan`).
    answer: Literal["text", "plan"] = "text"
    #: Whether all its messages are encrypted, sent and received.
    encrypt: bool = False
    #: The version of its definition, as a worker announced it last; empty: it has none.
    version: Annotated[str, Field(max_length=64)] = ""
    #: What becomes of its sessions when its definition has another version.
    on_deploy: OnDeploy = "latest"

    @property
    def principal(self) -> Principal:
        """The agent as one end of a message."""
        from orchestrator.policy.routing import Principal

        return Principal(
            name=self.name,
            role=self.role,
            may_send_to=self.may_send_to,
            accepts_from=self.accepts_from,
            tags=self.tags,
        )

    @property
    def listed(self) -> dict[str, Any]:
        """The entry of the agent in lists for agents and assistants."""
        return {
            "agent": self.name,
            "role": self.role,
            "description": self.description,
            "tags": list(self.tags),
        }

    @property
    def external(self) -> bool:
        """True if a program outside the stack runs the agent, and reads its work from its inbox."""
        return self.executor == "foreign"

    def retry_ms(self, failures: int) -> int:
        """Return the milliseconds that a run of this agent waits before it is tried again, having failed so often; by
        chance.
        """
        return run_backoff_ms(
            failures,
            self.backoff,
            base_ms=round(self.backoff_s * 1000),
            cap_ms=round(self.backoff_max_s * 1000),
            jitter=machine.random(),
        )

    @property
    def system(self) -> bool:
        """True if the agent is a part of the system, which sends and is never started."""
        return self.name in SYSTEM_AGENTS


@cache
def system_record(name: str) -> AgentRecord:
    """Return the record of one of the system's own agents."""
    return AgentRecord(name=name, role="orchestrator", executor="system", description="part of the system")


class AgentRegistry:
    """Registered agents in Redis, as far as the operator has signed them; safe to share between threads.

    A record says what its agent may do, so who can write to Redis must not be who says it.
    """

    def __init__(
        self,
        redis: Any,
        records: AgentRecords,
        *,
        ttl_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        """The agents of a stack; what is announced here stays for ``ttl_s`` seconds, or, by default, until withdrawn."""
        self._redis = redis
        self._ttl_s = ttl_s
        self._records = records
        self._clock = clock or ServerClock(redis)
        self._cache: dict[str, tuple[float, AgentRecord | None]] = {}
        #: Records that were refused, so that the log names each once.
        self._refused: set[bytes] = set()
        self._names: tuple[float, list[str]] | None = None
        self._lock = threading.Lock()

    def announce(self, records: Iterable[AgentRecord]) -> None:
        """Say that a worker serves these agents now; to be repeated well within their lifetime, if they have one.

        Raises:
            KeyringError: the operator has not signed one of them here; none is announced.
        """
        now = self._clock.now_ms()
        ttl_ms = None if self._ttl_s is None else round(self._ttl_s * 1000)
        pipeline = self._redis.pipeline(transaction=False)
        for record, signed in [(record, self.signed(record)) for record in records]:
            # Nobody announces an external program again and again: it stays until it is withdrawn.
            pipeline.set(keys.agent(record.name), signed, px=None if record.external else ttl_ms)
            pipeline.zadd(keys.agents(), {record.name: _FOR_EVER_MS if record.external else now})
            with self._lock:
                self._cache.pop(record.name, None)
        pipeline.execute()
        if ttl_ms is not None:
            self._forget_lapsed(now - ttl_ms)
        self._names = None

    def _forget_lapsed(self, horizon_ms: int) -> None:
        """Take the names off the list that were announced before, and whose records are gone. Readers never need to write."""
        old = self._redis.zrangebyscore(keys.agents(), "-inf", f"({horizon_ms}")
        for name in old:
            if not self._redis.exists(keys.agent(name.decode())):
                self._redis.zrem(keys.agents(), name)

    def signed(self, record: AgentRecord) -> bytes:
        """Return the record with the operator's signature.

        Raises:
            KeyringError: it is not to be had here.
        """
        return self._records.signed(record.model_dump(mode="json"))

    def withdraw(self, name: str) -> bool:
        """Forget an agent at once; whether it was known."""
        with self._lock:
            self._cache.pop(name, None)
        self._names = None
        pipeline = self._redis.pipeline()
        pipeline.delete(keys.agent(name))
        pipeline.zrem(keys.agents(), name)
        return bool(pipeline.execute()[0])

    def get(self, name: str) -> AgentRecord | None:
        """Return the agent of that name, or None; up to a second old."""
        if name in SYSTEM_AGENTS:
            return system_record(name)
        now = self._clock.monotonic()
        cached = self._cache.get(name)  # one look into a dict needs no lock
        if cached is not None and now - cached[0] < CACHE_S:
            return cached[1]
        record = self._read(
            name, self._redis.mget([keys.agent(name)])[0]
        )  # an overwritten key is as good as missing
        with self._lock:
            if len(self._cache) > 10_000:
                self._cache.clear()
            self._cache[name] = (now, record)
        return record

    def all(self) -> list[AgentRecord]:
        """Return every registered agent, by name."""
        names = [name.decode() for name in self._redis.zrange(keys.agents(), 0, -1)]
        if not names:
            return []
        values = self._redis.mget([keys.agent(name) for name in names])
        found = map(self._read, names, values)
        return sorted((record for record in found if record is not None), key=lambda record: record.name)

    def seen_ms(self) -> dict[str, int]:
        """When each agent was announced last, in milliseconds since the epoch; external programs are not among them."""
        found: Any = self._redis.zrange(keys.agents(), 0, -1, withscores=True)
        return {name.decode(): int(score) for name, score in found if score < _FOR_EVER_MS}

    def names(self) -> list[str]:
        """Return the names of every registered agent, for messages that say what there is; up to a second old."""
        now, cached = self._clock.monotonic(), self._names
        if cached is None or now - cached[0] >= CACHE_S:
            self._names = cached = now, [record.name for record in self.all()]
        return list(cached[1])

    def _read(self, name: str, value: bytes | None) -> AgentRecord | None:
        """Return the record that is kept under a name; None if it is unsigned or unreadable."""
        if value is None:
            return None
        facts = self._records.verify(value)
        if facts is None:
            if value not in self._refused:
                self._refused = {*list(self._refused)[:1000], value}
                _log.error("agent-not-signed", agent=name, action="it counts as not registered")
            return None
        try:
            record = AgentRecord.model_validate(facts)
        except ValidationError:
            return None  # written by a newer program
        # A record that was put under another name is no record of that name.
        return record if record.name == name else None


Fields: TypeAlias = dict[str, Any]

_CACHED: Final = 10_000


class AgentRecords:
    """Signs and verifies records of agents, as far as one data folder can. Safe to share between threads."""

    def __init__(self, registry: KeyRegistry) -> None:
        self._registry = registry
        self._store = registry.store
        # The same few records are looked up again and again; each is verified once.
        self._verified: dict[bytes, Fields] = {}

    def signed(self, fields: Fields) -> bytes:
        """Return the record as it is put where others read it.

        Raises:
            KeyringError: this is not the operator's host, and the operator has not signed just this record.
        """
        name = str(fields.get("name"))
        operator = self._registry.settle_operator()
        known = self._store.agent_record(name)
        attested = None if known is None else verified_agent(known, operator)
        if known is not None and attested == fields:
            return known
        if self._store.operator.private() is not None:
            return sign_agent_record(self._store, fields)
        if attested is None:
            raise KeyringError(
                f"the operator has not signed the record of agent {name!r}: on the host that has operator.pem, "
                f"`orchestra keys export {name} --agents FILE` with the file that defines it; here, "
                "`orchestra keys import`"
            )
        differing = sorted(key for key in {*attested, *fields} if attested.get(key) != fields.get(key))
        raise KeyringError(
            f"agent {name!r} is not what the operator has signed (it differs in {', '.join(differing)}): on the "
            f"host that has operator.pem `orchestra keys export {name} --agents FILE` with the file that defines it now; "
            "here, `orchestra keys import`"
        )

    def verify(self, signed: bytes) -> Fields | None:
        """Return what the record says, or None if the operator has not signed it."""
        known = self._verified.get(signed)
        if known is None:
            known = verified_agent(signed, self._registry.settle_operator())
            if known is not None:
                if len(self._verified) >= _CACHED:
                    self._verified.clear()
                self._verified[signed] = known
        return known


def sign_agent_record(store: KeyStore, fields: Fields) -> bytes:
    """Return the record of an agent with the operator's signature; kept for `orchestra keys export`.

    Raises:
        KeyringError: this is not the operator's host.
    """
    if store.operator.private() is None:
        raise KeyringError(
            f"{store.folder} has not the operator's private key (operator.pem); sign records of agents on the host that has it"
        )
    signed = claims.sign(fields, Purpose.AGENT, store.operator.signer()).encode()
    store.keep_agent_record(str(fields.get("name")), signed)
    return signed
