"""Reading the ledger: sessions, their events, what they printed; nothing here changes anything."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import redis

from orchestrator import machine
from orchestrator.errors import SessionDeleted, SessionFailed, SessionStopped, UnknownSession
from orchestrator.ids import callback_id, child_of, is_beginning_of_session_id, is_session_id, shard_of
from orchestrator.ledger import decode
from orchestrator.ledger.decode import Statement
from orchestrator.ledger.large_text import Decrypted, EncryptionContext, LargeTexts, Seals
from orchestrator.ledger.model import CLOSED, JSON, Item, Run, Session, SessionState
from orchestrator.redisdb import keys, ledger_keys
from orchestrator.redisdb.key_table import is_wrong_type
from orchestrator.redisdb.scripts import Scripts


class SessionEvents:
    """The events of one session, and of its children ``with_children``, from the moment at which this is made.

    The callback service removes events that it has handled. An event can therefore be missed: look at the session after
    each wait, whatever it returned.
    """

    def __init__(self, client: redis.Redis, session: str, *, with_children: bool = False) -> None:
        self._redis = client
        self._session = session
        self._fields = (b"session", b"parent") if with_children else (b"session",)
        self._stream = keys.session_events(shard_of(session))
        try:
            self._last: Any = client.xinfo_stream(self._stream)["last-generated-id"]
        except redis.ResponseError:
            self._last = b"0-0"  # there has been no event yet

    def wait(self, for_s: float) -> bool:
        """Return at the next event, or after ``for_s`` seconds; whether there was an event."""
        until = machine.monotonic() + for_s
        while (left_s := until - machine.monotonic()) > 0.001:
            answer: Any = self._redis.xread(
                {self._stream: self._last}, count=500, block=max(1, round(left_s * 1000))
            )
            for _, entries in answer or []:
                self._last = entries[-1][0]
                if any(self._is_ours(fields) for _, fields in entries):
                    return True
        return False

    def _is_ours(self, fields: dict[bytes, bytes]) -> bool:
        return any(decode.text(fields.get(name)) == self._session for name in self._fields)


_FAILURES: dict[SessionState, type[SessionFailed]] = {
    SessionState.FAILED: SessionFailed,
    SessionState.STOPPED: SessionStopped,
    SessionState.DELETED: SessionDeleted,
}


class OwnTexts(NamedTuple):
    """Task of a session, and its agent's own records."""

    prompt: str
    task: str  #: what was said beside the prompt, as JSON
    state: JSON  #: what its agent saved; a text that cannot be opened stays one, which its readers refuse
    own: tuple[tuple[str, Statement, str], ...]  #: what each is, what is to be attested, and the proof
    damage: tuple[str, ...]  #: what of them cannot be read


class SessionOutline(NamedTuple):
    """Hold what a picture of a large tree needs of each session: where it hangs, how it stands, what it counts."""

    id: str
    parent: str
    state: SessionState
    launched: int
    delivered: int
    dead: int
    created_ms: int
    ended_ms: int
    requests: int
    tokens: int
    nano_usd: int

    @property
    def pending(self) -> int:
        """Callbacks neither delivered nor dead."""
        return self.launched - self.delivered - self.dead


#: The fields of it in a session's hash.
_OUTLINE = (
    *("parent", "state", "launched", "delivered", "dead", "created_ms", "ended_ms"),
    *("used_requests", "used_input_tokens", "used_output_tokens", "used_nano_usd"),
)
#: Sessions of which a script reads those; it takes the server some milliseconds.
_AT_ONCE: Final = 1000
_STATES: Mapping[bytes, SessionState] = {state.value.encode(): state for state in SessionState}


def _count(value: object) -> int:
    return int(value) if isinstance(value, bytes) and value.isdigit() else 0


