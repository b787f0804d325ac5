"""Agents are defined by a decorator and loaded from modules, files and TOML, or refused with one clear line."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.agents.definition import FIELDS, agent, define_agent
from orchestrator.agents.loader import choose_served, load_agents
from orchestrator.agents.model_agents import ModelAgentSettings
from orchestrator.agents.options import LlmOptions
from orchestrator.errors import AgentsFileError, ConfigurationError
from orchestrator.policy.budget import Budget

Write = Callable[[str, str], str]

TWO_AGENTS = """
    from orchestrator import agent

    @agent("lead", role="coordinator", tier="opus")
    def lead(ctx):
        "Splits the work."
        return ctx

    @agent("reviewer", attempts=3, time_limit_s=60, escalation="lead")
    def reviewer(ctx):
        return ctx
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write an agents file and return its path."""

    def write_file(name: str, text: str) -> str:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return str(path)

    return write_file


def refusal(source: str, *more: str) -> str:
    with pytest.raises(AgentsFileError) as caught:
        load_agents([source, *more])
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_python_file_gives_its_agents(write: Write) -> None:
    path = write("mine.py", TWO_AGENTS)
    agents = load_agents([path])
    assert sorted(agents) == ["lead", "reviewer"]
    lead, reviewer = agents["lead"].record, agents["reviewer"].record
    assert (lead.role, lead.tier, lead.description) == ("coordinator", "opus", "Splits the work.")
    assert (reviewer.role, reviewer.tier) == ("specialist", None)
    assert (reviewer.attempts, reviewer.time_limit_s, reviewer.escalates_to) == (3, 60, "lead")
    assert agents["lead"].source == f"{path}:4"


def test_each_agent_has_a_queue_of_its_own_unless_it_names_one() -> None:
    @agent("solo")
    def solo(ctx: object) -> None: ...

    @agent("pooled", queue="gpu")
    def pooled(ctx: object) -> None: ...

    assert solo.__orchestra_agent__.record.queue == "orchestra.solo"  # type: ignore[attr-defined]
    assert pooled.__orchestra_agent__.record.queue == "gpu"  # type: ignore[attr-defined]


def test_a_decorated_function_stays_a_function() -> None:
    @agent("double")
    def double(ctx: int) -> int:
        return 2 * ctx

    assert double(21) == 42


def test_a_file_may_import_what_stands_beside_it(write: Write) -> None:
    write("its_helper_module.py", "VALUE = 1")
    assert load_agents([write("mine.py", "import its_helper_module\n" + textwrap.dedent(TWO_AGENTS))])


def test_a_module_is_found_in_the_working_directory(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("agents_of_this_test.py", TWO_AGENTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert sorted(load_agents(["agents_of_this_test"])) == ["lead", "reviewer"]


def test_a_module_may_offer_agents_that_it_imports(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write("where_they_are_written.py", TWO_AGENTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = write("mine.py", "from where_they_are_written import lead")
    assert list(load_agents([path])) == ["lead"]


def test_the_same_source_may_be_given_twice(write: Write) -> None:
    path = write("mine.py", TWO_AGENTS)
    assert len(load_agents([path, path])) == 2


def test_one_file_may_be_named_as_a_module_and_by_its_path(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is loaded twice then, and defines nothing twice."""
    path = write("a_module_of_this_test.py", TWO_AGENTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert sorted(load_agents(["a_module_of_this_test", path])) == ["lead", "reviewer"]


def test_toml_names_functions(write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write("functions_of_this_test.py", "def review(ctx):\n    return 'fine'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = write(
        "agents.toml",
        """
        [agents.reviewer]
        role = "specialist"
        tier = "haiku"
        function = "functions_of_this_test:review"
        escalation = "lead"
        """,
    )
    reviewer = load_agents([path])["reviewer"]
    assert reviewer.function is not None
    assert reviewer.function(None) == "fine"
    assert (reviewer.record.tier, reviewer.record.escalates_to) == ("haiku", "lead")
    assert reviewer.source == f"{path}:2"


def test_a_foreign_agent_has_no_function(write: Write) -> None:
    path = write("agents.toml", '[agents.outside]\nexecutor = "foreign"\n')
    assert load_agents([path])["outside"].record.external


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1\n1 / 0\n", "line 2: ZeroDivisionError: division by zero"),
        ("def f(:\n", "line 1: SyntaxError: invalid syntax; correct it"),
        (
            "import no_such_module_anywhere\n",
            f"line 1: ModuleNotFoundError: No module named 'no_such_module_anywhere'; install it for {sys.executable}, or correct the import",
        ),
        ("import sys\nsys.exit(3)\n", "line 2: it calls sys.exit(3) while it is imported"),
        ("x = 1\n", 'it defines no agent; put @agent("name") on a function of a context'),
        (
            "from orchestrator import agent\n@agent('a', role='boss')\ndef a(ctx): ...\n",
            "line 2: agent 'a': role = 'boss': input should be 'orchestrator', 'coordinator' or 'specialist'",
        ),
        (
            "from orchestrator import agent\n@agent('two words')\ndef a(ctx): ...\n",
            "line 2: agent 'two words': a name has 1 to 100 letters",
        ),
        (
            "from orchestrator import agent\n@agent('a')\ndef a(): ...\n",
            "line 2: agent 'a': its function must take one argument, the context",
        ),
        (
            "from orchestrator import agent\n@agent('operator')\ndef a(ctx): ...\n",
            "line 2: agent 'operator': the system itself uses this name",
        ),
        (
            "from orchestrator import agent\n@agent('a', attempts=0)\ndef a(ctx): ...\n",
            "line 2: agent 'a': attempts = 0: input should be greater than or equal to 1",
        ),
    ],
)
def test_what_is_wrong_with_a_python_file_is_one_line(write: Write, text: str, expected: str) -> None:
    path = write("mine.py", text)
    assert refusal(path).startswith(f"cannot load agents from {path}: {expected}")


