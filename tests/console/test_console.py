"""The console in a real browser: each page with a stack at work, an action each, hostile text, and pages that stay alive."""

from __future__ import annotations

import hashlib
import re
import signal
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator import console
from orchestrator.cli.trail import open_trail
from orchestrator.redisdb import ledger_keys
from orchestrator.redisdb.client import connect
from tests.commands import run_command
from tests.console.conftest import AGENTS, HOSTILE, Running, beside, serve_console, stack_of
from tests.kit import Kit
from tests.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]
HERE = Path(__file__).parent
#: How hostile text is to be seen.
SHOWN = "<script>document.title='gone'</script> \\x1b[31mred \\u202eesrever"
PAGES = ("/", "/sessions", "/asked", "/dead", "/agents", "/audit", "/audit/report")


def see(page: Page, expression: str) -> None:
    """Wait until an expression is true on a page; the policy of the console forbids what Playwright does for that."""
    wait_until(lambda: page.evaluate(expression), expression, 60)


def shown(page: Page, running: Running, query: str, session: str) -> bool:
    """Whether the list of sessions that meet a query has a session."""
    page.goto(f"{running.url}/sessions?{query}")
    return page.locator(f"#s-{session}").count() == 1


@pytest.fixture(scope="module")
def at_work(running: Running) -> dict[str, str]:
    """Sessions of each kind, as far as they come by themselves."""
    client = running.client
    found = {"lead": client.submit("lead", "The fox runs. The dog sleeps.", title="Count a fable").id}
    for agent in ("growing", "asking", "careful", "failing", "hostile"):
        title = HOSTILE if agent == "hostile" else f"Work of {agent}"
        found[agent] = client.submit(agent, f"go {HOSTILE}", title=title).id
    client.result(found["lead"], timeout_s=120)
    for agent in ("failing", "hostile"):
        client.wait(found[agent], timeout_s=120)
    wait_until(lambda: client.questions() and client.approvals(), "a question and an approval")
    wait_until(lambda: client.session(found["growing"]).state == "idle", "a child")
    return found


@pytest.mark.parametrize("folder", [Path(console.__file__).parent / "static", HERE / "static"])
def test_vendored_programs_are_what_their_packages_have(folder: Path) -> None:
    """Each file has the hash and the licence that are recorded, and no file of others is unrecorded."""
    recorded = tomllib.loads((folder / "vendored.toml").read_text(encoding="utf-8"))
    for name, facts in recorded.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == facts["sha256"], name
        assert (folder / facts["licence_file"]).stat().st_size > 100
    assert {path.name for path in folder.glob("*.min.js")} == set(recorded)


def test_triage_says_what_needs_a_person(open_page: OpenPage, at_work: dict[str, str]) -> None:
    """It shows the open approval and question, what failed and why, and the promise in numbers."""
    page = open_page()
    page.wait_for_selector(f"#f-{at_work['failing']}")
    text = page.inner_text("#live")
    assert "Waiting for a person" in text
    assert "delete_files" in text
    assert f"Which colour? {SHOWN}" in text
    assert f"nothing to work with {SHOWN}" in text
    assert re.search(r"\d+ launched = \d+ delivered \+ \d+ pending \+ \d+ dead", text)
    page.wait_for_selector(f"#w-{at_work['growing']}")
    assert "of its children" in page.inner_text(f"#w-{at_work['growing']}")


def test_hostile_text_is_text_on_every_page(
    open_page: OpenPage, running: Running, at_work: dict[str, str]
) -> None:
    """Titles, prompts, answers and reasons are shown with their markup and their controls visible, and nothing runs."""
    page = open_page()
    own = [f"/sessions/{at_work[name]}" for name in ("hostile", "failing", "careful", "asking")]
    own += [f"/trees/{at_work['hostile']}", f"/trees/{at_work['hostile']}/flame"]
    for path in (*PAGES, *own, f"/audit/conversations/{at_work['hostile']}"):
        answer = page.goto(running.url + path)
        assert answer.status == 200, path
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        assert page.title() != "gone"
        html = page.content()
        assert "\x1b" not in html
        assert "\u202e" not in html
        assert page.locator("script:not([src]), style, [style], [onclick]").count() == 0, path
    page.goto(running.url + own[0])
    assert page.inner_text("#answer") == SHOWN
    assert SHOWN in page.inner_text("h1")


