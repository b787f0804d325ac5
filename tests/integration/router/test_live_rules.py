"""Layer 3, rule by rule: what the router refuses, `orchestra message validate --online` foretells, and changes nothing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from orchestrator.agents.registry import AgentRecord
from orchestrator.envelope import schemas
from orchestrator.envelope.bodies import Message, StatusUpdate, TaskCompletion
from orchestrator.envelope.model import Body, RetryPolicy
from orchestrator.envelope.model_values import Timestamp
from orchestrator.envelope.opaque import CompressedBody
from orchestrator.envelope.signature import RULES as SIGNATURE_RULES
from orchestrator.envelope.signature import Signer, sign_message
from orchestrator.envelope.validate import check
from orchestrator.ids import new_message_id, root_session_id
from orchestrator.keyring.store import KeyStore
from orchestrator.redisdb import keys
from orchestrator.router.validation.validator import RULES, Validator
from tests.clock import Ahead, At
from tests.commands import run_command
from tests.integration.router.conftest import ONCE, rounds, task, unsigned
from tests.kit import Kit

UPDATE = StatusUpdate(task_id="task-1", status="in-progress", progress_percentage=40)
HELLO = Message(content="hello")
PAST = Timestamp("2020-01-01T00:00:00Z")
LATER = Timestamp("2020-01-02T00:00:00Z")

#: Rules that are about streams, time and other messages rather than about one message: where they are shown.
ELSEWHERE = {
    "no-envelope": "router/test_live_rules.py::test_an_entry_without_an_envelope_is_a_dead_letter",
    "stream-mismatch": "router/test_routing.py::test_what_cannot_be_accepted_is_a_dead_letter_with_its_rule",
    "outbox-sender": "router/test_boxes.py::test_only_its_own_messages_are_accepted_from_an_outbox",
    "shard": "router/test_routing.py::test_a_message_begins_one_session_however_many_shards_it_is_put_into",
    "dependency-cycle": "router/test_dependencies.py::test_a_circle_is_refused_at_once",
    "dependency-failed": "router/test_dependencies.py::test_a_failed_dependency_fails_the_task",
    "dependency-outside": "router/test_dependencies.py::test_a_task_does_not_wait_for_a_session_of_another_tree",
    "timeout": "router/test_retries.py::test_what_no_router_took_in_time_is_given_up_as_timed_out",
    "poison": "router/test_routing.py::test_an_entry_that_kills_each_router_alone_ends_as_a_dead_letter",
    "internal-error": "router/test_live_rules.py::test_what_a_router_stumbles_over_is_a_dead_letter",
}
#: Shapes that layers 1 and 2 refuse first; the signature's own tests show them.
UNREACHABLE = {"signature-root", "signature-position", "signature-malformed", "signature-sender"}


def signed_by(kit: Kit, signer: Signer, *, at_ms: int | None = None, **header: Any) -> bytes:
    """An update of `lead` under any signature."""
    message = check(kit.envelope(UPDATE, retry=ONCE, **header)).message
    assert message is not None
    now_ms = kit.now_ms if at_ms is None else at_ms
    return sign_message(message, signer, now_ms=now_ms)


def stranger(kit: Kit) -> KeyStore:
    """The keys of a host that has nothing to do with this stack."""
    return KeyStore(kit.settings.data / "stranger", "Ed25519")


def not_certified(kit: Kit) -> bytes:
    store = stranger(kit)
    signer = store.signer("lead")
    certificate = store.certificate(signer.key_id)
    kit.redis.hset(keys.public_keys(), signer.key_id, certificate.pem)
    return signed_by(kit, signer)


def another_owner(kit: Kit) -> bytes:
    theirs = kit.parts.keyring.signer("partner")
    return signed_by(kit, dataclasses.replace(theirs, agent="lead"))


def revoked(kit: Kit) -> bytes:
    data = kit.envelope(UPDATE, retry=ONCE)
    kit.parts.keyring.registry.revoke(kit.parts.keyring.signer("lead").key_id)
    return data


def rotated(kit: Kit) -> bytes:
    ring = kit.parts.keyring
    old = ring.signer("lead")
    ring.store.rotate("lead", overlap_s=0)
    ring.registry.register_all()
    return signed_by(kit, old, at_ms=kit.now_ms + 60_000)


def seen(kit: Kit) -> bytes:
    data = kit.post(UPDATE)
    assert kit.route("before").done == 1
    return data


def id_used_before(kit: Kit) -> bytes:
    header = check(seen(kit)).message
    return kit.envelope(StatusUpdate(task_id="other", status="blocked"), message_id=header.header.message_id)


def taken_task(kit: Kit) -> bytes:
    return kit.envelope(task(), **begun(kit, "reviewer"))


def session_of_others(kit: Kit) -> bytes:
    session = kit.send(agent="reviewer")
    return kit.envelope(task(session), sender="partner", recipient="reviewer")


def begun(kit: Kit, recipient: str) -> dict[str, Any]:
    """The header of what the partner says to the session that it has begun."""
    first, conversation = new_message_id(), new_message_id()
    about: dict[str, Any] = {"sender": "partner", "recipient": recipient, "correlation": conversation}
    kit.post(task(), message_id=first, **about)
    assert kit.route("before").done == 1
    return {**about, "chain": (first,), "retry": ONCE}


def by_a_stranger(kit: Kit, body: Body) -> bytes:
    """What a program that was told nothing says in the conversation of another."""
    about = begun(kit, "reviewer")
    kit.parts.agents.announce([AgentRecord(name="stranger", role="coordinator", executor="foreign")])
    return kit.envelope(body, **{**about, "sender": "stranger"})


def to_one_that_is_stopped(kit: Kit) -> bytes:
    about = begun(kit, "lead")
    (session,) = kit.ledger.roots(0)
    kit.ledger.stop(session.id, "by its user", force=True)
    return kit.envelope(HELLO, **about)


def report_of(kit: Kit, session: str) -> bytes:
    done = TaskCompletion(task_id=session, status="success", summary="done", result="done")
    return kit.envelope(done, sender="partner", recipient="operator", retry=ONCE)


def before_it_began(kit: Kit) -> bytes:
    session = kit.send(agent="partner")
    assert kit.redis.xtrim(keys.messages(0, "task-delegation", "high"), maxlen=0) == 1
    return report_of(kit, session)


def for_a_worker_of_ours(kit: Kit) -> bytes:
    session = kit.send(agent="partner")
    kit.parts.agents.announce([AgentRecord(name="partner", role="coordinator")])
    assert kit.route("before").done == 1
    kit.claim(session)
    kit.parts.agents.announce([AgentRecord(name="partner", role="coordinator", executor="foreign")])
    return report_of(kit, session)


def another_chain(kit: Kit) -> bytes:
    conversation = new_message_id()
    kit.post(HELLO, correlation=conversation)
    assert kit.route("before").done == 1
    return kit.envelope(HELLO, correlation=conversation, chain=(new_message_id(),))


def unreadable(kit: Kit) -> bytes:
    body = CompressedBody(type="task-delegation", size=3, sha256="0" * 64, content="AAAA")
    return kit.envelope(body, sender="partner", recipient="reviewer")


def lead(body: Body, **header: Any) -> Callable[[Kit], bytes]:
    return lambda kit: kit.envelope(body, **{"retry": ONCE, **header})


#: Case → rule and the message that breaks it.
CASES: dict[str, tuple[str, Callable[[Kit], bytes]]] = {
    "unsigned": ("signature-missing", lambda kit: unsigned(kit, UPDATE)),
    "changed": ("signature-invalid", lambda kit: kit.envelope(UPDATE).replace(b">40<", b">90<")),
    "algorithm": (
        "signature-algorithm",
        lambda kit: kit.envelope(UPDATE).replace(b">Ed25519<", b">RSA-SHA256<"),
    ),
    "key unknown": ("key-unknown", lambda kit: signed_by(kit, stranger(kit).signer("lead"))),
    "key not certified": ("key-not-certified", not_certified),
    "key of another": ("key-owner", another_owner),
    "signer is not the sender": ("signer-sender", lead(UPDATE, signer="partner")),
    "key revoked": ("key-revoked", revoked),
    "key retired": ("key-retired", rotated),
    "key too young": (
        "key-too-young",
        lambda kit: signed_by(
            kit, dataclasses.replace(kit.parts.keyring.signer("lead"), created_ms=0), at_ms=1
        ),
    ),
    "expired": ("expired", lead(UPDATE, timestamp=PAST, expiration=LATER)),
    "old": ("too-old", lead(UPDATE, timestamp=PAST)),
    "future": ("from-the-future", lead(UPDATE, timestamp=Timestamp("2100-01-01T00:00:00Z"))),
    "sender not registered": ("sender-unknown", lead(UPDATE, sender="nobody")),
    "role not its own": ("sender-role", lead(UPDATE, role="orchestrator")),
    "recipient not registered": ("recipient-unknown", lead(UPDATE, recipient="nobody")),
    "upwards": ("unauthorised", lead(task(), sender="reviewer", recipient="lead")),
    "too many attempts": (
        "retry-limit",
        lead(UPDATE, retry=RetryPolicy(max_attempts=101, backoff_strategy="linear", timeout_seconds=1)),
    ),
    "seen before": ("duplicate", seen),
    "an id that its sender has used": ("message-id", id_used_before),
    "chain of another conversation": ("conversation-chain", another_chain),
    "chain without a conversation": ("conversation-chain", lead(HELLO, chain=(new_message_id(),))),
    "chain too long": (
        "conversation-limit",
        lead(HELLO, correlation=new_message_id(), chain=tuple(new_message_id() for _ in range(1001))),
    ),
    "task-id of another delegation": ("task-id", taken_task),
    "task-id of a session": ("task-id", session_of_others),
    "task of no session": ("session-unknown", lead(UPDATE, sender="partner", recipient="lead")),
    "session that is not there": (
        "session-unknown",
        lead(task(root_session_id("never submitted")), recipient="reviewer"),
    ),
    "nobody to speak to": ("recipient-session", lead(HELLO, sender="partner", recipient="lead")),
    "word of a stranger": ("conversation-party", lambda kit: by_a_stranger(kit, HELLO)),
    "work of a stranger": ("conversation-party", lambda kit: by_a_stranger(kit, task("T-2"))),
    "work after a message that nobody knows": (
        "conversation-chain",
        lead(
            task(),
            sender="partner",
            recipient="reviewer",
            correlation=new_message_id(),
            chain=(new_message_id(),),
        ),
    ),
    "to a session that is stopped": ("session-over", to_one_that_is_stopped),
    "the end of a task that has not begun": ("session-pending", before_it_began),
    "the end of a task that a worker of ours has": ("unauthorised", for_a_worker_of_ours),
    "payload broken": ("payload", unreadable),
}


def validate(kit: Kit, data: bytes, **options: Any) -> tuple[int, dict[str, Any]]:
    """`orchestra message validate --online --json -`: its exit code, and what it says of the message."""
    done = kit.orchestra("message", "validate", "--online", "--json", "-", stdin=data, **options)
    (row,) = json.loads(done.stdout)["documents"]
    return done.exit_code, row


def refused(kit: Kit, data: bytes) -> list[str]:
    """The rules under which a router gives the message up, however often it has to look."""
    message = check(data).message
    row = kit.parts.routing[message.body.type]
    kit.publish(data, message.body.type, message.header.priority or row.priority)
    now_ms = kit.now_ms
    for number in range(5):
        at = At(now_ms + number * 20_000)
        duplicates = kit.route(f"r{number}", clock=at, jitter=lambda: 0.0).duplicates
        if kit.dead() or duplicates:
            return [*(["duplicate"] * duplicates), *(letter.rule for letter in kit.dead())]
        kit.wake()
    raise AssertionError("the message was not refused")


def snapshot(kit: Kit) -> dict[bytes, Any]:
    """All of the server; a hash without its order, which reading may change."""
    redis = kit.redis
    return {
        name: redis.hgetall(name) if redis.type(name) == b"hash" else redis.dump(name)
        for name in redis.scan_iter()
    }


@pytest.mark.parametrize("case", CASES)
def test_what_the_router_refuses_is_foretold_with_rule_place_and_advice(kit: Kit, case: str) -> None:
    """The same rule from both, nothing changed by asking."""
    rule, build = CASES[case]
    data = build(kit)
    before = snapshot(kit)
    code, row = validate(kit, data)
    assert snapshot(kit) == before
    errors = {error["rule"]: error for error in row["findings"] if error["severity"] == "error"}
    assert (code, row["valid"]) == (1, False)
    assert rule in errors
    assert {"line", "path", "value", "message"} <= errors[rule].keys()
    assert errors[rule]["path"].startswith("/agent-message")
    assert len(errors[rule]["message"]) > 20
    assert refused(kit, data) == [rule]


def test_every_rule_of_the_table_is_shown(root: Path) -> None:
    """A rule that is added brings its case along."""
    shown = {rule for rule, _ in CASES.values()} | ELSEWHERE.keys() | UNREACHABLE
    assert shown == RULES.keys() | SIGNATURE_RULES.keys()
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        assert f"def {name}(" in (root / "tests" / "integration" / file).read_text()


def test_every_rule_of_the_table_is_in_the_documentation(root: Path) -> None:
    """`docs/protocol.md` names all of layer 3."""
    page = (root / "docs" / "protocol.md").read_text()
    assert [rule for rule in (*RULES, *SIGNATURE_RULES) if f"| `{rule}` |" not in page] == []


def test_a_message_that_would_be_accepted_is_valid(kit: Kit) -> None:
    """A task of our own, one of an external program, what that says to its session and of its own, and a report."""
    about = begun(kit, "lead")
    session = kit.send(agent="partner")
    assert kit.route("before").done == 1
    report = report_of(kit, session)
    hello = kit.envelope(HELLO, **about)
    how_far = StatusUpdate(task_id=session, status="in-progress", progress_percentage=40)
    kit.send("another", agent="reviewer")
    ours = kit.published("task-delegation")[-1]
    theirs = kit.envelope(task(), sender="partner", recipient="reviewer")
    said = [
        (theirs, "task-delegation", "high"),
        (hello, "message", "normal"),
        (kit.envelope(how_far, sender="partner", recipient="operator"), "status-update", "low"),
        (report, "task-completion", "high"),
        (kit.envelope(UPDATE), "status-update", "low"),
    ]
    for data in (ours, *(one for one, *_ in said)):
        before = snapshot(kit)
        code, row = validate(kit, data)
        assert (code, row["findings"]) == (0, [])
        assert snapshot(kit) == before
    for data, kind, priority in said:
        kit.publish(data, kind, priority)
    assert (rounds(kit.router(), 3), kit.dead()) == (6, [])


def test_a_redelivery_is_a_duplicate_and_no_second_task(kit: Kit) -> None:
    """The task-id of a message belongs to that message, however often it comes."""
    data = kit.post(task(), sender="partner", recipient="reviewer")
    kit.publish(data, "task-delegation", "high")
    handled = kit.route()
    assert (handled.done, handled.duplicates, kit.dead()) == (1, 1, [])
    _, row = validate(kit, data)
    assert [error["rule"] for error in row["findings"]] == ["duplicate"]


def test_warnings_and_infos_do_not_refuse(kit: Kit) -> None:
    """What is seldom wise is said and done."""
    often = RetryPolicy(max_attempts=20, backoff_strategy="exponential", timeout_seconds=60)
    data = kit.envelope(UPDATE, retry=often)
    code, row = validate(kit, data)
    assert (code, row["valid"]) == (0, True)
    assert {error["severity"] for error in row["findings"]} == {"warning"}
    kit.publish(data, "status-update")
    assert kit.route().done == 1


def test_where_signatures_are_optional_an_unsigned_message_is_valid(kit: Kit) -> None:
    """The setting holds for both; what is signed is still verified."""
    options = {"ORCHESTRA_SIGNATURES_REQUIRED": "false"}
    lax = kit.beside(signatures_required=False)
    nameless = unsigned(kit, UPDATE)
    code, row = validate(kit, nameless, env=options)
    assert (code, row["valid"]) == (0, True)
    assert [(error["rule"], error["severity"]) for error in row["findings"]] == [
        ("signature-missing", "info")
    ]
    kit.publish(nameless, "status-update")
    assert lax.route().done == 1
    changed = CASES["changed"][1](kit)
    assert validate(kit, changed, env=options)[0] == 1
    assert refused(lax, changed) == ["signature-invalid"]


def test_without_a_stack_there_is_one_line_that_says_so(tmp_path: Path) -> None:
    """And the exit code is not 0."""
    (tmp_path / "m.xml").write_bytes(schemas.read("templates/query.xml"))
    result = run_command("message", "validate", "--online", str(tmp_path / "m.xml"), "--data", str(tmp_path))
    assert result.exit_code == 4
    assert "no stack is running" in result.stderr


def test_an_entry_without_an_envelope_is_a_dead_letter(kit: Kit) -> None:
    """Nothing but the field `envelope` is read."""
    kit.route("before")
    kit.redis.xadd(keys.messages(0, "message", "normal"), {"xml": "<agent-message/>"})
    assert kit.route().dead == 1
    assert [letter.rule for letter in kit.dead()] == ["no-envelope"]


def test_what_a_router_stumbles_over_is_a_dead_letter(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a message does to the code, it ends as a dead letter and the loop goes on."""
    kit.post(UPDATE)
    kit.post(HELLO)

    def stumble(self: Validator, message: Any, **_: Any) -> Any:
        if message.body.type == "status-update":
            raise ZeroDivisionError("oops")
        return iter(())

    monkeypatch.setattr(Validator, "faults", stumble)
    handled = kit.route()
    assert (handled.done, handled.dead, kit.pending()) == (1, 1, 0)
    assert [letter.rule for letter in kit.dead()] == ["internal-error"]