class LedgerReader:
    """The ledger as a reader sees it."""

    def __init__(self, client: redis.Redis, encryption: EncryptionContext | None = None) -> None:
        self.redis = client
        self.seals = Seals(encryption)
        self.large_texts = LargeTexts(client, self.seals)

    def session(self, session_id: str) -> Session:
        """The session of that id.

        Raises:
            UnknownSession: there is none, or the text is no session id.
        """
        if not is_session_id(session_id):
            raise UnknownSession(session_id)
        found = self.find([session_id])
        if not found:
            raise UnknownSession(session_id)
        return found[0]

    def events(self, session: str, *, with_children: bool = False) -> SessionEvents:
        """The events of a session, and of its children ``with_children``, from now on.

        Raises:
            UnknownSession: the text is no session id.
            redis.RedisError: the server does not answer.
        """
        if not is_session_id(session):
            raise UnknownSession(session)
        return SessionEvents(self.redis, session, with_children=with_children)

    def find(self, session_ids: Sequence[str]) -> list[Session]:
        """The sessions of those ids that exist, in one round trip; one that is damaged says so."""
        pipe = self.redis.pipeline(transaction=False)
        for session_id in session_ids:
            pipe.hgetall(ledger_keys.session(session_id))
        found = []
        for session_id, raw in zip(session_ids, pipe.execute(raise_on_error=False), strict=True):
            if isinstance(raw, Exception):
                if not is_wrong_type(raw):
                    raise raw
                found.append(decode.unreadable_session(session_id, f"its key is not a hash: {raw}"))
            elif raw:
                found.append(self.seals.model(decode.session(decode.mapping(raw), session_id)))
        return found

    def run(self, run_id: str) -> Run | None:
        """Return the run of that id, or None."""
        raw = self.redis.hgetall(ledger_keys.run(run_id))
        return self.seals.run(decode.run(decode.mapping(raw))) if raw else None

    def runs(self, session_id: str) -> list[Run]:
        """The runs of a session, oldest first."""
        pipe = self.redis.pipeline(transaction=False)
        for run_id in self.redis.lrange(ledger_keys.runs(session_id), 0, -1):
            pipe.hgetall(ledger_keys.run(decode.text(run_id)))
        return [self.seals.run(decode.run(decode.mapping(raw))) for raw in pipe.execute() if raw]

    def gone(self, root: str, *, known: Collection[str] = ()) -> Iterator[str]:
        """The ids of sessions that a tree names and whose records are gone; those ``known`` are there."""
        for name in map(decode.text, self.redis.zrange(ledger_keys.tree(root), 0, -1)):
            if name not in known:
                pipe = self.redis.pipeline(transaction=True)  # it may have come or gone in between
                pipe.zscore(ledger_keys.tree(root), name)
                pipe.exists(ledger_keys.session(name))
                member, there = pipe.execute()
                if member is not None and not there:
                    yield name

    def queued_runs(self, shard: int, *, limit: int) -> list[str]:
        """The ids of queued runs of a shard, those first that the sweep looks at first."""
        return [decode.text(run) for run in self.redis.zrange(ledger_keys.queued(shard), 0, limit - 1)]

    def effects(self, run_id: str) -> list[dict[str, Any]]:
        """Return the records of a run's effects."""
        return [json.loads(decode.text(record)) for record in self.redis.hvals(ledger_keys.effects(run_id))]

    def account(self, run_id: str, attempt: int) -> str:
        """Return what was said in a try of a run, as its worker noted it; empty if nothing is kept.

        Raises:
            PayloadError: it is not kept any more, or was altered.
        """
        kept = self.redis.hget(ledger_keys.effects(run_id), f"account:{attempt}")
        ref = json.loads(decode.text(kept))["value"] if kept else ""
        return self.large_texts.read(json.loads(ref)) if ref else ""

    def waits_for(self, session_id: str) -> list[str]:
        """The tasks that the launch of an encrypted session waits for."""
        kept = self.redis.hget(ledger_keys.session(session_id), "after")
        return list(dict.fromkeys(json.loads(kept))) if kept else []

    def asked(self, session_id: str, question: str) -> str:
        """Return the session to which a session put a question that has no reply yet; empty if there is none."""
        return decode.text(self.redis.hget(ledger_keys.session(session_id), f"question:{question}"))

    def items(self, session_id: str) -> list[Item]:
        """Return all items of a session by sequence number; those still outstanding come last."""
        found = [
            self.seals.item(decode.item(decode.text(i), record))
            for i, record in self.redis.hgetall(ledger_keys.items(session_id)).items()
        ]
        return sorted(found, key=lambda i: (i.seq or 1 << 60, i.at_ms, i.id))

    def item(self, session_id: str, item_id: str) -> Item | None:
        """Return an item of a session; None if there is none."""
        record = self.redis.hget(ledger_keys.items(session_id), item_id)
        return self.seals.item(decode.item(item_id, record)) if record else None

    def texts(self, session_id: str, names: Sequence[str]) -> dict[str, str]:
        """Return the texts of items; also of ``prompt``, ``result`` and ``state``. Missing ones are left out."""
        if not names:
            return {}
        children = {name: child for name in names if (child := child_of(name))}
        pipe = self.redis.pipeline(transaction=False)
        # The children first: one that is deleted meanwhile has handed its text to the session then.
        for name, child in children.items():
            pipe.hget(ledger_keys.bodies(child), name)
        pipe.hmget(ledger_keys.bodies(session_id), [*names, callback_id(session_id)])
        *theirs, own = pipe.execute(raise_on_error=False)
        if isinstance(own, Exception):
            raise own
        # A child whose texts are of another type has none.
        said = {name: text for name, text in zip(children, theirs, strict=True) if isinstance(text, bytes)}
        said["result"] = own[-1]
        found = {
            name: said.get(name) if text is None else text for name, text in zip(names, own, strict=False)
        }
        return {name: self.seals.read(decode.text(text)) for name, text in found.items() if text is not None}

    def own_texts(self, session: Session) -> OwnTexts:
        """Return the task of a session, and its agent's own records."""
        names = ["prompt", "state", "task", "memory"]
        return self.own_texts_in(session, self.redis.hmget(ledger_keys.bodies(session.id), names))

    def own_texts_in(self, session: Session, raw: Sequence[Any]) -> OwnTexts:
        """Return the same from the ledger's values: prompt, state, task, memory."""
        kept_prompt, kept_state, kept_task, kept_memory = map(decode.text, raw)
        prompt, task = self.seals.read(kept_prompt), self.seals.read(kept_task)
        state_proof, kept_state = decode.with_proof(kept_state)
        memory_proof, memory = decode.reference(kept_memory)
        sealed = session.encrypted or isinstance(prompt, Decrypted)
        state = self.seals.read(kept_state, label=session.root if sealed else "")
        damage: tuple[str, ...] = ()
        saved: JSON = None
        try:
            is_shut = isinstance(state, Decrypted) and state.failed
            saved = state if is_shut else json.loads(state) if state else None
        except ValueError as error:
            damage = (f"its saved state is not JSON: {error}",)
        # What cannot be opened here is refused by its readers, who say which key is missing.
        own = []
        if not (isinstance(prompt, Decrypted) and prompt.failed):
            own = [("task", Statement.of_task(session.id, vars(session), prompt, task), session.task_proof)]
        for what, name, text, proof in (
            ("saved state", "state", state, state_proof),
            ("memory", "memory", memory, memory_proof),
        ):
            if text and not (isinstance(text, Decrypted) and text.failed):
                own.append((what, Statement.of_own(name, session.id, session.agent, text), proof))
        return OwnTexts(prompt=prompt, task=task, state=saved, own=tuple(own), damage=damage)

    def large_references(self, session_id: str) -> dict[str, Mapping[str, Any]]:
        """Return the references to large texts of a session itself: of its answer, its attachments and its memory."""
        whole, memory = self.redis.hmget(ledger_keys.bodies(session_id), ["whole", "memory"])
        attached = decode.attachments(
            decode.mapping(
                {b"attachments": self.redis.hget(ledger_keys.session(session_id), "attachments") or b""}
            )
        )
        found = {"its answer": decode.text(whole), "its memory": decode.reference(decode.text(memory))[1]}
        return {**{what: json.loads(ref) for what, ref in found.items() if ref}, **attached}

    def result(self, session_id: str) -> tuple[SessionState, str | None]:
        """The state of a session and its latest answer, or the reason for which it was closed.

        Raises:
            UnknownSession: there is no such session.
            PayloadError: the answer is large, and the store has lost it.
        """
        session = self.session(session_id)
        if session.state in CLOSED:
            return session.state, session.reason
        texts = self.texts(session_id, ["result", "whole"])
        if "whole" in texts:
            return session.state, self.large_texts.read(json.loads(texts["whole"]))
        return session.state, texts.get("result")

    def final_answer(self, session_id: str) -> str | SessionFailed | None:
        """Return the answer of a session that has ended, or the exception for its caller; None if it has not ended.

        Raises:
            UnknownSession, PayloadError: as :meth:`result`.
        """
        state, text = self.result(session_id)
        if state in _FAILURES:
            return _FAILURES[state](session_id, text or "no reason was given")
        if state is SessionState.FINISHED and text is None:
            return SessionFailed(session_id, "it has finished, and its answer is gone from the ledger")
        return text if state is SessionState.FINISHED else None

    def answer_as_kept(
        self, session_id: str
    ) -> tuple[Session, str, dict[str, Any] | None, dict[str, Any], str]:
        """Return a session, its latest answer as its agent attested it, the reference to a large one, the
        attachments, and the report's other parts as JSON. All are of one moment.

        Raises:
            UnknownSession: there is no such session.
        """
        self.session(session_id)
        pipe = self.redis.pipeline(transaction=True)
        pipe.hgetall(ledger_keys.session(session_id))
        pipe.hmget(ledger_keys.bodies(session_id), ["result", "whole", "end", callback_id(session_id)])
        facts, (text, whole, body, told) = pipe.execute()
        read = decode.mapping(facts)
        session = self.seals.model(decode.session(read, session_id))
        return (
            session,
            self.seals.read(decode.text(told if text is None else text)),
            json.loads(whole) if whole else None,
            decode.attachments(read),
            self.seals.read(decode.text(body)),
        )

    def tree(self, root: str) -> list[Session]:
        """Every session of a tree, in the order in which they were launched."""
        ids = [decode.text(i) for i in self.redis.zrange(ledger_keys.tree(root), 0, -1)]
        found: list[Session] = []
        for start in range(0, len(ids), 500):
            found.extend(self.find(ids[start : start + 500]))
        return found

    def outline(self, root: str) -> list[SessionOutline]:
        """Every session of a tree in the order of the launches, by a few fields: a tenth of the time of :meth:`tree`."""
        tree, scripts = ledger_keys.tree(root), Scripts(self.redis)
        ids = [decode.text(i) for i in self.redis.zrange(tree, 0, -1)]
        found: list[SessionOutline] = []
        for start in range(0, len(ids), _AT_ONCE):
            page = ids[start : start + _AT_ONCE]
            rows = scripts.run("outline", [tree], [json.dumps(_OUTLINE), *page])
            for session_id, raw in zip(page, rows, strict=True):
                if raw is None:
                    raw = [root.encode(), *[None] * (len(_OUTLINE) - 1)]
                elif raw[1] is None:
                    continue  # it is gone
                *counts, tokens_in, tokens_out, nano_usd = map(_count, raw[2:])
                state = _STATES.get(raw[1], SessionState.DAMAGED)
                place = (session_id, decode.text(raw[0]), state)
                found.append(SessionOutline._make((*place, *counts, tokens_in + tokens_out, nano_usd)))
        return found

    def roots(self, shard: int, *, limit: int = 100) -> list[Session]:
        """The latest roots of a shard, newest first."""
        newest = self.redis.zrevrange(ledger_keys.roots(shard), 0, limit - 1)
        return self.find([decode.text(i) for i in newest])

    def scheduled(self, shard: int) -> list[Session]:
        """The sessions of a shard that are to begin later, the next one first."""
        timers = map(decode.text, self.redis.zrange(ledger_keys.timers(shard), 0, -1))
        ids = [timer.removeprefix("submit|") for timer in timers if timer.startswith("submit|")]
        return [session for session in self.find(ids) if session.state is SessionState.SCHEDULED]

    def asking(self, shard: int) -> list[Session]:
        """The roots of a shard that ask the user something. Looks at every root that is kept."""
        asking: list[str] = []
        roots = self.all_roots(shard)
        while batch := list(itertools.islice(roots, 500)):
            pipe = self.redis.pipeline(transaction=False)
            for root in batch:
                pipe.hget(ledger_keys.session(root), "questions")
            counts = pipe.execute(raise_on_error=False)
            asking += [root for root, count in zip(batch, counts, strict=True) if count not in (None, b"0")]
        return [session for session in self.find(asking) if len(session.questions) > len(session.approvals)]

    def newest_roots(self, shard: int) -> Iterator[Session]:
        """Every root of a shard, newest first, read as far as they are asked for."""
        seen: set[str] = set()
        start = 0
        # What is new meanwhile moves the others along: one may come twice, and none is missed.
        while ids := self.redis.zrevrange(ledger_keys.roots(shard), start, start + 199):
            fresh = [name for name in map(decode.text, ids) if name not in seen]
            seen.update(fresh)
            yield from self.find(fresh)
            start += 200

    def all_roots(self, shard: int) -> Iterator[str]:
        """The ids of every root of a shard."""
        for member, _ in self.redis.zscan_iter(ledger_keys.roots(shard), count=500):
            yield decode.text(member)

    def all_sessions(self) -> Iterator[tuple[str, str]]:
        """Every session and its root, whether an index names it or not. Looks through all keys of the server."""
        names = (
            decode.text(key) for key in self.redis.scan_iter(match=ledger_keys.any_session(), count=10_000)
        )
        sessions = (name.rpartition(":")[2] for name in names)
        while batch := list(itertools.islice(filter(is_session_id, sessions), 500)):
            yield from ((session.id, session.root or session.id) for session in self.find(batch))

    def beginning_with(self, beginning: str) -> list[str]:
        """The ids of the sessions that begin so, in order. Looks through all keys of the server."""
        if not is_beginning_of_session_id(beginning):
            return []
        pattern = ledger_keys.any_session_beginning(beginning)
        names = (decode.text(key) for key in self.redis.scan_iter(match=pattern, count=10_000))
        return sorted({name for name in map(ledger_keys.session_in, names) if is_session_id(name)})