def test_sessions_are_found_and_filtered_by_the_address(
    open_page: OpenPage, running: Running, at_work: dict[str, str]
) -> None:
    """A filter is in the address; words find titles and prompts, and the beginning of an id a session."""
    page = open_page("/sessions")
    page.select_option("select[name=state]", "failed")
    page.wait_for_url("**state=failed**")
    rows = "[...document.querySelectorAll('#live tbody tr')]"
    see(page, f"{rows}.length > 0 && {rows}.every((row) => row.innerText.includes('failed'))")
    assert "Work of failing" in page.inner_text("#live")
    for words, name in (("fable", "lead"), (at_work["asking"][:16], "asking"), ("fox runs", "lead")):
        assert shown(page, running, f"q={words}", at_work[name]), words


def test_sessions_are_found_by_answers_and_by_cost(open_page: OpenPage, running: Running) -> None:
    """Words of an answer find its session; a cost from and to shows those between; what is no amount is said."""
    client = running.client
    spent, free = client.submit("spending", "go").id, client.submit("counter", "for nothing").id
    for session in (spent, free):
        client.result(session, timeout_s=60)
    page = open_page("/sessions")

    wait_until(lambda: shown(page, running, "q=verdict+saffron", spent), "the audit trail", 30)
    assert not shown(page, running, "q=verdict+saffron", free)
    assert "What is encrypted was not" in page.inner_text("#live")
    for query, found in (
        ("least=0.2&most=0.3", [True, False]),
        ("least=0.26", [False, False]),
        ("most=0.1&agent=counter", [False, True]),
    ):
        assert [shown(page, running, query, session) for session in (spent, free)] == found, query
    page.goto(f"{running.url}/sessions?least=much")
    assert "'much' is not an amount in US dollars" in page.inner_text("#live")
    page.goto(f"{running.url}/sessions?act=stop-many&least=0.2&agent=spending")
    assert page.locator("#filter input[name=least]").input_value() == "0.2"


def test_sessions_are_found_by_later_prompts_and_by_why_they_failed(
    open_page: OpenPage, running: Running, at_work: dict[str, str]
) -> None:
    """Words of the prompt of a resume, and of the reason of a failure, find the session, also below a root."""
    child = running.client.tree(at_work["lead"])[1].id
    running.client.resume(child, "And how many zeppelins?")
    unlucky = running.client.submit("unlucky", "print").id
    page = open_page("/sessions")
    wait_until(lambda: shown(page, running, "q=many+zeppelins", child), "the prompt", 30)
    wait_until(lambda: shown(page, running, "q=no+paper", unlucky), "the reason", 30)


def test_what_has_control_characters_is_found(
    open_page: OpenPage, running: Running, at_work: dict[str, str]
) -> None:
    """No XML can hold it, so an envelope has it in base64: a search finds the text and not its encoding."""
    page = open_page("/sessions")
    wait_until(
        lambda: shown(page, running, "q=script+document+title+gone", at_work["hostile"]), "the text", 30
    )
    done = run_command("audit", "search", "gone script", "--json", settings=running.settings)
    assert done.exit_code == 0, done.output
    assert at_work["hostile"] in done.output


def test_tree_grows_while_somebody_looks(
    open_page: OpenPage, running: Running, at_work: dict[str, str]
) -> None:
    """A new child appears by itself; what was unfolded, the focus and the scroll position stay. Paused, nothing moves."""
    root = running.client.submit("growing", "grow", title="A tree that grows").id
    wait_until(lambda: running.client.session(root).launched == 1, "the first child")
    page = open_page(f"/trees/{root}", viewport={"width": 700, "height": 260})
    see(page, "document.querySelectorAll('tbody tr').length === 2")
    page.evaluate("window.scrollTo(0, 60)")
    link = page.locator(f"#t-{root} a").nth(1)
    link.focus()
    page.evaluate("document.getElementById('t-' + location.pathname.split('/').pop()).dataset.kept = 'yes'")
    running.client.resume(root, "more")
    running.client.stop(running.client.tree(root)[1].id)
    see(page, "document.querySelectorAll('tbody tr').length >= 3")
    assert page.evaluate("document.activeElement.closest('tr')?.id") == f"t-{root}"
    assert page.evaluate("window.scrollY") == 60
    page.click("#pause")
    assert "paused" in page.inner_text("#state")
    page.wait_for_timeout(500)
    before = page.inner_text("#live")
    running.client.stop(root)
    page.wait_for_timeout(2500)
    assert page.inner_text("#live") == before
    page.click("#pause")
    see(page, "document.querySelector('#live').innerText.includes('stopped')")


