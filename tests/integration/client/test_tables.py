"""`sessions`, `tree` and `agents` as people see them: filtered, and on a terminal."""

from __future__ import annotations

import re

import pytest

from orchestrator.client.client import Client
from orchestrator.redisdb import ledger_keys
from orchestrator.worker.context.context import Context
from tests.commands import Orchestra
from tests.integration.client.conftest import on_terminal
from tests.kit import Kit

pytestmark = pytest.mark.usefixtures("solo")


@pytest.fixture
def root(kit: Kit, lead: None) -> str:
    """An idle root with two children, one of them finished."""
    session = kit.begin("lead", "the whole")
    kit.play(kit.children(session)[0].id)
    return session


def _shown(kit: Kit, *arguments: str) -> list[str]:
    return [one["session"] for one in kit.document(*arguments)["sessions"]]


def spends(ctx: Context) -> str:
    with ctx.spending.reserve(requests=1, input_tokens=1, usd=0.25) as reservation:
        reservation.settle(input_tokens=1, usd=0.25)
    return "dear"


def test_sessions_are_filtered_by_state_agent_age_and_cost(
    kit: Kit, client: Client, orchestra: Orchestra, root: str
) -> None:
    """The limit counts what is shown: what is like that is found behind any number that is not."""
    old = kit.begin("solo", "x")
    others = [client.submit("lead", f"y{number}").id for number in range(3)]
    kit.agent("dear")(spends)
    dear = kit.begin("dear", "x")
    everything = _shown(kit, "sessions")
    assert set(everything) == {root, old, dear, *others}
    assert _shown(kit, "sessions", "--cost-from", "0.2", "--cost-to", "$0.25") == [dear]
    assert _shown(kit, "sessions", "--cost-from", "0.26") == []
    assert _shown(kit, "sessions", "--cost-to", "0.1", "--agent", "solo") == [old]
    assert _shown(kit, "tree", dear, "--cost-to", "0.1") == []
    assert "'much' is not an amount in US dollars" in orchestra("sessions", "--cost-from", "much").stderr
    assert _shown(kit, "sessions", "--agent", "solo", "--limit", "1") == [old]
    assert _shown(kit, "sessions", "--state", "finished", "--limit", "1") == [dear]
    assert set(_shown(kit, "sessions", "--state", "finished", "--state", "idle")) == {old, dear, root}
    assert _shown(kit, "sessions", "--state", "finished", "--agent", "lead") == []
    assert _shown(kit, "sessions", "--since", "1h") == everything
    assert _shown(kit, "sessions", "--until", "1h") == []
    none = orchestra("sessions", "--until", "1h")
    assert (none.exit_code, none.stdout) == (0, "")
    assert none.stderr.startswith("no session is like that; ")
    assert orchestra("sessions", "--since", "soon").exit_code == 2


def test_the_newest_roots_are_read_page_after_page(kit: Kit, client: Client) -> None:
    made = [client.submit("solo", str(number)).id for number in range(3)]
    for number in range(450):  # what an index names and is gone is passed over
        kit.redis.zadd("ao:{00}:roots", {f"ses_00{number:024x}": 10**14 + number})
    found = client.sessions(limit=2, where=lambda session: session.agent == "solo")
    assert {one.id for one in found} < set(made)
    assert len(found) == 2


def test_of_a_tree_what_is_like_that_is_shown_with_what_is_above_it(
    kit: Kit, orchestra: Orchestra, root: str
) -> None:
    first, second = (child.id for child in kit.children(root))
    assert _shown(kit, "tree", root) == [root, first, second]
    assert _shown(kit, "tree", root, "--state", "finished") == [root, first]
    assert _shown(kit, "tree", root, "--agent", "lead") == [root]
    none = orchestra("tree", root, "--state", "failed")
    assert none.exit_code == 0
    assert "no session of the tree is like that" in none.stdout + none.stderr


def test_a_terminal_gets_colours_and_lines_that_fit(kit: Kit, root: str) -> None:
    """Shortened ids are beginnings, which every command takes."""
    shown = on_terminal(kit, "tree", root, columns=60, NO_COLOR="1")
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines()[:4])) == 60
    assert root[:12] in shown
    assert root not in shown
    kit.redis.hset(ledger_keys.session(root), mapping={"used_requests": "2", "used_input_tokens": "123456"})
    assert re.search(r"idle +the whole +2 req", on_terminal(kit, "sessions", columns=70, NO_COLOR="1"))
    coloured = on_terminal(kit, "sessions", columns=160)
    assert root in coloured
    assert re.search(r"\x1b\[33m *idle *\x1b\[0m", coloured)


def test_whoever_waits_at_a_terminal_sees_how_far_the_tree_is(kit: Kit, root: str) -> None:
    """The line is taken back before the answer is printed; a pipe gets the answer alone."""
    second = kit.children(root)[1].id
    ended: list[str] = []

    def go_on(shown: str) -> None:
        if "1 of 3 sessions ended" in shown and not ended:
            ended.append(second)
            kit.play(second)
            kit.play(root)

    shown = on_terminal(kit, "result", root, "--wait", columns=80, meanwhile=go_on)
    assert ended == [second]
    assert kit.ledger.session(root).state == "finished"
    assert "\x1b[2K" in shown.rpartition("sessions ended")[2], "the line is taken back"


def test_logs_show_what_went_in_and_came_out(kit: Kit, orchestra: Orchestra, root: str) -> None:
    """Only where it is asked for; each text below the event that it belongs to."""
    child, other = (one.id for one in kit.children(root))
    kit.play(other)
    kit.play(root)
    assert "the whole" not in orchestra("logs", child, "--text").stdout
    lines = orchestra("logs", child, "--text").stdout.splitlines()
    assert [line for line in lines if line.startswith("    ")] == ["    a", "    a"]
    events = kit.document("logs", root, "--text")["events"]
    texts = [(event["what"], event["detail"]) for event in events if event["detail"]]
    assert texts[0] == ("launched", "the whole")
    assert sorted(texts[1:3]) == [("callback", "a"), ("callback", "b")]
    assert texts[-1][0] == "answer"
    plain = kit.document("logs", root)["events"]
    assert not any(event["detail"] or event["what"] == "answer" for event in plain)


def test_texts_of_logs_act_on_no_terminal_and_look_like_no_event(
    kit: Kit, client: Client, orchestra: Orchestra
) -> None:
    session = kit.begin("solo", "one\n2026-01-01T00:00:00.000Z  ended  \x1b[2Jforged")
    done = orchestra("logs", session, "--text")
    assert "\x1b" not in done.stdout
    assert r"    2026-01-01T00:00:00.000Z  ended  \x1b[2Jforged" in done.stdout.splitlines()
    dated = [line for line in done.stdout.splitlines() if line.startswith("20")]
    assert len(dated) == len(client.history(session, texts=True))


def test_logs_do_not_show_the_envelope_of_an_encrypted_task(
    kit: Kit, client: Client, orchestra: Orchestra
) -> None:
    session = client.submit("solo", "an envelope").id
    kit.redis.hset(ledger_keys.session(session), "sealed", "1")
    said = orchestra("logs", session, "--text").stdout
    assert "    [encrypted for solo]" in said.splitlines()
    assert "    an envelope" not in said.splitlines()