def test_an_error_in_another_file_names_both_lines(write: Write) -> None:
    helper = write("its_broken_helper.py", "def go():\n    raise ValueError('no')\n")
    path = write("mine.py", "import its_broken_helper\n\nits_broken_helper.go()\n")
    assert refusal(path).endswith(f"{path}: line 3: ValueError: no (raised in {helper} line 2)")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[agents.a\n", "Expected ']' at the end of a table declaration (at line 1, column 10)"),
        ("[agents.a]\n[agents.a]\n", "Cannot declare ('agents', 'a') twice (at line 2, column 10)"),
        ("agents = 1\n", "an agent is a table, written [agents.name]"),
        ("\n[agents.a]\n", "line 2: agent 'a': the python executor needs the setting 'function'"),
        (
            "[agents.a]\nexecutor = 'fax'\n",
            "line 2: agent 'a': there is no executor 'fax' (there are: command, foreign, llm, python)",
        ),
        (
            "[agents.a]\nfunction = 'textwrap:dedent'\ncolour = 1\n",
            "line 3: agent 'a': there is no setting 'colour'",
        ),
        (
            "[agents.a]\nfunction = 'textwrap:dedent'\nrol = 'coordinator'\n",
            "line 3: agent 'a': there is no setting 'rol'; did you mean 'role'?",
        ),
        (
            "[agents.a]\nfunction = 'textwrap:indentt'\n",
            "line 2: agent 'a': function = 'textwrap:indentt': there is no 'indentt' in module 'textwrap'",
        ),
        (
            "[agents.a]\nfunction = 'dedent'\n",
            "line 2: agent 'a': function = 'dedent': write \"module:name\"",
        ),
        (
            "[agents.a]\nfunction = 'string:digits'\n",
            "line 2: agent 'a': function = 'string:digits': the python executor needs function = ",
        ),
        (
            "[agents.b]\nfunction = 'textwrap:dedent'\n[agents.a]\nfunction = 'textwrap:dedent'\nattempts = 0\n",
            "line 5: agent 'a': attempts = 0: input should be greater than or equal to 1",
        ),
        (
            "[agents.a]\nexecutor = 'foreign'\nfunction = 'textwrap:dedent'\n",
            "line 3: agent 'a': there is no setting 'function'",
        ),
        (
            "[agents.a]\nexecutor = 'command'\ncommand = ['true']\ncolour = 1\n",
            "line 4: agent 'a': there is no setting 'colour'",
        ),
        (
            "[agents.a]\nexecutor = 'command'\ncommand = ['true']\nmax_output_bytes = 'many'\n",
            "line 4: agent 'a': max_output_bytes = 'many': input should be a valid integer",
        ),
        (
            "[agents.b]\nexecutor = 'foreign'\n[agents.a]\nexecutor = 'command'\ncommand = ['true']\n[agents.a.read]\nanswr = 'x'\n",
            "line 7: agent 'a': there is no setting 'read.answr'",
        ),
        (
            "[agents.a]\nexecutor = 'command'\ncommand = ['true']\nsandbox = {netwrk = true}\n",
            "line 4: agent 'a': there is no setting 'sandbox.netwrk'",
        ),
        (
            "[agents.a]\nexecutor = 'command'\ncommand = ['true']\nworktree = {keep = 'never'}\n",
            "line 4: agent 'a': worktree.keep = 'never': input should be 'until-taken' or 'always'",
        ),
        (
            "[agents.a]\nexecutor = 'command'\npreset = 'claud'\n",
            "line 3: agent 'a': preset = 'claud': input should be 'claude', 'codex', 'gemini' or 'acp'",
        ),
        ("[agents.a]\nexecutor = 'command'\n", "line 1: agent 'a': the command executor needs the setting"),
        (
            "[agents.a]\nexecutor = 'llm'\nmodle = 'x'\n",
            "line 3: agent 'a': there is no setting 'modle'; did you",
        ),
        (
            "[agents.a]\nexecutor = 'llm'\nmodel = 'test'\n[agents.a.limits]\nreqs = 1\n",
            "line 5: agent 'a': there is no setting 'limits.reqs'",
        ),
        (
            "[agents.a]\nexecutor = 'llm'\nmodel = 'test'\nlimits.memory_tokens = -1\n",
            "line 4: agent 'a': limits.memory_tokens = -1: input should be greater than 0",
        ),
        ("[agents.a]\nexecutor = 'foreign'\nx = 1\n", "line 3: agent 'a': there is no setting 'x'"),
        (
            "[agents.a]\nfunction = 'textwrap:dedent'\ntags = 'gpu'\n",
            "line 3: agent 'a': tags = 'gpu': input should be a list",
        ),
        (
            "[agents.a]\nfunction = 'textwrap:dedent'\ntags = ['gpu', 'a b']\n",
            "line 3: agent 'a': tags.1 = 'a b': string should match",
        ),
        (
            "[agents.a]\nfunction = 'textwrap:dedent'\nbudget = 'euros=1'\n",
            "line 3: agent 'a': budget 'euros=1': ",
        ),
        (
            "[agents.a]\nfunction = 'textwrap:dedent'\nsteps = 'loose'\n",
            "line 3: agent 'a': steps = 'loose': choose from 'strict', 'replace'",
        ),
        (
            "[agents.a]\nfunction = 'textwrap:dedent'\nescalation = 5\n",
            "line 3: agent 'a': escalation = 5: input should be a valid string",
        ),
        (
            "[agents]\nb = {function = 'textwrap:dedent'}\na = {function = 'textwrap:dedent', rle = 1}\n",
            "line 3: agent 'a': there is no setting 'rle'; did you mean 'role'?",
        ),
        (
            "[agents]\na.function = 'textwrap:dedent'\na.rle = 1\n",
            "line 3: agent 'a': there is no setting 'rle'",
        ),
        ("[agents.a]\nfunction = 'no_such_mod:f'\n", "there is no module 'no_such_mod'"),
        ("[agent.a]\n", "there is no table [agent], so it is not read"),
        ("role = 'specialist'\n", "'role' is outside of a table and is not read"),
        ("", "it defines no agent; write a table [agents.name]"),
        ("a = " + "[" * 600, "maximum recursion depth exceeded"),
    ],
)
def test_what_is_wrong_with_a_toml_file_is_one_line(write: Write, text: str, expected: str) -> None:
    path = write("agents.toml", text)
    assert refusal(path).startswith(f"cannot load agents from {path}: {expected}")


