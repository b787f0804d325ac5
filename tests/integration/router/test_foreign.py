"""Programs outside of the stack take part by envelopes alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.agents.registry import AgentRecord
from orchestrator.audit.reader import AuditReader
from orchestrator.doctor import Doctor
from orchestrator.envelope.bodies import (
    Blocker,
    ErrorReport,
    Escalation,
    EscalationMatter,
    Message,
    Objective,
    Query,
    Reply,
    Review,
    ReviewRequest,
    StatusUpdate,
    Task,
    TaskCompletion,
    TaskDelegation,
)
from orchestrator.envelope.model import Body, RetryPolicy
from orchestrator.envelope.payload import BlobStore
from orchestrator.envelope.sealing import Encrypter
from orchestrator.envelope.signature import sign_message
from orchestrator.envelope.validate import check
from orchestrator.ids import approval_id, asker_of, decision_id, new_message_id, reply_id
from orchestrator.ledger import (
    ItemState,
    Session,
    SessionState,
    layout,
)
from orchestrator.messages.authenticity import callback_from
from orchestrator.messages.factory import Thread
from orchestrator.policy.approval import ApprovalRequest, Decision, canonical, digest_of
from orchestrator.policy.callback_text import render_callbacks
from orchestrator.redisdb import keys, ledger_keys
from orchestrator.router.deadletters.replay import Replays
from tests.clock import At
from tests.integration.router.conftest import Family, sweep_until, task
from tests.integration.router.trail import store_of, write
from tests.kit import Kit
from tests.routed import mark

CONVERSATION = "0b7a0a52-5a4e-4f7e-8d55-2f9a3d1c7e10"
REVIEW = ReviewRequest(review=Review(task_id="R-1", title="Look", description="look at it"))


def roots(kit: Kit) -> list[Session]:
    """The root sessions, newest first."""
    return kit.ledger.roots(0)


@pytest.fixture
def family(kit: Kit) -> Family:
    """`lead` has delegated to the external program `partner`, and the router has seen it."""
    made = Family(kit)
    kit.sent.clear()
    kit.route("two")
    return made


def say(family: Family, body: Body) -> str:
    """The external program says something, and the router takes it; its message-id."""
    message_id = new_message_id()
    family.post(body, message_id=message_id)
    family.kit.route("three")
    assert family.kit.dead() == []
    assert family.kit.pending() == 0
    return message_id


def test_a_foreign_task_becomes_a_session_with_everything_it_says(kit: Kit) -> None:
    """Its run is sent to a worker; its text holds the description and the further parts of the task."""
    launch = new_message_id()
    exact = task(objectives=(Objective(text="be exact"),))
    data = kit.post(exact, sender="partner", recipient="reviewer", message_id=launch)
    kit.publish(data, "task-delegation", "high")
    handled = kit.route()
    (session,) = roots(kit)
    assert (handled.done, handled.duplicates, len(kit.sent.runs)) == (1, 1, 1)
    assert (session.agent, session.message, session.title, session.chain) == (
        "reviewer",
        launch,
        "Count",
        (launch,),
    )
    held = kit.claim(session.id)
    assert held.prompt == "the lines\n\nObjectives:\n- be exact"


def test_a_task_id_belongs_to_one_task_of_its_conversation(kit: Kit) -> None:
    """A second delegation under the same id is refused; in another conversation it is no second one."""
    options = {"sender": "partner", "recipient": "reviewer"}
    kit.post(task(), correlation=CONVERSATION, **options)
    (first,) = kit.published("task-delegation")
    message = check(first).message
    chain = (message.header.message_id,)
    kit.post(task(), correlation=CONVERSATION, chain=chain, **options)
    kit.post(task(), **options)
    kit.route()
    assert [letter.rule for letter in kit.dead()] == ["task-id"]
    assert len(roots(kit)) == 2


def test_a_review_request_starts_the_reviewer_and_an_escalation_the_tech_lead(kit: Kit) -> None:
    """A second escalation in the conversation goes to the tech-lead's session that is there."""
    first = new_message_id()
    about = {"correlation": CONVERSATION, "message_id": first}
    kit.post(REVIEW, sender="partner", recipient="code-reviewer", **about)
    kit.route()
    for number in (1, 2):
        matter = EscalationMatter(task_id=f"E-{number}", title="Stuck", description=f"help {number}")
        kit.post(Escalation(escalation=matter), sender="partner", correlation=CONVERSATION, chain=(first,))
        kit.route()
    tech_lead, reviewer = roots(kit)
    assert kit.dead() == []
    assert [reviewer.agent, tech_lead.agent] == ["code-reviewer", "tech-lead"]
    assert [(i.kind, i.state) for i in kit.ledger.items(tech_lead.id)] == [("escalation", ItemState.QUEUED)]


