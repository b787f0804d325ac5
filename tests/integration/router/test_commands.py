"""The commands around messages: dlq, send, agents; as a user types them."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from orchestrator.envelope.bodies import (
    ErrorReport,
    Message,
    Reply,
    StatusUpdate,
    TaskCompletion,
)
from orchestrator.envelope.validate import check
from orchestrator.errors import StreamFull
from orchestrator.ids import new_message_id
from orchestrator.ledger import SessionState
from orchestrator.redisdb import keys, ledger_keys
from orchestrator.router.deadletters.replay import Replays
from orchestrator.streams import StreamId
from orchestrator.streams.pressure import Backpressure
from tests.integration.router.conftest import LATER, route_until_dead, task, unsigned
from tests.integration.router.trail import write
from tests.kit import Kit

STREAM = StreamId(0, "task-delegation", "high")


def kill(kit: Kit, **options: object) -> str:
    """Make a message a dead letter; its message-id."""
    message_id = new_message_id()
    kit.post(Message(content="hello"), recipient="later", message_id=message_id, **options)
    route_until_dead(kit)
    return message_id


def test_dead_letters_are_listed_and_shown(kit: Kit) -> None:
    """With reason, rule, attempts and the original bytes; narrowed by type, agent and time."""
    message_id = kill(kit)
    (listed,) = kit.document("dlq", "list")["dead_letters"]
    assert (listed["message_id"], listed["rule"], listed["attempts"]) == (message_id, "recipient-unknown", 2)
    assert "lead → later" in kit.orchestra("dlq", "list", "--type", "message", "--agent", "later").output
    assert kit.document("dlq", "list", "--type", "query") == {"dead_letters": []}
    assert kit.document("dlq", "list", "--since", "2100-01-01T00:00:00Z") == {"dead_letters": []}
    shown = kit.document("dlq", "show", listed["dead_letter"])
    assert message_id in shown["envelope"]
    said = kit.orchestra("dlq", "show", listed["dead_letter"]).output
    assert f"at             {shown['at']}\n" in said
    assert "at_ms" not in said
    assert kit.orchestra("dlq", "show", "00-1-1").exit_code == 2


def test_a_replay_is_a_new_message_that_names_the_old_one(kit: Kit) -> None:
    """After the fix it goes through, once."""
    old = kill(kit)
    kit.parts.agents.announce([LATER])
    (replayed,) = kit.document("dlq", "replay", "--all")["replayed"]
    assert replayed["how"] == "message"
    kit.route("two")
    assert (kit.dead(), kit.pending()) == ([], 0)
    message = check(kit.published("message")[-1]).message
    assert (message.header.message_id, message.header.conversation_chain) == (replayed["message_id"], (old,))
    assert message.header.correlation_id == old
    assert kit.document("dlq", "replay", "--all") == {"replayed": []}


def test_what_cannot_be_read_is_not_replayed(kit: Kit) -> None:
    """The same bytes would die again; it stays, and can be dropped."""
    kit.publish(b"no xml", "message")
    kit.route()
    dead_id = kit.dead()[0].id
    refused = kit.orchestra("dlq", "replay", dead_id)
    assert (refused.exit_code, refused.stderr.splitlines()[-1]) == (2, "0 replayed, 1 refused")
    assert f"dead letter {dead_id} was not replayed: malformed: " in refused.stderr
    assert [letter.id for letter in kit.dead()] == [dead_id]
    assert kit.orchestra("dlq", "drop", dead_id).exit_code == 0


def test_a_failed_task_is_replayed_as_a_session_of_its_own(kit: Kit) -> None:
    """Its parent was told of the failure and is told nothing twice."""
    session = kit.send(agent="later")
    route_until_dead(kit)
    assert kit.ledger.session(session).state == SessionState.FAILED
    kit.parts.agents.announce([LATER])
    (letter,) = kit.dead()
    (replayed,) = kit.document("dlq", "replay", "--all")["replayed"]
    kit.route("two")
    again = kit.ledger.session(replayed["session"])
    assert (replayed["how"], again.busy, again.agent) == ("task", True, "later")
    assert Replays(kit.parts).replay(letter) is None


def test_a_task_that_another_operator_drops_first_is_not_begun(kit: Kit) -> None:
    """A replay of all takes them one after the other: each may be gone by then."""
    kit.send(agent="later")
    route_until_dead(kit)
    kit.parts.agents.announce([LATER])
    (letter,) = kit.dead()
    roots = list(kit.ledger.all_roots(0))
    replays = Replays(kit.parts)
    assert replays.drop(letter)
    assert replays.replay(letter) is None
    assert list(kit.ledger.all_roots(0)) == roots


def test_dropping_is_kept_in_the_audit_trail(kit: Kit) -> None:
    """The dead letter is gone; a message says who dropped it and why it had died."""
    kill(kit)
    dead_id = kit.dead()[0].id
    assert kit.orchestra("dlq", "drop").exit_code == 2
    assert kit.document("dlq", "drop", dead_id) == {"dropped": [dead_id]}
    assert kit.orchestra("dlq", "drop", "--all").output == "no such dead letters; nothing was dropped\n"
    assert kit.dead() == []
    note = check(kit.published("message")[-1]).message
    assert note.header.sender.agent_name == "operator"
    assert f"dead letter {dead_id} was dropped" in note.body.content
    assert kit.route("two").done >= 1
    assert kit.orchestra("dlq", "drop", dead_id).exit_code == 2


def test_an_envelope_is_sent_from_a_file_or_standard_input(kit: Kit, tmp_path: Path) -> None:
    """It goes to the stream of its type, at its priority or the table's; signed by us if wanted."""
    signed = tmp_path / "update.xml"
    signed.write_bytes(kit.envelope(StatusUpdate(task_id="t", status="in-progress")))
    facts = kit.document("message", "send", str(signed))
    assert facts["stream"] == "00/status-update/normal"
    bare = unsigned(kit, Message(content="x"), priority="low")
    sent = kit.document("message", "send", "-", "--sign", "lead", stdin=bare)
    assert sent["stream"] == "00/message/low"
    handled = kit.route()
    assert (handled.done, handled.dead, handled.parked) == (2, 0, 0), kit.dead()


