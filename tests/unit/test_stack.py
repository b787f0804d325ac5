"""Finding the stack of a folder: who announced it, whether it still runs, and what a joiner takes over."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.config.settings import load_settings
from orchestrator.config.stack import (
    Announcement,
    Stack,
    prepare_data_folder,
    resolve,
    resolve_redis_url,
    running_stacks,
)
from orchestrator.errors import ConfigurationError


def stack(number: int, *, agents: tuple[str, ...] = (), broker_url: str | None = None) -> Stack:
    return Stack(
        redis_url=f"redis://:pw@host/{number}",
        broker_url=broker_url,
        agents=agents,
        pid=number,
        started_ms=number,
    )


def test_an_announced_stack_is_found_until_it_is_closed(tmp_path: Path) -> None:
    announcement = Announcement(tmp_path, stack(1, agents=("a.py",)))
    assert running_stacks(tmp_path) == [stack(1, agents=("a.py",))]
    announcement.close()
    announcement.close()
    assert running_stacks(tmp_path) == []
    assert list((tmp_path / "up").iterdir()) == []


def test_an_announcement_may_hold_a_password_and_is_for_its_user_only(tmp_path: Path) -> None:
    announcement = Announcement(tmp_path, stack(1))
    (path,) = (tmp_path / "up").glob("*.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    announcement.close()


def test_a_stack_that_was_killed_is_not_found_and_its_file_is_swept_away(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from orchestrator.config.stack import Announcement, Stack\n"
        "Announcement(Path(sys.argv[1]), Stack(redis_url='redis://h/0', broker_url=None, agents=(), pid=1, started_ms=1))\n"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert len(list((tmp_path / "up").glob("*.json"))) == 1
    assert running_stacks(tmp_path) == []
    assert list((tmp_path / "up").glob("*.json")) == []


def test_one_who_joins_takes_the_latest_server_and_all_agents(tmp_path: Path) -> None:
    first = Announcement(tmp_path, stack(1, agents=("a.py", "b")))
    second = Announcement(tmp_path, stack(2, agents=("b", "c"), broker_url="amqp://broker//"))
    joined = resolve(load_settings(data=tmp_path))
    assert joined.redis_url == "redis://:pw@host/2"
    assert joined.broker_url == "amqp://broker//"
    assert joined.agents == ("a.py", "b", "c")
    own = resolve(load_settings(data=tmp_path, agents=["mine.py"], broker_url="redis://b/1"))
    assert (own.agents, own.broker_url) == (("mine.py",), "redis://b/1")
    first.close()
    second.close()


def test_a_url_that_is_set_beats_the_stack_of_the_folder(tmp_path: Path) -> None:
    announcement = Announcement(tmp_path, stack(1))
    assert resolve_redis_url(load_settings(data=tmp_path, redis_url="redis://set/0")) == "redis://set/0"
    announcement.close()


def test_without_a_stack_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"no stack is running on .*; start `orchestra up`.*ORCHESTRA_REDIS_URL"
    ):
        resolve_redis_url(load_settings(data=tmp_path / "nowhere"))


def test_a_new_data_folder_is_closed_to_others(tmp_path: Path) -> None:
    prepare_data_folder(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_data_folder_that_was_there_is_closed_to_others(tmp_path: Path) -> None:
    """Whoever made it, with whatever mask: what is in it is for its owner alone from now on."""
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    (data / "left-over").write_text("secret")
    prepare_data_folder(data)
    assert stat.S_IMODE(data.stat().st_mode) == 0o700


def test_a_data_folder_of_somebody_else_that_is_open_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be closed, and keys would be in it."""
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o777)
    monkeypatch.setattr("os.getuid", lambda: data.stat().st_uid + 1)
    with pytest.raises(ConfigurationError, match="open to everybody"):
        prepare_data_folder(data)
    assert stat.S_IMODE(data.stat().st_mode) == 0o777
