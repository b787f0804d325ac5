"""A server as `deploy/` runs it: what was acknowledged outlasts it, and who is refused by it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator import Client, agent
from orchestrator.agents.definition import FUNCTION_ATTRIBUTE
from orchestrator.bootstrap import Container
from orchestrator.config.settings import Settings
from orchestrator.deployment.embedded import valkey
from orchestrator.doctor import Doctor
from orchestrator.redisdb.client import SAFE_DEFAULT, connect
from orchestrator.worker.announce import announce
from tests.commands import refused
from tests.shipped import ShippedServer, make_secrets

#: What `deploy/make-secrets` wrote before.
DANGEROUS = "user default off resetchannels -@all"


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("the program openssl is not installed")
    return make_secrets(tmp_path_factory.mktemp("secrets"))


#: The embedded server, or the one of TESTS_SERVER, and the one of this system.
@pytest.fixture(params=["embedded", "redis-server"])
def server(
    request: pytest.FixtureRequest, secrets: Path, tmp_path: Path, program: Callable[[str], str]
) -> Iterator[ShippedServer]:
    path = valkey.find_binary() if request.param == "embedded" else program("redis-server")
    mine = tmp_path / "secrets"
    shutil.copytree(secrets, mine)
    made = ShippedServer(path, mine, tmp_path / "server")
    yield made
    made.kill()


@agent("echo")
def echo(ctx):
    return ctx.prompt


def test_a_restart_keeps_what_was_acknowledged(server: ShippedServer, tmp_path: Path) -> None:
    """Redis from 7.0 on and Valkey up to 9.1.1 read transactions with the rights of the user `default`."""
    server.start()
    settings = Settings(redis_url=server.url("operator"), data=tmp_path / "data")
    with connect(server.url("operator")) as redis:
        parts = Container(redis, settings)
        announce(parts, {"echo": getattr(echo, FUNCTION_ATTRIBUTE)})
        with Client(settings) as client:
            submitted = {client.submit("echo", "x").id for _ in range(20)}
        server.kill()
        server.start()
        with Client(settings) as client:
            assert {session.id for session in client.sessions()} == submitted
        diagnosis = Doctor(parts, audit=None).examine(watch_leases=False)
        assert (diagnosis.holds, diagnosis.tally.sessions) == (True, 20)


@pytest.mark.parametrize(
    "command",
    [
        ("doctor",),
        ("up",),
        *[("service", name) for name in ("router", "callbacks", "reaper", "audit", "worker")],
        ("submit", "echo", "x"),
    ],
    ids=" ".join,
)
def test_a_server_that_would_lose_the_ledger_is_refused_by_name(
    command: tuple[str, ...], dangerous: ShippedServer, tmp_path: Path
) -> None:
    role = command[1] if command[0] == "service" else "operator"
    place = {"ORCHESTRA_REDIS_URL": dangerous.url(role), "ORCHESTRA_DATA": str(tmp_path)}
    code, said = refused(command, place)
    assert code == 2, said
    assert "would lose the ledger at its next restart" in said
    assert SAFE_DEFAULT.replace("user", "ACL SETUSER", 1) in said


@pytest.fixture(scope="module")
def dangerous(secrets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShippedServer]:
    """A server with the users that were shipped before."""
    folder = tmp_path_factory.mktemp("dangerous")
    mine = folder / "secrets"
    shutil.copytree(secrets, mine)
    users = mine / "users.acl"
    users.chmod(0o600)
    users.write_text(users.read_text().replace(SAFE_DEFAULT, DANGEROUS))
    made = ShippedServer(shutil.which("redis-server") or valkey.find_binary(), mine, folder / "server")
    made.start()
    yield made
    made.kill()