def test_a_foreign_child_is_at_work_without_a_worker(kit: Kit, family: Family) -> None:
    """Nothing is sent to Celery, and nothing waits to be sent again."""
    child = kit.ledger.session(family.child)
    assert (child.state, child.busy, kit.sent.runs) == (SessionState.RUNNING, True, [])
    assert [lease.session for lease in kit.ledger.sweep.leases(0)] == [family.lead.session.id]


@pytest.mark.parametrize(
    ("said", "state", "status"),
    [
        ("success", SessionState.FINISHED, "completed"),
        ("partial-success", SessionState.FINISHED, "partial-success"),
        ("failed", SessionState.FAILED, "failed"),
        ("error", SessionState.FAILED, "failed"),
    ],
)
def test_the_end_that_a_program_reports_is_the_commit_of_its_session(
    kit: Kit, family: Family, said: Any, state: SessionState, status: str
) -> None:
    """The parent is owed one callback, with the result, and sees if it is not all of it; a second report changes nothing."""
    text = "it is 42"
    body: Any
    if said == "error":
        body = ErrorReport(
            error_id=new_message_id(), error_type="task-failed", severity="critical", message=text
        )
    elif said == "failed":
        body = TaskCompletion(task_id=family.child, status=said, summary=text)
    else:
        body = TaskCompletion(task_id=family.child, status=said, summary="found", result=text)
    for _ in range(2):
        say(family, body)
    ledger, root = kit.ledger, family.lead.session.id
    assert ledger.result(family.child) == (state, text)
    (item,) = ledger.items(root)
    assert (item.kind, item.status, item.state) == ("completion", status, ItemState.QUEUED)
    assert ledger.texts(root, [item.id]) == {item.id: text}
    callback = callback_from(item, text)
    assert (callback.status, callback.result or callback.error) == (status, text)
    assert f'status="{status}"' in render_callbacks([callback])


def test_a_foreign_completion_after_the_time_limit_is_a_timeout(kit: Kit, family: Family) -> None:
    """No sweep has noticed yet that the time has passed."""
    kit.redis.hset(ledger_keys.session(family.child), "limit_due_ms", kit.ledger.server_ms() - 1)
    done = TaskCompletion(task_id=family.child, status="success", summary="found", result="it is 42")
    say(family, done)
    why = "it was not done within its time limit"
    assert kit.ledger.result(family.child) == (SessionState.FAILED, why)
    (callback,) = kit.ledger.items(family.lead.session.id)
    assert (callback.status, callback.state) == ("failed", ItemState.QUEUED)
    found = callback_from(callback, why)
    assert found.error == why
    assert kit.redis.zcard(ledger_keys.timers(0)) == 0


def test_a_large_foreign_result_is_fetched(kit: Kit, family: Family) -> None:
    """What is stored apart arrives whole."""
    text = "x" * 300_000
    done = TaskCompletion(task_id=family.child, status="success", summary="found", result=text)
    data = family.envelope(done)
    message = check(data).message
    assert message is not None
    encrypter = Encrypter(BlobStore(kit.redis), compress_above=1000, claim_check_above=2000, blob_ttl_s=60)
    signer = kit.parts.keyring.signer("partner")
    sealed = sign_message(encrypter.seal(message), signer, now_ms=kit.now_ms)
    assert len(sealed) < 10_000
    kit.publish(sealed, "task-completion", "high")
    kit.route("three")
    assert kit.ledger.result(family.child) == (SessionState.FINISHED, text)


