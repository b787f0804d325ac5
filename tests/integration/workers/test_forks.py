"""A fork begins a new tree where a run of another session began, and that one stays as it is."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.client.client import Client
from orchestrator.errors import EmptyPrompt, InputError, KeyInUse, UnknownSession
from orchestrator.ids import root_session_id
from orchestrator.ledger import RunRef, RunState, SessionState
from orchestrator.redisdb import ledger_keys
from orchestrator.worker.context.context import Context
from tests.examined import doctor_of
from tests.kit import Kit
from tests.waiting import wait_until
from tests.workers import Workers

LARGE = "y" * 2_000_000


def hold_back(workers: Workers, *agents: str) -> None:
    """Let nobody take runs of these agents, and of no others."""
    workers.held_back = lambda run: run.agent in agents


def let_go(kit: Kit, workers: Workers, session: str, agent: str) -> None:
    """Execute what was held back of an agent in a tree."""
    for member in kit.ledger.tree(session):
        if member.agent == agent:
            wait_until(lambda member=member: kit.ledger.session(member.id).run)
            run = kit.ledger.session(member.id).run
            workers.give_again(RunRef(run=run, session=member.id, agent=agent, cause="start"))


def counter(kit: Kit, name: str = "counter", **options: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """An agent that counts what it is told in its state; what each of its runs found."""
    seen: list[tuple[str, str, dict[str, Any]]] = []

    @kit.agent(name, **options)
    def count(ctx: Context) -> str:
        seen.append((ctx.cause, ctx.prompt, dict(ctx.state)))
        words = [*ctx.state.get("words", []), ctx.prompt]
        ctx.state["words"] = words
        return " ".join(words)

    return seen


def told(workers: Workers, client: Client, session: str, *prompts: str) -> None:
    """Give a session more prompts, one run each."""
    for prompt in prompts:
        item = client.resume(session, prompt)
        client.wait(session, timeout_s=60, item=item)


def everything(kit: Kit, session: str) -> dict[bytes, Any]:
    """All that the ledger has of a session, but whether its result was stored for its caller."""
    found: dict[bytes, Any] = {
        name: kit.redis.hgetall(name) if kit.redis.type(name) == b"hash" else kit.redis.dump(name)
        for name in kit.redis.scan_iter(f"ao:*:session:{session}*")
    }
    found[ledger_keys.session(session).encode()].pop(b"settled_ms", None)
    return found


def test_a_fork_finds_the_saved_state_of_that_run(kit: Kit, workers: Workers, client: Client) -> None:
    """And what it was told there; with other words it goes another way. The old session is not touched."""
    seen = counter(kit)
    session = kit.submit("counter", "one")
    assert workers.answer(session) == "one"
    told(workers, client, session, "two", "three")
    before = everything(kit, session)
    runs = client.runs(session)
    again = client.fork(session, runs[1].id)
    assert again.result(timeout_s=60) == "one two"
    assert seen[-1][0] == "user"
    assert "two" in seen[-1][1]
    other = client.fork(session, "3", prompt="four")
    assert other.result(timeout_s=60) == "one two four"
    first = client.fork(session, "1", prompt="nine")
    assert first.result(timeout_s=60) == "nine"
    assert seen[-1] == ("start", "nine", {})
    assert everything(kit, session) == before
    about = client.session(again.id)
    assert (about.forked_from, about.forked_at, about.parent, about.root) == (
        session,
        runs[1].id,
        "",
        again.id,
    )
    told(workers, client, again.id, "five")
    assert again.result(timeout_s=60) == "one two five"


def test_a_fork_has_the_task_of_its_session_and_another_prompt_is_another_task(
    kit: Kit, workers: Workers, client: Client
) -> None:
    @kit.agent("planner")
    def planner(ctx: Context) -> str:
        return f"{ctx.prompt.splitlines()[0]}: {[one.text for one in ctx.task.objectives]}"

    session = client.submit("planner", "Plan it", task={"objectives": ["soon"]}).id
    assert workers.answer(session) == "Plan it: ['soon']"
    assert client.fork(session, "1").result(timeout_s=60) == "Plan it: ['soon']"
    assert client.fork(session, "1", prompt="Rest").result(timeout_s=60) == "Rest: []"


def test_a_fork_can_be_forked(kit: Kit, workers: Workers, client: Client) -> None:
    counter(kit)
    session = kit.submit("counter", "one")
    workers.answer(session)
    told(workers, client, session, "two")
    fork = client.fork(session, "2", prompt="three")
    assert fork.result(timeout_s=60) == "one three"
    assert client.fork(fork.id, "1", prompt="four").result(timeout_s=60) == "one four"


def test_a_run_that_failed_is_where_a_repaired_agent_goes_on(
    kit: Kit, workers: Workers, client: Client
) -> None:
    """Its callbacks are dead in the old session, and given once more in the new one."""
    broken = [True]

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.state["launched"] = [ctx.delegate("helper", word) for word in ("a", "b")]
            ctx.wait_for("all")
            return "waits"
        if broken[0]:
            raise ValueError("a bug")
        assert len(ctx.state["launched"]) == 2
        return ",".join(sorted(one.result for one in ctx.callbacks)) + f";{len(ctx.all_results)}"

    kit.agent("helper")(lambda ctx: f"did {ctx.prompt}")
    session = kit.submit("lead")
    assert workers.finish(session).state is SessionState.FAILED
    run = client.runs(session)[-1]
    assert run.state is RunState.FAILED
    broken[0] = False
    fork = client.fork(session, run.id)
    assert fork.result(timeout_s=60) == "did a,did b;2"
    assert client.tree(fork.id) == [client.session(fork.id)]  # nobody was launched again
    assert client.session(session).state is SessionState.FAILED


def test_results_of_earlier_runs_are_there_and_what_was_outstanding_comes(
    kit: Kit, workers: Workers, client: Client
) -> None:
    """In one run: what has come since as it came, and of what has not that nothing will."""

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            for name in ("first", "second", "third"):
                ctx.delegate(name, "do")
            ctx.wait_for("any")
        found = sorted(f"{one.agent}:{one.result or one.error[:20]}" for one in ctx.callbacks)
        total = sorted(one.agent for one in ctx.all_results)
        return f"{found} of {total}"

    for name in ("first", "second"):
        kit.agent(name)(lambda ctx: "done")
    kit.agent("third")(lambda ctx: "done")
    hold_back(workers, "second", "third")
    session = kit.submit("lead")
    wait_until(lambda: kit.ledger.session(session).delivered == 1)
    hold_back(workers, "third")
    let_go(kit, workers, session, "second")
    wait_until(lambda: kit.ledger.session(session).delivered == 2)
    runs = client.runs(session)
    assert len(runs) == 3
    fork = client.fork(session, runs[1].id)
    third = next(one.id for one in client.tree(session) if one.agent == "third")
    told_of = f"third:session {third[:12]}"
    assert (
        fork.result(timeout_s=60)
        == f"['first:done', 'second:done', '{told_of}'] of ['first', 'second', 'third']"
    )
    later = client.fork(session, runs[2].id)
    assert later.result(timeout_s=60) == f"['second:done', '{told_of}'] of ['first', 'second', 'third']"
    hold_back(workers)
    let_go(kit, workers, session, "third")
    workers.answer(session)


def test_a_fork_waits_as_its_session_did(kit: Kit, workers: Workers, client: Client) -> None:
    """For children that it launches without saying again what it waits for; deadlines were those of the old tree."""
    seen: list[int] = []

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        seen.append(len(ctx.callbacks))
        if ctx.cause == "start":
            ctx.wait_for("all", deadline_s=3600)
            return "ready"
        if ctx.cause == "user":
            for word in ("a", "b", "c"):
                ctx.delegate("helper", word)
        return f"{len(ctx.callbacks)}"

    kit.agent("helper")(lambda ctx: "done")
    session = kit.submit("lead")
    workers.answer(session)
    told(workers, client, session, "go")
    assert workers.answer(session) == "3"
    fork = client.fork(session, "2")
    assert fork.result(timeout_s=60) == "3"
    assert client.session(fork.id).waiting == {"": {"mode": "all"}}


def test_large_results_are_the_new_trees_own(kit: Kit, workers: Workers, client: Client) -> None:
    """They outlive the tree that they came from."""
    kit.lead("helper: write", answer=lambda ctx: "".join(str(len(c.result)) for c in ctx.callbacks))
    kit.agent("helper")(lambda ctx: LARGE)
    session = kit.submit("lead")
    assert workers.answer(session) == str(len(LARGE))
    hold_back(workers, "lead")
    fork = client.fork(session, "2")
    for member in reversed(kit.ledger.tree(session)):
        kit.ledger.sweep.delete_session(member.id, session)
    wait_until(lambda: kit.ledger.session(fork.id).run)  # while it is held back
    hold_back(workers)
    let_go(kit, workers, fork.id, "lead")
    assert fork.result(timeout_s=60) == str(len(LARGE))


def test_only_the_last_runs_can_be_forked(kit: Kit, workers: Workers, client: Client) -> None:
    """As many as the setting says; the error says so, and nothing else is kept."""
    object.__setattr__(kit.ledger.limits, "fork_runs", 3)
    counter(kit)
    session = kit.submit("counter", "1")
    workers.answer(session)
    told(workers, client, session, "2", "3", "4", "5")
    kept = {name.decode() for name in kit.redis.hkeys(ledger_keys.past(session))}
    assert kept == {"from", "state:3", "state:4", "state:5"}
    with pytest.raises(InputError, match=r"is no longer kept: .* has had 5 runs.*can be forked; choose"):
        client.fork(session, "2")
    assert client.fork(session, "3", prompt="x").result(timeout_s=60) == "1 2 x"
    for member in reversed(kit.ledger.tree(session)):
        kit.ledger.sweep.delete_session(member.id, session)
    assert not kit.redis.exists(ledger_keys.past(session))


def test_what_cannot_be_forked_is_refused(kit: Kit, workers: Workers, client: Client) -> None:
    counter(kit)
    session = kit.submit("counter", "one")
    workers.answer(session)
    with pytest.raises(UnknownSession):
        client.fork(root_session_id("nobody"), "1")
    with pytest.raises(EmptyPrompt):
        client.fork(session, "1", prompt=" ")
    with pytest.raises(InputError, match=r"has no run '7'; its last runs: run_"):
        client.fork(session, "7")
    hold_back(workers, "counter")
    client.resume(session, "two")
    wait_until(lambda: kit.ledger.session(session).busy)
    with pytest.raises(InputError, match="is queued: a session is forked at a run that has ended"):
        client.fork(session, "2")
    client.delete(session)
    wait_until(lambda: kit.ledger.session(session).state is SessionState.DELETED)
    with pytest.raises(InputError, match="was deleted, and nothing is kept of its runs"):
        client.fork(session, "1")


def test_a_resume_by_callbacks_has_no_prompt_to_replace(kit: Kit, workers: Workers, client: Client) -> None:
    kit.lead("helper: help")
    kit.agent("helper")(lambda ctx: "done")
    session = kit.submit("lead")
    workers.answer(session)
    with pytest.raises(InputError, match="has no prompt to replace"):
        client.fork(session, "2", prompt="other")


def test_the_same_key_is_the_same_fork(kit: Kit, workers: Workers, client: Client) -> None:
    """However often it is asked for, and also when the first answer was lost on the way; of another run it is refused."""
    counter(kit)
    session = kit.submit("counter", "one")
    workers.answer(session)
    told(workers, client, session, "two")
    first = client.fork(session, "2", key="k")
    again = client.fork(session, "2", key="k")
    assert (first.id, first.new) == (again.id, True)
    assert not again.new
    assert first.result(timeout_s=60) == "one two"
    assert len(client.runs(first.id)) == 1
    with pytest.raises(KeyInUse):
        client.fork(session, "1", key="k")


def test_nothing_that_the_first_run_of_a_fork_does_reaches_the_old_tree(
    kit: Kit, workers: Workers, client: Client
) -> None:
    """A question that it was asked there is not answered here, and the promise holds for both trees."""
    replied: list[str] = []

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("helper", "help")
        for one in ctx.callbacks:
            if one.kind == "query":
                replied.append(f"{ctx.session} {one.can_reply}")
                if one.can_reply:
                    ctx.reply(one, "blue")
        return "done"

    @kit.agent("helper")
    def helper(ctx: Context) -> str:
        return ctx.ask("which colour?")

    session = kit.submit("lead")
    workers.answer(session)
    asked = next(run.id for run in client.runs(session) if run.cause == "callbacks")
    before = everything(kit, session)
    fork = client.fork(session, asked)
    assert fork.result(timeout_s=60) == "done"
    assert replied == [f"{session} True", f"{fork.id} False"]
    assert everything(kit, session) == before
    seen = doctor_of(kit).examine(watch_leases=False)
    assert seen.holds, seen.findings


def test_a_worker_that_dies_at_the_first_run_of_a_fork_changes_nothing(kit: Kit, client: Client) -> None:
    """Its next try finds the same."""
    seen = counter(kit, attempts=2)
    session = kit.begin("counter", "one")
    client.resume(session, "two")
    kit.play(session)
    fork = client.fork(session, "2").id
    kit.run(fork)
    assert kit.crash(fork) == "queued"
    assert kit.again(fork) == "finished"
    assert kit.answer(fork) == "one two"
    assert seen[-1][2] == {"words": ["one"]}
