"""A transcript shows what was said in each run, from the ledger and from the audit trail, and says how it went wrong."""

from __future__ import annotations

import json
import re
from typing import Any

from orchestrator.audit.reader import AuditReader
from orchestrator.audit.store import AuditStore
from orchestrator.client.approvals import Approval
from orchestrator.ledger.reader import LedgerReader
from orchestrator.messages.factory import Thread
from orchestrator.redisdb.client import connect
from orchestrator.transcript.model import (
    MOST_CHARS,
    MOST_TRY_BYTES,
    TURNS,
    Turn,
    begin,
    note_in,
    written,
)
from tests import everything_in_redis
from tests.kit import Kit
from tests.transcript.conftest import HOSTILE, SECRET, Stage
from tests.waiting import wait_until

#: How hostile text is to be seen.
SHOWN = "<script>document.title='gone'</script> \\x1b[31mred \\u202eesrever"


def document(stage: Stage, session: str) -> Any:
    return json.loads(stage.transcript(session, "--json"))


def parts(run: Any, *kinds: str) -> list[Any]:
    turns = [turn for attempt in run["attempts"] for turn in attempt["turns"]]
    return [part for turn in turns for part in turn["parts"] if part["kind"] in kinds]


def test_turns_of_a_model_are_shown_with_tools_retry_delegation_resume_and_approval(
    stage: Stage, led: str
) -> None:
    found = document(stage, led)
    first, second, third = found["runs"]
    assert [run["cause"] for run in found["runs"]] == ["start", "callbacks", "callbacks"]
    [given, *_] = parts(first, "prompt")
    assert given["text"] == f"look and deploy {HOSTILE}"
    assert "You are lead." in parts(first, "instructions")[0]["text"]
    assert [part["text"] for part in parts(first, "thinking", "text")] == ["I look first", "Let me look."]
    assert [(part["tool"], json.loads(part["text"])) for part in parts(first, "call")][:2] == [
        ("look", {"path": "wrong.txt"}),
        ("look", {"path": "right.txt"}),
    ]
    [retry] = parts(first, "retry")
    assert (retry["tool"], retry["call"]) == ("look", "call_1")
    assert "there is no file wrong.txt; take right.txt" in retry["text"]
    assert parts(first, "result")[0]["text"] == f"the contents {HOSTILE}"
    [turn, *_] = first["attempts"][0]["turns"]
    assert (turn["input_tokens"], turn["output_tokens"]) == (100, 20)
    assert turn["usd"] == (100 * 1 + 20 * 10) / 1e6
    assert first["cost"]["input_tokens"] == 300
    [given] = first["delegated"]
    assert (given["agent"], given["status"], given["result"]) == ("helper", "completed", "seven words")
    assert given["delivered_in"] == second["run"]
    assert "seven words" in parts(second, "result")[0]["text"]
    assert "agent-callback" in parts(second, "result")[0]["text"]
    [asked] = second["approvals"]
    assert (asked["tool"], asked["verdict"], asked["by"], asked["comment"]) == (
        "deploy",
        "approved",
        "ann",
        "go ahead",
    )
    assert json.loads(asked["arguments"]) == {"version": "1.2"}
    assert parts(third, "result")[0]["text"] == "deployed 1.2"
    assert found["answer"] == "all is done"
    assert found["missing"] == []


def test_people_read_it_with_signs_and_nothing_acts_on_their_terminal(stage: Stage, led: str) -> None:
    text = stage.transcript(led)
    for line in (
        "~ thinking",
        "I look first",
        '→ calls look {"path":"wrong.txt"}',
        "! not accepted look",
        "← result of look",
        f"the contents {SHOWN}",
        "⇒ delegated to helper",
        "? approval of deploy, approved by ann: go ahead",
        "100 + 20 tokens, $0.0003",
    ):
        assert line in text, text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_long_parts_are_shortened_until_all_is_asked_for(stage: Stage) -> None:
    session = stage.ended("helper", "\n".join(f"line {number}" for number in range(400)))
    short, full = stage.transcript(session), stage.transcript(session, "--full")
    assert "more characters; --full shows them]" in short
    assert "line 399" not in short
    assert "line 399" in full


