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

from orchestrator import machine
from orchestrator.bootstrap import Container
from orchestrator.client.client import Client
from orchestrator.config.settings import Settings, load_settings
from orchestrator.errors import ConfigurationError
from orchestrator.machine import isoformat
from orchestrator.notifier import EVENTS, CommandTarget, Notifier, Target, Webhook, service, targets
from orchestrator.redisdb import keys
from orchestrator.redisdb.holders import connect_holder
from orchestrator.streams import NOTICES, RedisStreams, ledger_streams
from orchestrator.worker.context.context import Context
from tests.commands import Orchestra
from tests.kit import Kit
from tests.waiting import act_until, wait_until

SECRET = b"0123456789abcdef"


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


def make(kit: Kit, *targets: Target, consumer: str = "n1", **given: Any) -> Notifier:
    settings = kit.settings.model_copy(update={"notify_events": given.pop("events", EVENTS)})
    tries = service.Tries(**{"attempts": 4, "timeout_s": 0.4, "backoff_s": 0.02, **given})
    return Notifier(kit.redis, kit.ledger, targets, settings, consumer=consumer, tries=tries)


def webhook(receiver: Receiver, timeout_s: float = 0.4) -> Webhook:
    return Webhook(f"{receiver.url}/hook?x=1", SECRET, timeout_s=timeout_s)


def until(notifier: Notifier, condition: Callable[[], object]) -> None:
    act_until(condition, notifier.run_once)


def pending(kit: Kit, target: str = "webhook") -> int:
    return int(kit.redis.xpending(keys.notices(0), f"notify:{target}")["pending"])


def fails(kit: Kit) -> str:
    """A root that fails; its session."""

    @kit.agent("lead")
    def lead(_: Context) -> str:
        raise ValueError("boom")

    return kit.begin("lead", "do it", ends="failed")


def test_a_question_and_both_ends_are_told_with_a_signature(kit: Kit, receiver: Receiver) -> None:
    notifier = make(kit, webhook(receiver))

    @kit.agent("asker")
    def asker(ctx: Context) -> str:
        return ctx.ask("Ship it?", context={"v": 1})

    session = kit.submit("asker", "release")
    dispatch = kit.start(session)
    assert kit.execute(dispatch) == "parked"
    until(notifier, lambda: receiver.got)
    ((headers, body),) = receiver.got
    (event,) = receiver.events
    with Client(kit.settings) as user:
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
    assert kit.execute(dispatch) == "finished"
    failed = fails(kit)
    until(notifier, lambda: len(receiver.got) == 3 and not pending(kit))
    # Events may overtake each other.
    finished, other = sorted(receiver.events[1:], key=lambda event: str(event["type"]), reverse=True)
    assert (finished["type"], finished["subject"]) == ("agent-orchestra.session.finished", session)
    assert (other["type"], other["subject"]) == ("agent-orchestra.session.failed", failed)
    assert "boom" in other["data"]["reason"]  # type: ignore[index]
    notifier._looks = 0
    notifier.run_once()
    assert kit.redis.xlen(keys.notices(0)) == 0


def test_an_approval_that_any_session_of_a_tree_asks_for_is_told_once(kit: Kit, receiver: Receiver) -> None:
    notifier = make(kit, webhook(receiver), events=["approval"])

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("ops", "release")
        return "done"

    @kit.agent("ops")
    def ops(ctx: Context) -> str:
        return str(ctx.request_approval("deploy", {"version": 2}, reason="it is Friday"))

    root = kit.begin("lead")
    (child,) = kit.children(root)
    dispatch = kit.start(child.id)
    assert kit.execute(dispatch) == "parked"
    with Client(kit.settings) as person:
        (asked,) = person.approvals()
        until(notifier, lambda: receiver.got)
        person.approve(asked.id)
    assert kit.again(dispatch) == "finished"
    until(notifier, lambda: not pending(kit) and not notifier._in_flight)
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


def test_dead_callbacks_are_told(kit: Kit, receiver: Receiver) -> None:
    notifier = make(kit, webhook(receiver), events=["dead"])

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("quick", "a", on_failure="ignore")
        return "done"

    @kit.agent("quick")
    def quick(_: Context) -> str:
        raise ValueError("boom")

    session = kit.begin("lead", ends="idle")
    (child,) = kit.children(session)
    kit.play(child.id)
    until(notifier, lambda: receiver.got)
    (event,) = receiver.events
    assert (event["type"], event["subject"]) == ("agent-orchestra.callback.dead", session)
    assert event["data"]["reason"] == "failure ignored by policy"  # type: ignore[index]


