"""Pages of the console over plain HTTP, on a ledger without workers: what each says in rare cases."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis as redis_py
from starlette.testclient import TestClient

from orchestrator.config.settings import load_settings
from orchestrator.console.access import COOKIE, Access, Person, Role, Rules
from orchestrator.console.application import Console
from orchestrator.console.stack import Examined, Stack
from orchestrator.doctor import Diagnosis, Problem, Severity
from orchestrator.ledger import Tally
from orchestrator.redisdb import keys


class Site:
    """A console, and somebody who uses it."""

    def __init__(self, url: str, data: Path) -> None:
        self.settings = load_settings(redis_url=url, data=data)
        self.stack = Stack(lambda: self.settings)
        self.access = Access(Rules(folder=data / "console"))
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
def site(redis: redis_py.Redis, redis_url: str, tmp_path: Path) -> Iterator[Site]:
    made = Site(redis_url, tmp_path / "data")
    with made.http:
        yield made


def test_triage_names_circles_and_what_is_not_verified(site: Site, redis: redis_py.Redis) -> None:
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
        diagnosis=diagnosis, waits=(), failed=(), over_budget=(), at_ms=time.time_ns() // 10**6, took_s=0.0
    )
    site.stack._next_at = time.monotonic() + 600
    reason = "tasks wait for each other in a circle: c → a → c; take one dependency out"
    redis.xadd(keys.dead(0), {"rule": "dependency-cycle", "reason": reason, "envelope": b"<x/>"})
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