def test_a_name_defined_twice_in_one_file_names_both_places(write: Write) -> None:
    text = "from orchestrator import agent\n@agent('a')\ndef a(ctx): ...\n@agent('a')\ndef b(ctx): ...\n"
    path = write("mine.py", text)
    assert f"agent 'a' is defined twice, at {path}:2 and at {path}:4; rename one" in refusal(path)


def test_a_name_defined_in_two_files_names_both_places(write: Write) -> None:
    one, two = write("one.py", TWO_AGENTS), write("two.py", TWO_AGENTS)
    assert f"agent 'lead' is defined twice, at {one}:4 and at {two}:4" in refusal(one, two)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("/no/such/file.py", "there is no such file; give a module name"),
        ("/usr/", "it is a folder; give a module name"),
        ("", "cannot load agents from '': that is not the name of a module; give a module name"),
        ("..mine", "that is not the name of a module; give a module name"),
        ("no_such_module_at_all", "there is no module 'no_such_module_at_all' in "),
    ],
)
def test_a_source_that_is_not_there_is_said_to_be_missing(source: str, expected: str) -> None:
    assert expected in refusal(source)


def test_a_missing_suffix_is_guessed(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("with-a-dash.py", TWO_AGENTS)
    monkeypatch.chdir(tmp_path)
    assert load_agents(["with-a-dash.py"])
    with pytest.raises(ConfigurationError):
        load_agents(["with-a-das"])


def test_an_agent_says_whom_it_talks_to() -> None:
    """Both lists, in Python as in TOML; without them the routing table decides."""

    @agent("bound", may_send_to=["reviewer"], accepts_from=["lead", "boss"])
    def bound(ctx: object) -> None: ...

    record = bound.__orchestra_agent__.record  # type: ignore[attr-defined]
    assert (record.may_send_to, record.accepts_from) == (("reviewer",), ("lead", "boss"))


def test_a_file_gives_an_agent_its_tags_and_its_budget(write: Write) -> None:
    path = write(
        "agents.toml",
        "[agents.a]\nfunction = 'textwrap:dedent'\ntags = ['gpu', 'eu-west']\nbudget = 'usd=0.5'\nmay_send_to = ['tag:gpu']\n",
    )
    found = load_agents([path])["a"]
    assert found.record.tags == ("gpu", "eu-west")
    assert found.record.may_send_to == ("tag:gpu",)
    assert found.budget == Budget(usd=0.5)


def test_a_worker_serves_the_agents_that_it_is_told_to() -> None:
    """By name and by tag; external programs are run by nobody here. What means no agent is an error."""
    catalogue = {
        name: define_agent(name, function=function, source="here", executor=executor, tags=tags)
        for name, function, executor, tags in (
            ("a", str, "python", ["gpu"]),
            ("b", str, "python", ["gpu", "eu"]),
            ("c", str, "python", []),
            ("outside", None, "foreign", []),
        )
    }
    for serve, chosen in (
        ((), "a b c outside"),
        (("c",), "c outside"),
        (("tag:gpu",), "a b outside"),
        (("tag:eu", "c"), "b c outside"),
        (("outside",), "outside"),
    ):
        assert " ".join(choose_served(catalogue, serve)) == chosen
    for wrong in ("d", "gpu", "tag:a"):
        with pytest.raises(
            ConfigurationError, match=f"serve: no agent is '{wrong}' .there are: a, b, c, outside, tag:eu"
        ):
            choose_served(catalogue, [wrong])


def test_an_installed_package_offers_agents_by_entry_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module or one agent, by name or all; nothing of it is loaded unless it is asked for."""
    (tmp_path / "offered_agents.py").write_text(
        "from orchestrator import agent\n\n"
        "@agent('first')\ndef first(ctx): ...\n\n@agent('second')\ndef second(ctx): ...\n"
    )
    info = tmp_path / "offers-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offers\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[agent_orchestra.agents]\ncrew = offered_agents\none = offered_agents:first\nbad = json:dumps\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert sorted(load_agents(["@crew"])) == ["first", "second"]
    assert sorted(load_agents(["@one"])) == ["first"]
    assert sorted(load_agents(["@crew", "@one"])) == ["first", "second"]
    with pytest.raises(AgentsFileError, match="there are: @bad, @crew, @one"):
        load_agents(["@ghost"])
    with pytest.raises(AgentsFileError, match="json:dumps is neither a module nor an agent"):
        load_agents(["@all"])


def test_files_of_the_same_name_in_two_folders_are_two_modules(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "crew.py").write_text(
            f"from orchestrator import agent\n@agent('{folder}')\ndef work(ctx): return '{folder}'\n"
        )
    files = [str(tmp_path / folder / "crew.py") for folder in ("one", "two")]
    found = load_agents(files)
    homes = [sys.modules[found[name].function.__module__].__file__ for name in ("one", "two")]
    assert homes == files


def test_an_editor_completes_every_setting_of_a_model_agent_and_no_other() -> None:
    own = {name for name in FIELDS if name != "executor"}
    assert set(ModelAgentSettings.__annotations__) == own | set(LlmOptions.model_fields)
