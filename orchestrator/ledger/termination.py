"""Transitions that end sessions from outside their runs: refused, stopped, lease lost, deleted, abandoned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from orchestrator.ledger import decode, layout
from orchestrator.ledger.core import LedgerCore
from orchestrator.ledger.model import SessionState
from orchestrator.ledger.transitions import Lease, Outgoing, StopVerdict
from orchestrator.redisdb import ledger_keys


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
        unmade = {"unmade": report is not None or core.vouch is not None}
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
                    last = {"proof": self._vouch_for_failure(session_id, why, by)}
                case _:
                    return reply

    def _vouch_for_failure(self, session_id: str, reason: str, by: str) -> str:
        """Return ``by``'s proof that it has ended a session, for this reason; empty if nothing is attested here."""
        found = self._core.find([session_id]) if self._core.vouch is not None else []
        return self._core.vouch_for_end(found[0], "failed", reason, by=by) if found else ""

    def refuse(self, session_id: str, reason: str, *, by: str = "") -> bool:
        """Fail a session that never started, in the name of ``by``; False when it did, or has ended already."""
        parent = decode.text(self._core.redis.hget(ledger_keys.session(session_id), "parent"))
        while True:
            proof = self._vouch_for_failure(session_id, reason, by)
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
