"""Scans of the reaper and the callback service, and the transitions that stop and remove sessions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from orchestrator.ids import reply_id, shard_of
from orchestrator.ledger import decode, layout
from orchestrator.ledger.core import LedgerCore
from orchestrator.ledger.model import CLOSED, Session, SessionState
from orchestrator.ledger.transitions import Lease, Outgoing, RunRef, StopVerdict
from orchestrator.redisdb import keys, ledger_keys
from orchestrator.redisdb.key_table import in_its_shard, is_wrong_type
from orchestrator.redisdb.scripts import request

#: Sessions of an expired tree that are closed in one step, with three arguments each; Redis 6.2 takes a million.
_RETIRED_AT_ONCE = 50_000
#: Roots that one step looks at: so few that nobody else waits long for the server.
_ROOTS_AT_ONCE = 1000
#: How long a router may take to come to the task-delegation of a scheduled session.
_SUBMITTED_TTL_MS = 30 * 86_400_000


class Sweep:
    """Reads and transitions of the reconciliation sweep. Every one is idempotent and safe in several processes."""

    def __init__(self, core: LedgerCore) -> None:
        self._core = core

    def begin_sweep(self, shard: int) -> None:
        """Note that a sweep begins. Where that cannot be written nobody can renew a lease either.

        Raises:
            redis.RedisError: the server is away, or takes no writes.
        """
        self._core.redis.set(ledger_keys.sweep(shard), self._core.server_ms())

    def leases(self, shard: int) -> list[Lease]:
        """Return every held run, with its renewal counter as it stands; unreadable ones are left out."""
        ids = [decode.text(i) for i in self._core.redis.zrange(ledger_keys.running(shard), 0, -1)]
        pipe = self._core.redis.pipeline(transaction=False)
        for run in ids:
            pipe.hmget(ledger_keys.run(run), "session", "claim", "lease_version", "worker", "state")
        found = []
        for run, row in zip(ids, pipe.execute(raise_on_error=False) if ids else [], strict=True):
            if isinstance(row, Exception):
                if not is_wrong_type(row):
                    raise row
                continue  # the doctor names it
            session, claim, version, worker, state = (decode.text(v) for v in row)
            if state == "running":
                found.append(
                    Lease(run=run, session=session, claim=claim, lease_version=version, worker=worker)
                )
        return found

    def changed_roots(self, shard: int, *, since_ms: int) -> Iterator[tuple[list[str], int]]:
        """The roots whose trees are not at rest, or came to rest since then; page by page, with how many are left out.

        No script, as who only looks may not run one.
        """
        cursor, client = 0, self._core.redis
        expires_ms = since_ms + self._core.limits.tree_ttl_ms
        while True:
            page: Any
            cursor, page = client.zscan(ledger_keys.roots(shard), cursor, count=_ROOTS_AT_ONCE)
            roots = [decode.text(root) for root, _ in page]
            timers = [f"expire|{root}" for root in roots]
            due: Any = client.zmscore(ledger_keys.timers(shard), timers) if timers else []
            changed = [root for root, at in zip(roots, due, strict=True) if at is None or at >= expires_ms]
            yield changed, len(roots) - len(changed)
            if not cursor:
                return

    def slots(self, shard: int) -> list[tuple[str, str]]:
        """Return the run and the claim that each slot took last."""
        raw: Any = self._core.redis.hvals(ledger_keys.slots(shard))
        taken = (decode.text(value).split(" ") for value in raw)
        return [(words[1], words[0]) for words in taken if len(words) > 1]

    def ready(self, shard: int, agents: Sequence[str]) -> dict[str, int]:
        """Return the number of ready runs of each agent; agents without any are left out."""
        pipe = self._core.redis.pipeline(transaction=False)
        for agent in agents:
            pipe.zcard(ledger_keys.ready(shard, agent))
        return {agent: found for agent, found in zip(agents, pipe.execute(), strict=True) if found}

    def wakeups(self, shard: int, agents: Sequence[str]) -> list[str]:
        """Return the agents whose workers to notify now: they have ready runs, and the last notification is long ago."""
        batch, ready = self._core.scripts.batch(), [ledger_keys.ready(shard, agent) for agent in agents]
        if not ready or not self._core.redis.exists(*ready):
            return []  # as nearly always: one command for all agents
        for agent, key in zip(agents, ready, strict=True):
            batch.script("wake", [key, ledger_keys.turns(shard, agent)], [self._core.now])
        return [agent for agent, answer in zip(agents, batch.execute(), strict=True) if answer == b"1"]

    def undispatched(self, shard: int, *, limit: int = 500) -> list[str]:
        """Queued runs that the sweep examines: retries that are due, and runs that a clock that jumped holds up."""
        limits = self._core.limits
        furthest_ms = max(limits.redispatch_cap_ms, limits.redispatch_ms)
        due = self._core.scripts.run(
            "due_timers", [ledger_keys.queued(shard)], [self._core.now, limit, furthest_ms]
        )
        return [decode.text(i) for i in due]

    def make_ready(self, run_id: str) -> RunRef | None:
        """Make a queued run ready; None if it is not queued any more."""
        limits = self._core.limits
        asked = request(now=self._core.now, base_ms=limits.redispatch_ms, cap_ms=limits.redispatch_cap_ms)
        reply = self._core.scripts.run("make_ready", [ledger_keys.run(run_id)], [asked])
        if reply[0] != b"ready":
            return None
        session, agent, cause = map(decode.text, reply[2:])
        return RunRef(run=run_id, session=session, agent=agent, cause=cause, wake=reply[1] == b"1")

    def make_all_ready(self, shard: int) -> list[RunRef]:
        """Make every queued run ready whose wait has passed; those that were made so."""
        queued = self._core.redis.zrange(ledger_keys.queued(shard), 0, -1)
        made = (self.make_ready(decode.text(run)) for run in queued)
        return [run for run in made if run is not None]

    def waiting(self, shard: int) -> list[str]:
        """Sessions with something in their queue."""
        return [decode.text(i) for i in self._core.redis.zrange(ledger_keys.waiting(shard), 0, -1)]

    def closing(self, shard: int) -> list[str]:
        """Return closed sessions that still have children to stop or to let go."""
        return [decode.text(i) for i in self._core.redis.zrange(ledger_keys.closing(shard), 0, -1)]

    def unpublished_results(self, shard: int) -> list[str]:
        """Roots whose Celery result is not stored yet."""
        return [decode.text(i) for i in self._core.redis.zrange(ledger_keys.results(shard), 0, -1)]

    def mark_result_published(self, root: str) -> None:
        """Note that the result of a root is stored where its caller waits for it."""
        self._core.transition("publish_result", root, ttl_ms=self._core.limits.tree_ttl_ms)

    def due_timers(self, shard: int, *, limit: int = 500) -> list[tuple[str, str]]:
        """Timers that are due, as (kind, id)."""
        return [(kind, identifier) for kind, identifier, _ in self.timers(shard, limit=limit)]

    def timers(self, shard: int, *, within_ms: int = 0, limit: int = 500) -> list[tuple[str, str, int]]:
        """Timers that are due within some time, the earliest first, as (kind, id, milliseconds until then)."""
        now = self._core.server_ms()
        found: Any = self._core.redis.zrangebyscore(
            ledger_keys.timers(shard), "-inf", now + within_ms, start=0, num=limit, withscores=True
        )
        timers = [(decode.text(timer).partition("|"), int(max(score, 0))) for timer, score in found]
        return [(parts[0], parts[2], due_ms - now) for parts, due_ms in timers]

    def submit_due(self, session_id: str, *, sender: str) -> str:
        """The time of a scheduled session has come: publish the task-delegation that ``sender`` signed; once.

        Returns:
            `submitted`, `early`, or `gone`: it was stopped or deleted, or has begun.

        Raises:
            redis.ResponseError: its records are damaged; its timer stays.
        """
        shard = shard_of(session_id)
        priority, message = map(
            decode.text, self._core.redis.hmget(ledger_keys.session(session_id), "priority", "message")
        )
        reply = self._core.transition(
            "launch",
            session_id,
            stream=f"msg:task-delegation:{priority or 'high'}",
            seen=in_its_shard(keys.seen(shard, sender, message)),
            mark_ms=_SUBMITTED_TTL_MS,
        )
        return decode.text(reply[0])

    def drop_timer(self, shard: int, kind: str, identifier: str) -> None:
        """Remove a timer."""
        self._core.redis.zrem(ledger_keys.timers(shard), f"{kind}|{identifier}")

    def drop_due_timer(self, shard: int, kind: str, identifier: str) -> None:
        """Remove a timer that is due; a timer that was set again for later stays."""
        due = self._core.redis.zscore(ledger_keys.timers(shard), f"{kind}|{identifier}")
        if due is not None and float(due) <= self._core.server_ms():
            self.drop_timer(shard, kind, identifier)

    def postpone_timer(self, shard: int, kind: str, identifier: str, due_ms: int) -> None:
        """Move a timer to ``due_ms``, if it exists."""
        self._core.redis.zadd(ledger_keys.timers(shard), {f"{kind}|{identifier}": due_ms}, xx=True)

    def reindex(self, session_id: str, *, recount: bool) -> list[str]:
        """Write the index entries of a session again; with ``recount`` also its counters and its queue.

        Returns the names of the indexes and fields that were wrong.
        """
        ttl_ms = self._core.limits.tree_ttl_ms
        reply = self._core.transition("reindex", session_id, ttl_ms=ttl_ms, recount=recount)
        return [decode.text(what) for what in reply[1:]]

    def restore_text(self, child: str, text: str) -> bool:
        """Keep again what a child's parent was told of its end, where that is gone; False: it is there, or never was."""
        return bool(self._core.transition("restore_text", child, text)[0] == b"restored")

    def tell_again(self, child: str, status: str) -> bool:
        """Deliver to a parent the end of a child that is marked as delivered and is not; False if there is nothing to
        deliver.
        """
        return bool(self._core.transition("tell_again", child, status=status)[0] != b"nothing")

    def reopen_question(self, question: str, *, asker: str, asked: str) -> bool:
        """Let the asker of a question that is still open wait for it again; False if it does, or need not."""
        ids = {"question": question, "reply": reply_id(question), "asker": asker}
        return bool(self._core.transition("reopen_question", asked, **ids)[0] == b"open")

    def restore_question_timers(self, lost: Mapping[str, int]) -> None:
        """Have open questions given up when their time is over; one that is answered by then is left alone."""
        for timer, due_ms in lost.items():
            kind, _, question = timer.partition("|")
            if kind in ("question", "rejected"):
                self._core.redis.zadd(ledger_keys.timers(shard_of(question)), {timer: due_ms}, nx=True)

    def forget_stop(self, session_id: str) -> None:
        """Remove the mark that a session is to be ended, which nobody has asked for."""
        self._core.redis.hdel(ledger_keys.session(session_id), "stop_pending")

    def close_tree(self, tree: Sequence[Session]) -> bool:
        """Close every session of an expired tree before it is removed; False if one was used since it was read.

        A run that nobody has begun, of a session to which nobody was promised an end, does not hold the tree;
        nor does one of a program outside of the stack. A very large tree is closed in parts, the root's first: a
        server takes only so many arguments. Who uses a later part meanwhile holds what is left of it.
        """
        parts = (tree[start : start + _RETIRED_AT_ONCE] for start in range(0, len(tree), _RETIRED_AT_ONCE))
        return all(map(self._retire, parts))

    def _retire(self, tree: Sequence[Session]) -> bool:
        facts: list[str] = []
        for s in tree:
            known = self._core.run(s.run) if s.run else None
            unheeded = s.state in CLOSED or s.state is SessionState.PENDING or (known and known.external)
            if s.run and not unheeded:
                return False
            facts += [f"{s.state} {s.run} {s.runs} {s.owed} {s.children}", "" if unheeded else "1"]
        named = [key for s in tree for key in (ledger_keys.session(s.id), ledger_keys.queue(s.id))]
        reply = self._core.scripts.run(
            "close_tree", named, ["its tree was kept for its whole lifetime and is removed", *facts]
        )
        return bool(reply[0] == b"retired")

    def delete_session(self, session_id: str, root: str) -> int:
        """Remove one session of an expired tree; how many sessions the tree has left. The root goes last."""
        runs = [decode.text(run) for run in self._core.redis.lrange(ledger_keys.runs(session_id), 0, -1)]
        owned = self._core.owned_keys(session_id)
        reply = self._core.transition("delete_session", session_id, *owned, root=root, runs=runs)
        return int(reply[1])