def test_foreign_progress_shows_and_a_blocker_reaches_the_parent(kit: Kit, family: Family) -> None:
    """Progress is a fact of the session; a blocked task is something the parent must hear."""
    update = StatusUpdate(
        task_id=family.child, status="in-progress", progress_percentage=30, current_activity="reading"
    )
    say(family, update)
    child = kit.ledger.session(family.child)
    assert (child.progress, child.activity) == (30, "reading")
    blocked = StatusUpdate(task_id=family.child, status="blocked", blockers=(Blocker(text="no key"),))
    say(family, blocked)
    items = kit.ledger.items(family.lead.session.id)
    texts = kit.ledger.texts(family.lead.session.id, [i.id for i in items])
    assert [(i.kind, texts.get(i.id)) for i in items] == [("blocker", "no key"), ("completion", None)]
    callback = callback_from(items[0], "no key")  # nobody could take a reply
    assert (callback.can_reply, "Please answer" in render_callbacks([callback])) == (False, False)
    child = kit.ledger.session(family.child)
    assert (child.progress, child.activity) == (30, "blocked: no key")
    stuck = StatusUpdate(
        task_id=family.child, status="blocked", progress_percentage=60, current_activity="waiting for a key"
    )
    say(family, stuck)
    child = kit.ledger.session(family.child)
    assert (child.progress, child.activity) == (60, "waiting for a key")


def test_titles_and_activities_of_programs_are_cut_and_their_texts_are_not(kit: Kit, family: Family) -> None:
    """Each look at a session reads them."""
    long = "x" * 100_000
    update = StatusUpdate(task_id=family.child, status="in-progress", current_activity=long)
    say(family, update)
    say(family, Query(query_type="ask-for-help", subject=long))
    body = TaskDelegation(task=Task(task_id="T-1", title=long, description=long))
    kit.post(body, sender="partner", recipient="reviewer")
    kit.route("four")
    ledger, lead = kit.ledger, family.lead.session.id
    (asked,) = [item for item in ledger.items(lead) if item.kind == "query"]
    begun = roots(kit)[0]
    cut = [ledger.session(family.child).activity, asked.title, begun.title]
    assert [text.endswith("x\n[cut]") and len(text) < 20_000 for text in cut] == [True] * 3
    assert long in ledger.texts(lead, [asked.id])[asked.id]
    assert kit.claim(begun.id).prompt == long


@pytest.mark.parametrize("urgency", ["critical", "low", None])
def test_the_urgency_of_a_query_is_its_priority(kit: Kit, family: Family, urgency: str | None) -> None:
    """In the queue of who is asked, whatever stream it came in; without one that of its stream counts."""
    say(family, Query(query_type="ask-for-help", subject="?", urgency=urgency))  # type: ignore[arg-type]
    (item,) = [i for i in kit.ledger.items(family.lead.session.id) if i.kind == "query"]
    assert item.priority == (urgency or "normal")


def test_a_blocked_root_of_a_program_shows_where_it_is_stuck(kit: Kit) -> None:
    """Nobody above it could be told; whoever looks at it sees it."""
    kit.post(task(), sender="lead", recipient="partner")
    kit.route()
    (session,) = roots(kit)
    blocked = StatusUpdate(task_id=session.id, status="blocked", blockers=(Blocker(text="no key"),))
    within = {"correlation": session.correlation, "chain": session.chain}
    kit.post(blocked, sender="partner", recipient="lead", **within)
    assert kit.route("two").done == 1
    assert kit.ledger.session(session.id).activity == "blocked: no key"


def test_people_are_told_of_the_end_of_a_root_of_a_program(kit: Kit) -> None:
    """As of any other root: the notifier reads of it, and its caller is owed the result."""
    kit.redis.xgroup_create(keys.notices(0), "notify:webhook", mkstream=True)
    kit.post(task(), sender="lead", recipient="partner")
    kit.route()
    (session,) = roots(kit)
    done = TaskCompletion(task_id=session.id, status="success", summary="found", result="it is 42")
    within = {"correlation": session.correlation, "chain": session.chain}
    kit.post(done, sender="partner", recipient="lead", **within)
    assert kit.route("two").done == 1
    assert kit.ledger.result(session.id) == (SessionState.FINISHED, "it is 42")
    told = [(facts[b"event"], facts[b"session"]) for _, facts in kit.redis.xrange(keys.notices(0))]
    assert told == [(b"finished", session.id.encode())]
    assert kit.redis.zscore(ledger_keys.results(0), session.id) is not None