@pytest.mark.parametrize(
    "refusal", ["BUSY Redis is busy running a script.", "NOPERM this user has no permissions"]
)
def test_what_the_server_refuses_to_everybody_is_no_fault_of_the_message(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    """Somebody's script runs for seconds while a signer's key is looked up: the message is routed afterwards."""
    kit.post(Message(content="x"))

    def refuse(*_: object, **__: object) -> None:
        error = (
            redis_py.exceptions.NoPermissionError if refusal.startswith("NOPERM") else redis_py.ResponseError
        )
        raise error(refusal)

    with monkeypatch.context() as refusing:
        refusing.setattr(Validator, "digest", refuse)
        with pytest.raises(redis_py.ResponseError):
            kit.route()
    assert kit.route("r2", reclaim_idle_ms=0).done == 1
    assert kit.dead() == []


@pytest.mark.parametrize("minutes", [10, 600])
def test_a_clock_that_is_set_back_fails_nothing(kit: Kit, minutes: int) -> None:
    """Neither what was said before, which is dated ahead now, nor what is signed after with keys that are younger."""
    clock = Ahead(kit.redis)
    before = kit.send()
    clock.skip(-minutes * 60_000)
    router = kit.router(clock=clock)
    assert router.run_once().done == 1
    assert kit.ledger.session(before).run
    message = check(kit.envelope(UPDATE, sender="lead", timestamp=Timestamp.from_ms(clock.now_ms()))).message
    assert message is not None
    kit.publish(
        sign_message(message, kit.parts.keyring.signer("lead"), now_ms=clock.now_ms()), "status-update"
    )
    router.run_once()
    assert kit.dead() == []
    # A copy is known for one as long as it may be accepted.
    sent = kit.ledger.session(before).message.lower()
    mark = keys.seen(0, "operator", sent)
    assert kit.redis.pttl(mark) > kit.settings.message_max_age_s * 1000 + (minutes - 1) * 60_000
