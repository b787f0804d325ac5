"""What a plain Celery message can do where `submissions` is "token", and what a forged result is worth."""

from __future__ import annotations

import json

import pytest

from orchestrator.dispatch import build_celery
from orchestrator.redisdb.client import connect
from tests.acceptance.conftest import Terminal

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(480)]

AGENTS = """
from orchestrator import agent

@agent("echo")
def echo(ctx):
    return ctx.prompt
"""


def test_a_bare_message_needs_a_token_and_a_forged_result_reaches_no_client(terminal: Terminal) -> None:
    terminal.env["ORCHESTRA_SUBMISSIONS"] = "token"
    stack = terminal.serve(AGENTS, "--concurrency 1")
    with terminal.client() as client:
        app = build_celery(client.settings)
        work = {"agent": "echo", "prompt": "spoken"}

        bare = app.send_task("orchestrator.start_session", kwargs=work)
        with pytest.raises(Exception, match="only with a token"):
            bare.get(timeout=60)
        assert client.sessions() == []

        for args, kwargs, words in (
            (
                ["echo", "spoken"],
                {},
                "takes no positional arguments, and got 2; send agent and prompt by name",
            ),
            ([], {**work, "prompts": "x"}, "takes no argument 'prompts'; send agent and prompt by name"),
        ):
            wrong = app.send_task("orchestrator.start_session", args=args, kwargs=kwargs)
            with pytest.raises(Exception, match=words):
                wrong.get(timeout=60)
        assert client.sessions() == []

        made = client.token("echo", "spoken")
        task, token = made.task_id, made.text
        for changes in ({"prompt": "forged"}, {"agent": "other"}):
            wrong = app.send_task("orchestrator.start_session", kwargs={**work, **changes, "token": token})
            with pytest.raises(Exception, match="its token is for"):
                wrong.get(timeout=60)
        assert client.sessions() == []

        for _ in range(3):  # sent again, it is the same session
            sent = app.send_task("orchestrator.start_session", kwargs={**work, "token": token}, task_id=task)
            assert sent.get(timeout=60) == "spoken"
        (root,) = client.sessions()

        # Refused under the id of a session that there is, and without a word in that session's result.
        app.send_task("orchestrator.start_session", kwargs={**work, "token": "x"}, task_id=task)
        assert client.submit("echo", "after it").result(timeout_s=60) == "after it"
        assert app.AsyncResult(task).get(timeout=60) == "spoken"

        # Without the broker nothing changes, and what stands in Celery's results is not what a client reads.
        assert client.submit("echo", "x").result(timeout_s=60) == "x"
        with connect(client.settings.redis_url or "") as redis:
            forged = {
                "status": "SUCCESS",
                "result": "forged",
                "task_id": task,
                "traceback": None,
                "children": [],
            }
            redis.set(f"celery-task-meta-{task}", json.dumps(forged))
        assert client.result(root.id) == "spoken"
        assert terminal.must(f"orchestra result {root.id}").strip() == "spoken"
    assert stack.interrupt() == 0