def test_a_foreign_query_can_be_answered(kit: Kit, family: Family) -> None:
    """It is a question in the parent's queue that stays open until its reply."""
    asked = say(family, Query(query_type="ask-for-help", subject="which one?"))
    ledger = kit.ledger
    question = next(i for i in ledger.items(family.lead.session.id) if i.kind == "query")
    assert (question.child, question.extra["message"], question.extra["question"]) == (
        family.child,
        asked,
        True,
    )
    assert ledger.session(family.child).questions == (question.id,)
    assert asker_of(question.id) == family.child


def test_the_system_itself_answers_how_far_a_session_is(kit: Kit, family: Family) -> None:
    """The program has the reply in its inbox, signed; nobody is asked, and the same question again is answered once."""
    ledger = kit.ledger
    ledger.status(family.lead.claim, effect="s", progress=40, activity="reading", envelope=None)
    queued = len(ledger.items(family.lead.session.id))
    query = Query(query_type="get-status", subject="how far are you?")
    asked = new_message_id()
    data = family.post(query, message_id=asked)
    kit.publish(data, "query")
    kit.route("three")
    kit.route("four")
    assert kit.dead() == []
    inbox = [fields[b"envelope"] for _, fields in kit.redis.xrange(keys.inbox(0, "partner"))]
    replies = [check(one) for one in inbox]
    (reply,) = [one.message for one in replies if one.message and one.message.body.type == "reply"]
    assert isinstance(reply.body, Reply)
    assert (reply.header.sender.agent_name, reply.body.in_reply_to) == ("router", asked)
    assert reply.header.conversation_chain[0] == asked
    assert "in-progress" in reply.body.answer
    assert "40" in reply.body.answer
    assert "reading" in reply.body.answer
    assert len(ledger.items(family.lead.session.id)) == queued
    assert ledger.session(family.child).questions == ()


def test_a_foreign_reply_answers_the_question_of_our_agent(kit: Kit, family: Family) -> None:
    """The question is found by the message that asked it, and closed."""
    ledger, lead = kit.ledger, family.lead
    asked = new_message_id()
    ledger.enqueue(
        family.child,
        "how many?",
        item_id="itm_00question",
        kind="query",
        speaker=lead.session.id,
        opens=True,
        extra={"message": asked, "question": True},
    )
    assert ledger.session(lead.session.id).questions == ("itm_00question",)
    say(family, Reply(in_reply_to=asked, answer="seven"))
    assert ledger.session(lead.session.id).questions == ()
    reply = next(i for i in ledger.items(lead.session.id) if i.kind == "reply")
    assert ledger.texts(lead.session.id, [reply.id]) == {reply.id: "seven"}
    assert (reply.id, reply.extra["answers"]) == (reply_id("itm_00question"), "itm_00question")


def test_no_program_answers_an_approval_even_of_its_own_parent(kit: Kit, family: Family) -> None:
    """Neither with a key of its own nor as an agent: only a person's answer, outside of all messages, counts."""
    ledger, lead = kit.ledger, family.lead
    text = canonical({"version": 1})
    request = ApprovalRequest(
        tool="deploy",
        arguments=text,
        digest=digest_of("deploy", text),
        agent="lead",
        session=lead.session.id,
        run=lead.claim.run,
    )
    letter = kit.parts.message_factory.query(
        sender="lead",
        recipient="operator",
        question=str(request),
        context=request.model_dump_json(),
        thread=Thread.of(lead.session),
    )
    approval, _ = ledger.approvals.request(
        lead.claim,
        request,
        approval=approval_id(lead.session.id, "deploy"),
        effect="approval",
        title="",
        envelope=letter,
    )
    yes = Decision(approval=approval, approved=True, digest=request.digest).model_dump_json()
    family.post(Reply(in_reply_to=letter.message_id, answer=yes))
    kit.route("three")
    assert [dead.rule for dead in kit.dead()] == ["unauthorised"]
    assert ledger.session(lead.session.id).approvals == (approval,)
    assert ledger.item(lead.session.id, decision_id(approval)) is None
    # The transition itself refuses it, wherever the router might be led astray.
    record = {"kind": "reply", "priority": "high", "agent": "operator"}
    asked = {"id": decision_id(approval), "record": record, "answers": approval, "mark": mark("m", "reply")}
    received = ledger.scripts.run("post", *layout.post(lead.session.id, yes, **asked))
    assert received == [b"person"]
    assert ledger.session(lead.session.id).approvals == (approval,)


