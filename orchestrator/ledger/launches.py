"""Transitions that begin sessions: a user's submit, a delegation, a fork, and the start of the first run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

from orchestrator.errors import ClaimLost, LimitExceeded
from orchestrator.ids import is_session_id, item_id, run_id
from orchestrator.ledger import decode, layout
from orchestrator.ledger.core import LedgerCore
from orchestrator.ledger.decode import Statement
from orchestrator.ledger.large_text import Seal, Seals, Truncated
from orchestrator.ledger.model import JSON, Item, ItemState, SessionState
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.spending import budget_facts
from orchestrator.ledger.transitions import Claim, Delegated, Launch, Outgoing, RunRef, Start, Submitted
from orchestrator.policy.budget import Budget
from orchestrator.redisdb import keys, ledger_keys
from orchestrator.redisdb.key_table import in_its_shard
from orchestrator.redisdb.scripts import Arg, request

#: The mark of an item that came with a fork.
FORKED = "forked"


@dataclass(frozen=True, kw_only=True)
class Found:
    """State and memory at the start of a run."""

    state: JSON
    memory: str  #: empty: none
    #: What is to be attested of them: what it is, the statement, the proof.
    own: tuple[tuple[str, Statement, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Seed:
    """Items that the first run of a fork gets, and earlier ones that all its runs count among the results so far."""

    cause: Literal["start", "callbacks", "user"]
    given: tuple[tuple[Item, str], ...] = ()
    earlier: tuple[tuple[Item, str], ...] = ()

    def dump(self) -> str:
        """The seed as it is kept."""
        rows = {name: [[asdict(i), text] for i, text in getattr(self, name)] for name in ("given", "earlier")}
        return json.dumps({"cause": self.cause, **rows})

    @classmethod
    def load(cls, text: str) -> Seed:
        """Return the seed that :meth:`dump` wrote."""
        raw = json.loads(text)
        rows = {name: tuple((_item(i), text) for i, text in raw[name]) for name in ("given", "earlier")}
        return cls(cause=raw["cause"], **rows)


@dataclass(frozen=True, kw_only=True)
class Fork:
    """First records of a new root, and the large texts that they refer to."""

    session: str  #: the one that is forked
    run: str
    by: str  #: who makes the fork
    state: str  #: as JSON; empty: none
    memory: Truncated
    seed: Truncated
    large_texts: tuple[str, ...] = ()  #: SHA-256 of the large texts that the seed refers to
    sealed: bool = False
    waiting: str = ""  #: its waiting policies, as JSON
    close_policy: str = "stop"
    task: str = ""  #: what was said of its task beside the prompt, as JSON; empty: nothing
    seal: Seal | None = None  #: for whom the new session's words are sealed

    @property
    def facts(self) -> Mapping[str, str]:
        """Fields that the fork sets in the new session's record."""
        sealed = "1" if self.sealed else ""
        return {
            "forked_from": self.session,
            "forked_at": self.run,
            "sealed": sealed,
            "waiting": self.waiting,
            "close_policy": self.close_policy,
        }

    @property
    def texts(self) -> Mapping[str, str]:
        """Texts of the new session beside its prompt, by name."""
        kept = {"fork": self.seed.json, "memory": self.memory.json, "state": self.state, "task": self.task}
        return {name: text for name, text in kept.items() if text}

    def kept_texts(self, seals: Seals) -> Mapping[str, str]:
        """The texts as the ledger is to hold them; what refers to a large one is no text of anybody's."""
        said = ("state", "task")
        return {
            name: seals.write(text, self.seal) if name in said else text for name, text in self.texts.items()
        }

    @property
    def kept(self) -> list[str]:
        """The large texts that are to live as long as the new session."""
        return [sha for sha in (self.seed.sha256, self.memory.sha256, *self.large_texts) if sha]


