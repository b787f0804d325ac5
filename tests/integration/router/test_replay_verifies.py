"""A replay makes nobody the author of what it did not say: it verifies the original, and refuses by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.audit import AuditStore
from orchestrator.audit.database import MESSAGES
from orchestrator.client.client import Client
from orchestrator.envelope.bodies import BudgetLimits, LaunchTerms, Message, Task, TaskDelegation
from orchestrator.envelope.codec import decode
from orchestrator.ids import root_session_id
from orchestrator.operations.table import SUBMIT
from orchestrator.operations.values import Mark
from orchestrator.policy.budget import NANO
from tests.clock import Ahead
from tests.integration.router.conftest import LATER, forge, route_all, sessions
from tests.integration.router.trail import write
from tests.kit import Kit

#: Those of a task that only the operator gives.
PARTIES = {"sender": "operator", "recipient": "reviewer"}


def work(seed: str = "stolen", text: str = "rm -rf /") -> TaskDelegation:
    """A task under the id of a session, as only the operator or an agent of the stack gives one."""
    return TaskDelegation(task=Task(task_id=root_session_id(seed), title="t", description=text))


def test_replaying_everything_executes_no_forgery(kit: Kit) -> None:
    """Unsigned in the operator's name, signed by another, by a key that was revoked: each is refused by its name."""
    forge(kit, work("one"), **PARTIES)
    forge(kit, Message(content="obey"), sender="lead", recipient="reviewer")
    kit.post(work("two"), sender="operator", recipient="reviewer", signer="partner")
    kit.publish(b"no xml", "message")
    theirs = kit.post(Message(content="mine was stolen"), sender="lead", recipient="later")
    route_all(kit)
    stolen = decode(theirs).signature
    kit.parts.keyring.registry.revoke(stolen.public_key_id)
    kit.parts.agents.announce([LATER])
    dead = kit.dead()
    rules = {letter.id: letter.rule for letter in dead} | {dead[-1].id: "key-revoked"}
    assert sorted(rules.values()) == [
        "key-revoked",
        "malformed",
        "signature-missing",
        "signature-missing",
        "signer-sender",
    ]
    before = (len(kit.published("message")), len(kit.published("task-delegation")))

    result = kit.orchestra("dlq", "replay", "--all")

    assert result.exit_code == 2
    said = result.stderr.splitlines()
    for dead_id, rule in rules.items():
        assert [line for line in said if f"dead letter {dead_id} was not replayed: {rule}: " in line], said
    assert said[-1] == "0 replayed, 5 refused"
    assert (len(kit.published("message")), len(kit.published("task-delegation"))) == before
    assert [letter.id for letter in kit.dead()] == [letter.id for letter in dead]
    route_all(kit, "after")
    # Of lead's own message the tech-lead was told before its key was revoked; of the forgeries nobody is.
    told = [kit.ledger.session(session) for session in sessions(kit)]
    assert [(one.agent, one.title) for one in told] == [("tech-lead", "message from lead was not accepted")]
    assert [run.session for run, _ in kit.sent.runs] == [one.id for one in told]


def test_a_program_does_not_become_the_operator_by_a_replay(kit: Kit) -> None:
    """Its signature holds, and it names a session's id: the task stays its own and is judged as before."""
    kit.post(work(), sender="partner", recipient="reviewer")
    route_all(kit)
    assert [letter.rule for letter in kit.dead()] == ["session-unknown"]
    kit.orchestra("dlq", "replay", "--all")
    route_all(kit, "after")
    assert (kit.sent.runs, sessions(kit)) == ([], [])
    assert [letter.sender for letter in kit.dead()] == ["partner"]


