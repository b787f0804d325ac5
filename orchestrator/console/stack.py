"""The stack as the console sees it: its parts, connected when they are needed, and a look at it now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import redis

from orchestrator.audit.reader import AuditReader
from orchestrator.audit.store import AuditStore
from orchestrator.bootstrap import Container, build_container
from orchestrator.client.client import Client
from orchestrator.config.settings import Settings, load_settings
from orchestrator.config.stack import resolve, resolve_redis_url
from orchestrator.deployment.local_stack import build_reaper
from orchestrator.doctor import Blocker, Diagnosis, Doctor
from orchestrator.doctor.inspection import Inspected, inspect
from orchestrator.errors import AuditUnavailable, InputError, OrchestraError
from orchestrator.ledger.gauges import Standing, standings, with_budgets
from orchestrator.ledger.model import CLOSED, Session, SessionState
from orchestrator.ledger.reader import SessionOutline
from orchestrator.log import get_logger
from orchestrator.policy.budget import RESOURCES, amount
from orchestrator.redisdb.client import connect
from orchestrator.streams import TRANSITIONS, ledger_streams, stream_key

#: Seconds between two looks at least, and the shares of a core that they and the doctor's examinations may take at most: an
#: examination that takes a second of processor time is followed by a pause of more than three minutes.
EXAMINE_EVERY_S: Final = 10.0
_LOOK_SHARE: Final = 0.002
_EXAMINE_SHARE: Final = 0.005
#: Seconds for which a page waits for the first examination.
_FIRST_WAIT_S: Final = 0.8
#: Root sessions that have waited longest, and those that failed last, that an examination reads in full.
_SHOWN_WAITS: Final = 8
_SHOWN_FAILED: Final = 20
_DAY_MS: Final = 86_400_000
_ENDED: Final = frozenset({*CLOSED, SessionState.FINISHED})
#: Seconds for which a picture of a tree, and the revision of the ledger, are taken from memory.
_TREE_S: Final = 1.0
_REVISION_S: Final = 0.8


@dataclass(frozen=True, kw_only=True)
class Examined:
    """Hold what an examination of the stack found."""

    diagnosis: Diagnosis
    #: Sessions that have waited longest, each with why.
    waits: tuple[tuple[Session, Blocker | None], ...]
    #: Root sessions that failed within a day, the latest of them first, and how many there are.
    failed: tuple[Session, ...]
    failed_count: int
    #: Sessions of live trees whose own budget, or that of their agent, is used up, each with what of it.
    over_budget: tuple[tuple[Session, str], ...]
    at_ms: int
    #: When the doctor examined the stack, which takes longer than the rest and is done less often.
    examined_ms: int


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Hold what came of a verification of the audit trail; neither result nor fault: it is under way."""

    by: str
    began_ms: int
    took_s: float = 0.0
    result: Inspected | None = None
    fault: str = ""

    @property
    def running(self) -> bool:
        """True while nothing is known yet."""
        return self.result is None and not self.fault


@dataclass
class _Kept:
    """A picture that is good for a moment."""

    at: float
    value: Any