def test_a_function_is_shown_by_what_it_was_given_printed_and_recorded(stage: Stage) -> None:
    session = stage.ended("parent")
    first, second = document(stage, session)["runs"]
    assert first["prompt"] == "go"
    assert second["prompt"].startswith(f'<agent-callback session="{first["delegated"][0]["session"]}"')
    assert "seven words" in second["prompt"]
    assert "sum#1 done" in second["attempts"][0]["steps"][0]
    [given] = first["delegated"]
    assert given["title"] == "The count"
    assert "printed by the helper" in stage.transcript(given["session"])


def test_a_failed_try_is_kept_with_its_turns_and_its_cause(stage: Stage) -> None:
    [run] = document(stage, stage.ended("flaky"))["runs"]
    first, second = run["attempts"]
    assert (first["how"], second["how"]) == ("failed", "completed")
    assert "the disk was away" in first["reason"]
    assert first["turns"][0]["parts"][-1]["tool"] == "flaky_look"
    assert (first["turns"][0]["again"], second["turns"][0]["again"]) == (False, True)
    assert run["cost"]["requests"] == 2


def test_a_program_is_shown_by_its_stream(stage: Stage) -> None:
    [run] = document(stage, stage.ended("program", "look at the notes"))["runs"]
    [turn] = run["attempts"][0]["turns"]
    assert [(part["kind"], part["tool"], part["text"]) for part in turn["parts"]] == [
        ("prompt", "", "look at the notes"),
        ("text", "", "I will look"),
        ("call", "Read(notes.md)", ""),
        ("text", "", "found True"),
    ]
    assert (turn["input_tokens"], turn["output_tokens"], turn["usd"]) == (70, 30, 0.25)


def test_what_is_too_long_is_cut_and_says_so() -> None:
    turns = [Turn() for _ in range(40)]
    for turn in turns:
        turn.add("result", "ä" * (MOST_CHARS + 5))
    assert turns[0].parts[0].cut == 5
    text = written(turns)
    kept = TURNS.validate_json(text)
    assert len(text.encode()) <= MOST_TRY_BYTES
    assert {len(part.text) + part.cut for turn in kept for part in turn.parts} == {MOST_CHARS + 5}
    assert turns[0].parts[0].text == "ä" * MOST_CHARS


def test_pieces_of_a_stream_are_put_together() -> None:
    turns: list[Any] = []
    turn = begin(turns, prompt="go")
    for kind, piece in (
        ("thinking", "let "),
        ("thinking", "me"),
        ("piece", "it "),
        ("piece", "is"),
        ("tool", "Read"),
    ):
        note_in(turns, kind, piece)
    assert [(part.kind, part.text or part.tool) for part in turn.parts] == [
        ("prompt", "go"),
        ("thinking", "let me"),
        ("text", "it is"),
        ("call", "Read"),
    ]


def test_who_denied_is_shown_and_that_nobody_answered(stage: Stage) -> None:
    denied = stage.client.submit("careful", "600").id
    [asked] = wait_until(lambda: stage.client.approvals(denied), "an approval", 60)
    assert "? approval of wipe (it is full), open: nobody has answered" in stage.transcript(denied)
    stage.client.deny(asked.id, "keep it", by="bob")
    stage.client.wait(denied, timeout_s=60)
    assert "? approval of wipe (it is full), denied by bob: keep it" in stage.transcript(denied)
    late = stage.ended("careful", "0.2")
    [run] = document(stage, late)["runs"]
    assert (run["approvals"][0]["verdict"], run["approvals"][0]["by"]) == ("expired", "")
    assert "nobody answered in time" in stage.transcript(late)