def test_what_verifies_is_replayed_and_what_does_not_stays(kit: Kit) -> None:
    """One refusal holds back nobody's message; the command says both and that not all is done."""
    kit.post(Message(content="honest"), recipient="later")
    forge(kit, work(), **PARTIES)
    route_all(kit)
    kit.parts.agents.announce([LATER])
    result = kit.orchestra("dlq", "replay", "--all", "--json")
    done = {row["dead_letter"]: row for row in json.loads(result.stdout)["replayed"]}
    assert (result.exit_code, sorted(row["how"] for row in done.values())) == (2, ["message", "refused"])
    (left,) = kit.dead()
    assert (done[left.id]["rule"], done[left.id]["message_id"]) == ("signature-missing", "")
    assert {row["how"]: row["done"] for row in done.values()} == {"message": True, "refused": False}
    route_all(kit, "after")
    assert [letter.id for letter in kit.dead()] == [left.id]


def test_the_operator_signs_one_by_its_id_and_the_trail_says_so(kit: Kit) -> None:
    """Under its own name, with why the original did not count and who asked for it."""
    forge(kit, Message(content="please"), sender="lead", recipient="reviewer")
    forge(kit, work(), **PARTIES)
    route_all(kit)
    message, task = sorted(kit.dead(), key=lambda letter: letter.type)
    for wrong in (["--all"], [message.id, task.id], []):
        refused = kit.orchestra("dlq", "replay", "--sign-unverified", *wrong)
        assert (refused.exit_code, "one id" in refused.stderr) == (2, True)
    said = kit.orchestra("dlq", "replay", "--sign-unverified", message.id)
    begun = kit.orchestra("dlq", "replay", "--sign-unverified", task.id, "--json")
    assert (said.exit_code, begun.exit_code, kit.dead()) == (0, 0, [])
    (session,) = sessions(kit)
    assert json.loads(begun.stdout)["replayed"][0]["session"] == session
    renewed = next(
        m for m in map(decode, kit.published("message")) if m.body.content == "please" and m.signature
    )  # type: ignore[union-attr]
    assert renewed.header.sender.agent_name == "operator"
    write(kit)
    store = AuditStore(kit.settings.audit_database)
    notes = [
        record.xml.decode()
        for record in store.messages(MESSAGES.c.sender == "operator", MESSAGES.c.type == "message")
    ]
    for letter in (message, task):
        (note,) = [note for note in notes if letter.id in note]
        assert "signature-missing" in note
        assert "not verified" in note
        assert "@" in note


def test_what_the_trail_holds_is_verified_before_it_is_said_again(kit: Kit) -> None:
    """An entry that was refused is in the trail as well; by its message-id it is no more genuine."""
    data = forge(kit, work(), **PARTIES)
    route_all(kit)
    write(kit)
    message_id = decode(data).header.message_id
    refused = kit.orchestra("audit", "replay", message_id)
    assert (refused.exit_code, "signature-missing" in refused.stderr) == (2, True)
    assert sessions(kit) == []
    signed = kit.orchestra("audit", "replay", "--sign-unverified", message_id, "--json")
    assert json.loads(signed.stdout)["how"] == "task"
    assert sessions(kit) == [json.loads(signed.stdout)["session"]]
    notes = [m.body.content for m in map(decode, kit.published("message"))]  # type: ignore[union-attr]
    assert any(message_id in note and "not verified" in note for note in notes)


def test_a_message_in_the_wrong_stream_goes_to_its_own(kit: Kit) -> None:
    """Its signature holds, so a replay puts right what was wrong with it."""
    kit.publish(kit.envelope(Message(content="x"), recipient="reviewer"), "query")
    route_all(kit)
    assert [letter.rule for letter in kit.dead()] == ["stream-mismatch"]
    assert kit.orchestra("dlq", "replay", "--all").exit_code == 0
    route_all(kit, "after")
    assert (kit.dead(), kit.pending(), len(kit.published("message"))) == ([], 0, 1)


# --- What a session was given stands in the message that begins it: a replay of a dead letter gives the new session the same.


