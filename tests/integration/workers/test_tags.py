"""Tags of agents: they are found by them, and lists of agents may name them."""

from __future__ import annotations

import json

from orchestrator.client.current import SOCKET_VARIABLE, TOKEN_VARIABLE, RemoteSession
from orchestrator.worker.context.context import Context

from .conftest import StackHarness


def test_an_agent_and_its_programs_find_others_by_tag(stage: StackHarness) -> None:
    """Only those that it may delegate to, as ever."""
    found: list[list[str]] = []

    @stage.agent("lead", role="coordinator", may_send_to=["tag:gpu", "plain"])
    def lead(ctx: Context) -> str:
        env = ctx.environment()
        programs = RemoteSession(env[SOCKET_VARIABLE], env[TOKEN_VARIABLE])
        for tag in ("", "gpu", "eu", "cpu"):
            found.append([record.name for record in ctx.agents(tag)])
            assert [one["agent"] for one in programs.call("agents", tag=tag)["agents"]] == found[-1]
        assert programs.call("agents", tag="eu")["agents"][0]["tags"] == ["gpu", "eu"]
        return "done"

    stage.agent("one", tags=["gpu"])(str)
    stage.agent("two", tags=["gpu", "eu"])(str)
    stage.agent("plain")(str)
    stage.agent("other", tags=["cpu", "eu"])(str)
    root = stage.submit("lead")
    assert stage.play(root) == "finished", stage.ledger.session(root).reason
    assert found == [["one", "plain", "two"], ["one", "two"], ["two"], []]


def test_the_command_lists_agents_by_tag_and_registers_programs_with_tags(stage: StackHarness) -> None:
    stage.agent("one", tags=["gpu"])(str)
    stage.agent("two", tags=["gpu", "eu"])(str)
    assert "tags gpu eu" in stage.orchestra("agents").stdout
    listed = json.loads(stage.orchestra("agents", "--tag", "eu", "--json").stdout)["agents"]
    assert [(one["agent"], one["tags"]) for one in listed] == [("two", ["gpu", "eu"])]
    none = stage.orchestra("agents", "--tag", "eu", "--tag", "cpu")
    assert (none.exit_code, none.stdout) == (0, "")
    assert "no registered agent has the tags eu cpu" in none.stderr
    made = stage.orchestra(
        "agents", "register", "ci", "--tag", "outside", "--accepts-from", "tag:gpu", "--json"
    )
    assert made.exit_code == 0, made.output
    document = json.loads(made.stdout)
    assert (document["tags"], document["accepts_from"]) == (["outside"], ["tag:gpu"])
    wrong = stage.orchestra("agents", "register", "ci2", "--tag", "a b")
    assert wrong.exit_code == 2
    assert "tag 'a b': a tag has 1 to 50 letters" in wrong.output