def test_of_many_delegations_the_first_are_shown(stage: Stage) -> None:
    session = stage.ended("crowd")
    short, full = stage.transcript(session), stage.transcript(session, "--full")
    assert (short.count("⇒ delegated to"), full.count("⇒ delegated to")) == (50, 120)
    assert "⇒ 70 more delegations; --full shows them" in short


def test_an_exit_code_comes_first(stage: Stage) -> None:
    session = stage.ended("program", "crash")
    [run] = document(stage, session)["runs"]
    assert "it ended with exit code 3; the disk is full" in run["reason"]
    assert parts(run, "call")[0]["tool"] == "Read(notes.md)"


def test_an_answer_that_was_never_accepted_says_the_rule_and_what_was_said(stage: Stage) -> None:
    picky = document(stage, stage.ended("picky"))
    assert "the answer must name a city in Europe, and it said 'Atlantis, of course'" in picky["reason"]
    assert "Exceeded maximum output retries" in picky["reason"]
    assert "the answer must name a city" in parts(picky["runs"][0], "retry")[0]["text"]
    wrong = document(stage, stage.ended("wrong"))["reason"]
    assert "and it said 'Bern is large'" in wrong


def test_a_refusal_is_a_sentence(stage: Stage) -> None:
    found = document(stage, stage.ended("refusing"))
    assert found["reason"].endswith("it refused to answer: I cannot help with weapons.")
    assert "{" not in found["reason"]
    [turn] = found["runs"][0]["attempts"][0]["turns"]
    assert turn["stopped"] == "content_filter"


def stays_encrypted(stage: Stage, run: str, attempt: int) -> None:
    """The secret is in clear neither in Redis nor in the trail, nor in the account of a run for who has no keys."""
    redis = stage.client._parts.redis
    assert everything_in_redis.leaks(redis, SECRET) == []
    # Large texts are compressed, so that a word in clear would not be seen there.
    without_keys = LedgerReader(redis).account(run, attempt)
    assert without_keys
    assert SECRET not in without_keys
    assert SECRET.encode() not in stage.settings.audit_database.read_bytes()  # type: ignore[union-attr]


def test_what_is_encrypted_stays_so_and_is_opened_for_who_has_the_keys(stage: Stage) -> None:
    session = stage.ended("secret", f"say {SECRET}")
    [run] = document(stage, session)["runs"]
    assert f"hide {SECRET}" in [part["text"] for part in parts(run, "thinking")]
    assert parts(run, "result")[0]["text"] == f"the word is {SECRET}"
    stays_encrypted(stage, run["run"], 1)


def test_a_run_at_work_shows_what_it_has_recorded(stage: Stage) -> None:
    session = stage.client.submit("lingering", "go").id

    def begun() -> bool:
        [run] = document(stage, session)["runs"] or [{"attempts": []}]
        return [part["kind"] for part in parts(run, "text", "call")] == ["text", "call"]

    wait_until(begun, "the first turn", 60)
    assert [part["text"] for part in parts(document(stage, session)["runs"][0], "prompt")] == ["go"]
    (stage.folder / "mark.go").touch()
    stage.client.wait(session, timeout_s=60)
    assert "at last" in parts(document(stage, session)["runs"][0], "result")[0]["text"]


def test_what_was_said_before_its_process_died_is_there_while_the_run_waits(stage: Stage) -> None:
    session = stage.client.submit("dying", "go").id

    def died() -> Any:
        runs = document(stage, session)["runs"]
        return [run for run in runs if run["attempts"] and run["attempts"][-1]["how"] == "died"]

    [run] = wait_until(died, "the end of its process", 60)
    assert run["state"] == "queued"
    assert [part["text"] for part in parts(run, "text")] == ["I touch it.", "And now."]
    assert parts(run, "result")[0]["text"] == f"the contents {HOSTILE}"
    stage.client.stop(session)