def found_by(ledger: LedgerReader, session_id: str, number: int) -> Found | None:
    """Return state and memory at the start of run ``number``; None if they are no longer kept.

    Raises:
        PayloadError: the memory is not kept any more, or was altered.
    """
    pipe = ledger.redis.pipeline(transaction=True)
    pipe.hgetall(ledger_keys.past(session_id))
    pipe.hmget(ledger_keys.bodies(session_id), "state", "memory")
    pipe.hmget(ledger_keys.session(session_id), "root", "encrypted", "agent")
    raw, now, (root, encrypted, agent) = pipe.execute()
    label = decode.text(root) if encrypted else ""
    past = decode.mapping(raw)
    if number < int(past.get("from", "0")):
        return None
    state, memory = (
        _replaced(past, what, number, decode.text(value))
        for what, value in zip(("state", "memory"), now, strict=True)
    )
    state_proof, state = decode.with_proof(state)
    memory_proof, reference = decode.reference(memory)
    said = {"state": (state, state_proof), "memory": (reference, memory_proof)}
    return Found(
        state=json.loads(ledger.seals.read(state, label=label) or "null"),
        memory=ledger.large_texts.read(json.loads(memory), label=label) if memory else "",
        own=tuple(
            (what, Statement.of_own(what, session_id, decode.text(agent), text), proof)
            for what, (text, proof) in said.items()
            if text
        ),
    )


def _replaced(past: Mapping[str, str], what: str, number: int, now: str) -> str:
    """Return the value that the first run from ``number`` on replaced; ``now`` if none did."""
    later = [int(name.partition(":")[2]) for name in past if name.startswith(f"{what}:")]
    first = min((at for at in later if at >= number), default=None)
    return now if first is None else past[f"{what}:{first}"]


def seed_of(ledger: LedgerReader, session_id: str) -> Seed | None:
    """Return the seed of a session; None if it is not a fork.

    Raises:
        PayloadError: it is not kept any more, or was altered.
    """
    ref = decode.text(ledger.redis.hget(ledger_keys.bodies(session_id), "fork") or b"")
    return Seed.load(ledger.large_texts.read(json.loads(ref))) if ref else None


def as_given(item: Item, text: str, *, session: str) -> tuple[Item, str]:
    """Return an item of another session as a fork gets it: nobody waits for a reply to it."""
    # The id of a question says who is to be replied to, which is a session of another tree.
    name = item.id if item.kind == "completion" else item_id(session, f"fork:{item.id}")
    extra = {
        key: value for key, value in item.extra.items() if key not in ("question", "proof", "taken", "said")
    }
    return replace(item, id=name, state=ItemState.CLAIMED, extra={**extra, FORKED: True}), text


def _item(raw: Mapping[str, Any]) -> Item:
    return Item(**{**raw, "state": ItemState(raw["state"])})


#: Launches in one script call: few enough that nobody else waits long for the server.
LAUNCHES_AT_ONCE: Final = 50