def test_what_is_being_typed_survives_updates(
    open_page: OpenPage, running: Running, at_work: dict[str, str]
) -> None:
    """Text and caret of a form that somebody fills in stay when the page is brought up to date."""
    page = open_page("/asked")
    box = page.locator("textarea").first
    box.fill("blue, I th")
    box.evaluate("(area) => area.setSelectionRange(4, 4)")
    done = page.inner_text("#state")
    running.client.result(running.client.submit("counter", "tick").id, timeout_s=60)
    see(page, f"document.querySelector('#state').textContent !== {done!r}")
    assert box.input_value() == "blue, I th"
    assert box.evaluate("(area) => area.selectionStart") == 4


def test_question_and_approval_are_answered_with_their_context(open_page: OpenPage, running: Running) -> None:
    """The answers reach the agents, and the audit trail says who gave them."""
    client = running.client
    asking, careful = (
        client.submit(agent, "now", title=f"Own {agent}").id for agent in ("asking", "careful")
    )
    wait_until(lambda: client.questions(asking) and client.approvals(careful), "both")
    page = open_page("/asked", name="beatrix")
    card = page.locator("article", has_text="Own asking")
    assert "What led here" in card.inner_text()
    card.locator("textarea").fill("blue")
    card.get_by_text("Send the reply").click()
    page.wait_for_selector(".outcomes >> text=has its reply")
    assert client.result(asking, timeout_s=60) == "it is blue"
    card = page.locator("article", has_text="Own careful")
    card.locator("input[name=comment]").fill("go ahead")
    card.get_by_text("Approve", exact=True).click()
    page.wait_for_selector(".outcomes >> text=approved: delete_files")
    assert client.result(careful, timeout_s=60) == "approved: True"
    page.goto(f"{running.url}/audit?q=beatrix")
    wait_until(lambda: page.reload() and "operator → router" in page.inner_text("#live"), "the notes", 30)


def test_session_is_resumed_forked_stopped_and_deleted(
    open_page: OpenPage, running: Running, at_work: dict[str, str]
) -> None:
    """Each button does what the client's method does, and says what came of it."""
    session = running.client.submit("lead", "One. Two.", title="To be acted on").id
    running.client.result(session, timeout_s=60)
    page = open_page(f"/sessions/{session}")
    runs = len(running.client.runs(session))
    page.fill("#resume textarea", "once more")
    page.click("#resume button")
    page.wait_for_selector(".outcomes >> text=will run")
    wait_until(lambda: len(running.client.runs(session)) > runs, "another run")
    page.click("text=Fork from a run")
    page.click("#fork button")
    page.wait_for_selector(".outcomes >> text=begins where run")
    forked = page.url.partition("?")[0].rpartition("/")[2]
    assert running.client.session(forked).forked_from == session
    running.client.wait(forked, timeout_s=60)
    page.click("summary:text-is('Delete')")
    page.check("#delete input[name=confirm]")
    page.click("#delete button")
    page.wait_for_selector(".outcomes >> text=is deleted")
    assert running.client.session(forked).state == "deleted"
    running.client.submit("slow", "one", title="to be stopped"), running.client.submit("slow", "two")
    page.goto(f"{running.url}/sessions?agent=slow&act=stop-many")
    page.click("#confirm button.danger")
    page.wait_for_selector(".outcomes li")
    assert page.locator(".outcomes li.done").count() >= 2


def test_session_shows_callbacks_events_and_envelopes(
    open_page: OpenPage, running: Running, at_work: dict[str, str]
) -> None:
    """Receipts of callbacks, what happened in order, and the XML of an envelope with what its signature says."""
    page = open_page(f"/sessions/{at_work['lead']}")
    text = page.inner_text("#live")
    assert "The fox runs. The dog sleeps." in text
    assert text.count("delivered") >= 2
    page.goto(f"{running.url}/sessions/{at_work['growing']}?why=all")
    assert "Held up by" in page.inner_text("#live")
    page.goto(f"{running.url}/audit?type=task-delegation")
    page.click("tbody th a >> nth=0")
    page.wait_for_selector("pre")
    assert "<am:" in page.inner_text("pre") or "<" in page.inner_text("pre")
    assert "holds" in page.inner_text("#live")


