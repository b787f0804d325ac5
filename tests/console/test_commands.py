"""`orchestra console` and `open`, and the console of `orchestra up`, as a person types them."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from orchestrator.config.settings import Settings, load_settings
from orchestrator.console.access import COOKIE, COOKIE_S, TOKEN_S, Access, Person, Rules
from orchestrator.console.application import make_app, mounted
from orchestrator.deployment.local_stack import LocalStack, service_specs
from tests.commands import run_command
from tests.waiting import wait_until


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Those of a data folder without a stack."""
    return load_settings(data=tmp_path / "data")


def test_up_runs_a_console_that_ends_with_it(tmp_path: Path) -> None:
    """`orchestra open` finds it and prints an address that lets in; when the stack ends, nothing listens any more."""
    settings = load_settings(data=tmp_path / "data", console=True, console_port=0, stop_grace_s=2)
    with LocalStack(settings) as stack:
        stack.wait_ready(120)
        assert "console" in stack.pids
        printed = wait_until(lambda: _opened(settings), "the address")
        with urllib.request.urlopen(printed["address"].partition("/?")[0] + "/static/icon.svg") as answer:
            assert answer.status == 200
            assert "default-src 'none'" in answer.headers["content-security-policy"]
    ended = run_command("open", "--print", settings=settings)
    assert ended.exit_code == 4
    assert "no console is running" in ended.stderr


def _opened(settings: Settings) -> dict[str, str]:
    done = run_command("open", "--json", "--viewer", "--name", "eve", settings=settings)
    return json.loads(done.stdout) if done.exit_code == 0 else {}


def test_console_can_be_switched_off() -> None:
    """Without the setting there is no process for it."""
    names = {spec.name for spec in service_specs(load_settings(console=True))}
    assert names - {spec.name for spec in service_specs(load_settings(console=False))} == {"console"}


def test_console_refuses_an_address_of_others_without_a_token(settings: Settings) -> None:
    """The sentence says what to set."""
    done = run_command("console", "--host", "0.0.0.0", settings=settings)
    assert done.exit_code == 2
    assert "does not start on 0.0.0.0" in done.stderr
    assert "ORCHESTRA_CONSOLE_TOKEN" in done.stderr


def test_console_without_a_stack_says_so(settings: Settings) -> None:
    """It ends as every command does where no stack runs."""
    assert run_command("console", settings=settings).exit_code == 4


def test_tokens_work_once_and_cookies_are_not_forged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token is used once, also by another process; a changed token or cookie, and one of another console, is nobody's."""
    first, second = Access(Rules(folder=tmp_path)), Access(Rules(folder=tmp_path))
    token = first.make_token("ann")
    assert second.use_token(token) == Person("ann", "operator")
    assert first.use_token(token) is None
    late = first.make_token("ann")
    cookie = first.make_cookie(Person("ann", "viewer"))
    assert second.of_cookie(cookie) == Person("ann", "viewer")
    payload, made, mac = cookie.split(".")
    changed = f"{payload}.{made}.{'B' if mac[0] == 'A' else 'A'}{mac[1:]}"
    for wrong in ("", ".", f"{payload}x.{made}.{mac}", changed, f"{payload}.{mac}", first.make_token("ann")):
        assert first.of_cookie(wrong) is None
    assert Access(Rules(folder=tmp_path / "other")).of_cookie(cookie) is None
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + TOKEN_S + 2)
    assert first.use_token(late) is None
    assert first.of_cookie(cookie) == Person("ann", "viewer")
    monkeypatch.setattr(time, "time", lambda: now + COOKIE_S + 2)
    assert first.of_cookie(cookie) is None