def test_what_is_signed_by_another_than_the_sender_is_not_sent(kit: Kit, tmp_path: Path) -> None:
    """The router would refuse it; said here, it costs no dead letter, and a misspelt name gets no key."""
    file = tmp_path / "message.xml"
    file.write_bytes(kit.envelope(Message(content="x")))
    refused = kit.orchestra("message", "send", str(file), "--sign", "laed")
    assert refused.exit_code == 2
    assert refused.output == (
        "Error: the message comes from 'lead', so the signature of 'laed' would not count; "
        "say --sign lead, or name 'laed' as its sender\n"
    )
    assert "laed" not in kit.orchestra("keys", "list").output


def test_what_is_not_valid_is_not_sent(kit: Kit, tmp_path: Path) -> None:
    """One line names the place."""
    file = tmp_path / "bad.xml"
    file.write_bytes(b"<agent-message/>")
    result = kit.orchestra("message", "send", str(file))
    assert (result.exit_code, result.output.count("\n")) == (2, 1)


def test_programs_outside_of_the_stack_are_registered_until_withdrawn(kit: Kit) -> None:
    """They may not take the name of an agent that the stack runs."""
    assert kit.orchestra("agents", "register", "outsider", "--role", "coordinator").exit_code == 0
    listed = {a["agent"]: a["executor"] for a in kit.document("agents")["agents"]}
    assert (listed["outsider"], listed["lead"]) == ("foreign", "python")
    assert kit.redis.ttl("ao:agent:outsider") == -1
    assert kit.orchestra("agents", "register", "lead").exit_code == 2
    assert kit.orchestra("agents", "register", "operator").exit_code == 2
    assert kit.document("agents", "register", "outsider")["executor"] == "foreign"
    withdrawn = kit.document("agents", "withdraw", "outsider")
    assert withdrawn == {"agent": "outsider", "registered": False}
    again = kit.orchestra("agents", "withdraw", "outsider")
    assert (again.exit_code, "`orchestra agents` lists" in again.output) == (2, True)
    assert "outsider" not in kit.orchestra("agents").output