def test_dead_letters_are_grouped_replayed_and_dropped(open_page: OpenPage, running: Running) -> None:
    """What nobody can read is a dead letter; it is shown under its rule, and gone when it is dropped."""
    url = running.settings.redis_url
    assert url is not None
    with connect(url, settings=running.settings) as redis:
        for number in range(2):
            Kit.on(redis, running.settings).publish(f"<not {number} an envelope".encode(), "message")
    page = open_page("/dead")
    wait_until(lambda: page.reload() and page.locator("tbody tr").count() >= 2, "two dead letters", 30)
    rule = page.inner_text("h2 a")
    assert "2" in page.inner_text("h2")
    page.check("[data-all]")
    page.click("text=Drop those chosen")
    page.wait_for_selector(".outcomes >> text=was dropped")
    assert rule not in page.inner_text("#live")


def test_what_is_broken_is_repaired(
    browser: Any, running: Running, at_work: dict[str, str], tmp_path: Path
) -> None:
    """The one action beside what is broken does what `doctor --fix` does, says what came of it, and is noted."""
    with connect(running.settings.redis_url or "", settings=running.settings) as redis:
        redis.hincrby(ledger_keys.session(at_work["lead"]), "delivered", 1)
    # A console that has not examined the stack yet does it now.
    process, address = serve_console(running.settings, tmp_path / "console.log")
    context = browser.new_context()
    try:
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector("h2 >> text=Broken or stuck", timeout=60_000)
        assert at_work["lead"] in page.inner_text("#live")
        page.click("button >> text=Repair")
        page.wait_for_selector(".outcomes >> text=/repaired: .*counters/")
        assert "Broken or stuck" not in page.inner_text("#live")
    finally:
        context.close()
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    assert running.client.session(at_work["lead"]).delivered == 2
    trail = open_trail(running.settings)
    wait_until(lambda: trail.search(text="in the console: repair: repaired"), "the notes", 30)


def test_agents_are_paused_and_go_on(open_page: OpenPage, running: Running, at_work: dict[str, str]) -> None:
    """The page says who serves what; a paused agent says so, and goes on. What waits for a person is not ready."""
    page = open_page("/agents")
    assert "yes" in page.inner_text("#a-counter")
    assert [page.inner_text(f"#a-asking td:nth-child({column})") for column in (4, 6)] == ["0", "–"]
    page.click("#a-counter button")
    page.wait_for_selector(".outcomes >> text=agent counter is paused")
    assert "paused" in page.inner_text("#a-counter")
    page.click("#a-counter button")
    page.wait_for_selector(".outcomes >> text=agent counter goes on")
    assert running.client.result(running.client.submit("counter", "a b").id, timeout_s=60) == "2 words"


def test_limits_are_changed_and_queues_paused(
    open_page: OpenPage, running: Running, at_work: dict[str, str]
) -> None:
    """Limits of an agent and of each tree, and a queue's pause, are changed as by the commands, and noted."""
    page = open_page("/agents", name="dorothea")

    def set_limit(where: str, form: str, most: str) -> None:
        page.click(f"{where} details summary")
        page.fill(f"{form} input[name=most]", most)
        page.click(f"{form} button")

    set_limit("#a-counter", "#l-counter", "3")
    page.wait_for_selector(".outcomes >> text=agent counter may have 3 runs at work at once")
    assert "0 of 3" in page.inner_text("#a-counter")
    set_limit("#a-counter", "#l-counter", "many")
    assert "'many' is not a limit" in page.inner_text("#main")
    page.goto(f"{running.url}/agents")
    set_limit("#a-counter", "#l-counter", "default")
    page.wait_for_selector(".outcomes >> text=agent counter has the limit of its definition")
    set_limit("#each-tree", "#l-trees", "7")
    page.wait_for_selector(".outcomes >> text=each tree without a limit of its own may have 7 runs")
    assert "at most 7 runs at work" in page.inner_text("#each-tree")
    set_limit("#each-tree", "#l-trees", "none")
    page.wait_for_selector(".outcomes >> text=may have any number")
    page.click("[id='q-orchestra.counter'] button")
    page.wait_for_selector(".outcomes >> text=is paused")
    assert "queue paused" in page.inner_text("#a-counter")
    page.click("[id='q-orchestra.counter'] button")
    page.wait_for_selector(".outcomes >> text=goes on")
    assert running.client.result(running.client.submit("counter", "a b c").id, timeout_s=60) == "3 words"
    trail = open_trail(running.settings)
    wait_until(lambda: len(trail.search(text="dorothea in the console")) == 6, "the notes", 30)


