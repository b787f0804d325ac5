"""Command-line agents: how they are spoken to, read and resumed, and what becomes of those that misbehave."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agents.loader import load_agents
from orchestrator.agents.options.command import CommandOptions
from orchestrator.errors import ConfigurationError
from orchestrator.policy.budget import Budget
from orchestrator.policy.response_tag import ANSWER_NOTE
from tests.crew import FAKE, JSON, Crew

ECHO = (sys.executable, "-c", "import sys; print('args', sys.argv[1:], 'stdin', sys.stdin.read())")


@pytest.mark.parametrize("prompt", ["stdin", "argument", "file"])
def test_a_prompt_goes_in_by_each_way(crew: Crew, prompt: str) -> None:
    start = ("--prompt-file", "{prompt_file}") if prompt == "file" else ()
    crew.agent(prompt=prompt, start=start)
    assert crew.ask("!say ä “quoted” $HOME `id`") == "ä “quoted” $HOME `id`\n\n"


def test_a_prompt_that_looks_like_an_option_is_none(crew: Crew) -> None:
    crew.agent(command=ECHO, prompt="argument", start=("-x", "{prompt}"))
    assert "['-x', ' --dangerous']" in crew.ask("--dangerous")


def test_placeholders_and_further_arguments(crew: Crew) -> None:
    crew.agent(command=ECHO, start=("run", "{args}", "-"), args=("--model", "m"))
    assert crew.ask("hello") == "args ['run', '--model', 'm', '-'] stdin hello\n"
    crew.agent(command=ECHO, start=("--prompt={prompt}",), args=("-v",), prompt="argument")
    assert crew.ask("hello") == "args ['--prompt=hello', '-v'] stdin \n"


FORMATS: dict[str, dict[str, Any]] = {
    "json": JSON,
    "claude": {"preset": "claude", "args": ("--format", "claude")},
    "codex": {"preset": "codex", "command": (*FAKE, "--format", "codex"), "prompt": "argument",
              "start": ("{prompt}",), "resume": ("--resume", "{conversation}", "{prompt}")},
    "gemini": {"preset": "gemini", "args": ("--format", "gemini")},
}  # fmt: skip


@pytest.mark.parametrize("where", ["start", "args"])
def test_a_program_that_takes_a_name_for_its_conversation_is_resumed_by_it(
    crew: Crew, tmp_path: Path, where: str
) -> None:
    """As a user writes it; a first turn that dies begins it again."""
    named = {"start": 'start = ["--name", "{session}"]', "args": 'args = ["--name={session}"]'}[where]
    file = tmp_path / "agents.toml"
    file.write_text(
        f"""[agents.helper]
        executor = "command"
        command = {json.dumps(FAKE)}
        {named}
        resume = ["--resume", "{{session}}"]
        protocol = false
        attempts = 2
        backoff_s = 0.001
        set_env = {{ FAKE_AGENT_HOME = "{crew.home}" }}
        """
    )
    kit = crew.kit
    kit.serve(load_agents([str(file)])["helper"])
    root = kit.begin("helper", f"one\n!run test -e {tmp_path}/died || (touch {tmp_path}/died; kill $PPID)")
    assert (tmp_path / "died").exists()
    assert kit.again(root) == "finished"
    assert crew.go_on(root, "!recall") == "<response>one | !recall</response>\n"
    assert crew.memory(root)["conversation"] == root


@pytest.mark.parametrize("form", FORMATS)
def test_each_format_is_read_and_its_conversation_resumed(crew: Crew, form: str) -> None:
    options = dict(FORMATS[form])
    if form in ("claude", "gemini"):
        # The fake one takes the preset's own arguments and ignores what it does not know.
        options["start"] = ("--format", form)
        options["resume"] = ("--format", form, "--resume", "{conversation}")
        options.pop("args")
    crew.agent(**options)
    root = crew.kit.begin("coder", "!result one", ends="finished")
    assert crew.answer(root) == "<response>one</response>"
    assert crew.go_on(root, "!recall") == "<response>!result one | !recall</response>"
    memory = crew.memory(root)
    assert memory["conversation"].startswith("conv-")
    assert memory["turns"] == 2
    assert memory["output_tokens"] == {"json": 14}.get(form, 40)
    assert memory.get("cost_usd", 0) == (0.5 if form == "claude" else 0)


def test_a_program_without_a_memory_is_told_the_conversation_so_far(crew: Crew) -> None:
    crew.agent(command=ECHO)
    answer = crew.go_on(crew.kit.begin("coder", "first words"), "second words")
    assert answer.index("first words") < answer.index("You answered") < answer.rindex("second words")


def test_a_child_is_told_of_the_tag_and_its_content_is_the_result(crew: Crew) -> None:
    script = "import sys; print('Here. <response>' + sys.stdin.read() + '</response>')"
    crew.agent(command=(sys.executable, "-c", script))
    callback = crew.delegate("mine")
    assert (callback.status, callback.result) == ("completed", f"mine\n\n{ANSWER_NOTE}")


def test_the_tag_forgotten_once_is_asked_for_in_the_same_conversation(crew: Crew) -> None:
    crew.agent(**FORMATS["json"])
    callback = crew.delegate("!untagged forty-two")
    assert (callback.status, callback.result) == ("completed", "forty-two")


def test_a_flood_is_bounded_and_its_end_is_kept(crew: Crew) -> None:
    crew.agent(max_output_bytes=4096)
    answer = crew.ask("!flood 30\n!say the end")
    assert len(answer) < 5000
    assert answer.startswith("[31")
    assert answer.endswith("the end\n\n")


def test_a_line_without_an_end_is_skipped_and_the_next_one_read(crew: Crew) -> None:
    script = "import json; print('x' * 100_000); print('{' + '1' * 100_000); print(json.dumps({'a': 'fine'}))"
    crew.agent(
        command=(sys.executable, "-c", script),
        output="json-lines",
        max_output_bytes=4096,
        read={"answer": "a"},
    )
    assert crew.ask("go") == "fine"


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        ("!half", "ends in the middle of a line of JSON, 32 bytes into it"),
        ("!crash 3", "it ended with exit code 3; something broke (none of its lines holds an answer"),
        ("!run kill -9 $PPID", "it ended with signal 9"),
    ],
)
def test_how_a_program_failed_is_said(crew: Crew, prompt: str, why: str) -> None:
    crew.agent(preset="claude", command=FAKE, start=("--format", "claude"))
    answer = crew.ask(prompt)
    assert why in answer
    assert answer.startswith(f"the program {FAKE[0]}: ")


def test_an_exit_code_fails_a_program_that_answered(crew: Crew) -> None:
    crew.agent(command=("sh", "-c", "echo answer; echo broken >&2; exit 4"))
    assert crew.ask("go") == "the program sh: it ended with exit code 4; broken"


def test_a_program_that_is_not_there(crew: Crew) -> None:
    crew.agent(command=("no-such-agent",))
    assert "there is no such program on the PATH of this worker" in crew.ask("go")


def test_a_program_that_takes_no_input_may(crew: Crew) -> None:
    crew.agent(command=("echo", "done"))
    assert crew.ask("x" * 1_000_000) == "done\n"


def test_the_environment_holds_what_is_allowed_and_nothing_else(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "secret-one")
    monkeypatch.setenv("OTHER_KEY", "secret-two")
    monkeypatch.setenv("ORCHESTRA_REDIS_URL", "redis://:password@host")
    crew.agent(env=("MY_KEY",), set_env={"EXTRA": "1"}, command=("env",))
    seen = dict(line.split("=", 1) for line in crew.ask("go").splitlines() if "=" in line)
    assert seen["MY_KEY"] == "secret-one"
    assert seen["EXTRA"] == "1"
    assert seen["ORCHESTRA_SESSION"].startswith("ses_")
    assert "OTHER_KEY" not in seen
    assert "ORCHESTRA_REDIS_URL" not in seen


def test_without_a_sandbox_it_can_read_the_environment_of_every_process_of_its_user(
    crew: Crew, stranger: str
) -> None:
    """That of the worker, too, as the page says; what it is given decides nothing about that."""
    of_worker = Path("/proc/self/environ").read_bytes().partition(b"\0")[0].decode()
    crew.agent(command=("sh", "-c", "cat /proc/[0-9]*/environ | tr '\\0' '\\n'"))
    seen = crew.ask("go")
    assert stranger in seen
    assert of_worker in seen


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"preset": "cloud"}, "preset"),
        ({"output": "json"}, "read.answer"),
        ({"resume": ("--resume",)}, "read.conversation.*or {session} among its arguments"),
        ({"env": ("NOT A NAME",)}, "not the name of an environment variable"),
        ({"read": {"answr": "x"}}, "read.answr"),
        ({"max_output_bytes": 1}, "max_output_bytes"),
        ({"command": ()}, "command"),
    ],
)
def test_a_bad_option_is_refused_with_its_name(crew: Crew, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        crew.agent(**options)


def test_what_a_program_reports_counts_in_the_budgets(crew: Crew) -> None:
    crew.agent(preset="claude", command=FAKE)
    kit = crew.kit
    root = kit.begin("coder", "!result one", ends="finished", budget=Budget(requests=1))
    used = kit.ledger.session(root).used
    assert (used.requests, used.input_tokens, used.output_tokens, used.usd) == (1, 100, 20, 0.25)
    assert "budget" in crew.go_on(root, "!result two")


def test_a_failed_run_has_used_what_it_used(crew: Crew) -> None:
    script = (
        "import json; print(json.dumps({'type': 'result', 'is_error': True, 'result': 'no credit',"
        " 'usage': {'input_tokens': 5, 'output_tokens': 0}}))"
    )
    crew.agent(preset="claude", command=(sys.executable, "-c", script), start=())
    root = crew.kit.begin("coder", "go")
    assert "no credit" in crew.answer(root)
    assert crew.kit.ledger.session(root).used.input_tokens == 5


def test_numbers_that_cannot_be_right_do_not_count(crew: Crew) -> None:
    usage = {"input_tokens": 1e300, "output_tokens": 7}
    event = {"type": "result", "is_error": False, "result": "done", "total_cost_usd": 1e308, "usage": usage}
    crew.agent(preset="claude", command=("echo", json.dumps(event)), start=())
    root = crew.kit.begin("coder", "go", ends="finished")
    used = crew.kit.ledger.session(root).used
    assert (used.input_tokens, used.output_tokens, used.usd) == (0, 7, 0)


def test_each_placeholder_of_an_argument_is_filled_and_none_of_the_prompt(crew: Crew) -> None:
    crew.agent(command=ECHO, prompt="argument", start=("{prompt}={prompt_file}{prompt}",))
    assert "['{prompt} a={prompt_file}{prompt} a']" in crew.ask("{prompt} a")


def test_its_shell_takes_part_in_the_run(crew: Crew) -> None:
    crew.kit.agent("helper")(lambda ctx: f"helped with {ctx.prompt}")
    crew.agent(**JSON)
    root = crew.kit.begin(
        "coder", f"!run {shlex.quote(sys.executable)} -m orchestrator program delegate helper 'the dishes'"
    )
    (child,) = crew.kit.children(root)
    assert (child.agent, child.title) == ("helper", "the dishes")
    assert crew.kit.ledger.session(root).state == "idle"


def test_paths_in_a_file_begin_at_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "agents.toml"
    file.write_text(
        """
[agents.coder]
executor = "command"
preset = "claude"
command = ["./bin/fake"]
worktree = { repository = "shop" }
sandbox = { read = ["keys/one.pem"], write = ["/var/cache/x"] }

[agents.other]
executor = "command"
command = ["fake", "x/y"]
folder = "work"
sandbox = true
"""
    )
    agents = load_agents([str(file)])
    coder, other = agents["coder"].options, agents["other"].options
    assert isinstance(coder, CommandOptions)
    assert isinstance(other, CommandOptions)
    assert coder.folder == tmp_path
    assert coder.command == (str(tmp_path / "bin" / "fake"),)
    assert coder.start == ("-p", "--output-format", "stream-json", "--verbose")
    assert coder.worktree is not None
    assert coder.worktree.repository == tmp_path / "shop"
    assert coder.sandbox is not None
    assert coder.sandbox.read == (tmp_path / "keys" / "one.pem",)
    assert coder.sandbox.write == (Path("/var/cache/x"),)
    assert (other.command, other.folder) == (("fake", "x/y"), tmp_path / "work")
    assert other.sandbox is not None
    assert not other.sandbox.network