@dataclass
class Stack:
    """A stack as its console sees it. Safe to share between threads."""

    make_settings: Callable[[], Settings] = load_settings
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _parts: Container | None = None
    _client: Client | None = None
    _kept: dict[str, _Kept] = field(default_factory=dict)
    _examined: Examined | None = None
    _examining: threading.Thread | None = None
    _next_at: float = 0.0
    #: The latest diagnosis with its time, and when the next one is due.
    _diagnosis: tuple[Diagnosis, int] | None = None
    _diagnose_at: float = 0.0
    _verification: Verification | None = None
    #: Held by who repairs the ledger.
    _repairing: threading.Lock = field(default_factory=threading.Lock)
    #: Held by who makes a report.
    reporting: threading.Lock = field(default_factory=threading.Lock)

    @property
    def settings(self) -> Settings:
        """The settings, with what the running stack adds."""
        return self.parts.settings

    @property
    def parts(self) -> Container:
        """The parts of the stack.

        Raises:
            NoStack, ServerUnavailable: none runs, or its Redis does not answer.
        """
        with self._lock:
            if self._parts is None:
                settings = resolve(self.make_settings())
                client = connect(resolve_redis_url(settings), settings=settings, name="orchestra-console")
                self._parts = build_container(client, settings)
            return self._parts

    @property
    def client(self) -> Client:
        """The client of the stack: what it does, the console does."""
        with self._lock:
            if self._client is None:
                self._client = Client(parts=self.parts)
            return self._client

    def forget(self) -> None:
        """Connect anew when the stack is needed again: it may have moved."""
        with self._lock:
            if self._parts is not None:
                with suppress(redis.RedisError, OSError):
                    self._parts.redis.close()
            self._parts = self._client = None
            self._next_at = self._diagnose_at = 0.0
            self._kept.clear()

    def trail(self) -> AuditReader | None:
        """Return the audit trail; None if it was not begun, or its server is away."""
        where = self.settings.audit_database
        if isinstance(where, Path) and not where.exists():
            return None
        try:
            return AuditReader(AuditStore(where, read_only=True))
        except AuditUnavailable:
            return None

    def doctor(self) -> Doctor:
        """Return the doctor, who says what a session waits for."""
        return Doctor(self.parts, audit=self.trail())

    def outline(self, root: str) -> list[SessionOutline]:
        """Return every session of a tree, as it was a moment ago."""
        found: list[SessionOutline] = self._recent(
            f"tree {root}", _TREE_S, lambda: self.parts.reader.outline(root)
        )
        return found

    def revision(self) -> str:
        """Return a text that changes when the ledger does, or another examination is there."""
        at_ms = 0 if self._examined is None else self._examined.at_ms
        verified = "" if self._verification is None else f"{self._verification.took_s}"
        return f"{at_ms} {verified} {self._recent('revision', _REVISION_S, self._revision)}"

    def said_after(self, session: str, position: str) -> str:
        """Return the position of the last piece of text that a session has written after another one; empty: after now."""
        position = position or f"{self.parts.ledger.server_ms()}-0"
        pieces = self.parts.ledger.live.read(session, position)
        return pieces[-1].position if pieces else position

    def _revision(self) -> str:
        pipe = self.parts.redis.pipeline(transaction=False)
        for stream in ledger_streams(TRANSITIONS, self.settings.shards):
            pipe.xrevrange(stream_key(stream), count=1)
        return ",".join(rows[0][0].decode() if rows else "" for rows in pipe.execute())

    def _recent(self, name: str, good_for_s: float, read: Callable[[], Any]) -> Any:
        with self._lock:
            kept = self._kept.get(name)
        if kept is not None and time.monotonic() - kept.at < good_for_s:
            return kept.value
        began = time.monotonic()
        value = read()
        now = time.monotonic()
        with self._lock:
            # A tree of thousands takes long to read: many who look at it read it once.
            self._kept = {key: one for key, one in self._kept.items() if now - one.at < 10}
            self._kept[name] = _Kept(now + min(4.0, now - began), value)
        return value

    # --- the audit trail ------------------------------------------------------------------------------

    @property
    def verification(self) -> Verification | None:
        """The latest verification of the audit trail; None: nobody has asked for one."""
        return self._verification

    def verify(self, by: str) -> bool:
        """Begin to verify the audit trail in the background; return False if that is under way."""
        parts = self.parts
        with self._lock:
            if self._verification is not None and self._verification.running:
                return False
            begun = Verification(by=by, began_ms=time.time_ns() // 1_000_000)
            self._verification = begun
        threading.Thread(target=self._verify, args=(parts, begun), daemon=True).start()
        return True

    def _verify(self, parts: Container, begun: Verification) -> None:
        began, fault, result = time.monotonic(), "", None
        try:
            result = inspect(parts.settings, lambda: nullcontext(parts))
        except (OrchestraError, redis.RedisError, OSError) as error:
            fault = " ".join(str(error).split()) or type(error).__name__
        except Exception as error:  # noqa: BLE001  (a page must not wait for ever for what fails)
            get_logger().error("console-verification-failed", error=repr(error))
            fault = f"a fault in the console itself, which its log has: {type(error).__name__}"
        self._verification = replace(begun, took_s=time.monotonic() - began, result=result, fault=fault)

    # --- repair --------------------------------------------------------------------------------------

    def repair(self) -> tuple[Diagnosis, Diagnosis]:
        """Repair what the ledger still knows and sweep once, as `orchestra doctor --fix`; what was found before and after.

        Raises:
            InputError: somebody else does that now.
        """
        if not self._repairing.acquire(blocking=False):
            raise InputError("it is being repaired already: look at this page again in a moment")
        try:
            parts, doctor = self.parts, self.doctor()
            before = doctor.examine(watch_leases=False, full=False)
            doctor.repair(before)
            build_reaper(parts.redis, parts.settings, parts=parts).run_once()
            at_ms = parts.ledger.server_ms()
            after = doctor.examine(watch_leases=False, full=False)
            self._diagnosis = after, at_ms
            self._examined = self._look(parts)
        finally:
            self._repairing.release()
        return before, after

    # --- the examination -----------------------------------------------------------------------------

    def examined(self, *, wait_s: float = _FIRST_WAIT_S) -> Examined | None:
        """Return the latest examination; another one begins if that is old. None: the first is under way."""
        parts = self.parts
        with self._lock:
            if self._examining is None and time.monotonic() >= self._next_at:
                self._examining = threading.Thread(target=self._examine, args=(parts,), daemon=True)
                self._examining.start()
            running = self._examining
        if running is not None and self._examined is None:
            running.join(wait_s)
        return self._examined

    def _examine(self, parts: Container) -> None:
        used = time.thread_time()
        try:
            self._diagnose(parts)
            used = time.thread_time()
            found = self._look(parts)
        except (OrchestraError, redis.RedisError, OSError) as error:
            get_logger().warning("console-cannot-examine", error=str(error))
        except Exception as error:  # noqa: BLE001  (a page must not wait for ever for what fails)
            get_logger().error("console-examination-failed", error=repr(error))
        else:
            self._examined = found
        finally:
            with self._lock:
                self._examining = None
                spent = time.thread_time() - used
                self._next_at = time.monotonic() + max(EXAMINE_EVERY_S, spent / _LOOK_SHARE)

    def _diagnose(self, parts: Container) -> None:
        """Have the doctor examine the stack, if that is due."""
        if self._diagnosis is not None and time.monotonic() < self._diagnose_at:
            return
        used, now_ms = time.thread_time(), parts.ledger.server_ms()
        self._diagnosis = self.doctor().examine(watch_leases=False, full=False), now_ms
        spent = time.thread_time() - used
        self._diagnose_at = time.monotonic() + max(EXAMINE_EVERY_S, spent / _EXAMINE_SHARE)

    def _look(self, parts: Container) -> Examined:
        assert self._diagnosis is not None
        doctor, client, (diagnosis, examined_ms) = self.doctor(), self.client, self._diagnosis
        now_ms = parts.ledger.server_ms()
        roots = self._moved_since(parts, now_ms - _DAY_MS)
        live = sorted((one.updated_ms, name) for name, one in roots.items() if one.state not in _ENDED)
        failed = sorted(
            (-one.ended_ms, name)
            for name, one in roots.items()
            if one.state == SessionState.FAILED and one.ended_ms > now_ms - _DAY_MS
        )
        longest, budgeted, latest = (
            parts.reader.find(names)
            for names in (
                [name for _, name in live[:_SHOWN_WAITS]],
                with_budgets(parts.redis, [name for _, name in live]),
                [name for _, name in failed[:_SHOWN_FAILED]],
            )
        )
        over = [(s, self._used_up(client, s)) for s in budgeted]
        return Examined(
            diagnosis=diagnosis,
            waits=tuple((one, doctor.wait_of(one.id)) for one in longest),
            failed=tuple(latest),
            failed_count=len(failed),
            over_budget=tuple((s, what) for s, what in over if what),
            at_ms=now_ms,
            examined_ms=examined_ms,
        )

    @staticmethod
    def _moved_since(parts: Container, since_ms: int) -> dict[str, Standing]:
        """Return the roots whose trees are not at rest, or came to rest since then."""
        changed = parts.ledger.sweep.changed_roots
        names = [
            root
            for shard in range(parts.settings.shards)
            for page, _ in changed(shard, since_ms=since_ms)
            for root in page
        ]
        return standings(parts.redis, names)

    @staticmethod
    def _used_up(client: Client, session: Session) -> str:
        own = (session.id, f"agent {session.agent}")  # one above it is that of another session
        for whose, state in client.budgets(session.id).items():
            for resource, limit in state.limits.items() if whose in own else ():
                spent = state.spent.get(resource, 0)
                if spent >= limit:
                    return (
                        f"the budget of {whose} is used up: {amount(resource, spent)} of "
                        f"{amount(resource, limit).partition(' ')[0]} {RESOURCES[resource]}"
                    )
        return ""