def test_trail_is_verified_and_exported(
    open_page: OpenPage, running: Running, at_work: dict[str, str], tmp_path: Path
) -> None:
    """The result of a verification appears by itself; the exported file is a whole trail; both are noted."""
    page = open_page("/audit", name="clara")
    page.click("text=Verify the trail")
    see(page, "document.querySelector('#verification')?.innerText.includes('intact')")
    assert re.search(r"Verified for clara at .+, in ", page.inner_text("#verification"))
    with page.expect_download() as downloaded:
        page.click("#export button")
    path = tmp_path / downloaded.value.suggested_filename
    downloaded.value.save_as(path)
    assert path.name.endswith(".jsonl.zst")
    done = run_command("audit", "verify", "--file", str(path), settings=running.settings)
    assert done.exit_code == 0, done.output
    trail = open_trail(running.settings)
    wait_until(lambda: len(trail.search(text="clara in the console")) == 2, "the notes", 30)


def test_report_on_a_time_is_shown_and_saved(
    open_page: OpenPage, running: Running, at_work: dict[str, str], tmp_path: Path
) -> None:
    """The audit page leads to it; it has the figures of its time, is not made again by itself, and is saved as a file."""
    page = open_page("/audit", role="viewer")
    page.click("text=Report of the last 24 hours")
    page.wait_for_selector("h1 >> text=Audit report")
    assert page.locator("svg.chart.time").count() >= 1
    assert "sessions answered" in page.inner_text(".tiles")
    assert page.inner_text("#state") == "This page is a picture of one moment."
    assert page.locator("#pause").is_hidden()
    with page.expect_download() as downloaded:
        page.click("text=Save as a file")
    path = tmp_path / downloaded.value.suggested_filename
    downloaded.value.save_as(path)
    assert path.suffix == ".html"
    assert "<script" not in path.read_text()
    assert "Content-Security-Policy" in path.read_text()
    page.fill("input[name=since]", "2020-01-01T00:00:00Z")
    page.fill("input[name=until]", "2020-01-02T00:00:00Z")
    page.click("text=Show")
    page.wait_for_selector("text=Nothing was published in this time.")
    page.fill("input[name=since]", "the other day")
    page.click("text=Show")
    page.wait_for_selector("text='the other day' is neither how long ago")


def test_conversation_is_drawn_and_listed(open_page: OpenPage, at_work: dict[str, str]) -> None:
    """Agents have a line each, messages an arrow each, and a dead one says why; the list links to each message."""
    page = open_page(f"/audit/conversations/{at_work['lead']}")
    names = page.locator("svg.sequence .name").all_text_contents()
    assert names[:3] == ["operator", "lead", "counter"]
    total = int(re.findall(r"(\d+) messages", page.inner_text("#main"))[0])
    assert page.locator("svg.sequence g").count() == total
    assert (
        page.locator("svg.sequence .arrow").first.evaluate("(arrow) => getComputedStyle(arrow).stroke")
        != "none"
    )
    page.click("text=as a list")
    page.wait_for_url("**as=list")
    assert page.locator("ol.sequence li").count() == total
    page.click("ol.sequence a >> nth=0")
    assert "holds" in page.inner_text("#live")


def test_viewer_looks_and_may_not_act(open_page: OpenPage, running: Running, at_work: dict[str, str]) -> None:
    """A viewer sees no buttons, and each action is refused with 403."""
    from orchestrator.console.actions import ACTIONS

    page = open_page("/asked", name="victor", role="viewer")
    assert page.locator("#live form").count() == 0
    assert "viewer" in page.inner_text(".who")
    for action in ACTIONS:
        answer = page.request.post(
            f"{running.url}/do/{action}",
            form={"session": at_work["growing"]},
            headers={"sec-fetch-site": "same-origin"},
        )
        assert answer.status == 403, action
    answer = page.request.post(f"{running.url}/audit/export", headers={"sec-fetch-site": "same-origin"})
    assert answer.status == 403


