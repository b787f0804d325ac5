"""Shared fixtures: servers of our own over unix sockets, a clean environment, programs that may be missing."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

# Before anything of ours is imported: the developer's own stack must not leak into a test.
for _name in [name for name in os.environ if name.startswith("ORCHESTRA_")]:
    del os.environ[_name]

# What a shell starts in the background ignores Ctrl-C, and under `nohup` the end of its terminal; both is handed down to
# what the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# In memory, where there is enough of it: keys and databases are written as if a power cut were near, and each waits for the
# disk. `tmp_path_retention_policy` leaves nothing there of what passed.
_MEMORY = Path("/dev/shm")
if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

import fakeredis
import redis as redis_py

from orchestrator.deployment.embedded import valkey
from orchestrator.deployment.embedded.valkey import ValkeyProcess, make_socket_dir, remove_socket_dir
from orchestrator.machine import run_on
from orchestrator.redisdb.client import check_server, connect
from tests.clock import SteppedMachine
from tests.postgres import PostgresServer, TrailDatabase

ROOT = Path(__file__).resolve().parent.parent

if _server := os.environ.get("TESTS_SERVER"):
    # Another server than the embedded one, such as the oldest Redis that is promised: see `make test-servers`.
    valkey.find_binary = lambda: Path(_server)


#: The folders whose files take longest. They begin first, so that no core is idle at the end.
LONGEST_FIRST = ("acceptance", "chaos", "console", "simulation", "transcript", "integration")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import without the garbage collector, and leave what was imported out of every later collection.

    Imports make objects that stay, and to look at them again and again takes a third of the time of collecting tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest folders first; within one, the random order stays as it is."""

    def rank(item: pytest.Item) -> int:
        folder = item.path.relative_to(ROOT / "tests").parts[0]
        return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)

    items.sort(key=rank)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A report goes to another process as UTF-8; what a test of odd text has logged is no reason to end that one."""
    report = yield
    report.sections = [
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]
    return report


@pytest.fixture(scope="session", autouse=True)
def _data_folder_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Settings built without a data folder point into a temporary one, never into the working directory."""
    patch = pytest.MonkeyPatch()
    patch.setenv("ORCHESTRA_DATA", str(tmp_path_factory.mktemp("orchestra-data")))
    patch.setenv("ORCHESTRA_CONSOLE", "false")  # one process less for each stack; tests/console asks for it
    yield
    patch.undo()


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the source tree."""
    return ROOT


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyProcess]:
    """One embedded Valkey for each test process; it keeps nothing on disk. `.url` is its database 0."""
    socket_dir = make_socket_dir()
    server = ValkeyProcess(tmp_path_factory.mktemp("valkey"), socket_dir, durable=False)
    server.start()
    yield server
    server.stop()
    remove_socket_dir(socket_dir)


@pytest.fixture
def redis_url(redis_server: ValkeyProcess, redis: redis_py.Redis) -> str:
    """The URL of the emptied server behind `redis`."""
    return redis_server.url


@pytest.fixture
def redis(redis_server: ValkeyProcess) -> Iterator[redis_py.Redis]:
    """A client of the embedded server, all of whose databases are empty."""
    client = connect(redis_server.url, check=False)
    client.flushall()
    check_server(client, redis_server.url)
    yield client
    client.close()


@pytest.fixture
def start_valkey(tmp_path: Path) -> Iterator[Callable[..., ValkeyProcess]]:
    """Start further servers that a test may kill and start again; all are stopped afterwards."""
    started: list[tuple[ValkeyProcess, Path]] = []

    def start(*, durable: bool = True, folder: Path | None = None) -> ValkeyProcess:
        socket_dir = make_socket_dir()
        server = ValkeyProcess(folder or tmp_path / f"valkey-{len(started)}", socket_dir, durable=durable)
        started.append((server, socket_dir))
        server.start()
        return server

    yield start
    for server, socket_dir in started:
        server.stop()
        remove_socket_dir(socket_dir)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL for each test process."""
    server = PostgresServer()
    server.start()
    yield server
    server.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def trail_database(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TrailDatabase]:
    """An empty audit database of each kind in turn: the one that settings with the data folder `tmp_path` name."""
    if request.param == "sqlite":
        yield TrailDatabase(tmp_path / "audit.sqlite")
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.make()
    monkeypatch.setenv("ORCHESTRA_AUDIT_URL", url)
    yield TrailDatabase(url)
    server.drop(url)


@pytest.fixture
def fake_redis() -> Iterator[fakeredis.FakeRedis]:
    """Redis as a Python object with Lua, for tests in which neither atomicity nor time matters."""
    client = fakeredis.FakeRedis(server=fakeredis.FakeServer(), protocol=2)
    yield client
    client.close()


@pytest.fixture(scope="session")
def program() -> Callable[[str], str]:
    """Find a program of the operating system; without it the test is skipped, or fails where CI promised it."""

    def find(name: str) -> str:
        path = shutil.which(name)
        if path is None:
            reason = f"the program {name} is not installed"
            if os.environ.get("TESTS_REQUIRE_PROGRAMS"):
                pytest.fail(reason)
            pytest.skip(reason)
        return path

    return find


@pytest.fixture
def stepped() -> Iterator[SteppedMachine]:
    """The machine that this process lives on within a test: its monotonic clock stands at 1,000 s until the test sets it."""
    with run_on(made := SteppedMachine(monotonic=1000.0)):
        yield made
