"""The deployment files: every command they run exists, nothing runs as root, every process has a check."""

from __future__ import annotations

import re
import socket
import subprocess
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from orchestrator.cli import main
from orchestrator.config.settings import CONFIG_VARIABLE, ENV_PREFIX, Settings
from orchestrator.deployment.local_stack import SERVICES
from orchestrator.errors import OrchestraError, ServerUnavailable
from orchestrator.redisdb.client import connect

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())


def test_a_deployed_stack_is_the_stack_of_up() -> None:
    assert set(COMPOSE["services"]) == {"valkey", *SERVICES, "worker", "flower", "keys"}


@pytest.mark.parametrize("name", sorted(set(COMPOSE["services"]) - {"keys"}))
def test_every_process_has_a_check_and_comes_back(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["healthcheck"]["test"]
    assert service["restart"] == "unless-stopped"
    if name != "valkey":
        assert service["depends_on"]["valkey"]["condition"] == "service_healthy"


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_run_by_a_command_that_exists(name: str) -> None:
    command = COMPOSE["services"][name]["command"]
    assert tuple(command) == SERVICES[name]
    result = CliRunner().invoke(main, [*command, "--help"])
    assert result.exit_code == 0, result.output
    assert COMPOSE["services"][name]["healthcheck"]["test"][-2:] == ["orchestrator.healthcheck", name]


@pytest.mark.parametrize("name", ["worker", "flower"])
def test_celery_programs_exist(name: str) -> None:
    from importlib.metadata import entry_points

    import celery.bin.celery

    service = COMPOSE["services"][name]
    assert service["entrypoint"] == ["celery", "-A", "workers"]
    known = set(celery.bin.celery.celery.commands) | {ep.name for ep in entry_points(group="celery.commands")}
    assert service["command"][0] in known


def test_every_variable_is_a_setting() -> None:
    known = {ENV_PREFIX + name.upper() for name in Settings.model_fields} | {CONFIG_VARIABLE}
    given = re.findall(
        rf"\b{ENV_PREFIX}[A-Z_]+\b", DOCKERFILE + (ROOT / "deploy" / "compose.yaml").read_text()
    )
    assert given
    assert set(given) <= known


@pytest.fixture(params=["plain", "tls"])
def secrets(request: pytest.FixtureRequest, tmp_path: Path, program: Callable[[str], str]) -> Path:
    """What deploy/make-secrets makes, run twice, as after a change of mind about TLS."""
    program("openssl")
    folder = tmp_path / "secrets"
    for arguments in ([], ["--tls"] if request.param == "tls" else []):
        script = ROOT / "deploy" / "make-secrets"
        subprocess.run(["/bin/sh", str(script), *arguments, str(folder)], check=True, capture_output=True)
    return folder


def test_the_ledger_is_durable_and_drops_nothing(secrets: Path) -> None:
    assert COMPOSE["services"]["valkey"]["command"] == ["valkey-server", "/run/secrets/valkey.conf"]
    lines = (secrets / "valkey.conf").read_text().splitlines()
    assert {"appendonly yes", "appendfsync always", "maxmemory-policy noeviction"} <= set(lines)


def test_a_server_with_these_secrets_lets_in_who_has_the_settings_and_nobody_else(
    secrets: Path, program: Callable[[str], str], tmp_path: Path
) -> None:
    tls = "tls-port 6379" in (secrets / "valkey.conf").read_text()
    server = program("redis-server")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    config = (secrets / "valkey.conf").read_text().replace("/run/secrets", str(secrets))
    config = config.replace("dir /data", f"dir {tmp_path}").replace("bind * -::*", "bind 127.0.0.1")
    config = config.replace("tls-port 6379", f"tls-port {port}")
    (tmp_path / "redis.conf").write_text(config if tls else f"{config}port {port}\n")
    process = subprocess.Popen([server, str(tmp_path / "redis.conf")], stdout=subprocess.DEVNULL)
    try:
        url = tomllib.loads((secrets / "orchestra.toml").read_text())["orchestra"]["redis_url"]
        here = url.replace("valkey:6379", f"localhost:{port}").replace("/run/secrets", str(secrets))
        assert url.startswith("rediss://" if tls else "redis://")
        deadline = time.monotonic() + 20
        while True:
            try:
                connect(here).close()
                break
            except ServerUnavailable:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        password = (secrets / "redis_password").read_text()
        with pytest.raises(OrchestraError):
            connect(here.replace(password, "guess"))
        if tls:
            with pytest.raises(OrchestraError):
                connect(here.replace("rediss", "redis").partition("?")[0])
    finally:
        process.terminate()
        process.wait(20)


def test_no_password_is_in_an_argument_and_no_secret_open_to_others(secrets: Path) -> None:
    for name, service in COMPOSE["services"].items():
        said = str(
            [
                service.get("command"),
                service.get("entrypoint"),
                service["healthcheck"] if name != "keys" else "",
            ]
        )
        assert "PASSWORD" not in said.upper().replace("/RUN/SECRETS/REDIS_PASSWORD", ""), name
        assert "${" not in said, name
    assert secrets.stat().st_mode & 0o777 == 0o700
    assert {path.stem for path in secrets.iterdir()} >= {Path(name).stem for name in COMPOSE["secrets"]}
    password = (secrets / "redis_password").read_text()
    assert password not in (secrets / "valkey.conf").read_text() + (secrets / "users.acl").read_text()


def test_only_the_one_who_makes_keys_sees_the_operators() -> None:
    holders = {
        name
        for name, service in COMPOSE["services"].items()
        if any(str(volume).startswith("operator:") for volume in service.get("volumes", []))
    }
    assert holders == {"keys"}
    assert COMPOSE["services"]["keys"]["profiles"] == ["keys"]


def test_images_are_named_by_digest() -> None:
    assert re.search(r"@\$\{VALKEY_DIGEST:\?", COMPOSE["services"]["valkey"]["image"])
    assert re.search(r"^\$\{PYTHON_DIGEST:\?", COMPOSE["x-process"]["build"]["args"]["PYTHON_DIGEST"])
    assert {line.split()[1] for line in DOCKERFILE.splitlines() if line.startswith("FROM")} == {
        "python@${PYTHON_DIGEST}"
    }


def test_the_image_runs_as_nobody_special_from_what_is_there() -> None:
    users = re.findall(r"^USER (\S+)", DOCKERFILE, re.MULTILINE)
    assert users
    assert "root" not in users
    assert "--require-hashes" in DOCKERFILE
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists(), source


def test_the_workflow_runs_what_ci_runs_with_pinned_actions() -> None:
    steps = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]
    assert any(step.get("run") == "bash .ci/run" for step in steps)
    for step in steps:
        if "uses" in step:
            assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", step["uses"]), step["uses"]