def test_strangers_and_other_sites_are_refused(
    browser: Any, open_page: OpenPage, running: Running, at_work: dict[str, str]
) -> None:
    """Without a cookie nothing is shown; a token works once; an action from elsewhere, and another host, are refused."""
    stranger = browser.new_context()
    try:
        page = stranger.new_page()
        for path in (*PAGES, f"/sessions/{at_work['lead']}", "/events"):
            answer = page.request.get(running.url + path)
            assert answer.status == 401
            assert "Count a fable" not in answer.text()
        address = running.address("carla")
        page.goto(address)
        assert page.url == f"{running.url}/"
        (cookie,) = stranger.cookies()
        assert cookie["httpOnly"]
        assert cookie["sameSite"] == "Strict"
        stranger.clear_cookies()
        page.goto(address)
        assert "was used" in page.inner_text("#main")
    finally:
        stranger.close()
    page = open_page()
    for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "https://evil.example"}, {}):
        answer = page.request.post(f"{running.url}/do/stop", form={"session": "x"}, headers=headers)
        assert answer.status == 403, headers
    assert page.request.get(running.url, headers={"host": "evil.example"}).status == 403


def test_ten_thousand_sessions_are_folded(browser: Any, tmp_path: Path) -> None:
    """The page of such a tree has at most 200 rows, says how many there are, and unfolds them by fifties."""
    # On a stack of its own: repairing the other one would look at each of them, which takes a minute.
    with (
        stack_of(tmp_path, AGENTS.format(hostile=HOSTILE)) as (settings, client),
        beside(settings, tmp_path, client) as running,
        browser.new_context() as context,
    ):
        page = context.new_page()
        page.goto(running.address(path="/agents"))
        page.click("#a-idle button")
        page.wait_for_selector(".outcomes >> text=agent idle is paused")
        crowd = client.submit("crowd", "10000", title="A crowd").id
        wait_until(lambda: client.session(crowd).launched == 10_000, "the crowd")
        page.goto(f"{running.url}/trees/{crowd}")
        assert page.locator("tbody tr").count() <= 200
        assert "10,001 sessions" in page.inner_text("#live")
        large = page.locator("tr.group").filter(has_text=re.compile(r"\d,\d{3}")).first
        if large.locator("a.fold").get_attribute("aria-expanded") == "false":
            large.locator("a.fold").click()
        page.wait_for_selector("tr.more")
        assert page.locator("tbody tr").count() <= 200
        page.click("tr.more >> text=Next 50")
        page.wait_for_selector("tr.more >> text=51–100")


def test_tree_is_shown_as_bars(open_page: OpenPage, running: Running) -> None:
    """A bar for each session leads to it, also by the keyboard; by cost there is one for each that has spent."""
    # One of its own: another test resumes a child of that at work, which makes the bar of its root narrow.
    root = running.client.submit("lead", "The fox runs. The dog sleeps.", title="Count a fable").id
    running.client.result(root, timeout_s=120)
    page = open_page(f"/trees/{root}")
    page.click("text=time >> nth=-1")
    page.wait_for_url("**/flame")
    assert page.locator(".flame a").count() == 3
    assert "Count a fable" in (page.text_content(f"#b-{root} text") or "")
    boxes = [page.locator(f".flame a >> nth={number} >> rect").bounding_box() for number in range(3)]
    assert all(box is not None and box["width"] > 0 for box in boxes)
    page.locator(f"#b-{root}").focus()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/sessions/{root}")
    page.goto(f"{running.url}/trees/{root}/flame?by=cost")
    assert "has used any money" in page.inner_text("#live")


def test_two_tabs_see_the_same(open_page: OpenPage, running: Running) -> None:
    """What one tab does, the other one shows by itself."""
    session = running.client.submit("slow", "wait", title="Seen twice").id
    first, second = open_page(f"/sessions/{session}"), open_page(f"/sessions/{session}", name="dora")
    second.wait_for_selector("#stop")
    first.fill("#stop input[name=reason]", "enough")
    first.click("#stop button")
    first.wait_for_selector(".outcomes >> text=asked to stop")
    see(second, "!document.querySelector('#stop')")