class Termination:
    """Ends sessions without the answers of their agents."""

    def __init__(self, core: LedgerCore) -> None:
        self._core = core

    def _end(self, script: str, session_id: str, *, by: str, **asked: object) -> list[bytes]:
        """Run a script that may end a session, until it has all that it asks for; its answer.

        It asks for what is said to another parent than the one that was read, or for the envelopes that report the end.
        """
        report, core = self._core.report, self._core
        parent = decode.text(core.redis.hget(ledger_keys.session(session_id), "parent"))
        unmade = {"unmade": report is not None or core.attest is not None}
        reports: Sequence[Outgoing] = ()
        last: dict[str, object] = dict(unmade)
        while True:
            stream = layout.stream_name(next(iter(reports), None))
            envelopes = [one.data for one in reports]
            reply: list[bytes] = core.transition(
                script, session_id, *envelopes, parent=parent, stream=stream, **asked, **last
            )
            match reply[0]:
                case b"parent":
                    parent = decode.text(reply[1])
                    reports, last = (), dict(unmade)  # the proof is for another reader
                case b"report":
                    why = decode.text(reply[1])
                    reports = () if report is None else report(core.session(session_id), why, by)
                    last = {"proof": self._attest_failure(session_id, why, by)}
                case _:
                    return reply

    def _attest_failure(self, session_id: str, reason: str, by: str) -> str:
        """Return ``by``'s proof that it has ended a session, for this reason; empty if nothing is attested here."""
        found = self._core.find([session_id]) if self._core.attest is not None else []
        ends = [decode.Statement.of_end(session, "failed", reason) for session in found]
        return self._core.attest_end(found[0], ends[0], by=by) if found else ""

    def refuse(self, session_id: str, reason: str, *, by: str = "") -> bool:
        """Fail a session that never started, in the name of ``by``; False when it did, or has ended already."""
        parent = decode.text(self._core.redis.hget(ledger_keys.session(session_id), "parent"))
        while True:
            proof = self._attest_failure(session_id, reason, by)
            reply = self._core.transition("refuse", session_id, parent=parent, reason=reason, proof=proof)
            if reply[0] != b"parent":
                return bool(reply[0] == b"refused")
            parent = decode.text(reply[1])

    def stop(
        self,
        session_id: str,
        reason: str,
        *,
        state: Literal["stopped", "failed", "deleted"] = "stopped",
        force: bool = False,
        by: str = "",
    ) -> StopVerdict:
        """End a session: at once when nothing of it runs, else by asking; ``force`` does not ask.

        ``by`` is the part of the system in whose name the end is reported, to the session or program that gave the session its task.

        Raises:
            KeyringError: the report cannot be signed; nothing was changed.
        """
        reply = self._end("stop", session_id, by=by, reason=reason, state=state, force=force)
        return StopVerdict(
            outcome=cast("Literal['ended', 'asked', 'over', 'unknown']", decode.text(reply[0])),
            detail=decode.text(reply[1]) if len(reply) > 1 else "",
        )

    def release(
        self, lease: Lease, *, died: str = "", wait_ms: int = 0, by: str = ""
    ) -> Literal["queued", "ended", "moved"]:
        """Take a run from a holder that is gone: queued again, and not claimed for ``wait_ms``, or ended.

        ``moved``: the holder lives after all, or another one has the run. ``died`` says how the process of the holder
        ended, where that was seen; without it the lease stood still. An end is reported in the name of ``by``.

        Raises:
            KeyringError: it would end, and the report of that cannot be signed; nothing was changed.
        """
        asked = {
            "run": lease.run,
            "claim": lease.claim,
            "lease": lease.lease_version,
            "most_lost": self._core.limits.max_lost_workers,
            "most_died": self._core.limits.max_process_deaths,
            "died": died,
            "wait_ms": wait_ms,
            "try": layout.end_of_try("died" if died else "lost", died or "lease lost"),
        }
        reply = self._end("release", lease.session, by=by, **asked)
        return cast('Literal["queued", "ended", "moved"]', decode.text(reply[0]))

    def abandon(self, parent: str, callback: str, reason: str) -> bool:
        """Let an outstanding callback of a closed parent die; False if it is not outstanding."""
        return bool(self._core.transition("abandon", parent, callback=callback, reason=reason)[0] == b"dead")

    def inherit(
        self, parent: str, heir: str, child: str, callback: str
    ) -> Literal["handed", "not owed", "no heir", "kin"]:
        """Hand an outstanding callback of a closed parent to its heir.

        Returns ``handed``; ``not owed`` (any more: the child has ended, or somebody else has seen to it);
        ``no heir`` (it is gone or will not run again); or ``kin`` (the child is the heir or above it, so
        that it would wait for its own end).
        """
        while True:
            reply = self._core.transition(
                "inherit",
                parent,
                callback=callback,
                heir=heir,
                child=child,
                above=self._above(heir),
                reason=f"handed to heir {heir}",
            )
            if reply[0] != b"moved":
                return cast('Literal["handed", "not owed", "no heir", "kin"]', decode.text(reply[0]))

    def _above(self, session_id: str) -> list[str]:
        """The sessions above a session, nearest first; the last one may be gone."""
        above: list[str] = []
        while parent := decode.text(self._core.redis.hget(ledger_keys.session(session_id), "parent")):
            above.append(parent)
            session_id = parent
        return above

    def finish_cleanup(self, session_id: str, *, seen_as: SessionState | None = None) -> bool:
        """Finish the cleanup of a closed session whose children have all ended or been let go; False if some have
        not.

        ``seen_as``: the state in which the caller has just gone through all of its items. Nothing is done before a
        caller has gone through them in the present state.
        """
        heard, by = self._still_heard(session_id)
        owned = self._core.owned_keys(session_id, but=heard)
        reply = self._core.transition(
            "finish_cleanup", session_id, *owned, seen_as=seen_as, heard_by=" ".join(by)
        )
        return bool(reply[0] in (b"kept", b"tombstone"))

    def _still_heard(self, session_id: str) -> tuple[set[str], list[str]]:
        """The digests of a session's large texts that are in the records of sessions which are not deleted, and these."""
        said = self._core.large_texts.digests(session_id)
        if not said:
            return set(), []
        # The items first: what a cleanup takes from them meanwhile, it has written down in the session.
        spoken_to = [i.child for i in self._core.items(session_id) if i.kind == "completion"]
        spoken_to += decode.text(self._core.redis.hget(ledger_keys.session(session_id), "heard_by")).split()
        spoken_to += [s.parent for s in self._core.find([session_id]) if s.parent]
        heard: set[str] = set()
        by: list[str] = []
        for other in self._core.find(list(dict.fromkeys(spoken_to))):
            if other.state is SessionState.DELETED:
                continue
            refs = (ref for item in self._core.items(other.id) for ref in item.large_texts)
            if found := said & {ref["sha256"] for ref in refs if ref.get("session") == session_id}:
                heard |= found
                by.append(other.id)
        return heard, by