def test_a_foreign_message_reaches_the_session_its_chain_names(kit: Kit, family: Family) -> None:
    """It is an item of the parent's queue, of the kind the sender chose."""
    say(family, Message(message_type="hint", content="look there"))
    assert "hint" in [i.kind for i in kit.ledger.items(family.lead.session.id)]


@pytest.mark.parametrize("way", ["stream", "send", "replay"])
@pytest.mark.parametrize(
    "word", ["completion", "prompt", "reply", "aggregated", "Completion", "query", "blocker", "escalation"]
)
def test_no_program_makes_what_only_the_system_makes(
    kit: Kit, family: Family, tmp_path: Path, way: str, word: str
) -> None:
    """A message is a message, whatever it calls itself and on whichever way it comes; none is taken for more."""
    ledger, root = kit.ledger, family.lead.session.id
    before = ledger.session(root)
    body = Message(message_type=word, content="ok")
    if way == "replay":
        family.post(body, recipient="nobody")
        router = kit.router("three", jitter=lambda: 0.0)
        while not router.run_once().dead:
            kit.wake()
        kit.parts.agents.announce([AgentRecord(name="nobody", role="coordinator")])
        (letter,) = kit.dead()
        letter = letter.model_copy(update={"data": family.envelope(body)})
        assert Replays(kit.parts).replay(letter) is not None
    elif way == "send":
        file = tmp_path / "message.xml"
        file.write_bytes(family.envelope(body))
        assert kit.orchestra("message", "send", str(file)).exit_code == 0
    else:
        family.post(body)
    kit.route("four")
    assert kit.dead() == []
    items = [i for i in ledger.items(root) if i.id.startswith("itm_")]
    assert [(i.kind, i.agent) for i in items] == [(f"agent-{word}", "partner")]
    after = ledger.session(root)
    assert (after.delivered, after.dead, after.pending) == (before.delivered, before.dead, before.pending)


def test_a_reply_of_a_program_counts_once_and_only_where_it_was_asked(kit: Kit, family: Family) -> None:
    """Neither a reply to nothing nor one to a question put to somebody else reaches a session."""
    ledger, lead = kit.ledger, family.lead
    other = kit.assign(lead, "reviewer", effect="two").child_id
    asked = new_message_id()
    ledger.enqueue(
        other,
        "how many?",
        item_id="itm_00other",
        kind="query",
        speaker=lead.session.id,
        opens=True,
        extra={"message": asked},
    )
    for message_id in (new_message_id(), asked):
        family.post(Reply(in_reply_to=message_id, answer="forged"))
    kit.route("three")
    assert sorted(letter.rule for letter in kit.dead()) == ["session-over", "unauthorised"]
    assert [i for i in ledger.items(lead.session.id) if i.kind == "reply"] == []
    assert ledger.session(lead.session.id).questions == ("itm_00other",)


def test_nobody_reports_for_a_session_that_is_not_theirs(kit: Kit, family: Family) -> None:
    """A completion by another program, or of a session that a worker runs, is refused."""
    for task_id in (family.child, family.lead.session.id):
        body = TaskCompletion(task_id=task_id, status="success", summary="mine")
        sender = "other" if task_id == family.child else "partner"
        kit.parts.agents.announce(
            [kit.parts.agents.get("partner").model_copy(update={"name": "other"})]  # type: ignore[union-attr]
        )
        kit.post(body, sender=sender, recipient="lead", **family.within)
    kit.route("three")
    kit.wake()
    kit.route("four", clock=At(kit.now_ms + 20_000))
    assert [letter.rule for letter in kit.dead()] == ["session-unknown", "session-unknown"]
    assert kit.ledger.session(family.child).state == SessionState.RUNNING


def test_a_foreign_program_delegates_from_the_session_it_runs(kit: Kit, family: Family) -> None:
    """The child is below its session in the tree, and owes it an envelope instead of a callback."""
    family.post(task(), recipient="reviewer")
    kit.route("three")
    (dispatch, _), *_ = kit.sent.runs
    child = kit.ledger.session(dispatch.session)
    assert (child.parent, child.root, child.depth, child.callback) == (
        family.child,
        family.lead.session.root,
        2,
        False,
    )
    assert kit.ledger.session(family.child).launched == 0