def test_keyboard_alone_is_enough(open_page: OpenPage, running: Running, at_work: dict[str, str]) -> None:
    """The first stop skips to the content, / goes to the search, and a row is unfolded and folded with Enter."""
    page = open_page(f"/trees/{at_work['lead']}")
    page.keyboard.press("Tab")
    assert "Skip" in page.evaluate("document.activeElement.textContent")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "find"
    page.keyboard.type("fable")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=fable**")
    page.goto(f"{running.url}/trees/{at_work['lead']}")
    fold = page.locator(f"#t-{at_work['lead']} a.fold")
    fold.focus()
    page.keyboard.press("Enter")
    see(page, "document.querySelectorAll('tbody tr').length === 1")
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "false"
    page.keyboard.press("Enter")
    see(page, "document.querySelectorAll('tbody tr').length > 1")


def test_what_is_pressed_while_a_page_is_replaced_counts(
    open_page: OpenPage, running: Running, at_work: dict[str, str]
) -> None:
    """A link leads where it says from the moment it is there; an update that was asked for before takes nothing back."""
    page = open_page(f"/trees/{at_work['lead']}")
    rows = "document.querySelectorAll('tbody tr').length"
    page.evaluate(
        f"""() => {{
            new MutationObserver((_, seen) => {{
                if ({rows} > 1) return;
                seen.disconnect();
                document.querySelector("a.fold").click();
            }}).observe(document.querySelector("#live"), {{ childList: true, subtree: true }});
            document.querySelector("a.fold").click();
        }}"""
    )
    page.wait_for_url("**open=**")
    see(page, f"{rows} > 1")
    held: list[Any] = []

    def hold(route: Any) -> None:
        is_update = "hx-request" in route.request.headers and "hx-boosted" not in route.request.headers
        held.append(route) if is_update and not held else route.continue_()

    page.route("**/trees/*", hold)
    running.client.submit("counter", "a tick")
    wait_until(lambda: page.evaluate("1") and held, "an update", 60)
    page.locator("a.fold").first.click()
    see(page, f"{rows} === 1")
    with page.expect_response("**/trees/*"):
        held[0].continue_()
    page.wait_for_timeout(200)
    assert page.evaluate(rows) == 1


def test_pages_are_read_without_javascript(
    open_page: OpenPage, running: Running, at_work: dict[str, str]
) -> None:
    """Without a script the pages, the folding and the times are there."""
    page = open_page(f"/trees/{at_work['lead']}", java_script_enabled=False)
    rows = page.locator("tbody tr").count()
    assert rows >= 3
    page.click("a.fold >> nth=0")
    assert page.locator("tbody tr").count() == 1
    page.goto(f"{running.url}/sessions/{at_work['lead']}")
    assert "UTC" in page.inner_text("time >> nth=0")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_have_no_serious_barrier(
    open_page: OpenPage, running: Running, at_work: dict[str, str], scheme: str
) -> None:
    """axe-core finds nothing serious on any page, wide or narrow; no page is wider than a narrow screen."""
    running.client.submit("failing", "again")
    page = open_page(
        color_scheme=scheme, viewport={"width": 1280 if scheme == "light" else 400, "height": 800}
    )
    own = (
        *(f"/sessions/{at_work['lead']}", f"/trees/{at_work['growing']}", f"/sessions/{at_work['growing']}"),
        *(f"/trees/{at_work['lead']}/flame", f"/trees/{at_work['lead']}/flame?by=cost"),
        *(f"/audit/conversations/{at_work['lead']}", f"/audit/conversations/{at_work['lead']}?as=list"),
    )
    axe = (HERE / "static" / "axe.min.js").read_text(encoding="utf-8")
    for path in (*PAGES, *own, "/nothing-here"):
        page.goto(running.url + path)
        page.evaluate(axe)
        found = page.evaluate("axe.run({resultTypes: ['violations']})")
        bad = [
            (one["id"], one["nodes"][0]["html"][:200], one["nodes"][0]["failureSummary"][:300])
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]
        assert not bad, (path, bad)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path


def test_console_that_goes_away_and_comes_back(
    open_page: OpenPage, running: Running, at_work: dict[str, str]
) -> None:
    """The page says that nobody answers and goes on by itself; cookies are good after a restart."""
    page = open_page(f"/trees/{at_work['lead']}")
    running.end()
    page.wait_for_selector("#away:not([hidden])", timeout=30_000)
    assert "does not answer" in page.inner_text("#away")
    running.restart()
    page.wait_for_selector("#away", state="hidden", timeout=30_000)
    page.reload()
    assert "Count a fable" in page.inner_text("#main")
