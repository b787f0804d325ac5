"""State that all parts of the ledger share: reads, scripts, limits, the clock, and who signs what is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import redis

from orchestrator.errors import ClaimLost, LimitExceeded, UnknownSession, WrongState
from orchestrator.ids import shard_of
from orchestrator.ledger import decode, layout
from orchestrator.ledger.decode import Attest, Statement
from orchestrator.ledger.large_text import EncryptionContext, Seal, Truncated
from orchestrator.ledger.model import Session
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.transitions import Claim, Outgoing, Report, TreeLimits
from orchestrator.log import get_logger
from orchestrator.redisdb import ledger_keys
from orchestrator.redisdb.raw_pipeline import exchange, server_ms
from orchestrator.redisdb.scripts import Arg, Batch, Scripts

_log = get_logger()


class LedgerCore(LedgerReader):
    """The connection of a ledger. Its parts hold it.

    ``report`` makes the envelopes for sessions that are ended from outside; without it nobody outside of the ledger
    hears of such an end. ``attest`` proves who says what is written; without it nothing is proven. ``encryption`` seals the texts
    of encrypted sessions, and opens them where a key is at hand. ``now_ms`` fixes the time for tests; by default every transition takes the server's.
    """

    def __init__(
        self,
        client: redis.Redis,
        encryption: EncryptionContext | None = None,
        *,
        limits: TreeLimits | None = None,
        report: Report | None = None,
        attest: Attest | None = None,
        now_ms: int | None = None,
    ) -> None:
        super().__init__(client, encryption)
        self.scripts = Scripts(client)
        self.limits = limits or TreeLimits()
        self.report = report
        self.attest = attest
        #: The time that the transitions are given, in ms: empty for the server's.
        self.now = "" if now_ms is None else str(now_ms)

    def set_time(self, now_ms: int) -> None:
        """Fix the time of the following transitions, for tests that step it."""
        self.now = str(now_ms)

    def server_ms(self) -> int:
        """The server's time in milliseconds, or what a test fixed."""
        return int(self.now) if self.now else server_ms(self.redis)

    def batch(self) -> Batch:
        """An empty batch, for transitions that go out in one round trip."""
        return self.scripts.batch()

    def transition(self, script: str, session: str, *octets: Arg, **asked: object) -> Any:
        """Run a script about a session: what it decides on is one request, and texts and envelopes go behind that."""
        return self.scripts.run(script, *layout.call(session, *octets, now=self.now, **asked))

    def effect_of(self, claim: Claim, script: str, *octets: Arg, **asked: object) -> Any:
        """Run a script about the session of a run, for its holder; as :meth:`transition`.

        Raises:
            ClaimLost: the run is not held under this claim any more.
        """
        reply = self.transition(script, claim.session, *octets, run=claim.run, claim=claim.claim, **asked)
        if reply[0] == b"lost":
            raise ClaimLost(claim.run)
        return reply

    def post(
        self,
        session: str,
        record: dict[str, Any],
        text: str,
        *,
        item: str,
        by: str,
        to: str,
        envelope: Outgoing | None = None,
        **more: object,
    ) -> list[bytes]:
        """Put a message into a session's queue or before a person, which the agent ``to`` runs; the answer of ``post``.

        ``more`` is what else the script is asked for.

        Raises:
            ClaimLost, UnknownSession, WrongState, LimitExceeded: as their texts say; nothing was changed.
        """
        record["proof"] = self.attest_item(item, session, record, text, by=by, to=to)
        asked = {"now": self.now, "id": item, "record": record, **more}
        reply: list[bytes] = self.scripts.run("post", *layout.post(session, text, envelope=envelope, **asked))
        match reply[0]:
            case b"lost":
                raise ClaimLost(str(more["run"]))
            case b"unknown":
                raise UnknownSession(session)
            case b"closed":
                raise WrongState(f"session {session}", decode.text(reply[1]), "it will not run again")
            case b"answered":
                raise WrongState(f"the question to {session}", "answered", "it has its reply already")
            case b"person":
                how = (
                    "it is answered with `orchestra approve` or `orchestra deny`, by no agent and no program"
                )
                raise WrongState(f"the approval of {session}", "a person's to give", how)
            case b"limit":
                limit = decode.text(reply[1])
                whose = {
                    "conversation_max_messages": f"conversation {more.get('conversation')}",
                    "max_runs_per_tree": f"the tree of session {session}",
                }
                raise LimitExceeded(limit, int(reply[2]), whose.get(limit, f"session {session}"))
        return reply

    def attest_item(
        self, item: str, session: str, record: Mapping[str, Any], text: str, *, by: str, to: str
    ) -> str:
        """Return ``by``'s proof of an item for a session, which the agent ``to`` runs; empty if nothing is attested
        here.
        """
        if self.attest is None:
            return ""
        return self.attest(Statement.of_record(item, session, record, text), by=by, to=to)

    def attest_end(self, about: Session, end: Statement, *, by: str) -> str:
        """Return ``by``'s proof of how a session ended, see `Statement.of_end`; empty if nothing is attested here."""
        return "" if self.attest is None else self.attest(end, by=by, to=about.delegator)

    def attest_task(self, session: str, facts: Mapping[str, Any], prompt: str, task: str, *, by: str) -> str:
        """Return ``by``'s proof of a session's task with these fields; empty if nothing is attested here."""
        if self.attest is None:
            return ""
        return self.attest(Statement.of_task(session, facts, prompt, task), by=by, to=str(facts["agent"]))

    def attest_own(
        self, what: str, owner: str, agent: str, text: str, *, by: str = "", about: str = ""
    ) -> str:
        """Return the proof, by ``by`` or else the agent, of an agent's own record; empty if nothing is attested here."""
        if self.attest is None:
            return ""
        return self.attest(Statement.of_own(what, owner, agent, text, about=about), by=by or agent, to=agent)

    def replicate(self, what: str, run_id: str) -> None:
        """Wait until the replicas have the last writes, so that a failover does not lose them.

        Too few replicas are named in the log, and by the doctor; the transition counts all the same.
        """
        wanted = self.limits.replicas
        if wanted:
            # WAIT asks about what its own connection wrote, and a transition may have taken another one.
            mark = ("SET", ledger_keys.replicated(shard_of(run_id)), run_id)
            wrote, have = exchange(self.redis, [mark, ("WAIT", wanted, self.limits.replica_timeout_ms)])
            if isinstance(wrote, redis.ResponseError) or isinstance(have, redis.ResponseError):
                have = 0
            if have < wanted:
                _log.warning("replicas-behind", during=what, run=run_id, wanted=wanted, have=have)

    def shorten(self, session: str, text: str, seal: Seal | None = None) -> Truncated:
        """Store a text that is too large for a record beside it; the text as the record has it."""
        return self.large_texts.shorten(session, text, above_bytes=self.limits.inline_bytes, seal=seal)

    def owned_keys(self, session_id: str, *, but: Collection[str] = ()) -> list[str]:
        """Return the keys of every run of a session, of their effects and output, and of the session's large texts,
        ``but`` some.
        """
        runs = [decode.text(run) for run in self.redis.lrange(ledger_keys.runs(session_id), 0, -1)]
        of_run = (ledger_keys.run, ledger_keys.effects, ledger_keys.steps, ledger_keys.reserved)
        of_runs = [key(run) for run in runs for key in of_run]
        of_session = (
            ledger_keys.budget(session_id),
            ledger_keys.past(session_id),
            ledger_keys.printed(session_id),
        )
        return [*of_session, *of_runs, *self.large_texts.keys_of(session_id, but=but)]