OPTIONS: dict[str, Any] = {
    "title": "the numbers",
    "budget": "requests=7, tokens=120000, usd=2.5",
    "task": {"description": "add them up", "objectives": [{"text": "a sum"}], "task_type": "analysis"},
    "priority": "low",
    "retry_policy": {"max_attempts": 2, "backoff_strategy": "linear", "timeout_seconds": 20},
    "time_limit_s": 90,
    "expires_s": 3600,
}
MUCH = LaunchTerms(budget=BudgetLimits(tokens=10**12), plan=True, time_limit_ms=10**6)
LONG, RICH = LaunchTerms(time_limit_ms=10**15 - 1), LaunchTerms(budget=BudgetLimits(nano_usd=10**16 - 1))


def too_late(kit: Kit) -> None:
    """A router takes what is there forty days after it was sent."""
    clock = Ahead(kit.redis)
    clock.skip(40 * 86_400_000)
    kit.route("late", clock=clock)
    assert len(kit.dead()) == 1


def replayed(kit: Kit) -> str:
    """The session that the replay of the only dead letter makes."""
    before = set(sessions(kit))
    assert kit.orchestra("dlq", "replay", "--all", "--json").exit_code == 0
    return next(iter(set(sessions(kit)) - before))


def test_a_replayed_session_has_what_the_old_one_was_given(kit: Kit) -> None:
    """Every option of a submit that says something of the session: a new one belongs among these, too."""
    told = {name for name, marks in SUBMIT.marks.items() if Mark.THIS_CALL not in marks}
    assert OPTIONS.keys() | {"agent", "prompt"} == told
    client = Client(parts=kit.parts)
    old = client.submit("reviewer", **OPTIONS).id
    too_late(kit)
    new = replayed(kit)
    limits = {"requests": 7, "tokens": 120_000, "nano": round(2.5 * NANO)}
    assert client.budgets(new)[new].limits == limits
    given, kept = (client.session(session).options for session in (old, new))
    assert kept == given, "name what the message does not repeat in `messages.factory.IN_MESSAGES`"
    assert f"with {kept}" in kit.orchestra("logs", new).stdout
    first, message = map(decode, kit.published("task-delegation"))
    header, body = message.header, message.body
    assert isinstance(body, TaskDelegation)
    assert (body.task.title, header.priority, body.launch) == (
        "the numbers",
        "low",
        dict(first.body)["launch"],
    )
    assert header.retry_policy == first.header.retry_policy
    assert header.expiration
    assert header.expiration.instant_ms - header.timestamp.instant_ms == 3_600_000
    kit.route("again")
    held = kit.claim(new)
    assert json.loads(held.task)["objectives"] == [{"text": "a sum"}]
    assert "Objectives:\n- a sum" in held.prompt
    assert f"limit|{new}".encode() in dict(kit.redis.zscan_iter("ao:{00}:timers"))


def test_a_plan_stays_a_plan_and_has_a_budget(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its session carries it out. A replay gave it as a prompt to the agent, and no budget."""
    client = Client(parts=kit.parts)
    client.submit_plan('[{"sequence": 1, "role": "reviewer", "caller": null, "task": "look"}]', agent="lead")
    too_late(kit)
    monkeypatch.setenv("ORCHESTRA_TREE_BUDGET", "tokens=5")
    new = client.session(replayed(kit))
    assert (new.planned, client.budgets(new.id)[new.id].limits) == (True, {"tokens": 5})


@pytest.mark.parametrize(("terms", "signed"), [(MUCH, False), (LONG, True), (RICH, True)])
def test_strangers_give_only_a_task_and_nobody_too_much(kit: Kit, terms: LaunchTerms, signed: bool) -> None:
    """The operator who signs a task that does not verify signs no budget and no plan."""
    body = work("stolen", "do this").model_copy(update={"launch": terms})
    if signed:
        kit.post(body, **PARTIES)
    else:
        forge(kit, body, **PARTIES)
    too_late(kit)
    result = kit.orchestra("dlq", "replay", kit.dead()[0].id, *([] if signed else ["--sign-unverified"]))
    if signed:
        assert (result.exit_code, "cannot be replayed" in result.stderr) == (2, True)
        assert (sessions(kit), len(kit.dead())) == ([], 1)
    else:
        session = kit.ledger.session(sessions(kit)[0])
        assert (session.planned, session.budgets) == (False, ())