class Launches:
    """Starts sessions: for a user, for a parent, and the first run of each."""

    def __init__(self, core: LedgerCore) -> None:
        self._core = core

    def submit(
        self,
        session_id: str,
        *,
        agent: str,
        prompt: str,
        envelope: Outgoing,
        correlation: str,
        title: str = "",
        task: str = "",
        planned: bool = False,
        budget: Budget | None = None,
        make_fork: Callable[[], Fork] | None = None,
        at_ms: int = 0,
        structured: str = "",
        time_limit_ms: int = 0,
        seal: Seal | None = None,
        by: str = "",
        options: str = "",
    ) -> Submitted:
        """Make a root session and publish its task-delegation, at once or at ``at_ms`` (milliseconds since the epoch).

        The same id, submitted again, changes nothing and tells what is there. ``task`` is the id of
        the Celery result that the root owes, and ``budget`` what its whole tree may spend. ``planned``: the prompt is
        a plan for the session to carry out. ``make_fork`` stores what the session begins with, if it is a fork.
        ``structured`` is what is said of the task beside the prompt, as JSON, and ``time_limit_ms`` how long the session
        may take, 0 for as long as it takes. With a ``seal`` the session is encrypted. ``by`` gives the task; else the operator does.
        ``options`` is what the session keeps of how it was launched, as JSON.

        Raises:
            KeyringError: a reader of the ``seal`` has no key.
        """
        facts: dict[str, Arg] = {
            "agent": agent,
            "title": self._core.seals.write(title, seal),
            "task": task,
            "priority": envelope.priority,
            "correlation": correlation,
            "message": envelope.message_id,
            "chain": json.dumps([envelope.message_id]),
        }
        if options:
            facts["options"] = options
        if planned:
            facts["planned"] = "1"
        if seal is not None:
            facts["encrypted"] = "1"
        kept_prompt, kept_task = (
            self._core.seals.write(prompt, seal),
            self._core.seals.write(structured, seal),
        )
        launch = {
            "id": session_id,
            "agent": agent,
            "budget": budget_facts(budget),
            "time_limit_ms": time_limit_ms,
            "stream": layout.stream_name(envelope),
            "encrypted": seal is not None,
        }
        reply = [b"whole"]
        while reply[0] == b"whole":
            begins_with: dict[str, str] = {}
            kept: list[str] = []
            if make_fork is not None:
                fork = make_fork()
                begins_with, kept = self._begins_with(fork, session_id, agent), fork.kept
                kept_task = begins_with.pop("task", "")
                facts |= fork.facts
            facts["task_proof"] = self._core.attest_task(session_id, facts, kept_prompt, kept_task, by=by)
            octets: list[Arg] = []
            about = layout.launch(
                launch, facts, octets, prompt=kept_prompt, envelope=envelope.data, task=kept_task
            )
            octets += layout.pairs(begins_with)
            reply = self._core.transition(
                "launch", session_id, *octets, launches=[about], due_ms=at_ms, kept=kept
            )
        created = reply[0] == b"created"
        if created:
            self._core.replicate("submit", session_id)
        if seal is not None and not created and reply[3] == b"0":
            # Sealed twice, the same text is another one.
            there = self._core.texts(session_id, ["prompt"]).get("prompt")
            reply = [*reply[:3], b"1" if there == prompt else b"0"]
        return Submitted(
            session=session_id,
            created=created,
            state=SessionState(reply[1].decode()),
            agent=agent if created else decode.text(reply[2]),
            other_prompt=not created and reply[3] == b"0",
        )

    def _begins_with(self, fork: Fork, session: str, agent: str) -> dict[str, str]:
        """Return the texts of a new session that is a fork; whoever makes it attests the agent's own records."""
        texts = dict(fork.kept_texts(self._core.seals))
        for what in {"state", "memory"} & texts.keys():
            proof = self._core.attest_own(what, session, agent, texts[what], by=fork.by)
            texts[what] = (
                f"{proof}\n{texts[what]}"
                if what == "state"
                else json.dumps({**json.loads(texts[what]), "proof": proof})
            )
        return texts

    def delegate(self, claim: Claim, launch: Launch) -> Delegated:
        """Launch a child of a running session.

        The same effect key gives the same child, however often the run is tried.

        Raises:
            ClaimLost: the run is not held under this claim any more.
            LimitExceeded: the parent or its tree is as large as it may be.
        """
        return self.delegate_all(claim, [launch])[0]

    def delegate_all(self, claim: Claim, launches: Sequence[Launch]) -> list[Delegated]:
        """:meth:`delegate` for many children in one round trip, in their order.

        Raises:
            ClaimLost, LimitExceeded: as :meth:`delegate`; those before the first that was refused are launched.
            redis.RedisError: a launch failed; others may have been carried out, and all may be asked for again.
        """
        batch = self._core.scripts.batch()
        for start in range(0, len(launches), LAUNCHES_AT_ONCE):
            batch.script("launch", *self._launch_call(claim, launches[start : start + LAUNCHES_AT_ONCE]))
        return [done for answer in batch.answers() for done in self._delegated(claim, answer)]

    def _launch_call(self, claim: Claim, launches: Sequence[Launch]) -> tuple[list[str], list[Arg]]:
        limits = self._core.limits
        octets: list[Arg] = []
        about = [self._child(claim, launch, octets) for launch in launches]
        body = request(
            now=self._core.now,
            run=claim.run,
            claim=claim.claim,
            max_children=limits.max_children,
            max_depth=limits.max_depth,
            max_sessions=limits.max_tree_sessions,
            max_runs=limits.max_tree_runs,
            launches=about,
        )
        return [ledger_keys.session(claim.session)], [body, *octets]

    def _child(self, claim: Claim, launch: Launch, octets: list[Arg]) -> dict[str, object]:
        """Return the script's request about a child, and append the child's texts and facts to ``octets``."""
        envelope, seal = launch.envelope, None
        if envelope.encrypted:
            seal = Seal(label=claim.root, by=claim.agent, to=(launch.agent, launch.caller_agent))
        title, prompt, task = (
            self._core.seals.write(text, seal) for text in (launch.title, launch.description, launch.task)
        )
        facts: dict[str, Arg] = {
            "agent": launch.agent,
            "title": title,
            "message": envelope.message_id,
            "priority": envelope.priority,
            "delegator": launch.caller_agent if is_session_id(launch.caller) else claim.agent,
            "correlation": launch.correlation,
            "chain": json.dumps([envelope.message_id, *launch.chain]),
            "caller": launch.caller,
        }
        if launch.options:
            facts["options"] = launch.options
        facts["task_proof"] = self._core.attest_task(launch.child_id, facts, prompt, task, by=claim.agent)
        if seal is not None:
            facts["encrypted"] = "1"
            if launch.after:
                facts["after"] = json.dumps(list(launch.after))
        about = {
            "id": launch.child_id,
            "agent": launch.agent,
            "effect": launch.effect,
            "priority": envelope.priority,
            "title": title,
            "owed": launch.callback,
            "group": launch.group,
            "on_failure": launch.on_failure,
            "on_close": launch.on_close,
            "caller": launch.caller,
            "budget": budget_facts(launch.budget),
            "time_limit_ms": launch.time_limit_ms,
            "stream": layout.stream_name(envelope),
            "encrypted": seal is not None,
        }
        return layout.launch(about, facts, octets, prompt=prompt, envelope=envelope.data, task=task)

    @staticmethod
    def _delegated(claim: Claim, reply: Sequence[bytes]) -> list[Delegated]:
        if reply[0] == b"lost":
            raise ClaimLost(claim.run)
        found = []
        for what, which in zip(reply[1::2], reply[2::2], strict=True):
            if what not in (b"created", b"exists"):
                raise LimitExceeded(decode.text(what), int(which), f"session {claim.session}")
            found.append(Delegated(child=decode.text(which), created=what == b"created"))
        return found

    def start_call(
        self, shard: int, starts: Sequence[Start], *, group: str, keep_ms: int
    ) -> tuple[list[str], list[Arg]]:
        """KEYS and ARGV of ``start`` for launches of one shard, for the router's batches; `started` reads the answers.

        ``group`` is the router's, ``keep_ms`` how long it is remembered which sessions a conversation began.
        """
        launches = [
            {
                "session": one.session,
                "run": run_id(one.session, 1),
                "message": one.message,
                "entry": one.entry,
                "seen": in_its_shard(keys.seen(shard, one.sender, one.message)),
                "stream": in_its_shard(one.stream),
                "conversation": in_its_shard(keys.conversation(shard, one.conversation)),
                "mark_ms": one.mark_ms,
                "recipient": one.recipient,
                "digest": one.digest,
                **({"review_ms": one.review_due_ms} if one.review_due_ms else {}),
            }
            for one in starts
        ]
        limits = self._core.limits
        asked = request(
            now=self._core.now, group=group, look_ms=limits.redispatch_ms, keep_ms=keep_ms, launches=launches
        )
        return [ledger_keys.queued(shard)], [asked]

    @staticmethod
    def started(session_id: str, reply: Sequence[bytes]) -> RunRef | None:
        """Return the run to dispatch after the ``start`` of a session; None if there is nothing to send."""
        return layout.ready_run(session_id, *reply[1:5]) if reply[0] == b"started" else None