@pytest.mark.parametrize("names", [["two words"], ["fine", "--escalates-to", "two words"], ["x" * 101]])
def test_a_name_that_no_agent_can_have_is_not_registered(kit: Kit, names: list[str]) -> None:
    """Nothing could ever be sent to it, nor escalated."""
    before = kit.orchestra("agents", "--json").output
    refused = kit.orchestra("agents", "register", *names)
    assert (refused.exit_code, refused.output.count("\n")) == (2, 1)
    assert "a name has 1 to 100 letters, digits" in refused.output
    assert kit.orchestra("agents", "--json").output == before


def test_new_work_is_slowed_then_refused_when_streams_are_too_long(kit: Kit) -> None:
    """Far from the limit at once, near it after a while; at the limit refused, with what to do about it."""
    pressure = Backpressure(kit.redis, limit=10, retry_for_s=0.05, max_delay_s=0.2, memory_s=0)
    took: list[float] = []
    for _ in range(10):
        began = time.monotonic()
        assert pressure.admit(STREAM) == 10
        took.append(time.monotonic() - began)
        kit.publish(b"x", "task-delegation", "high")
    assert took[9] > 0.09 > min(took[:9])
    with pytest.raises(StreamFull, match="holds 10 entries"):
        pressure.admit(STREAM)