#: Runs of a session, and tries of each run, whose prints are kept: a later one takes the place of an earlier one.
RUNS: Final = 10
TRIES: Final = 5


@dataclass(frozen=True, kw_only=True)
class Printed:
    """Output of one try of a run."""

    run: str
    attempt: int
    at_ms: int  #: when it was written down, in milliseconds since the epoch
    size: int  #: bytes that were printed
    text: str  #: the end of them


class PrintedTexts:
    """Outputs of sessions. The transitions of the ledger never wait for them."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def write(self, session: str, number: int, printed: Printed, *, ttl_s: float) -> None:
        """Store the output so far of a try of the session's ``number``-th run, in place of what was there.

        Raises:
            redis.RedisError: it could not be written.
        """
        key = ledger_keys.printed(session)
        pipeline = self._client.pipeline(transaction=False)
        place = f"{number % RUNS}:{printed.attempt % TRIES}"
        pipeline.hset(key, place, json.dumps(asdict(printed), ensure_ascii=True))
        pipeline.expire(key, max(1, round(ttl_s)))
        pipeline.execute()

    def read(self, session: str) -> list[Printed]:
        """Return the outputs that are kept, oldest first; unreadable ones are left out.

        Raises:
            redis.RedisError: the server does not answer.
        """
        raw: Any = self._client.hvals(ledger_keys.printed(session))
        found = []
        for value in raw:
            try:
                found.append(Printed(**json.loads(value)))
            except (ValueError, TypeError):
                continue
        return sorted(found, key=lambda one: (one.at_ms, one.attempt))
