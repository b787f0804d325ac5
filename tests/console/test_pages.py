"""Pages of the console over plain HTTP, on a ledger without workers: what each says in rare cases."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
from starlette.testclient import TestClient

from orchestrator.config.settings import Settings, load_settings
from orchestrator.console.access import COOKIE, Access, Person, Role, Rules
from orchestrator.console.application import Console, Pace
from orchestrator.console.flame import MOST_BARS, By, flame
from orchestrator.console.stack import Examined, Stack
from orchestrator.doctor import Diagnosis, Problem, Severity
from orchestrator.ledger import SessionState, Tally
from orchestrator.ledger.reader import SessionOutline
from orchestrator.policy.budget import Budget, Cost
from orchestrator.redisdb import keys, ledger_keys
from tests.kit import Kit, carried


class Site(Kit):
    """A console, and somebody who uses it."""

    def __init__(self, settings: Settings) -> None:
        self.stack = Stack(lambda: settings)
        super().__init__(self.stack.parts)
        self.access = Access(Rules(folder=settings.data / "console"))
        application = Console(self.stack, lambda: self.access).application()
        self.http = TestClient(application, base_url="http://127.0.0.1")
        self.be("operator")

    def be(self, role: Role) -> None:
        """Use it as somebody of this role from now on."""
        self.http.cookies.set(COOKIE, self.access.make_cookie(Person("ann", role)))

    def text(self, path: str) -> str:
        """Return the page at a path."""
        answer = self.http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text


@pytest.fixture
def settings(redis_url: str, tmp_path: Path) -> Settings:
    return load_settings(redis_url=redis_url, data=tmp_path / "data")


@pytest.fixture
def site(settings: Settings) -> Iterator[Site]:
    made = Site(settings)
    with made.http:
        yield made


def test_every_page_is_there_for_the_redis_user_of_the_console(
    redis: redis_py.Redis, settings: Settings
) -> None:
    """The role `console` may read what pages show, also by a script, and a script of its own changes nothing."""
    kit = Kit.on(redis, settings)
    parent, _ = kit.given_run("waits")
    kit.as_role("console")
    console = f"{settings.redis_url}&username=console&password=for-tests"
    site = Site(settings.model_copy(update={"redis_url": console}))
    paths = ("/", "/sessions", f"/sessions/{parent}", f"/trees/{parent}", "/asked", "/dead", "/agents")
    with site.http:
        for path in paths:
            site.text(path)
        with pytest.raises(redis_py.exceptions.ResponseError, match=r"(?i)permission"):
            site.redis.eval("return redis.call('DEL', KEYS[1])", 1, keys.totals(0))


def test_triage_names_circles_and_what_is_not_verified(site: Site) -> None:
    """Circles of waits and what nobody signed have sections of their own; a task that would close a circle was refused."""
    session = "ses_0" + "a" * 32
    findings = (
        Problem(Severity.STUCK, "wait-circle", "ask_1", f"ses_1 waits for its child {session}", session),
        Problem(Severity.BREAK, "not-genuine", "ses_2", "its answer is not what it gave", "ses_2"),
        Problem(Severity.STUCK, "late", "ses_3", "ses_3 has not started", "ses_3"),
    )
    tally = Tally(sessions=0, launched=0, delivered=0, pending=0, dead=0)
    diagnosis = Diagnosis(tally=tally, trees=0, findings=findings, waits=(), audited=False)
    site.stack._examined = Examined(
        diagnosis=diagnosis, waits=(), failed=(), failed_count=0, over_budget=(), at_ms=1, examined_ms=1
    )
    site.stack._next_at = time.monotonic() + 600
    reason = "tasks wait for each other in a circle: c → a → c; take one dependency out"
    site.redis.xadd(keys.dead(0), {"rule": "dependency-cycle", "reason": reason, "envelope": b"<x/>"})
    page = site.text("/")
    circles, _, rest = page.partition("Broken or stuck")
    assert "Circles of waits" in circles
    assert f"waits for its child {session}" in circles
    assert "Stop it" in circles
    stuck, _, unverified = rest.partition("Not verified")
    assert "ses_3 has not started" in stuck
    assert "its answer is not what it gave" in unverified
    assert reason in unverified
    assert "All is well" not in page
    site.be("viewer")
    assert "Stop it" not in site.text("/")


def test_triage_forgets_nothing_for_what_came_later(site: Site) -> None:
    """A failure of today and the longest wait are there however many were launched since; all failures are counted."""
    waits, _ = site.given_run("waits")
    for number in range(22):
        site.finish(site.given(f"fails {number}"), f"no luck {number}", status="failed")
    site.finish(site.given("ends well"))
    for number in range(600):
        site.given(f"later {number}")
    examined = site.stack.examined(wait_s=60)
    assert next(one.id for one, _ in examined.waits) == waits
    page = site.text("/")
    assert "no luck 21" in page
    assert 'Failed within a day <span class="count">22</span>' in page
    assert "All that failed" in page
    assert "All is well" not in page


@pytest.mark.parametrize("below", [False, True])
def test_triage_and_doctor_look_at_a_tree_that_was_resumed_however_long_it_rested(
    site: Site, below: bool
) -> None:
    """A finished root, or a session below it, that works again is not at rest, though its tree was to expire from its end."""
    ledger = site.ledger
    root, child = site.parent_of("child")
    site.finish(child)
    site.commit(site.resume(root).claim)
    site.parts.settle(root)
    site.redis.zincrby(ledger_keys.timers(0), -3 * 86_400_000, f"expire|{root}")
    since_ms = ledger.server_ms() - 86_400_000
    assert list(ledger.sweep.changed_roots(0, since_ms=since_ms)) == [([], 1)]
    resumed = child if below else root
    ledger.enqueue(resumed, "go on", item_id="prompt-1", envelope=carried("message"))
    site.resume(resumed)
    assert list(ledger.sweep.changed_roots(0, since_ms=since_ms)) == [([root], 0)]


def outline(name: str, parent: str = "", **fields: Any) -> SessionOutline:
    """Return a session of a tree by what matters here."""
    numbers = dict.fromkeys(SessionOutline._fields[3:], 0)
    return SessionOutline(id=name, parent=parent, state=SessionState.FINISHED, **{**numbers, **fields})


def test_bars_by_time_take_a_row_more_where_they_overlap() -> None:
    """A bar goes from launch to end; what has not ended goes to the right edge; two at once are in two rows."""
    drawn = flame(
        [
            outline("root", created_ms=1_000),
            outline("first", "root", created_ms=1_000, ended_ms=1_400),
            outline("beside", "root", created_ms=1_200, ended_ms=1_600),
            outline("after", "root", created_ms=1_500, ended_ms=2_000),
        ],
        "time",
        now_ms=2_000,
    )
    bars = {bar.id: bar for bar in drawn.bars}
    assert {name: bar.row for name, bar in bars.items()} == {"root": 0, "first": 1, "beside": 2, "after": 1}
    assert (bars["root"].x, bars["root"].width) == (0, 1)
    assert (bars["beside"].x, bars["beside"].width) == (0.2, 0.4)
    assert drawn.marks == ((0.0, 0), (0.25, 250), (0.5, 500), (0.75, 750))
    assert [bar.id for bar in drawn.largest][:2] == ["root", "after"]


def test_bars_by_cost_are_as_wide_as_all_below() -> None:
    """The dearest child comes first; what has cost nothing has no bar and is counted."""
    members = [
        outline("root", nano_usd=10),
        outline("cheap", "root", nano_usd=10),
        outline("dear", "root", nano_usd=20),
        outline("deep", "dear", nano_usd=60),
        outline("free", "root"),
    ]
    drawn = flame(members, "cost", now_ms=0)
    bars = {bar.id: (bar.row, round(bar.x, 3), round(bar.width, 3), bar.own, bar.whole) for bar in drawn.bars}
    assert bars == {
        "root": (0, 0, 1, 10, 100),
        "dear": (1, 0, 0.8, 20, 80),
        "cheap": (1, 0.8, 0.1, 10, 10),
        "deep": (2, 0, 0.6, 60, 60),
    }
    assert drawn.left_out == 1
    assert not flame(members, "tokens", now_ms=0).bars


@pytest.mark.parametrize("by", ["time", "cost"])
def test_bars_of_ten_thousand_are_few(by: By) -> None:
    """Whatever their number, a picture has at most 300 bars in at most 80 rows, the largest ones."""
    members = [outline("root", created_ms=1)]
    members += [
        outline(
            f"c{n}", "root" if n < 5_000 else f"c{n - 5_000}", created_ms=2, ended_ms=3 + n, nano_usd=1 + n
        )
        for n in range(10_000)
    ]
    drawn = flame(members, by, now_ms=20_000)
    assert 0 < len(drawn.bars) <= MOST_BARS
    assert drawn.rows <= 80
    assert drawn.left_out == len(members) - len(drawn.bars)


def test_pages_are_made_at_once_where_little_changes_and_seldom_where_much_does() -> None:
    """Pages may use up what they saved; from then on they get their share of a core, and none waits longer than 15 s."""
    pace = Pace()
    pace.open = 3
    pace.note(0.005)
    assert pace.interval_s == 1.0, "nothing was going on, so the next change is shown at once"
    for _ in range(20):
        pace.note(0.005)
    assert 5 < pace.interval_s < 9, "three pages of 5 ms take a fifth of a percent of a core"
    pace.open = 300
    assert pace.interval_s == 15.0


def test_triage_has_budgets_of_sessions_below_a_root(site: Site) -> None:
    """One that a child was given is looked at, as long as the child has not ended; it is the child's, not a grandchild's."""
    ledger = site.ledger
    _, lead = site.given_run("lead")
    child, richer = (site.delegate(lead, f"with {most}", budget=Budget(requests=most)) for most in (1, 2))
    held = site.run(child)
    site.run(richer)
    grandchild = site.delegate(held, "three")
    ledger.spending.reserve(held.claim, "r1", Cost(requests=1), agent="reviewer", budgets=(child,))
    ledger.spending.spend(held.claim, "r1", Cost(requests=1), agent="reviewer")
    examined = site.stack.examined(wait_s=60)
    assert [one.id for one, _ in examined.over_budget] == [child]
    assert grandchild not in site.text("/").partition("Over budget")[2].partition("</section>")[0]
    assert f"the budget of {child} is used up: 1 request of 1" in site.text("/")
    site.commit(held.claim)
    ledger.stop(child, "enough was spent")
    site.stack.forget()
    site.stack._examined = None
    examined = site.stack.examined(wait_s=60)
    assert not examined.over_budget


def test_nothing_to_stop_is_said_and_can_be_left(site: Site) -> None:
    """Where an action on a filter fits no session, there is no button for it, and a way back."""
    site.finish(site.given("over"))
    page = site.text("/sessions?act=stop-many&state=finished")
    assert "No session to stop" in page
    assert "1 session is left out, having ended" in page
    assert '<a class="button" href="/sessions?state=finished">Back</a>' in page
    assert "/do/stop-many" not in page