def test_what_was_said_is_there_after_the_last_process_died(stage: Stage) -> None:
    """Each try has its turns, in the ledger and in the trail; what a try took over from another one counts once."""
    session = stage.ended("doomed")
    wait_until(lambda: len(accounts(stage, session)) == 3, "the accounts in the trail", 60)
    for deleted in (False, True):
        if deleted:
            stage.client.delete(session)
        found = document(stage, session)
        assert found["read_from"] == ("audit" if deleted else "ledger")
        [run] = found["runs"]
        # The reaper of a busy machine may take a run from a dead process first: nobody knows what was said in that attempt.
        attempts = [one for one in run["attempts"] if one["turns"]]
        assert len(attempts) == 3
        for attempt in attempts:
            assert [part["text"] for part in parts({"attempts": [attempt]}, "prompt", "text")] == [
                *("go", "I touch it.", "And now."),
            ]
            assert parts({"attempts": [attempt]}, "result")[0]["text"] == f"the contents {HOSTILE}"
        assert [turn["again"] for turn in attempts[2]["turns"]] == [True, True]
        if not deleted:
            assert [one["how"] for one in attempts] == ["died"] * 3
            assert "200 + 40 tokens" in stage.transcript(session)


def test_what_was_encrypted_stays_so_when_its_process_died(stage: Stage) -> None:
    [run] = document(stage, stage.ended("private", f"say {SECRET}"))["runs"]
    assert [part["text"] for part in parts(run, "text")] == [f"it is {SECRET}"] * 3
    stays_encrypted(stage, run["run"], 3)


def gone(stage: Stage, agent: str, prompt: str = "go") -> str:
    """A session that has ended and was deleted from the ledger, and whose messages the trail has."""
    session = stage.ended(agent, prompt)
    wait_until(lambda: accounts(stage, session), "the account in the trail", 60)
    stage.client.delete(session)
    return session


def accounts(stage: Stage, session: str) -> list[str]:
    """The messages by which the workers of a session told what was said."""
    found = json.loads(stage.run("audit", "search", "--task", session, "--json").output)
    return [one["message_id"] for one in found["messages"] if one["type"] == "status-update"]


def test_the_audit_trail_has_it_when_the_ledger_no_longer_has(stage: Stage) -> None:
    session = gone(stage, "teller", f"about {HOSTILE}")
    # The account is in the trail; the answer comes a moment later.
    wait_until(lambda: document(stage, session)["answer"], "the answer in the trail", 60)
    found = document(stage, session)
    assert (found["read_from"], found["agent"], found["state"]) == ("audit", "teller", "deleted")
    [run] = found["runs"]
    assert run["prompt"] == f"about {HOSTILE}"
    assert parts(run, "text")[-1]["text"] == "it is there"
    assert parts(run, "result")[0]["text"] == f"the contents {HOSTILE}"
    assert found["answer"] == "it is there"
    assert "deleted by a user" in stage.transcript(session)


def test_the_trail_has_how_a_child_failed(stage: Stage) -> None:
    session = gone(stage, "hopeful")

    def told() -> Any:
        given = [one for run in document(stage, session)["runs"] for one in run["delegated"]]
        return [one for one in given if one["status"]]

    [child] = wait_until(told, "the end of the child in the trail", 60)
    assert (child["agent"], child["status"]) == ("picky", "failed")
    assert "the answer must name a city in Europe" in child["result"]


def forge_approval(stage: Stage, asked: Approval, *, by: str) -> None:
    """Publish a reply of an agent that says that somebody has approved."""
    with connect(str(stage.settings.redis_url), settings=stage.settings) as redis:
        kit = Kit.on(redis, stage.settings)
        item = kit.ledger.item(asked.session, asked.id)
        said = json.dumps({"approval": asked.id, "approved": True, "by": by})
        reply = kit.parts.message_factory.reply(
            sender="helper",
            recipient=asked.agent,
            question=str(item.extra["message"]),
            answer=said,
            thread=Thread.of(kit.ledger.session(asked.session)),
        )
        kit.publish(reply.data, reply.type, reply.priority)
    trail = AuditReader(AuditStore(stage.settings.audit_database, read_only=True))
    wait_until(
        lambda: reply.message_id in {one.message_id for one in trail.find(asked.session)},
        "it in the trail",
        60,
    )