def test_what_follows_upon_a_launch_in_the_same_round_finds_it(kit: Kit) -> None:
    """A task and a message to its session, published together, are both carried out."""
    launch, correlation = new_message_id(), new_message_id()
    options = {"sender": "partner", "recipient": "reviewer", "correlation": correlation}
    kit.post(task(), message_id=launch, **options)
    kit.post(Message(content="and hurry"), chain=(launch,), **options)
    handled = kit.route()
    (session,) = roots(kit)
    assert (handled.done, handled.parked) == (2, 0)
    assert [i.kind for i in kit.ledger.items(session.id)] == ["message"]


def test_the_root_hears_once_of_a_conversation_that_runs_away(kit: Kit, family: Family) -> None:
    """More messages than the limit are refused; who began it all is told."""
    above = {"correlation": family.lead.session.correlation, "chain": family.lead.session.chain}
    for number in range(6):
        kit.post(Message(content=str(number)), sender="lead", recipient="reviewer", **above)
    kit.beside(conversation_max_messages=3).route("three")
    assert {letter.rule for letter in kit.dead()} == {"conversation-limit"}
    told = [i for i in kit.ledger.items(family.lead.session.root) if i.kind == "error"]
    assert [(i.agent, i.priority) for i in told] == [("router", "critical")]


def test_a_review_that_is_not_done_in_time_fails(kit: Kit) -> None:
    """The time is the table's 24 hours, or what the request's retry policy says."""
    policy = RetryPolicy(max_attempts=1, backoff_strategy="linear", timeout_seconds=1)
    for retry in (None, policy):
        kit.post(REVIEW, sender="partner", recipient="code-reviewer", retry=retry)
    kit.route()
    quick, slow = sorted(roots(kit), key=lambda s: kit.redis.zscore("ao:{00}:timers", f"review|{s.id}"))
    sweep_until(kit, quick.id, SessionState.FAILED)
    assert kit.ledger.session(quick.id).reason == "the review was not done in time"
    assert kit.ledger.session(slow.id).busy


def test_what_a_program_launches_for_its_task_is_in_the_audit_trail_under_an_id_of_its_own(
    kit: Kit, family: Family
) -> None:
    """The doctor finds the session that a launch began by its message, not by the program's task-id."""
    launch = family.envelope(task(), recipient="reviewer")
    kit.publish(launch, "task-delegation", "high")
    kit.route("three")
    (grandchild,) = [s for s in kit.ledger.tree(family.lead.session.id) if s.parent == family.child]
    write(kit)
    store = store_of(kit)
    doctor = Doctor(kit.parts, audit=AuditReader(store), sleep=lambda _: None)
    assert doctor.examine(watch_leases=False).holds
    kit.redis.delete(ledger_keys.session(grandchild.id))
    assert not doctor.examine(watch_leases=False).holds
    store.close()


@pytest.mark.parametrize("ends", ["finished", "stopped"])
def test_a_review_that_is_over_has_no_time_limit_any_more(kit: Kit, ends: str) -> None:
    """Neither its end leaves one behind, nor does a copy of the request bring it back; a user may go on with it."""
    data = kit.post(REVIEW, sender="partner", recipient="code-reviewer")
    kit.route()
    ledger, (session,) = kit.ledger, roots(kit)
    assert kit.redis.zscore("ao:{00}:timers", f"review|{session.id}") is not None
    held = kit.claim(session.id)
    if ends == "finished":
        kit.commit(held.claim, "fine")
    else:
        ledger.stop(session.id, "enough", force=True)
    kit.publish(data, "review-request", "high")
    kit.publish(data.replace(b"look at it", b"look at  it"), "review-request", "high")
    kit.route("two")
    assert ledger.session(session.id).state == ends
    assert kit.redis.zscore("ao:{00}:timers", f"review|{session.id}") is None


def test_a_review_of_our_own_has_its_time_limit_until_it_is_over(kit: Kit) -> None:
    """As one that a program asks for."""
    ledger, root = kit.ledger, kit.send()
    kit.route()
    child = kit.assign(kit.claim(root), "code-reviewer", matter=Review()).child_id
    kit.route("two")
    assert kit.redis.zscore("ao:{00}:timers", f"review|{child}") is not None
    ledger.stop(child, "enough", force=True)
    assert kit.redis.zscore("ao:{00}:timers", f"review|{child}") is None


