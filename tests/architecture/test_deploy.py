"""The deployment files: every command they run exists, nothing runs as root, every process has a check."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from orchestrator.cli import main
from orchestrator.local_stack import SERVICES
from orchestrator.settings import CONFIG_VARIABLE, ENV_PREFIX, Settings

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())


def test_a_deployed_stack_is_the_stack_of_up() -> None:
    assert set(COMPOSE["services"]) == {"valkey", *SERVICES, "worker", "flower"}


@pytest.mark.parametrize("name", COMPOSE["services"])
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


def test_the_ledger_is_durable_and_drops_nothing() -> None:
    command = COMPOSE["services"]["valkey"]["command"]
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert (options["--appendonly"], options["--appendfsync"]) == ("yes", "always")
    assert options["--maxmemory-policy"] == "noeviction"


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
