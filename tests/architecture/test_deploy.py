"""The deployment files: every command they run exists, nothing runs as root, every process has a check."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from click.testing import CliRunner

from orchestrator.cli import main
from orchestrator.config.settings import CONFIG_VARIABLE, ENV_PREFIX, Settings
from orchestrator.deployment.local_stack import SERVICES
from orchestrator.errors import OrchestraError
from orchestrator.redisdb.client import SAFE_DEFAULT, connect
from tests.shipped import PARTS, ShippedServer, make_secrets

#: Every service that a stack can have; the notifier is there if somebody is to be told.
ALL = (*SERVICES, "notifier")
ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())


def test_a_deployed_stack_is_the_stack_of_up() -> None:
    assert set(COMPOSE["services"]) == {"valkey", *ALL, "worker", "flower", "metrics", "operator", "keys"}


@pytest.mark.parametrize("name", sorted(set(COMPOSE["services"]) - {"keys", "operator"}))
def test_every_process_has_a_check_and_comes_back(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["healthcheck"]["test"]
    assert service["restart"] == "unless-stopped"
    if name != "valkey":
        assert service["depends_on"]["valkey"]["condition"] == "service_healthy"


@pytest.mark.parametrize("name", ALL)
def test_every_service_is_run_by_a_command_that_exists(name: str) -> None:
    command = COMPOSE["services"][name]["command"]
    assert command == ["service", name]
    result = CliRunner().invoke(main, [*command, "--help"])
    assert result.exit_code == 0, result.output
    assert COMPOSE["services"][name]["healthcheck"]["test"][-2:] == ["orchestrator.healthcheck", name]


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
    make_secrets(tmp_path / "secrets")
    return make_secrets(tmp_path / "secrets", *(["--tls"] if request.param == "tls" else []))


def test_the_certificate_is_one_that_new_versions_of_python_take(
    tmp_path: Path, program: Callable[[str], str]
) -> None:
    """They verify strictly from 3.13 on. An authority that an earlier version of the script made keeps its key."""
    openssl = program("openssl")
    script = ["/bin/sh", str(ROOT / "deploy" / "make-secrets"), "--tls", str(tmp_path)]
    subprocess.run(script, check=True, capture_output=True)
    verify = [
        openssl,
        "verify",
        "-x509_strict",
        "-CAfile",
        "ca.pem",
        "-verify_hostname",
        "valkey",
        "valkey.pem",
    ]
    subprocess.run(verify, cwd=tmp_path, check=True, capture_output=True)
    key, old = (tmp_path / "ca.key").read_bytes(), ["-subj", "/CN=old", "-out", "ca.pem"]
    subprocess.run(
        [openssl, "req", "-x509", "-new", "-key", "ca.key", *old],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    subprocess.run(script, check=True, capture_output=True)
    subprocess.run(verify, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "ca.key").read_bytes() == key


def test_the_ledger_is_durable_and_drops_nothing(secrets: Path) -> None:
    assert COMPOSE["services"]["valkey"]["command"] == ["valkey-server", "/run/secrets/valkey.conf"]
    lines = (secrets / "valkey.conf").read_text().splitlines()
    assert {"appendonly yes", "appendfsync always", "maxmemory-policy noeviction"} <= set(lines)


def test_each_container_has_the_settings_of_its_own_user_and_of_no_other() -> None:
    users = {name: name for name in (*ALL, "worker", "flower", "operator")} | {"keys": "operator"}
    for name, user in users.items():
        given = COMPOSE["services"][name]["secrets"]
        assert given == [{"source": f"{user}.toml", "target": "orchestra.toml"}, "ca.pem"], name
    server = COMPOSE["services"]["valkey"]["secrets"]
    assert [name for name in server if name.endswith((".toml", ".password"))] == ["healthcheck.password"]


def test_users_have_the_rules_that_ship_and_programs_keep_theirs(
    tmp_path: Path, program: Callable[[str], str]
) -> None:
    program("openssl")
    script = ["/bin/sh", str(ROOT / "deploy" / "make-secrets"), "--queue", "reviews", str(tmp_path)]
    (tmp_path / "programs.acl").write_text("user partner on >secret resetchannels -@all +ping\n")
    subprocess.run(script, check=True, capture_output=True)
    lines = {line.split()[1]: line for line in (tmp_path / "users.acl").read_text().splitlines()}
    assert set(lines) == {*PARTS, "healthcheck", "default", "partner"}
    assert lines["default"] == SAFE_DEFAULT
    assert lines["healthcheck"].split()[4:] == ["resetchannels", "-@all", "+ping"]
    for part in PARTS:
        shipped = (ROOT / "deploy" / "acl" / f"{part}.acl").read_text().split()
        mine = [rule for rule in lines[part].split() if rule != "~reviews*"]
        assert mine[4:] == shipped[4:], part
        assert ("~reviews*" in lines[part]) == ("~orchestra*" in shipped)
    bad = [*script[:3], "a b", str(tmp_path)]
    assert subprocess.run(bad, capture_output=True, check=False).returncode == 2


def test_a_server_with_these_secrets_lets_in_who_has_the_settings_and_nobody_else(
    secrets: Path, program: Callable[[str], str], tmp_path: Path
) -> None:
    tls = "tls-port 6379" in (secrets / "valkey.conf").read_text()
    server = ShippedServer(program("redis-server"), secrets, tmp_path)
    server.start()
    try:
        urls = {part: server.url(part) for part in PARTS}
        assert all(url.startswith("rediss://" if tls else "redis://") for url in urls.values())
        for part, url in urls.items():
            with connect(url) as client:
                assert client.info()["redis_version"]
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.flushall()
                if part in ("audit", "console"):
                    with pytest.raises(redis.exceptions.NoPermissionError):
                        client.hset("ao:{00}:session:x", "state", "finished")
        password = (secrets / "router.password").read_text()
        for wrong in (
            urls["router"].replace(password, "guess"),
            urls["router"].replace("router:", "default:"),
            urls["router"].replace(f"router:{password}@", ""),
            urls["worker"].replace("worker:", "router:"),
        ):
            with pytest.raises(OrchestraError):
                connect(wrong)
        if tls:
            with pytest.raises(OrchestraError):
                connect(urls["router"].replace("rediss", "redis").partition("?")[0])
    finally:
        server.kill()


def test_no_password_is_in_an_argument_and_no_secret_open_to_others(secrets: Path) -> None:
    for name, service in COMPOSE["services"].items():
        said = str([service.get("command"), service.get("entrypoint"), service.get("healthcheck")])
        assert "PASSWORD" not in said.upper().replace("/RUN/SECRETS/HEALTHCHECK.PASSWORD", ""), name
        assert "${" not in said, name
    assert secrets.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in secrets.iterdir()} >= set(COMPOSE["secrets"])
    said = (secrets / "valkey.conf").read_text() + (secrets / "users.acl").read_text()
    for file in secrets.glob("*.password"):
        assert file.read_text() not in said


def test_each_part_has_its_own_keys_and_only_the_writer_of_the_trail_has_its_database() -> None:
    """Those of `operator` besides: whoever makes them and answers for the operator, and who signs the trail."""
    holders: dict[str, set[str]] = {}
    for name, service in COMPOSE["services"].items():
        for volume in service.get("volumes", []):
            source, _, place = volume.partition(":")
            if name != "keys" and source in COMPOSE["volumes"]:
                holders.setdefault(source, set()).add(name)
            if source.endswith("-keys") and name not in ("keys", "operator"):
                assert place == "/data/keys:ro", name
    assert holders.pop("ledger") == {"valkey"}
    assert holders.pop("audit") == {"audit", "operator", "metrics"}
    assert holders.pop("audit-heads") == {"audit", "operator"}
    assert COMPOSE["services"]["metrics"]["volumes"] == ["audit:/data:ro"]
    assert holders == {
        "notifier": {"notifier"},
        **{
            f"{part}-keys": {part}
            for part in ("operator", "router", "callbacks", "reaper", "audit", "worker")
        },
    }
    brought = (ROOT / "deploy" / "make-keys").read_text()
    assert re.findall(r"^bring (\w+) .*\boperator\b", brought, re.MULTILINE) == ["audit"]


def test_logs_and_memory_are_bounded() -> None:
    for name, service in COMPOSE["services"].items():
        assert service["logging"]["options"]["max-size"], name
        assert service["mem_limit"], name


def test_the_notifier_starts_if_somebody_is_to_be_told_and_has_no_key() -> None:
    """Without a target it would end at once, again and again; and it signs with a secret of its own only."""
    notifier = COMPOSE["services"]["notifier"]
    assert notifier["profiles"] == ["notifier"]
    assert notifier["volumes"] == ["notifier:/data"]


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