def test_only_a_named_proxy_names_the_user(tmp_path: Path) -> None:
    """Its header counts from its own address alone; only named users may act, and nobody on a console to look at."""
    access = Access(Rules(folder=tmp_path, proxies=("10.0.0.0/24",), operators=("ann",)))
    assert access.of_proxy("10.0.0.7", {"x-forwarded-user": "ann"}) == Person("ann", "operator")
    assert access.of_proxy("10.0.0.7", {"x-forwarded-user": "bob"}) == Person("bob", "viewer")
    assert access.of_proxy("10.0.1.7", {"x-forwarded-user": "ann"}) is None
    assert access.of_proxy("10.0.0.7", {}) is None
    looking = Access(Rules(folder=tmp_path, proxies=("10.0.0.7",), operators=("ann",), read_only=True))
    assert looking.of_proxy("10.0.0.7", {"x-forwarded-user": "ann"}) == Person("ann", "viewer")


@pytest.mark.parametrize("prefix", ["", "/ops"])
def test_prometheus_reads_metrics_with_a_token_of_its_own(
    prefix: str, redis_url: str, tmp_path: Path
) -> None:
    """The token reads metrics and probes and opens no page; whoever may look at pages reads them, too."""
    from starlette.testclient import TestClient

    settings = load_settings(data=tmp_path / "data", redis_url=redis_url)
    token = run_command("metrics", "--token", settings=settings).stdout.strip()
    bearer = {"authorization": f"Bearer {token}"}
    with TestClient(mounted(prefix, make_app(lambda: settings)), base_url="http://127.0.0.1") as client:
        assert client.get(f"{prefix}/healthz").text == "alive\n"
        for path in ("/metrics", "/readyz", "/readyz/router"):
            refused = client.get(f"{prefix}{path}")
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert client.get(f"{prefix}{path}", headers={"authorization": "Bearer x"}).status_code == 401
        answer = client.get(f"{prefix}/metrics", headers=bearer)
        assert answer.status_code == 200
        assert "orchestra_promise_gap 0.0" in answer.text
        openmetrics = {**bearer, "accept": "application/openmetrics-text; version=1.0.0"}
        assert client.get(f"{prefix}/metrics", headers=openmetrics).text.endswith("# EOF\n")
        assert client.get(f"{prefix}/readyz", headers=bearer).json()["services"]["router"] == 0
        assert client.get(f"{prefix}/", headers=bearer).status_code == 401
        assert client.post(f"{prefix}/do/stop", headers=bearer).status_code == 403
        access = Access(Rules(folder=tmp_path / "data" / "console"))
        client.cookies.set(COOKIE, access.make_cookie(Person("eve", "viewer")))
        assert client.get(f"{prefix}/metrics").status_code == 200


def test_without_the_library_there_are_no_metrics_and_a_sentence(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The console needs the extra `metrics` for them alone; without a stack they say so."""
    from starlette.testclient import TestClient

    bearer = {
        "authorization": f"Bearer {Access(Rules(folder=tmp_path / 'data' / 'console')).make_scrape_token()}"
    }
    with TestClient(make_app(lambda: settings), base_url="http://127.0.0.1") as client:
        answer = client.get("/metrics", headers=bearer)
        assert (answer.status_code, "no stack is running" in answer.text) == (503, True)
        monkeypatch.setattr("orchestrator.console.probes.find_spec", lambda name: None)
        answer = client.get("/metrics", headers=bearer)
        assert (answer.status_code, "agent-orchestra[metrics]" in answer.text) == (404, True)
        assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize("prefix", ["", "/ops/console"])
def test_console_is_mounted_under_any_path(settings: Settings, tmp_path: Path, prefix: str) -> None:
    """Addresses in its pages begin with the path at which it is mounted; without a stack a page says so."""
    from starlette.testclient import TestClient

    token = Access(Rules(folder=tmp_path / "data" / "console")).make_token("ann")
    with TestClient(mounted(prefix, make_app(lambda: settings)), base_url="http://127.0.0.1") as client:
        assert client.get(f"{prefix}/").status_code == 401
        answer = client.get(f"{prefix}/", params={"token": token})
        assert answer.status_code == 503
        assert "no stack is running" in answer.text
        assert f'href="{prefix}/sessions"' in answer.text
        assert client.get(f"{prefix}/static/console.css").status_code == 200
