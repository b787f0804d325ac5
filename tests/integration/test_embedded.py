"""The embedded Valkey: durable, shared by several `up`, and gone without a trace when the last one is."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.deployment.embedded import membership
from orchestrator.deployment.embedded.membership import MembershipClient, join
from orchestrator.deployment.embedded.server_manager import CONTROL_NAME, lock_path, make_sockets, read_record
from orchestrator.deployment.embedded.valkey import (
    ServerDied,
    ValkeyProcess,
    make_socket_dir,
    socket_dir_name,
)
from orchestrator.errors import ConfigurationError
from orchestrator.redisdb.client import connect
from orchestrator.runtime.process import MAX_SOCKET_PATH, is_alive
from tests.waiting import wait_until


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder whose path has a space and is far too long for a unix socket."""
    return tmp_path / "a folder with spaces" / ("deep" * 25) / "data"


@pytest.fixture
def member(data: Path) -> Iterator[MembershipClient]:
    membership = join(data)
    yield membership
    membership.leave()


def server_pid(url: str) -> int:
    return int(connect(url).info("server")["process_id"])


def test_every_write_is_on_disk_before_it_is_answered(member: MembershipClient) -> None:
    client = connect(member.url)
    wanted = {
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "maxmemory-policy": "noeviction",
        "port": "0",
        "hash-max-ziplist-value": "1024",
    }
    assert {name: client.config_get(name)[name] for name in wanted} == wanted


def test_only_this_user_can_reach_the_socket(member: MembershipClient, data: Path) -> None:
    record = read_record(data)
    folder = Path(record.socket_dir)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(len(str(path)) <= MAX_SOCKET_PATH for path in folder.iterdir())
    assert stat.S_IMODE(data.stat().st_mode) == 0o700


def test_what_was_acknowledged_is_there_after_a_stop_and_after_a_crash(data: Path) -> None:
    first = join(data)
    connect(first.url).set("a", "kept")
    assert first.leave() is True
    second = join(data)
    client = connect(second.url)
    assert client.get("a") == b"kept"
    client.set("b", "kept, too")
    os.kill(server_pid(second.url), signal.SIGKILL)
    assert second.leave() is True
    third = join(data)
    assert connect(third.url).mget("a", "b") == [b"kept", b"kept, too"]
    third.leave()


def test_nothing_is_left_when_the_last_has_left(data: Path) -> None:
    membership = join(data)
    record = read_record(data)
    assert record is not None
    pid = server_pid(membership.url)
    assert membership.leave() is True
    assert not is_alive(pid)
    assert not is_alive(record.pid)
    assert not Path(record.socket_dir).exists()
    assert read_record(data) is None