def test_a_full_stream_refuses_tasks_that_are_sent_and_takes_reports(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`orchestra message send`, with streams that are longer than they may be."""
    monkeypatch.setenv("ORCHESTRA_STREAM_MAX_ENTRIES", "3")
    monkeypatch.setattr("orchestrator.streams.pressure.Backpressure", partial(Backpressure, retry_for_s=0.05))
    said = {
        "task-delegation": task(),
        "task-completion": TaskCompletion(task_id="T-1", status="success", summary="s"),
        "error": ErrorReport(
            error_id=new_message_id(), error_type="blocked", severity="warning", message="x"
        ),
        "reply": Reply(in_reply_to=new_message_id(), answer="yes"),
        "status-update": StatusUpdate(task_id="T-1", status="in-progress"),
    }
    codes = {}
    for message_type, body in said.items():
        priority = kit.parts.routing[message_type].priority
        for _ in range(3):
            kit.publish(b"x", message_type, priority)
        (tmp_path / "m.xml").write_bytes(kit.envelope(body))
        result = kit.orchestra("message", "send", str(tmp_path / "m.xml"))
        codes[message_type] = (result.exit_code, "new work is refused" in result.output)
    assert codes.pop("task-delegation") == (2, True)
    assert set(codes.values()) == {(0, False)}


def test_what_was_said_can_be_said_again(kit: Kit) -> None:
    """From the audit trail: a message as a new one that names it, a task as a root session of its own."""
    session = kit.send(agent="reviewer")
    message_id = new_message_id()
    kit.post(Message(content="x"), message_id=message_id)
    kit.route()
    write(kit)
    said = kit.document("audit", "replay", message_id)
    message = check(kit.published("message")[-1]).message
    assert (said["how"], said["message_id"]) == ("message", message.header.message_id)
    assert message.header.conversation_chain == (message_id,)
    launch = kit.ledger.session(session).message
    begun = kit.document("audit", "replay", launch)
    assert begun["how"] == "task"
    kit.route("two")
    assert (kit.ledger.session(begun["session"]).busy, kit.dead()) == (True, [])
    assert kit.orchestra("audit", "replay", new_message_id()).exit_code == 2


def test_a_replay_can_die_and_be_replayed_again(kit: Kit) -> None:
    """Each is a new message at the head of the chain; the last goes through, once."""
    ids = [kill(kit)]
    (replayed,) = kit.document("dlq", "replay", "--all")["replayed"]
    ids.insert(0, replayed["message_id"])
    route_until_dead(kit, "two")
    kit.parts.agents.announce([LATER])
    (replayed,) = kit.document("dlq", "replay", "--all")["replayed"]
    ids.insert(0, replayed["message_id"])
    kit.route("three")
    assert (kit.dead(), kit.pending()) == ([], 0)
    message = check(kit.published("message")[-1]).message
    assert (message.header.message_id, *message.header.conversation_chain) == tuple(ids)


def test_some_dead_letters_are_replayed_and_the_others_stay(kit: Kit) -> None:
    """By their ids, or by type and agent; a wrong id replays nothing."""
    kill(kit), kill(kit), kit.publish(b"no xml", "query")
    kit.route("other")
    one, two, three = (letter.id for letter in kit.dead())
    assert kit.orchestra("dlq", "replay", one, "00-9-9").exit_code == 2
    assert len(kit.dead()) == 3
    for command in (
        ["dlq", "list"],
        ["dlq", "replay", "--all"],
        ["dlq", "drop", "--all"],
        ["audit", "search"],
    ):
        misspelt = kit.orchestra(*command, "--type", "mesage")
        assert misspelt.exit_code == 2
        assert "'mesage' is not a message type; choose from task-delegation" in misspelt.stderr
    none = kit.orchestra("dlq", "replay", "--all", "--type", "message", "--agent", "nobody")
    assert (none.stdout, none.stderr) == ("", "no such dead letters; nothing was replayed\n")
    assert [r["dead_letter"] for r in kit.document("dlq", "replay", two)["replayed"]] == [two]
    assert [letter.id for letter in kit.dead()] == [one, three]
    assert "dropped" in kit.orchestra("dlq", "drop", "--all", "--type", "query").output
    assert [letter.id for letter in kit.dead()] == [one]


def test_however_many_dead_letters_there_are_all_are_seen(kit: Kit) -> None:
    """More than are read in one go; the latest, too."""
    pipeline = kit.redis.pipeline(transaction=False)
    for number in range(2500):
        facts = {"stream": "00/message/normal", "rule": "malformed", "reason": f"number {number}"}
        pipeline.xadd(keys.dead(0), facts, id=f"{1_700_000_000_000 + number * 1000}-0")
    pipeline.execute()
    listed = kit.document("dlq", "list")["dead_letters"]
    assert [letter["reason"] for letter in listed] == [f"number {n}" for n in range(2500)]
    recent = kit.orchestra("dlq", "list", "--since", listed[-2]["at"]).output
    assert [line.rpartition(": ")[2] for line in recent.splitlines()] == ["number 2498", "number 2499"]


def test_a_conversation_shows_a_message_once_however_often_it_was_tried(kit: Kit) -> None:
    """With its attempts, and with why it was given up in the end."""
    message_id = kill(kit)
    write(kit)
    first, *lines = kit.orchestra("audit", "show", message_id, "--conversation").output.splitlines()
    assert first.endswith(f", {len(lines)} messages")
    (line,) = [line for line in lines if "message lead → later" in line]
    assert "(attempt 2)  DEAD recipient-unknown: no agent 'later' is registered" in line
    assert sum("error router →" in line for line in lines) == len(lines) - 1 > 0


def test_the_doctor_names_types_that_no_router_consumes(kit: Kit) -> None:
    """Routers that were told to take only some types leave the others where they are."""
    kit.router(types=["error", "escalation"])
    then_ms = kit.now_ms - 90_000
    kit.redis.xadd(keys.messages(0, "query", "normal"), {"envelope": b"x"}, id=f"{then_ms}-0")
    kit.redis.xadd(keys.messages(0, "error", "critical"), {"envelope": b"x"}, id=f"{then_ms}-0")
    kit.route("two", types=["error", "escalation"])
    found = kit.document("doctor")["findings"]
    unread = {f["subject"]: f["message"] for f in found if f["rule"] == "entries-unread"}
    assert {subject for subject in unread if subject.startswith("router/")} == {"router/00/query/normal"}
    assert "none consumes messages of type query" in unread["router/00/query/normal"]
    everything = kit.router("three")
    everything.run_once()
    found = kit.document("doctor")["findings"]
    assert not [f for f in found if f["subject"].startswith("router/")]


def test_the_doctor_names_streams_that_do_not_exist(kit: Kit) -> None:
    """A program that mistypes a stream is told nothing by Redis, and its message stands there for ever."""
    wrong = keys.messages(0, "query", "normal").replace("normal", "nromal")
    kit.router("one")
    kit.redis.xadd(wrong, {"envelope": kit.envelope(Message(content="x"))})
    found = kit.document("doctor", "--full")["findings"]
    (stray,) = [f for f in found if f["rule"] == "stream-unknown"]
    assert stray["subject"] == wrong
    assert f"nobody reads {wrong}: its shard, type or priority does not exist" in stray["message"]
    kit.redis.delete(wrong)
    found = kit.document("doctor", "--full")["findings"]
    assert [f for f in found if f["rule"] == "stream-unknown"] == []


@pytest.mark.parametrize("sender", ["lead", "partner", "operator"])
def test_what_an_agent_of_the_stack_says_by_hand_is_said_to_change_nothing(
    kit: Kit, tmp_path: Path, sender: str
) -> None:
    """Only an external program's word moves a session; whoever sends another's hears so at once."""
    file = tmp_path / "message.xml"
    file.write_bytes(kit.envelope(Message(content="x"), sender=sender, recipient="reviewer"))
    sent = kit.orchestra("message", "send", str(file))
    note = f"note: '{sender}' is not an external program, so its message goes to the audit trail"
    assert (sent.exit_code, note in sent.output) == (0, sender != "partner")
    assert (kit.document("message", "send", str(file))["note"] is None) == (sender == "partner")


@pytest.mark.parametrize("how", ["acknowledged", "deleted", "delayed"])
def test_the_doctor_finds_a_launch_that_was_taken_and_not_routed(kit: Kit, how: str) -> None:
    """Somebody reads in the routers' group, or deletes the entry: the session would wait for ever in silence."""
    session = kit.send()
    router = kit.router()  # its group is there, as in every stack
    stream = keys.messages(0, "task-delegation", "high")

    def found() -> list[str]:
        report = kit.document("doctor")
        return [f["session"] for f in report["findings"] if f["rule"] == "launch-taken"]

    assert found() == []  # unread
    ((_, entries),) = kit.redis.xreadgroup("router", "thief", {stream: ">"}, count=1)
    assert found() == []  # in somebody's hands: a router takes it over
    if how == "acknowledged":
        kit.redis.xack(stream, "router", entries[0][0])
    elif how == "delayed":
        name = f"task-delegation:high:{entries[0][0].decode()}"
        kit.redis.hset(ledger_keys.session(session), "parked", "waits for another task")
        kit.redis.zadd(keys.parked(0), {name: 1})
        kit.redis.xack(stream, "router", entries[0][0])
        assert found() == []
        kit.redis.zrem(keys.parked(0), name)
    else:
        kit.redis.xack(stream, "router", entries[0][0])
        kit.redis.xdel(stream, entries[0][0])
    assert found() == [session]
    other = kit.send("other")
    router.run_once()
    assert kit.ledger.session(other).busy
    assert found() == [session]


def test_the_trail_of_a_program_s_task_is_found_by_its_session(kit: Kit) -> None:
    """In the trail it has the program's task-id alone."""
    kit.post(task(), sender="partner", recipient="reviewer")
    kit.route()
    (session,) = kit.ledger.roots(0)
    write(kit)
    shown = kit.document("audit", "show", session.id)
    assert [m["message_id"] for m in shown["messages"]] == [session.message]
    other = kit.orchestra("audit", "show", "ses_00" + "0" * 24)
    assert other.exit_code == 2
    assert "is about 'ses_00" in other.output
