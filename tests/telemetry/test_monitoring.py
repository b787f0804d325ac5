"""Dashboards and rules: generated, checked by promtool, and made of names that a live stack serves."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import yaml

from docs import generated_metrics
from orchestrator import agent
from orchestrator.telemetry.catalogue import METRICS
from tests.telemetry.conftest import Watched

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
NAME = re.compile(r"\b(?:orchestra|redis)_\w+")


def expressions() -> list[str]:
    rules = yaml.safe_load(RULES.read_text())
    found = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    for path in DASHBOARDS:
        panels = json.loads(path.read_text())["panels"]
        found += [target["expr"] for panel in panels for target in panel["targets"]]
    return found


def test_what_is_there_is_what_the_generator_writes() -> None:
    assert generated_metrics.main(["--check"]) == 0, "run `make docs`"
    assert {path.name for path in generated_metrics.files()} == {path.name for path in (RULES, *DASHBOARDS)}


def test_promtool_takes_the_rules_and_they_fire_as_they_should(
    program: Callable[[str], str], tmp_path: Path
) -> None:
    promtool = program("promtool")
    for file in (RULES, Path(__file__).parent / "rules_test.yaml"):
        shutil.copy(file, tmp_path)
    for command in (["check", "rules", "rules.yaml"], ["test", "rules", "rules_test.yaml"]):
        done = subprocess.run(
            [promtool, *command], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_takes_every_expression_of_the_dashboards(
    program: Callable[[str], str], tmp_path: Path
) -> None:
    """As rules, with the variables of Grafana filled in."""
    promtool = program("promtool")
    shown = [e.replace("$__rate_interval", "5m").replace("$agent", ".*") for e in expressions()]
    rules = [{"record": f"test:number_{number}", "expr": expr} for number, expr in enumerate(shown)]
    (tmp_path / "all.yaml").write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", "all.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test() -> None:
    tested = set(re.findall(r"alertname: (\w+)", (Path(__file__).parent / "rules_test.yaml").read_text()))
    rules = yaml.safe_load(RULES.read_text())
    assert {rule["alert"] for group in rules["groups"] for rule in group["rules"]} == tested


@agent("child")
def child(ctx) -> str:  # type: ignore[no-untyped-def]
    return "done"


@agent("parent")
def parent(ctx) -> str:  # type: ignore[no-untyped-def]
    if not ctx.callbacks:
        ctx.delegate("child", "go")
    return "done"


def test_every_name_in_dashboards_and_rules_is_on_a_live_stack(watch: Callable[..., Watched]) -> None:
    """Each metric is announced, and each that the run of a tree must give has a sample."""
    stack = watch(parent, child)
    stack.run("parent", "go")
    stack.until(1, "orchestra_callbacks_total", state="delivered")
    text = stack.text()
    announced = set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))
    announced |= set(re.findall(r"^(\w+)", text, re.MULTILINE))
    used = {name for expr in expressions() for name in NAME.findall(expr)}
    theirs = {name for name in used if name.startswith("redis_")}
    assert used - theirs <= announced
    assert theirs == {"redis_aof_last_write_status", "redis_aof_last_bgrewrite_status"}
    # Nothing that is served is on no dashboard.
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in used}
    assert {metric.name for metric in METRICS} <= shown


def test_labels_that_queries_sum_by_are_those_of_their_metrics() -> None:
    known = {metric.name: {*metric.labels, "le"} for metric in METRICS}
    for expr in expressions():
        names = {re.sub(r"_bucket$", "", name) for name in NAME.findall(expr)} & set(known)
        labels = {label for by in re.findall(r"\bby \(([^)]*)\)", expr) for label in by.split(", ")}
        for name in names:
            assert labels <= known[name], expr