@pytest.mark.parametrize("after", ["it was started", "it says where it listens"])
def test_one_that_was_started_ends_with_an_interruption(
    data: Path, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    """At once: nobody else can have joined it."""
    started = []

    def interrupt(*_: object) -> None:
        if started and (after == "it was started" or read_record(data) is not None):
            raise KeyboardInterrupt

    start = membership._start_server_manager
    monkeypatch.setattr(membership, "_try_to_join", interrupt)
    monkeypatch.setattr(
        membership, "_start_server_manager", lambda data: started.append(start(data)) or started[0]
    )
    with pytest.raises(KeyboardInterrupt):
        join(data)
    assert started[0].returncode is not None
    assert read_record(data) is None
    assert not list(Path(tempfile.gettempdir()).glob(f"{socket_dir_name(data)}*"))


def test_the_address_stays_from_one_server_to_the_next(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the next one is started by a shell that calls another folder temporary, or after `kill -9`."""
    first = join(data)
    record = read_record(data)
    assert record is not None
    first.leave()
    with tempfile.TemporaryDirectory(dir="/tmp") as elsewhere:
        monkeypatch.setenv("XDG_RUNTIME_DIR", elsewhere)
        second = join(data)
        assert second.url == first.url
        os.kill(server_pid(second.url), signal.SIGKILL)
        killed = read_record(data)
        os.kill(killed.pid, signal.SIGKILL)
        second.leave()
        third = join(data)
        assert third.url == first.url
        third.leave()
        copy = data.parent / "copy"
        shutil.copytree(data, copy)
        other = join(copy)
        assert other.url != first.url
        other.leave()


def test_a_folder_that_somebody_else_put_there_is_not_used(data: Path, tmp_path: Path) -> None:
    """The name can be guessed: what others can look into, and a link to anywhere, is left alone."""
    base = Path(tempfile.mkdtemp(dir="/tmp"))
    ours = base / socket_dir_name(data)
    try:
        ours.mkdir(mode=0o700)
        assert make_socket_dir(data, first=base) == ours
        ours.chmod(0o777)
        assert make_socket_dir(data, first=base) != ours
        ours.rmdir()
        (tmp_path / "trap").mkdir(mode=0o700)
        ours.symlink_to(tmp_path / "trap")
        assert make_socket_dir(data, first=base) != ours
    finally:
        shutil.rmtree(base)


def test_the_second_joins_the_server_of_the_first_and_keeps_it(data: Path) -> None:
    """Two `up` on one folder share one server, and it lives as long as either."""
    first = join(data)
    second = join(data)
    assert second.url == first.url
    assert first.leave() is False
    assert connect(second.url).ping()
    pid = server_pid(second.url)
    assert second.leave() is True
    assert not is_alive(pid)


def test_a_removed_folder_ends_its_server_before_another_takes_its_place(data: Path) -> None:
    """Two servers on one socket would each have half of the clients, and the first kept nothing more."""
    first = join(data)
    pid = server_pid(first.url)
    shutil.rmtree(data)
    second = join(data)
    try:
        assert not is_alive(pid)
        assert second.url == first.url
        assert server_pid(second.url) != pid
        said = wait_until(lambda: [e for e in first.events() if e["event"] == "failed"])
        assert "was removed while its stack ran" in said[0]["reason"]
    finally:
        second.leave()


def test_a_server_whose_folder_was_removed_and_that_does_not_end_is_named(data: Path) -> None:
    first = join(data)
    record = read_record(data)
    os.kill(record.pid, signal.SIGSTOP)
    try:
        shutil.rmtree(data)
        with pytest.raises(ConfigurationError, match="stop that `orchestra up` first"):
            join(data)
        assert connect(first.url).ping()
    finally:
        os.kill(record.pid, signal.SIGCONT)
    wait_until(lambda: not is_alive(record.pid))


def test_many_that_start_at_once_share_one_server(data: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from orchestrator.deployment.embedded.membership import join;"
        "m = join(Path(sys.argv[1])); print(m.url, flush=True); sys.stdin.read(); m.leave()"
    )
    command = [sys.executable, "-c", code, str(data)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    urls = {process.stdout.readline() for process in processes if process.stdout}
    for process in processes:
        process.communicate()
    assert len(urls) == 1
    assert urls.pop().startswith("unix://")
    wait_until(lambda: read_record(data) is None)


def test_a_member_that_is_killed_takes_the_server_along(data: Path) -> None:
    """After `kill -9` of the only `up`, no process and no socket is left."""
    code = (
        "import sys; from pathlib import Path; from orchestrator.deployment.embedded.membership import join;"
        "m = join(Path(sys.argv[1])); print(m.url, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(data)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        pid = server_pid(process.stdout.readline().strip())
        record = read_record(data)
        assert record is not None
        process.kill()
    wait_until(lambda: not is_alive(record.pid))
    assert not is_alive(pid)
    assert not Path(record.socket_dir).exists()


def test_a_server_that_died_is_started_again(member: MembershipClient) -> None:
    client = connect(member.url)
    client.set("a", "kept")
    os.kill(server_pid(member.url), signal.SIGKILL)
    said: list[str] = []
    wait_until(lambda: said.extend(event["event"] for event in member.events()) or "restarted" in said)
    assert said == ["died", "restarted"]
    assert client.get("a") == b"kept"


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux tells a process that its parent died"
)
def test_a_killed_keeper_leaves_no_server_and_its_successor_has_the_data(data: Path) -> None:
    membership = join(data)
    client = connect(membership.url)
    client.set("a", "kept")
    pid = server_pid(membership.url)
    record = read_record(data)
    os.kill(record.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid))
    assert {"event": "lost"} in membership.events()
    membership.leave()
    successor = join(data)
    assert connect(successor.url).get("a") == b"kept"
    assert successor.url == membership.url
    successor.leave()


def test_a_keeper_that_was_killed_before_it_wrote_where_it_listens_is_in_nobodys_way(data: Path) -> None:
    """Its socket is there and its record is not, as after a power cut."""
    (data / "valkey").mkdir(parents=True)
    sockets = make_sockets(data)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as killed:
        killed.bind(str(sockets / CONTROL_NAME))
    membership = join(data)
    assert connect(membership.url).ping()
    membership.leave()


def test_a_damaged_file_is_named_and_nothing_is_left_running(data: Path) -> None:
    membership = join(data)
    connect(membership.url).set("a", "b" * 100)
    membership.leave()
    file = next((data / "valkey").rglob("*.incr.aof"))
    content = file.read_bytes()
    file.write_bytes(content[:20] + b"not what was written" + content[20:] * 2)
    with pytest.raises(ConfigurationError, match=r"append-only file in .* cannot be read") as caught:
        join(data)
    assert "\n" not in str(caught.value)
    assert read_record(data) is None


def test_a_command_cut_short_by_a_crash_does_not_stop_the_start(data: Path) -> None:
    """The tail that was never acknowledged may go; everything before it stays."""
    membership = join(data)
    connect(membership.url).set("a", "kept")
    membership.leave()
    file = next((data / "valkey").rglob("*.incr.aof"))
    file.write_bytes(file.read_bytes() + b"*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$100\r\ncut sho")
    again = join(data)
    assert connect(again.url).get("a") == b"kept"
    again.leave()


FULL_DISK = """
import resource, sys
from pathlib import Path
from orchestrator.deployment.embedded.valkey import ServerDied, ValkeyProcess, make_socket_dir, remove_socket_dir
from orchestrator.redisdb.client import connect

resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
sockets = make_socket_dir()
server = ValkeyProcess(Path(sys.argv[1]), sockets)
server.start()
client = connect(server.url)
acknowledged = 0
try:
    while acknowledged < 100:
        client.set(f"key{acknowledged}", "x" * 10_000)
        acknowledged += 1
except Exception:
    pass
while server.poll() is None:
    pass
death = server.obituary()
server.stop()
remove_socket_dir(sockets)
print(acknowledged, death.hopeless, death)
"""


def test_a_full_disk_stops_the_server_with_one_clear_line_and_loses_nothing(tmp_path: Path) -> None:
    """A limit on the size of a file stands in for a disk without space: the write fails in the same place."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    acknowledged, hopeless, sentence = done.stdout.strip().split(" ", 2)
    assert hopeless == "True"
    assert re.match(
        r".* cannot write its append-only file in .*: the disk is full .* free some space", sentence
    )
    with ValkeyProcess(tmp_path / "data", make_socket_dir()) as server:
        client = connect(server.url)
        assert all(client.exists(f"key{n}") for n in range(int(acknowledged)))
    server.socket.parent.rmdir()


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigurationError, match=r"cannot write to the data folder .*--data DIR"):
        join(tmp_path / "file" / "data")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigurationError, match="Permission denied"):
        join(tmp_path / "data")


def test_two_keepers_cannot_hold_one_folder(member: MembershipClient, data: Path) -> None:
    code = subprocess.run(
        [sys.executable, "-m", "orchestrator.deployment.embedded.server_manager", str(data)],
        capture_output=True,
        check=False,
        timeout=30,
    ).returncode
    assert code == 3
    assert connect(member.url).ping()
    assert lock_path(data).exists()


def test_a_server_that_was_killed_says_so(start_valkey: Callable[..., ValkeyProcess]) -> None:
    server = start_valkey()
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: server.poll() is not None)
    death = server.obituary()
    assert isinstance(death, ServerDied)
    assert "killed by signal 9" in str(death)
    assert not death.hopeless
