"""Notifications: at least once to a real HTTP server and a real command, whoever fails, hangs, crashes or is killed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import shlex
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
from click.testing import CliRunner, Result

from orchestrator import machine
from orchestrator.bootstrap import Container
from orchestrator.cli import main
from orchestrator.client.client import Client
from orchestrator.config.settings import Settings, load_settings
from orchestrator.errors import ConfigurationError
from orchestrator.machine import isoformat
from orchestrator.notifier import EVENTS, CommandTarget, Notifier, Target, Webhook, service, targets
from orchestrator.redisdb import keys
from orchestrator.redisdb.acl import acl_line, role_rules
from orchestrator.redisdb.holders import connect_holder
from orchestrator.router.deadletters.store import DeadLetter, DeadLetters
from orchestrator.streams import NOTICES, RedisStreams, ledger_streams
from orchestrator.worker.context.context import Context
from tests.documents import hold_to_models
from tests.integration.workers.conftest import StackHarness, stage
from tests.waiting import wait_until

__all__ = ["stage"]

Orchestra = Callable[..., Result]
SECRET = b"0123456789abcdef"


@pytest.fixture
def orchestra(stage: StackHarness) -> Orchestra:
    """Run a command on the stage."""
    place = ["--redis-url", str(stage.settings.redis_url), "--data", str(stage.settings.data)]

    def run(*arguments: str) -> Result:
        done = CliRunner().invoke(main, [*arguments, *place])
        hold_to_models(arguments, done.stdout)
        return done

    return run


@dataclass
class Receiver:
    """An HTTP server that answers as a test says: a status, or "hang", "drip", "close"."""

    answers: list[int | str] = field(default_factory=list)
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    @property
    def events(self) -> list[dict[str, object]]:
        return [json.loads(body) for _, body in self.got]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    state = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            state.got.append(({k.lower(): v for k, v in self.headers.items()}, body))
            answer = state.answers.pop(0) if state.answers else 204
            if answer == "close":
                self.connection.close()
            elif answer == "hang":
                state.over.wait(20)
            elif answer == "drip":
                while not state.over.wait(0.05):
                    try:
                        self.wfile.write(b"H")
                    except OSError:
                        return
            else:
                assert isinstance(answer, int)
                self.send_response(answer)
                if 300 <= answer < 400:
                    self.send_header("Location", f"{state.url}/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    yield state
    state.over.set()
    server.shutdown()
    server.server_close()


def make(stage: StackHarness, *targets: Target, consumer: str = "n1", **given: Any) -> Notifier:
    settings = stage.settings.model_copy(update={"notify_events": given.pop("events", EVENTS)})
    tries = service.Tries(**{"attempts": 4, "timeout_s": 0.4, "backoff_s": 0.02, **given})
    return Notifier(stage.redis, stage.ledger, targets, settings, consumer=consumer, tries=tries)


def webhook(receiver: Receiver, timeout_s: float = 0.4) -> Webhook:
    return Webhook(f"{receiver.url}/hook?x=1", SECRET, timeout_s=timeout_s)


def until(notifier: Notifier, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        notifier.run_once()
        time.sleep(0.005)


def given_up(stage: StackHarness) -> list[DeadLetter]:
    return DeadLetters(stage.redis).all()


def pending(stage: StackHarness, target: str = "webhook") -> int:
    return int(stage.redis.xpending(keys.notices(0), f"notify:{target}")["pending"])


def fails(stage: StackHarness) -> str:
    """A root that fails; its session."""

    @stage.agent("lead")
    def lead(_: Context) -> str:
        raise ValueError("boom")

    return stage.begin("lead", "do it", ends="failed")


def test_a_question_and_both_ends_are_told_with_a_signature(stage: StackHarness, receiver: Receiver) -> None:
    notifier = make(stage, webhook(receiver))

    @stage.agent("asker")
    def asker(ctx: Context) -> str:
        return ctx.ask("Ship it?", context={"v": 1})

    session = stage.submit("asker", "release")
    dispatch = stage.start(session)
    assert stage.execute(dispatch) == "parked"
    until(notifier, lambda: receiver.got)
    ((headers, body),) = receiver.got
    (event,) = receiver.events
    with Client(stage.settings) as user:
        (question,) = user.questions()
        user.reply(question.id, "yes")
    assert event["specversion"] == "1.0"
    assert (event["type"], event["subject"]) == ("agent-orchestra.question.asked", session)
    assert event["data"] == {
        "session": session,
        "agent": "asker",
        "title": "release",
        "root": session,
        "question": {
            "id": question.id,
            "kind": "query",
            "text": "Ship it?",
            "context": {"v": 1},
            "reply": f"orchestra reply {question.id} TEXT",
        },
    }
    assert headers["content-type"] == "application/cloudevents+json"
    assert headers["webhook-id"] == event["id"]
    signed = f"{event['id']}.{headers['webhook-timestamp']}.".encode() + body
    right = base64.b64encode(hmac.new(SECRET, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{right}"
    assert stage.execute(dispatch) == "finished"
    failed = fails(stage)
    until(notifier, lambda: len(receiver.got) == 3 and not pending(stage))
    # Events may overtake each other.
    finished, other = sorted(receiver.events[1:], key=lambda event: str(event["type"]), reverse=True)
    assert (finished["type"], finished["subject"]) == ("agent-orchestra.session.finished", session)
    assert (other["type"], other["subject"]) == ("agent-orchestra.session.failed", failed)
    assert "boom" in other["data"]["reason"]  # type: ignore[index]
    notifier._looks = 0
    notifier.run_once()
    assert stage.redis.xlen(keys.notices(0)) == 0


def test_an_approval_that_any_session_of_a_tree_asks_for_is_told_once(
    stage: StackHarness, receiver: Receiver
) -> None:
    notifier = make(stage, webhook(receiver), events=["approval"])

    @stage.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("ops", "release")
        return "done"

    @stage.agent("ops")
    def ops(ctx: Context) -> str:
        return str(ctx.request_approval("deploy", {"version": 2}, reason="it is Friday"))

    root = stage.begin("lead")
    (child,) = stage.children(root)
    dispatch = stage.start(child.id)
    assert stage.execute(dispatch) == "parked"
    with Client(stage.settings) as person:
        (asked,) = person.approvals()
        until(notifier, lambda: receiver.got)
        person.approve(asked.id)
    assert stage.again(dispatch) == "finished"
    until(notifier, lambda: not pending(stage) and not notifier._in_flight)
    (event,) = receiver.events
    assert (event["type"], event["subject"]) == ("agent-orchestra.approval.requested", child.id)
    assert event["data"] == {
        "session": child.id,
        "agent": "ops",
        "title": "release",
        "root": root,
        "approval": {
            "id": asked.id,
            "tool": "deploy",
            "arguments": {"version": 2},
            "reason": "it is Friday",
            "digest": asked.digest,
            "expires": isoformat(asked.expires_ms),
            "default": "deny",
            "approve": f"orchestra approve {asked.id}",
            "deny": f"orchestra deny {asked.id}",
        },
    }


def test_dead_callbacks_are_told(stage: StackHarness, receiver: Receiver) -> None:
    notifier = make(stage, webhook(receiver), events=["dead"])

    @stage.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("quick", "a", on_failure="ignore")
        return "done"

    @stage.agent("quick")
    def quick(_: Context) -> str:
        raise ValueError("boom")

    session = stage.begin("lead", ends="idle")
    (child,) = stage.children(session)
    stage.play(child.id)
    until(notifier, lambda: receiver.got)
    (event,) = receiver.events
    assert (event["type"], event["subject"]) == ("agent-orchestra.callback.dead", session)
    assert event["data"]["reason"] == "failure ignored by policy"  # type: ignore[index]


def test_a_receiver_that_fails_in_every_way_is_told_in_the_end_by_the_same_id(
    stage: StackHarness, receiver: Receiver
) -> None:
    receiver.answers = [500, "hang", "close", 302, "drip", 404]
    notifier = make(stage, webhook(receiver), attempts=10)
    fails(stage)
    until(notifier, lambda: len(receiver.got) == 7 and not pending(stage))
    assert len({event["id"] for event in receiver.events}) == 1
    assert len({body for _, body in receiver.got}) == 1
    assert given_up(stage) == []


def test_one_that_is_never_taken_is_dead_and_can_be_retried(
    stage: StackHarness, receiver: Receiver, orchestra: Orchestra, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.answers = [500] * 4
    notifier = make(stage, webhook(receiver))
    session = fails(stage)
    until(notifier, lambda: given_up(stage))
    assert (len(receiver.got), pending(stage)) == (4, 0)
    (listed,) = json.loads(orchestra("dlq", "list", "--agent", "webhook", "--json").stdout)["dead_letters"]
    assert (listed["rule"], listed["reason"]) == ("notification-undeliverable", "HTTP status 500")
    assert (listed["type"], listed["recipient"], listed["attempts"]) == ("notification", "webhook", 4)
    assert session in orchestra("dlq", "show", listed["dead_letter"]).stdout
    # It takes of its own share: what strangers send drops none of it.
    assert stage.redis.hexists(keys.dead_usage(0), "bytes:notifier")
    refused = orchestra("dlq", "replay", "--all")
    assert (refused.exit_code, "no webhook is set" in refused.stderr) == (2, True)
    monkeypatch.setenv("ORCHESTRA_NOTIFY_URL", receiver.url)
    receiver.answers = [503]
    assert "webhook has not taken it: HTTP status 503" in orchestra("dlq", "replay", "--all").stderr
    done = orchestra("dlq", "replay", listed["dead_letter"], "--json")
    assert [one["how"] for one in json.loads(done.stdout)["replayed"]] == ["notification"]
    assert len(receiver.got) == 6
    assert receiver.events[-1]["id"] == receiver.events[0]["id"]
    assert receiver.got[-1][0]["webhook-id"] == receiver.got[0][0]["webhook-id"]
    assert orchestra("dlq", "list").stderr == "no dead letters\n"
    assert stage.redis.zcard(keys.dead_index(0)) == 0


def test_one_that_cannot_be_given_up_stays_pending(stage: StackHarness, receiver: Receiver) -> None:
    """Somebody has overwritten the stream of dead letters with another type."""
    receiver.answers = [500]
    notifier = make(stage, webhook(receiver), attempts=1)
    stage.redis.set(keys.dead(0), "of another type")
    fails(stage)
    with pytest.raises(redis_py.ResponseError, match="WRONGTYPE"):
        until(notifier, lambda: False)
    assert pending(stage) == 1
    stage.redis.delete(keys.dead(0))
    until(notifier, lambda: given_up(stage))
    assert pending(stage) == 0


def test_it_needs_no_more_than_its_role_allows(
    stage: StackHarness, receiver: Receiver, redis_url: str
) -> None:
    """It makes its groups, reads what it tells, tries again, takes over, gives up and drops what was told."""
    line = acl_line("notifier", role_rules("notifier")).replace("PASSWORD", "secret")
    stage.redis.execute_command("ACL", "SETUSER", *line.split()[1:])
    client = redis_py.Redis.from_url(redis_url, username="notifier", password="secret", protocol=2)
    try:
        ledger = Container(client, stage.settings).ledger
        tries = service.Tries(attempts=2, timeout_s=-5, backoff_s=0.02)
        notifier = Notifier(client, ledger, [webhook(receiver)], stage.settings, consumer="n1", tries=tries)
        receiver.answers = [500, 204, 500, 500]
        told = fails(stage)
        until(notifier, lambda: len(receiver.got) == 2 and not pending(stage))
        fails(stage)
        until(notifier, lambda: given_up(stage))
        notifier._looks = 0
        notifier.run_once()
        assert stage.redis.xlen(keys.notices(0)) == 0
        # As a copy that was silent for an hour; another one is forgotten by the same script.
        assert RedisStreams(client).forget("notify:webhook", ledger_streams(NOTICES), idle_ms=-1) == 1
        assert receiver.events[0]["data"]["agent"] == "lead"  # type: ignore[index]
        assert receiver.events[0]["subject"] == told
    finally:
        client.close()
        stage.redis.execute_command("ACL", "DELUSER", "notifier")


@pytest.fixture
def killed(stage: StackHarness, receiver: Receiver, redis_url: str) -> str:
    """The session whose end a notifier was telling when it was killed with SIGKILL, as the receiver hung."""
    make(stage, webhook(receiver)).run_once()
    receiver.answers = ["hang"]
    env = {
        **os.environ,
        "ORCHESTRA_REDIS_URL": redis_url,
        "ORCHESTRA_DATA": str(stage.settings.data),
        "ORCHESTRA_NOTIFY_URL": receiver.url,
    }
    process = subprocess.Popen([sys.executable, "-m", "orchestrator", "service", "notifier"], env=env)
    try:
        session = fails(stage)
        wait_until(lambda: bool(receiver.got))
    finally:
        process.kill()
        process.wait()
    assert pending(stage) == 1
    return session


def test_what_a_killed_notifier_was_delivering_another_one_delivers(
    stage: StackHarness, receiver: Receiver, killed: str
) -> None:
    """It waits until it may be sure that nobody is at it, where the server does not show who is connected."""
    # The idle time of the group counts; a margin of five seconds lies between this copy and a live one.
    (entry,) = stage.redis.xpending_range(keys.notices(0), "notify:webhook", "-", "+", 1)
    options = {"idle": 4000, "retrycount": 1, "justid": True}
    stage.redis.xclaim(
        keys.notices(0), "notify:webhook", entry["consumer"], 0, [entry["message_id"]], **options
    )
    notifier = make(stage, webhook(receiver), consumer="n2", timeout_s=0.4)
    notifier.run_once()
    assert len(receiver.got) == 1
    until(notifier, lambda: not pending(stage))
    assert [event["subject"] for event in receiver.events] == [killed, killed]
    assert receiver.events[0]["id"] == receiver.events[1]["id"]


def test_a_killed_notifier_is_missed_by_its_connection(
    stage: StackHarness, receiver: Receiver, redis_url: str, killed: str
) -> None:
    """Its delivery is tried again long before its time limit of a minute."""
    with closing(connect_holder(redis_url, machine.own_mark(), timeout_s=2)) as observer:
        observer.ping()
        notifier = make(stage, webhook(receiver), consumer="n2", timeout_s=60)
        until(notifier, lambda: not pending(stage))
    assert [event["subject"] for event in receiver.events] == [killed, killed]


def test_one_that_dies_before_it_has_noted_a_delivery_tells_it_again(
    stage: StackHarness, receiver: Receiver, redis_url: str, tmp_path: Path
) -> None:
    """At least once, with the same id: the receiver drops what it has seen."""
    make(stage, webhook(receiver)).run_once()
    session = fails(stage)
    mark = tmp_path / "died"
    env = {
        **os.environ,
        "ORCHESTRA_REDIS_URL": redis_url,
        "ORCHESTRA_DATA": str(stage.settings.data),
        "ORCHESTRA_NOTIFY_URL": receiver.url,
        "ORCHESTRA_CRASH_AT": f"notifier.delivered:{mark}",
    }
    assert (
        subprocess.run(
            [sys.executable, "-m", "orchestrator", "service", "notifier"], env=env, check=False
        ).returncode
        < 0
    )
    assert mark.exists()
    assert (len(receiver.got), pending(stage)) == (1, 1)
    notifier = make(stage, webhook(receiver), consumer="n2", timeout_s=-5)
    until(notifier, lambda: not pending(stage))
    assert [event["subject"] for event in receiver.events] == [session, session]
    assert receiver.got[0][1] == receiver.got[1][1]


def test_two_notifiers_tell_each_event_once_while_nothing_fails(
    stage: StackHarness, receiver: Receiver
) -> None:
    both = [make(stage, webhook(receiver), consumer=name) for name in ("n1", "n2")]
    sessions = {fails(stage) for _ in range(6)}
    for _ in range(400):
        for notifier in both:
            notifier.run_once()
        if len(receiver.got) >= 6 and not pending(stage):
            break
        time.sleep(0.005)
    assert sorted(str(event["subject"]) for event in receiver.events) == sorted(sessions)


def test_a_command_gets_the_event_on_its_standard_input(
    stage: StackHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It crashes twice, hangs once, and takes it then. One target that fails holds up no other."""
    monkeypatch.setenv("ORCHESTRA_REDIS_URL", "redis://:hunter2@127.0.0.1/0")
    script = tmp_path / "tell.py"
    script.write_text(
        "import json, os, sys, time\n"
        f"folder = {str(tmp_path)!r}\n"
        "event = json.load(sys.stdin)\n"
        "number = len([n for n in os.listdir(folder) if n.startswith('try')])\n"
        "open(f'{folder}/try{number}', 'w').write(json.dumps([event, dict(os.environ)]))\n"
        "if number == 0: os.kill(os.getpid(), 9)\n"
        "if number == 1: sys.exit('no luck')\n"
        "if number == 2: time.sleep(60)\n"
    )
    command = CommandTarget(f"{shlex.quote(sys.executable)} {shlex.quote(str(script))} 'a b'", timeout_s=2)
    missing = Webhook("http://127.0.0.1:1/", SECRET, timeout_s=2)
    notifier = make(stage, missing, command, timeout_s=2, attempts=5)
    session = fails(stage)
    until(notifier, lambda: not pending(stage, "command") and len(list(tmp_path.glob("try*"))) == 4)
    tries = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("try*"))]
    assert len({json.dumps(event) for event, _ in tries}) == 1
    event, env = tries[0]
    assert (event["subject"], env["EVENT_ID"]) == (session, event["id"])
    assert not [name for name in env if name.startswith("ORCHESTRA_")]
    assert "exit code 1: Traceback" in command.deliver("x", b"no event")
    assert CommandTarget("/nowhere/at/all", timeout_s=1).deliver("x", b"").startswith("it cannot be started")


