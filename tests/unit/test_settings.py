"""Settings: where values come from, what is refused, and that nothing shows a password."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config.settings import Settings, load_settings, unknown_variables
from orchestrator.errors import ConfigurationError
from tests.commands import run_command


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCHESTRA_DATA", raising=False)


def test_the_defaults_need_nothing(tmp_path: Path) -> None:
    """With nothing set the stack is an embedded one in the working directory."""
    settings = load_settings()
    assert settings.redis_url is None
    assert settings.data == tmp_path / ".orchestra"
    assert settings.audit_file == tmp_path / ".orchestra" / "audit.sqlite"
    assert settings.concurrency >= 4


def test_an_option_beats_the_environment_which_beats_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "orchestra.toml").write_text("[orchestra]\nlease_s = 20\nshards = 2\nmax_lost_workers = 3\n")
    monkeypatch.setenv("ORCHESTRA_LEASE_S", "30")
    monkeypatch.setenv("ORCHESTRA_SHARDS", "4")
    settings = load_settings(shards=8, concurrency=None)
    assert (settings.shards, settings.lease_s, settings.max_lost_workers) == (8, 30, 3)


def test_paths_in_the_file_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "etc with space"
    folder.mkdir()
    (folder / "stack.toml").write_text(
        '[orchestra]\ndata = "state"\nagents = ["mine.py", "package.module"]\n'
        'prompts = "texts"\nnotify_secret_file = "secret"\nreview_roots = "src:/abs"\n'
    )
    monkeypatch.setenv("ORCHESTRA_CONFIG", str(folder / "stack.toml"))
    settings = load_settings()
    assert settings.data == folder / "state"
    assert settings.agents == (str(folder / "mine.py"), "package.module")
    assert (settings.prompts, settings.notify_secret_file) == (folder / "texts", folder / "secret")
    assert settings.review_roots == (folder / "src", Path("/abs"))


@pytest.mark.parametrize(
    ("text", "agents"),
    [
        ("a.py", ("a.py",)),
        ("a.py, b.c", ("a.py", "b.c")),
        ("a.py:b.c", ("a.py", "b.c")),
        ('["with,comma.py"]', ("with,comma.py",)),
        ("", ()),
    ],
)
def test_agents_come_separated_by_commas_or_the_path_separator(
    text: str, agents: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRA_AGENTS", text)
    assert load_settings().agents == agents


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"shards": 0}, "'shards'"),
        ({"lease_s": -1}, "'lease_s'"),
        ({"lease_s": float("inf")}, "'lease_s'"),
        ({"heartbeat_s": 14}, "at most half of lease_s"),
        ({"leas_s": 1}, "did you mean 'lease_s'"),
        ({"redis_url": "http://:hunter2@host"}, "'http' is not a Redis URL scheme"),
        ({"redis_url": "redis://"}, "no host is named"),
        ({"redis_url": "unix://"}, "no socket is named"),
        ({"redis_url": "redis://host:notaport"}, "not a URL"),
        ({"redis_url": "redis://:hunter2/x@host"}, "'redis_url': not a URL"),
        ({"redis_url": "redis://user:12/hunter2@host"}, "a password percent-encoded"),
        ({"audit_url": "postgresql://me:hunter2/x@host/db"}, "'audit_url': not a URL"),
        ({"redis_url": "redis://host/zero"}, "is not a number"),
        ({"broker_url": "hunter2@host"}, "setting 'broker_url': not a URL"),
        ({"broker_url": "redis://:hunter2@host/zero"}, "'broker_url': the database 'zero' is not a number"),
        ({"log_level": "loud"}, "'log_level'"),
        ({"tree_budget": "tokens=1.2.3"}, "'tree_budget'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_wrong_is_named_in_one_sentence(given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(**given)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_wrong_value_names_the_place_it_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "orchestra.toml").write_text("[orchestra]\nmax_lost_workers = 'deep'\n")
    with pytest.raises(ConfigurationError, match=r"'max_lost_workers' in .*orchestra\.toml"):
        load_settings()
    monkeypatch.setenv("ORCHESTRA_MAX_LOST_WORKERS", "deep")
    with pytest.raises(ConfigurationError, match=r"^ORCHESTRA_MAX_LOST_WORKERS: "):
        load_settings()


@pytest.mark.parametrize(
    "text",
    [
        "[orchestra\n",
        "orchestra = 3\n",
        "[orchestra]\nlease = 3\n",
        "[orchestra]\nagents = '[broken'\n",
        "a = " + "[" * 600,
    ],
)
def test_a_broken_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "orchestra.toml").write_text(text)
    with pytest.raises(ConfigurationError, match=r"orchestra\.toml"):
        load_settings()


def test_a_config_file_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRA_CONFIG", "nowhere.toml")
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml"):
        load_settings()


def test_no_representation_shows_a_password() -> None:
    settings = load_settings(redis_url="redis://user:hunter2@host/1", broker_url="amqp://user:hunter2@host//")
    for text in (repr(settings), str(settings)):
        assert "hunter2" not in text
        assert "redis://user:***@host/1" in text


def test_settings_cannot_be_changed() -> None:
    settings = load_settings()
    with pytest.raises(Exception, match="frozen"):
        settings.shards = 2  # type: ignore[misc]


def test_child_processes_get_the_same_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    given = load_settings(
        redis_url="redis://:pw@host/1",
        agents=["a,b.py", "c"],
        lease_s=20,
        signatures_required=False,
        data="x y",
        approval_time_limit_s="none",
    )
    assert given.approval_time_limit_s is None
    for name, value in given.to_env().items():
        monkeypatch.setenv(name, value)
    assert load_settings() == given


def test_every_setting_says_what_it_is() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
        unit = {"_s": "econds", "_bytes": "ytes"}
        for suffix, word in unit.items():
            if name.endswith(suffix):
                assert word in field.description, name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[orchestr]\nlease_s = 20\n", r"there is no table \[orchestr\].*; did you mean 'orchestra'\?"),
        ("concurrency = 4\n[orchestra]\nlease_s = 20\n", r"'concurrency' is outside .* below \[orchestra\]"),
        ("concurency = 4\n", r"'concurency' is outside of a table .*; did you mean 'concurrency'\?"),
        ("[other]\nx = 1\n", r"there is no table \[other\], so it is not read \(tables: \[orchestra\], "),
    ],
)
def test_what_nobody_reads_in_a_file_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "orchestra.toml").write_text(text)
    with pytest.raises(ConfigurationError, match=words):
        load_settings()


def test_one_file_may_hold_all_tables(tmp_path: Path) -> None:
    (tmp_path / "orchestra.toml").write_text("[orchestra]\nlease_s = 20\n[routing]\n[agents]\n")
    assert load_settings().lease_s == 20


def test_a_variable_of_our_prefix_that_is_no_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not refused: another program may use it."""
    assert unknown_variables() == []
    monkeypatch.setenv("ORCHESTRA_CONCURENCY", "3")
    monkeypatch.setenv("ORCHESTRA_READY_FD", "3")
    monkeypatch.setenv("ORCHESTRA_CONFIG", "")
    (sentence,) = unknown_variables()
    assert sentence == (
        "warning: the environment variable ORCHESTRA_CONCURENCY is not a setting and is ignored; "
        "did you mean 'ORCHESTRA_CONCURRENCY'?"
    )
    done = run_command("sessions")
    assert done.stderr.startswith(f"{sentence}\n")
    assert load_settings().concurrency >= 4