def test_a_receiver_that_fails_in_every_way_is_told_in_the_end_by_the_same_id(
    kit: Kit, receiver: Receiver
) -> None:
    receiver.answers = [500, "hang", "close", 302, "drip", 404]
    notifier = make(kit, webhook(receiver), attempts=10)
    fails(kit)
    until(notifier, lambda: len(receiver.got) == 7 and not pending(kit))
    assert len({event["id"] for event in receiver.events}) == 1
    assert len({body for _, body in receiver.got}) == 1
    assert kit.dead() == []


def test_one_that_is_never_taken_is_dead_and_can_be_retried(
    kit: Kit, receiver: Receiver, orchestra: Orchestra, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.answers = [500] * 4
    notifier = make(kit, webhook(receiver))
    session = fails(kit)
    until(notifier, kit.dead)
    assert (len(receiver.got), pending(kit)) == (4, 0)
    (listed,) = json.loads(orchestra("dlq", "list", "--agent", "webhook", "--json").stdout)["dead_letters"]
    assert (listed["rule"], listed["reason"]) == ("notification-undeliverable", "HTTP status 500")
    assert (listed["type"], listed["recipient"], listed["attempts"]) == ("notification", "webhook", 4)
    assert session in orchestra("dlq", "show", listed["dead_letter"]).stdout
    # It takes of its own share: what strangers send drops none of it.
    assert kit.redis.hexists(keys.dead_usage(0), "bytes:notifier")
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
    assert kit.redis.zcard(keys.dead_index(0)) == 0


def test_one_that_cannot_be_given_up_stays_pending(kit: Kit, receiver: Receiver) -> None:
    """Somebody has overwritten the stream of dead letters with another type."""
    receiver.answers = [500]
    notifier = make(kit, webhook(receiver), attempts=1)
    kit.redis.set(keys.dead(0), "of another type")
    fails(kit)
    with pytest.raises(redis_py.ResponseError, match="WRONGTYPE"):
        until(notifier, lambda: False)
    assert pending(kit) == 1
    kit.redis.delete(keys.dead(0))
    until(notifier, kit.dead)
    assert pending(kit) == 0


def test_it_needs_no_more_than_its_role_allows(kit: Kit, receiver: Receiver) -> None:
    """It makes its groups, reads what it tells, tries again, takes over, gives up and drops what was told."""
    client = kit.as_role("notifier")
    ledger = Container(client, kit.settings).ledger
    tries = service.Tries(attempts=2, timeout_s=-5, backoff_s=0.02)
    notifier = Notifier(client, ledger, [webhook(receiver)], kit.settings, consumer="n1", tries=tries)
    receiver.answers = [500, 204, 500, 500]
    told = fails(kit)
    until(notifier, lambda: len(receiver.got) == 2 and not pending(kit))
    fails(kit)
    until(notifier, kit.dead)
    notifier._looks = 0
    notifier.run_once()
    assert kit.redis.xlen(keys.notices(0)) == 0
    # As a copy that was silent for an hour; another one is forgotten by the same script.
    assert RedisStreams(client).forget("notify:webhook", ledger_streams(NOTICES), idle_ms=-1) == 1
    assert receiver.events[0]["data"]["agent"] == "lead"  # type: ignore[index]
    assert receiver.events[0]["subject"] == told


#: The command, as a process of its own.
COMMAND = (sys.executable, "-m", "orchestrator", "service", "notifier")


def variables(kit: Kit, receiver: Receiver) -> dict[str, str]:
    """What the command is told by its environment."""
    stack = {"ORCHESTRA_REDIS_URL": str(kit.settings.redis_url), "ORCHESTRA_DATA": str(kit.settings.data)}
    return {**os.environ, **stack, "ORCHESTRA_NOTIFY_URL": receiver.url}


@pytest.fixture
def killed(kit: Kit, receiver: Receiver) -> str:
    """The session whose end a notifier was telling when it was killed with SIGKILL, as the receiver hung."""
    make(kit, webhook(receiver)).run_once()
    receiver.answers = ["hang"]
    process = subprocess.Popen(COMMAND, env=variables(kit, receiver))
    try:
        session = fails(kit)
        wait_until(lambda: bool(receiver.got))
    finally:
        process.kill()
        process.wait()
    assert pending(kit) == 1
    return session


def test_what_a_killed_notifier_was_delivering_another_one_delivers(
    kit: Kit, receiver: Receiver, killed: str
) -> None:
    """It waits until it may be sure that nobody is at it, where the server does not show who is connected."""
    # The idle time of the group counts; a margin of five seconds lies between this copy and a live one.
    (entry,) = kit.redis.xpending_range(keys.notices(0), "notify:webhook", "-", "+", 1)
    options = {"idle": 4000, "retrycount": 1, "justid": True}
    kit.redis.xclaim(
        keys.notices(0), "notify:webhook", entry["consumer"], 0, [entry["message_id"]], **options
    )
    notifier = make(kit, webhook(receiver), consumer="n2", timeout_s=0.4)
    notifier.run_once()
    assert len(receiver.got) == 1
    until(notifier, lambda: not pending(kit))
    assert [event["subject"] for event in receiver.events] == [killed, killed]
    assert receiver.events[0]["id"] == receiver.events[1]["id"]


def test_a_killed_notifier_is_missed_by_its_connection(
    kit: Kit, receiver: Receiver, redis_url: str, killed: str
) -> None:
    """Its delivery is tried again long before its time limit of a minute."""
    with closing(connect_holder(redis_url, machine.own_mark(), timeout_s=2)) as observer:
        observer.ping()
        notifier = make(kit, webhook(receiver), consumer="n2", timeout_s=60)
        until(notifier, lambda: not pending(kit))
    assert [event["subject"] for event in receiver.events] == [killed, killed]


def test_one_that_dies_before_it_has_noted_a_delivery_tells_it_again(
    kit: Kit, receiver: Receiver, tmp_path: Path
) -> None:
    """At least once, with the same id: the receiver drops what it has seen."""
    make(kit, webhook(receiver)).run_once()
    session = fails(kit)
    mark = tmp_path / "died"
    crash = {"ORCHESTRA_CRASH_AT": f"notifier.delivered:{mark}"}
    done = subprocess.run(COMMAND, env=variables(kit, receiver) | crash, check=False)
    assert done.returncode < 0
    assert mark.exists()
    assert (len(receiver.got), pending(kit)) == (1, 1)
    notifier = make(kit, webhook(receiver), consumer="n2", timeout_s=-5)
    until(notifier, lambda: not pending(kit))
    assert [event["subject"] for event in receiver.events] == [session, session]
    assert receiver.got[0][1] == receiver.got[1][1]


def test_two_notifiers_tell_each_event_once_while_nothing_fails(kit: Kit, receiver: Receiver) -> None:
    both = [make(kit, webhook(receiver), consumer=name) for name in ("n1", "n2")]
    sessions = {fails(kit) for _ in range(6)}
    for _ in range(400):
        for notifier in both:
            notifier.run_once()
        if len(receiver.got) >= 6 and not pending(kit):
            break
        time.sleep(0.005)
    assert sorted(str(event["subject"]) for event in receiver.events) == sorted(sessions)


def test_a_command_gets_the_event_on_its_standard_input(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    notifier = make(kit, missing, command, timeout_s=2, attempts=5)
    session = fails(kit)
    until(notifier, lambda: not pending(kit, "command") and len(list(tmp_path.glob("try*"))) == 4)
    tries = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("try*"))]
    assert len({json.dumps(event) for event, _ in tries}) == 1
    event, env = tries[0]
    assert (event["subject"], env["EVENT_ID"]) == (session, event["id"])
    assert not [name for name in env if name.startswith("ORCHESTRA_")]
    assert "exit code 1: Traceback" in command.deliver("x", b"no event")
    assert CommandTarget("/nowhere/at/all", timeout_s=1).deliver("x", b"").startswith("it cannot be started")


def test_without_a_notifier_nothing_is_kept(kit: Kit) -> None:
    fails(kit)
    assert kit.redis.exists(keys.notices(0)) == 0


def test_a_group_that_was_lost_is_made_again(kit: Kit, receiver: Receiver) -> None:
    notifier = make(kit, webhook(receiver))
    kit.redis.delete(keys.notices(0))
    notifier.run_once()
    fails(kit)
    until(notifier, lambda: receiver.got)


def test_the_secret_is_made_once_and_for_its_owner_only(kit: Kit, tmp_path: Path) -> None:
    settings = kit.settings.model_copy(update={"notify_url": "https://example.invalid/T0K3N"})
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
