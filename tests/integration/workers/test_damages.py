"""What somebody does to the ledger by hand: the doctor names it, `--fix` mends or ends it, and everything comes to rest."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from click.testing import Result

from orchestrator.audit.writer import AuditWriter, build_writer
from orchestrator.deployment.local_stack import build_reaper
from orchestrator.doctor import examination
from orchestrator.ids import callback_id, new_claim_id
from orchestrator.ledger import PollRequest, RunRef, RunState, SessionState, Slot
from orchestrator.redisdb import ledger_keys
from orchestrator.worker.context.context import Context
from tests.kit import Kit
from tests.waiting import wait_until

#: More than a record holds itself.
LARGE = "x <é> &amp;\n" * 1_000 + "and so on; " * 100_000


class House:
    """A lead that waits for four children: one is done, one asks it, one is tried again, one is queued."""

    def __init__(self, kit: Kit) -> None:
        self.kit, self.redis, self.ledger = kit, kit.redis, kit.ledger
        self.tried: list[str] = []
        self.paid = 0
        self.stages_agents()
        self.root = kit.submit("lead", "do it all")
        kit.play(self.root)
        found = {child.title: child.id for child in kit.children(self.root)}
        self.done, self.asker, self.payer, self.queued = (
            found[n] for n in ("done", "asker", "payer", "queued")
        )
        kit.play(self.done)
        kit.play(self.asker)
        kit.play(self.payer)
        self.queued_run = kit.start(self.queued).run
        self.payer_run = self.ledger.session(self.payer).run
        self.question = self.ledger.session(self.asker).questions[0]

    def stages_agents(self) -> None:
        kit = self.kit

        @kit.agent("lead", role="coordinator")
        def lead(ctx: Context) -> str:
            ctx.state["runs"] = ctx.state.get("runs", 0) + 1
            if ctx.cause == "start":
                for name in ("done", "asker", "payer", "queued"):
                    ctx.delegate(name, f"be {name}", title=name)
                ctx.wait_for("all")
            for one in ctx.callbacks:
                if one.kind == "query":
                    ctx.reply(one.id, "yes")
            return "all done"

        @kit.agent("done")
        def done(ctx: Context) -> str:
            return LARGE

        @kit.agent("asker")
        def asker(ctx: Context) -> str:
            ctx.state["asked"] = True
            if ctx.cause == "start":
                ctx.ask_later("may I?")
            return "thanks"

        @kit.agent("payer", attempts=3)
        def payer(ctx: Context) -> str:
            ctx.step("pay", self.pay)
            self.tried.append(ctx.session)
            if len(self.tried) == 1:
                raise RuntimeError("once")
            return "paid"

        kit.agent("queued")(lambda ctx: ctx.prompt)

    def pay(self) -> int:
        self.paid += 1
        return 5

    def orchestra(self, *words: str) -> Result:
        return self.kit.orchestra(*words, "--full")

    def rest(self) -> None:
        """Let router, reaper, callback service and workers do what they find, until nothing moves."""
        reaper = build_reaper(self.redis, self.kit.settings)
        for _ in range(10):
            reaper.run_once()
            for member in filter(lambda one: one.run, self.ledger.tree(self.root)):
                state, due = self.redis.hmget(ledger_keys.run(member.run), "state", "not_before")
                if state == RunState.QUEUED.encode():
                    wait_until(lambda due=due: int(due or 0) <= self.ledger.server_ms())  # type: ignore[misc]
                    ref = RunRef(run=member.run, session=member.id, agent=member.agent, cause="start")
                    self.kit.execute(ref)

    def hset(self, key: str, field: str, value: str | bytes) -> None:
        assert self.redis.hexists(key, field)
        self.redis.hset(key, field, value)

    def set(self, session: str, field: str, value: str | bytes) -> None:
        self.redis.hset(ledger_keys.session(session), field, value)

    def retry_steps(self) -> str:
        return ledger_keys.steps(self.payer_run)

    def forge_state(self) -> None:
        """Keep the proof, and change what it is of."""
        kept = self.redis.hget(ledger_keys.bodies(self.asker), "state")
        self.hset(ledger_keys.bodies(self.asker), "state", kept.replace(b"true", b"false"))

    def lose_question(self, *, counted: bool) -> None:
        self.redis.hdel(ledger_keys.session(self.asker), f"question:{self.question}")
        if counted:
            self.redis.hincrby(ledger_keys.session(self.asker), "questions", -1)

    def count_one_more(self) -> None:
        """A parent that believes in a question of its own does not end with its last child."""
        self.redis.hincrby(ledger_keys.session(self.root), "questions", 1)
        self.rest()

    def lose_resume(self) -> None:
        dispatch = self.ledger.flush(self.root).dispatch
        self.redis.delete(ledger_keys.run(dispatch.run))

    def end_run_twice(self) -> None:
        """A session that has ended counts as busy with its last run."""
        self.rest()
        self.set(self.queued, "run", self.queued_run)

    def change_claim(self) -> None:
        poll = PollRequest(slot=Slot(name="s", worker="w", agents=("queued",)), claim=new_claim_id())
        self.ledger.claim_next(0, poll)
        assert poll.held is not None
        self.hset(ledger_keys.run(self.queued_run), "claim", new_claim_id())

    def notify_early(self, *, ended: bool) -> None:
        self.set(self.queued, "parent_notified", "1")
        if ended:
            self.rest()

    def lower_spending(self) -> None:
        """What `spend` has written, and less than that as the sum."""
        facts: dict[str, str | int] = {"limit:tokens": 99, "spent:tokens": 5, "by:lead:tokens": 9}
        self.redis.hset(ledger_keys.budget(self.root), mapping=facts)

    def change_chunk(self) -> None:
        (sha256,) = self.ledger.large_texts.digests(self.done)
        self.hset(ledger_keys.large_text(self.done, sha256), "0", b"another")

    def after(self, session: str, state: str) -> None:
        self.rest()
        self.set(session, "state", state)

    def damaged_chunk(self, *words: str) -> bool:
        """Whether the doctor names it."""
        return "[text-altered]" in self.orchestra("doctor", "--quick", *words).stdout


@pytest.fixture
def audited(kit: Kit) -> AuditWriter:
    """A writer that reads from before the first message."""
    writer = build_writer(kit.parts, consumer="w")
    writer.run_once()
    return writer


@pytest.fixture
def house(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.setattr(examination, "SECOND_LOOKS", (0.0,))
    for name, value in {"LEASE_S": "0.3", "HEARTBEAT_S": "0.05"}.items():
        monkeypatch.setenv(f"ORCHESTRA_{name}", value)
    return House(kit)


@dataclass(frozen=True)
class Damage:
    """One damage: what is done, what the doctor says, who fails by it, and what stays named."""

    do: Callable[[House], object]
    said: str
    fails: str = ""  #: which session
    why: str = ""
    left: bool = False  #: nobody can mend it, and it is named for good


DAMAGES = {
    "unreadable state": Damage(
        lambda h: h.hset(ledger_keys.bodies(h.asker), "state", "{x"),
        "its saved state is not JSON",
        "asker",
        "its saved state is not JSON",
    ),
    "unreadable waiting policy": Damage(
        lambda h: h.set(h.asker, "waiting", "{x"), "its field 'waiting'", "asker", "'waiting' cannot be read"
    ),
    "unreadable list of items": Damage(
        lambda h: h.hset(ledger_keys.run(h.payer_run), "items", "{x"),
        "[damaged]",
        "payer",
        "its field 'items'",
    ),
    "forged state": Damage(
        House.forge_state, "its saved state cannot be authenticated", "asker", "its saved state"
    ),
    "state without a proof": Damage(
        lambda h: h.hset(ledger_keys.bodies(h.asker), "state", '{"asked": 1}'),
        "its saved state cannot be authenticated",
        "asker",
        "signature-missing",
    ),
    "forged prompt": Damage(
        lambda h: h.hset(ledger_keys.bodies(h.queued), "prompt", "be another"),
        "its task cannot be authenticated",
        "queued",
        "its task cannot be authenticated",
    ),
    "forged step": Damage(
        lambda h: h.hset(h.retry_steps(), "p:pay#1", "6"), "step 'pay#1' of run_", "payer", "step 'pay#1'"
    ),
    "deleted step": Damage(
        lambda h: h.redis.hdel(h.retry_steps(), "h:pay#1", "p:pay#1"),
        "recorded 1 steps, and there are 0",
        "payer",
        "1 were recorded, and there are 0",
    ),
    "deleted steps": Damage(
        lambda h: h.redis.delete(h.retry_steps()),
        "recorded 1 steps, and there are 0",
        "payer",
        "1 were recorded",
    ),
    "a question too many": Damage(House.count_one_more, "says 1 questions are open"),
    "told too early": Damage(lambda h: h.notify_early(ended=False), "[told-too-early]"),
    "told too early, and ended": Damage(lambda h: h.notify_early(ended=True), "[callback-lost]"),
    "stop_pending of a parent": Damage(lambda h: h.set(h.root, "stop_pending", "1"), "[stop-lost]"),
    "stop_pending of a child": Damage(lambda h: h.set(h.asker, "stop_pending", "1"), "[stop-lost]"),
    "first run gone": Damage(lambda h: h.redis.delete(ledger_keys.run(h.queued_run)), "[busy-with-none]"),
    "retried run gone": Damage(lambda h: h.redis.delete(ledger_keys.run(h.payer_run)), "[busy-with-none]"),
    "resume gone": Damage(House.lose_resume, "[busy-with-none]"),
    "busy with an ended run": Damage(House.end_run_twice, "[busy-with-none]"),
    "asker forgets": Damage(lambda h: h.lose_question(counted=False), "[question-half]"),
    "asker forgets and counts": Damage(lambda h: h.lose_question(counted=True), "[question-half]"),
    "asked forgets": Damage(lambda h: h.redis.hdel(ledger_keys.items(h.root), h.question), "[question-lost]"),
    "claim": Damage(House.change_claim, "[claim-altered]"),
    "chunk of a large text": Damage(House.change_chunk, "cannot be had", left=True),
    "spending lowered": Damage(
        House.lower_spending, "says that 5 tokens were spent; its agents have spent 9"
    ),
    "finished child idle": Damage(lambda h: h.after(h.queued, "idle"), "[state-wrong]"),
    "finished child running": Damage(lambda h: h.after(h.queued, "running"), "[state-wrong]"),
    "finished child pending": Damage(lambda h: h.after(h.queued, "pending"), "[state-wrong]"),
    "finished root running": Damage(lambda h: h.after(h.root, "running"), "[state-wrong]"),
    "finished root idle": Damage(lambda h: h.after(h.root, "idle"), "[state-wrong]"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_damage_is_named_and_mended_or_ends_what_it_concerns(house: House, what: str) -> None:
    damage = DAMAGES[what]
    damage.do(house)
    found = house.orchestra("doctor", "--quick")
    assert damage.said in found.stdout, found.output
    assert found.exit_code == (1 if "BREAK" in found.stdout else 3), found.output
    house.orchestra("doctor", "--fix", "--quick")
    house.rest()
    tree = house.ledger.tree(house.root)
    ends = {member.title if member.parent else "lead": member for member in tree}
    assert {name: member.state for name, member in ends.items()} == {
        name: SessionState.FAILED if name == damage.fails else SessionState.FINISHED for name in ends
    }, [member.reason for member in tree]
    assert not [member.id for member in tree if member.busy]
    if damage.fails:
        assert damage.why in ends[damage.fails].reason
        last = house.ledger.runs(ends[damage.fails].id)[-1]
        assert (last.lost, last.attempt < 3) == (0, True), "another attempt would find the same"
    lead = ends["lead"]
    assert (lead.launched, lead.delivered, lead.pending, lead.dead) == (4, 4, 0, 0)
    assert house.paid == 1
    after = house.orchestra("doctor", "--quick")
    assert ("BREAK" in after.stdout) == damage.left, after.output


@pytest.mark.parametrize("what", ["changed", "gone"])
def test_a_large_text_is_restored_from_the_audit_trail(audited: AuditWriter, house: House, what: str) -> None:
    """By its digest; it lives as long as its session again."""
    while audited.run_once():
        pass
    (sha256,) = house.ledger.large_texts.digests(house.done)
    key = ledger_keys.large_text(house.done, sha256)
    house.change_chunk() if what == "changed" else house.redis.delete(key)
    assert house.damaged_chunk()
    assert not house.damaged_chunk("--fix")
    assert house.redis.ttl(key) == -1
    assert house.kit.answer(house.done) == LARGE


@pytest.mark.parametrize("large", [True, False])
def test_what_was_said_at_an_end_is_restored(audited: AuditWriter, house: House, large: bool) -> None:
    """It is kept once; its proof tells it from everything else that its message says."""
    child = house.done if large else house.queued
    if not large:
        house.kit.play(child)
    while audited.run_once():
        pass
    key, name = ledger_keys.bodies(child), callback_id(child)
    kept = house.redis.hgetall(key)
    house.redis.hdel(key, name)
    damaged = house.orchestra("doctor", "--quick").stdout
    assert "[text-lost]" in damaged
    assert "[result-gone]" in damaged
    fixed = house.orchestra("doctor", "--quick", "--fix").stdout
    assert "[text-lost]" not in fixed
    assert "[result-gone]" not in fixed
    assert house.redis.hgetall(key) == kept


def test_a_run_that_reads_an_altered_large_text_fails_at_once_and_says_which(kit: Kit) -> None:
    """Another attempt would read the same."""
    kit.agent("large")(lambda ctx: LARGE)

    @kit.agent("lead", role="coordinator", attempts=5)
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("large", "be large")
            return ""
        return str(len(ctx.callbacks[0].full()))

    root = kit.begin("lead", "go")
    (child,) = kit.children(root)
    kit.play(child.id)
    (sha256,) = kit.ledger.large_texts.digests(child.id)
    kit.redis.hset(ledger_keys.large_text(child.id, sha256), "0", b"another")
    assert kit.play(root) == "failed"
    ended = kit.ledger.session(root)
    assert ended.state == SessionState.FAILED
    assert f"the large text of {callback_id(child.id)} cannot be read" in ended.reason


def test_a_run_under_an_altered_claim_begins_anew_with_the_fix(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease is not waited for: nobody can end it under that claim."""
    monkeypatch.setenv("ORCHESTRA_LEASE_S", "60")
    house.change_claim()
    began = time.monotonic()
    house.orchestra("doctor", "--fix", "--quick")
    assert time.monotonic() - began < 20
    assert house.ledger.run(house.queued_run).state == RunState.QUEUED
    assert "[claim-altered]" not in house.orchestra("doctor", "--quick").stdout
    house.rest()
    assert house.ledger.session(house.root).state == SessionState.FINISHED