def test_the_trail_has_who_approved_and_who_did_not(stage: Stage) -> None:
    allowed, late = stage.client.submit("careful", "600").id, stage.ended("careful", "0.2")
    [asked] = wait_until(lambda: stage.client.approvals(allowed), "an approval", 60)
    forge_approval(stage, asked, by="mallory")
    stage.client.approve(asked.id, "once", by="carl")
    stage.client.wait(allowed, timeout_s=60)
    forge_approval(stage, asked, by="mallory")
    for session in (allowed, late):
        stage.client.delete(session)
    words = "? approval of wipe (it is full), approved by carl: once"
    wait_until(lambda: words in stage.transcript(allowed), "the answer in the trail", 60)
    assert "mallory" not in stage.transcript(allowed)
    found = document(stage, allowed)
    [told] = found["runs"][0]["approvals"]
    assert (found["read_from"], told["id"], told["arguments"]) == ("audit", asked.id, '{"path":"/srv"}')
    wait_until(
        lambda: "nobody answered in time" in stage.transcript(late), "the end of time in the trail", 60
    )


def test_the_operator_removes_what_was_said_from_the_trail(stage: Stage) -> None:
    session = gone(stage, "picky", "say something private")
    assert "Atlantis" in stage.transcript(session)
    [message] = accounts(stage, session)
    assert stage.run("audit", "redact", message, "--reason", "a request").exit_code == 0
    text = stage.transcript(session)
    assert "Atlantis, of course" not in json.dumps(document(stage, session)["runs"])
    assert f"status-update {message}" in text
    assert "the operator has removed its text" in text


def test_a_session_that_nobody_knows_is_said_in_a_sentence(stage: Stage) -> None:
    result = stage.run("transcript", "ses_00000000000000000000000000")
    assert result.exit_code != 0
    assert "ses_00000000000000000000000000" in result.output
    assert "Traceback" not in result.output


def test_a_page_of_its_own_has_no_script_and_no_link_out(stage: Stage, led: str) -> None:
    html = stage.transcript(led, "--html")
    assert "default-src &#39;none&#39;; style-src &#39;sha256-" in html
    assert "<script" not in html
    assert not re.search(r"(src|href)=", html)
    assert "&lt;script&gt;" in html
    assert "I look first" in html
    assert "approved by ann: go ahead" in html


def test_what_was_encrypted_is_opened_from_the_trail_by_who_has_the_keys(stage: Stage) -> None:
    session = stage.ended("secret", f"say {SECRET}")
    launch = stage.client.session(session).message

    def told() -> bool:
        shown = stage.run("audit", "show", launch, "--conversation", "--json")
        found = json.loads(shown.output)["messages"] if shown.exit_code == 0 else []
        return {"status-update", "task-completion"} <= {one["type"] for one in found}

    wait_until(told, "its messages in the trail", 60)
    stage.client.delete(session)
    found = document(stage, session)
    [run] = found["runs"]
    assert (found["read_from"], run["prompt"], found["answer"]) == (
        "audit",
        f"say {SECRET}",
        f"it is {SECRET}",
    )
    assert parts(run, "result")[0]["text"] == f"the word is {SECRET}"


def test_large_turns_are_read_from_the_body_that_the_trail_keeps(stage: Stage) -> None:
    before = stage.ended("bulky")
    [run] = document(stage, before)["runs"]
    session = gone(stage, "bulky")
    [message] = accounts(stage, session)
    assert "claim-check" in stage.run("audit", "show", message, "--xml").output
    [same] = document(stage, session)["runs"]
    assert [part["text"] for part in parts(same, "result")] == [part["text"] for part in parts(run, "result")]
    assert {len(part["text"]) for part in parts(same, "result")} == {150_000}