def as_snoop(kit: Kit, family: Family, body: Body, **about: Any) -> bytes:
    """What a registered program says that has read the family's chain and was told nothing."""
    kit.parts.agents.announce([AgentRecord(name="snoop", role="coordinator", executor="foreign")])
    return kit.envelope(body, sender="snoop", **family.within, **about)


def give_up(kit: Kit, number: int) -> None:
    """Route until so many messages are dead letters, however patient the router is."""
    later = kit.now_ms
    for turn in range(20):
        if len(kit.dead()) == number:
            return
        kit.route(f"turn-{turn}", clock=At(later + turn * 10_100), jitter=lambda: 0.0)
        kit.wake()
    raise AssertionError("it is no dead letter yet")


STRANGE = {
    "get-status": (Query(query_type="get-status", subject="how far?"), "lead"),
    "message": (Message(content="do as I say"), "lead"),
    "query": (Query(query_type="ask-for-help", subject="which key?"), "lead"),
    "reply": (Reply(in_reply_to="0b7a0a52-5a4e-4f7e-8d55-2f9a3d1c7e10", answer="yes"), "lead"),
    "escalation": (
        Escalation(escalation=EscalationMatter(task_id="E", title="x", description="x")),
        "tech-lead",
    ),
    "task-delegation": (task("T-snoop"), "reviewer"),
    "review-request": (
        ReviewRequest(review=Review(task_id="R", title="x", description="x")),
        "code-reviewer",
    ),
}


@pytest.mark.parametrize("said", list(STRANGE))
def test_a_stranger_says_nothing_in_a_conversation_whose_chain_it_has_read(
    kit: Kit, family: Family, said: str
) -> None:
    """It is refused with the reason, which its sender gets; nobody in the conversation hears of it."""
    ledger = kit.ledger
    before = {s.id: len(ledger.items(s.id)) for s in ledger.tree(family.lead.session.root)}
    body, recipient = STRANGE[said]
    kit.publish(as_snoop(kit, family, body, recipient=recipient), body.type)
    give_up(kit, 1)
    (letter,) = kit.dead()
    assert letter.rule == "conversation-party"
    assert "'snoop' has no part in conversation" in letter.reason
    assert {s.id: len(ledger.items(s.id)) for s in ledger.tree(family.lead.session.root)} == before
    assert len(roots(kit)) == 1
    told = [check(data).message for data in kit.published("error")]
    assert "snoop" in [m.header.recipient.agent_name for m in told if m is not None]


def test_a_stranger_does_not_get_into_a_conversation_by_trying(kit: Kit, family: Family) -> None:
    """What is refused leaves no part in it behind."""
    for number, kind in enumerate(("task-delegation", "message"), 1):
        body, recipient = STRANGE[kind]
        kit.publish(as_snoop(kit, family, body, recipient=recipient), kind)
        give_up(kit, number)
    assert [letter.rule for letter in kit.dead()] == ["conversation-party"] * 2


def test_whoever_was_told_something_in_a_conversation_may_speak_in_it(kit: Kit, family: Family) -> None:
    """A message is enough; so does the operator, who has part in all."""
    body, recipient = STRANGE["task-delegation"]
    work = as_snoop(kit, family, body, recipient=recipient)
    above = {"correlation": family.lead.session.correlation, "chain": family.lead.session.chain}
    kit.post(Message(content="help partner"), sender="lead", recipient="snoop", **above)
    kit.route("three")
    kit.publish(work, "task-delegation", "high")
    kit.post(task("T-operator"), sender="operator", recipient="reviewer", **family.within)
    kit.route("four")
    assert kit.dead() == []
    assert {s.delegator for s in roots(kit)[:2]} == {"operator", "snoop"}  # begun in one millisecond


def test_a_chain_of_messages_that_nobody_knows_is_refused_under_a_new_correlation_id_too(
    kit: Kit,
) -> None:
    """It would put words of an earlier conversation into the mouths of others."""
    strange = {"correlation": new_message_id(), "chain": (new_message_id(), new_message_id())}
    kit.post(task(), sender="partner", recipient="reviewer", **strange)
    kit.route()
    (dead,) = [dead for dead in kit.dead() if dead.type == "task-delegation"]
    assert dead.rule == "conversation-chain"
    assert roots(kit) == []