def test_without_a_notifier_nothing_is_kept(stage: StackHarness) -> None:
    fails(stage)
    assert stage.redis.exists(keys.notices(0)) == 0


def test_a_group_that_was_lost_is_made_again(stage: StackHarness, receiver: Receiver) -> None:
    notifier = make(stage, webhook(receiver))
    stage.redis.delete(keys.notices(0))
    notifier.run_once()
    fails(stage)
    until(notifier, lambda: receiver.got)


def test_the_secret_is_made_once_and_for_its_owner_only(stage: StackHarness, tmp_path: Path) -> None:
    settings = stage.settings.model_copy(update={"notify_url": "https://example.invalid/T0K3N"})
    (target,) = targets.targets_of(settings)
    assert target.name == "webhook"
    path = settings.notify_secret_path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert targets.read_secret(path) == targets.read_secret(path)
    assert "T0K3N" not in repr(settings)
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="others may read"):
        targets.read_secret(path)
    short = tmp_path / "short"
    short.write_text("short")
    short.chmod(0o600)
    with pytest.raises(ConfigurationError, match="shorter than 16 bytes"):
        targets.read_secret(short)


@pytest.mark.parametrize(
    "url", ["ftp://x/", "https://", "file:///etc/passwd", "http://a b/", "http://x:y/s3cret"]
)
def test_a_url_that_is_none_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        load_settings(notify_url=url)
    assert "events can be posted to" in str(error.value)
    assert "s3cret" not in str(error.value)


def test_the_commands_say_when_nobody_is_told(
    orchestra: Orchestra, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in (("notifier",), ("notifier", "--test")):
        refused = orchestra(*command)
        assert (refused.exit_code, "set notify_url or notify_command" in refused.stderr) == (2, True)
    monkeypatch.setenv("ORCHESTRA_NOTIFY_URL", receiver.url)
    assert orchestra("service", "notifier", "--test").stdout == "webhook has taken it\n"
    assert receiver.events[0]["type"] == "agent-orchestra.test"
    receiver.answers = [500]
    assert orchestra("service", "notifier", "--test").exit_code == 1


def test_the_stack_runs_a_notifier_where_somebody_is_to_be_told() -> None:
    from orchestrator.deployment.local_stack import service_specs

    names = {spec.name for spec in service_specs(Settings(notify_command="true"))}
    assert names - {spec.name for spec in service_specs(Settings())} == {"notifier"}
