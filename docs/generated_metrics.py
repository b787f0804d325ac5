"""Monitoring of a stack, from the catalogue of metrics: the reference, Grafana dashboards, and rules of Prometheus.

`python docs/generated_metrics.py` writes the files below `deploy/`; with `--check` it only says whether they are up to date.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

DEPLOY: Final = Path(__file__).resolve().parents[1] / "deploy"
_SOURCES: Final = {
    "trail": "audit trail",
    "redis": "Redis",
    "both": "audit trail and Redis",
    "program": "the exporter",
}
_RANGE: Final = "$__rate_interval"


def reference() -> str:
    """One row for each metric."""
    from orchestrator.telemetry.catalogue import METRICS

    rows = ["| metric | type | labels | counted from | meaning |", "| --- | --- | --- | --- | --- |"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(
            f"| `{metric.name}` | {metric.kind} | {labels} | {_SOURCES[metric.source]} | {metric.help} |"
        )
    return "\n".join(rows)


def buckets() -> str:
    """The upper bounds of the buckets."""
    from orchestrator.telemetry.catalogue import BUCKETS

    return ", ".join(f"{bound:g}" for bound in BUCKETS)


def alerts() -> str:
    """One row for each alert."""
    rows = ["| alert | fires when | for |", "| --- | --- | --- |"]
    rows += [f"| `{a.name}` | {a.summary} | {a.wait} |" for group in RULES.values() for a in group]
    return "\n".join(rows)


# --- rules ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Alert:
    """An alert of Prometheus."""

    name: str
    expr: str
    wait: str
    severity: str
    #: What is wrong, and what to do about it.
    summary: str
    action: str


def _more(metric: str, label: str, window: str, number: int) -> str:
    """More than so many new ones; a series that is new begins at its first value, which `increase` does not count."""
    new = f"sum by ({label}) ({metric} unless {metric} offset {window})"
    return f"(sum by ({label}) (increase({metric}[{window}])) > {number}) or ({new} > {number})"


RULES: Final[dict[str, tuple[Alert, ...]]] = {
    "agent-orchestra": (
        Alert(
            "OrchestraPromiseBroken",
            "orchestra_promise_gap != 0",
            "2m",
            "critical",
            "a callback is unaccounted for",
            "orchestra doctor names it; orchestra doctor --fix restores what the ledger can prove",
        ),
        Alert(
            "OrchestraPendingTooLong",
            'max by (kind) (orchestra_oldest_pending_seconds{kind!="approval"}) > 900',
            "5m",
            "warning",
            "a message, run, callback or result has waited for more than 15 minutes",
            "orchestra doctor says what holds it up",
        ),
        Alert(
            "OrchestraApprovalWaits",
            'max by (kind) (orchestra_oldest_pending_seconds{kind="approval"}) > 14400',
            "5m",
            "info",
            "an approval has waited for more than four hours",
            "orchestra questions lists it",
        ),
        Alert(
            "OrchestraNoWorker",
            "(sum by (agent) (orchestra_runs_ready) > 0) and (sum by (agent) (orchestra_slots) == 0)",
            "5m",
            "critical",
            "an agent has ready runs, and no living worker serves it",
            "start a worker that serves it, or orchestra agents pause AGENT",
        ),
        Alert(
            "OrchestraAuditBehind",
            "orchestra_audit_backlog_oldest_seconds > 300",
            "5m",
            "warning",
            "the audit trail is more than five minutes behind; the counters are as late",
            "look at the log of orchestra service audit and at its database",
        ),
        Alert(
            "OrchestraDeadLetters",
            _more("orchestra_dead_letters_total", "rule", "10m", 5),
            "0m",
            "warning",
            "more than five dead letters of one rule within ten minutes",
            "orchestra dlq list",
        ),
        Alert(
            "OrchestraLeasesLost",
            _more("orchestra_leases_lost_total", "cause", "10m", 3),
            "0m",
            "warning",
            "more than three runs were taken from their workers within ten minutes",
            "look for killed worker processes (memory) and for hosts that are not reached",
        ),
        Alert(
            "OrchestraRunsFail",
            'sum by (agent) (rate(orchestra_runs_total{end="failed"}[15m])) > '
            "0.5 * sum by (agent) (rate(orchestra_runs_total[15m])) and "
            "sum by (agent) (increase(orchestra_runs_total[15m])) >= 10",
            "5m",
            "warning",
            "more than half of an agent's runs fail",
            "orchestra sessions --state failed, then orchestra logs SESSION",
        ),
        Alert(
            "OrchestraMetricsAbsent",
            "absent(orchestra_build_info)",
            "5m",
            "critical",
            "nothing serves the metrics of the stack",
            "run orchestra metrics; curl its /metrics says why it has none",
        ),
    ),
    # Of redis_exporter, which is not part of this project.
    "agent-orchestra-redis": (
        Alert(
            "OrchestraRedisNotDurable",
            "redis_aof_last_write_status == 0 or redis_aof_last_bgrewrite_status == 0",
            "1m",
            "critical",
            "Redis cannot write its append-only file, in which the ledger is (needs redis_exporter)",
            "make room on its disk and read its log; the ledger loses what it holds when the server ends now",
        ),
    ),
}


def rules() -> str:
    """The rules as a file of Prometheus."""
    lines = ["# Generated by `make docs`; edit docs/generated_metrics.py instead.", "groups:"]
    for group, its in RULES.items():
        lines += [f"  - name: {group}", "    rules:"]
        for alert in its:
            lines += [
                f"      - alert: {alert.name}",
                f"        expr: {json.dumps(alert.expr)}",
                f"        for: {alert.wait}",
                f"        labels: {{ severity: {alert.severity} }}",
                "        annotations:",
                f"          summary: {json.dumps(alert.summary[0].upper() + alert.summary[1:])}",
                f"          description: {json.dumps(alert.action)}",
            ]
    return "\n".join(lines) + "\n"


# --- dashboards ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Panel:
    """A panel of a dashboard: one query for each line, by its legend."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    #: From which value on it is shown in red; None: never.
    bad: float | None = None


def _rate(metric: str, by: str, where: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{where}[{_RANGE}]))"


def _share(metric: str, quantile: float, by: str = "", where: str = "") -> str:
    buckets_of = ", ".join(filter(None, ("le", by)))
    return f"histogram_quantile({quantile}, sum by ({buckets_of}) (rate({metric}_bucket{where}[{_RANGE}])))"


def _quantiles(metric: str, where: str = "") -> dict[str, str]:
    return {f"{100 * q:g} %": _share(metric, q, where=where) for q in (0.5, 0.95, 0.99)}


def _stat(title: str, query: str, *, unit: str = "short", bad: float | None = None) -> Panel:
    return Panel(title, {title: query}, unit, "stat", 4, bad)


_OF_AGENT: Final = '{agent=~"$agent"}'
DASHBOARDS: Final[dict[str, tuple[str, tuple[Panel, ...]]]] = {
    "orchestra-overview": (
        "agent-orchestra: overview",
        (
            _stat("Promise gap (must be 0)", "orchestra_promise_gap", bad=1),
            _stat("Callbacks pending", "orchestra_callbacks_pending"),
            _stat("Approvals open", "orchestra_approvals_open"),
            _stat("Workers", "orchestra_workers_up"),
            _stat("Audit behind", "orchestra_audit_backlog_oldest_seconds", unit="s", bad=300),
            _stat("Dead letters (1 h)", "sum(increase(orchestra_dead_letters_total[1h]))", bad=1),
            Panel("Runs ended", {"{{end}}": _rate("orchestra_runs_total", "end")}, "ops"),
            Panel("Callbacks", {"{{state}}": _rate("orchestra_callbacks_total", "state")}, "ops"),
            Panel(
                "Messages",
                {"{{type}} {{verdict}}": _rate("orchestra_messages_total", "type, verdict")},
                "ops",
            ),
            Panel("What sessions wait for", {"{{reason}}": "sum by (reason) (orchestra_sessions_waiting)"}),
            Panel("Oldest that waits", {"{{kind}}": "max by (kind) (orchestra_oldest_pending_seconds)"}, "s"),
            Panel("Runs", {"ready": "sum(orchestra_runs_ready)", "running": "sum(orchestra_runs_running)"}),
            Panel("From a child's end to its parent", _quantiles("orchestra_wake_seconds"), "s"),
            Panel("From a launch to its run", _quantiles("orchestra_route_seconds"), "s"),
            Panel("Wait for a slot", _quantiles("orchestra_queue_wait_seconds"), "s"),
            Panel("Dead letters", {"{{rule}}": _rate("orchestra_dead_letters_total", "rule")}, "ops"),
            Panel("Leases lost", {"{{cause}}": _rate("orchestra_leases_lost_total", "cause")}, "ops"),
            Panel("Audit backlog", {"{{kind}}": "sum by (kind) (orchestra_audit_backlog_entries)"}),
            Panel(
                "Cost an hour",
                {"{{model}}": f"3600 * {_rate('orchestra_cost_usd_total', 'model')}"},
                "currencyUSD",
            ),
            Panel("Budget refusals", {"{{kind}}": _rate("orchestra_budget_refusals_total", "kind")}, "ops"),
            Panel(
                "Waits for providers",
                {"{{provider}}": _rate("orchestra_provider_waits_total", "provider")},
                "ops",
            ),
        ),
    ),
    "orchestra-agents": (
        "agent-orchestra: agents",
        (
            Panel(
                "Runs ended",
                {"{{agent}} {{end}}": _rate("orchestra_runs_total", "agent, end", _OF_AGENT)},
                "ops",
            ),
            Panel("Ready", {"{{agent}}": f"sum by (agent) (orchestra_runs_ready{_OF_AGENT})"}),
            Panel(
                "Running of slots",
                {
                    "{{agent}}": f"sum by (agent) (orchestra_runs_running{_OF_AGENT})",
                    "{{agent}} slots": f"sum by (agent) (orchestra_slots{_OF_AGENT})",
                },
            ),
            Panel("Run, 95 %", {"{{agent}}": _share("orchestra_run_seconds", 0.95, "agent", _OF_AGENT)}, "s"),
            Panel(
                "Wait for a slot, 95 %",
                {"{{agent}}": _share("orchestra_queue_wait_seconds", 0.95, "agent", _OF_AGENT)},
                "s",
            ),
            Panel(
                "Runs that fail",
                {
                    "{{agent}}": 'sum by (agent) (rate(orchestra_runs_total{agent=~"$agent", end=~"failed|lost"}'
                    f"[{_RANGE}])) / {_rate('orchestra_runs_total', 'agent', _OF_AGENT)}"
                },
                "percentunit",
            ),
            Panel(
                "Tokens",
                {"{{agent}} {{direction}}": _rate("orchestra_tokens_total", "agent, direction", _OF_AGENT)},
                "ops",
            ),
            Panel(
                "Cost an hour",
                {
                    "{{agent}} {{model}}": f"3600 * {_rate('orchestra_cost_usd_total', 'agent, model', _OF_AGENT)}"
                },
                "currencyUSD",
            ),
        ),
    ),
}


def _panels(panels: Sequence[Panel]) -> Iterator[dict[str, Any]]:
    x = y = row = 0
    for number, panel in enumerate(panels, 1):
        height = 4 if panel.kind == "stat" else 8
        if x + panel.width > 24 or (x and height != row):
            x, y = 0, y + row
        row = height
        colours: list[dict[str, Any]] = [{"color": "green", "value": None}]
        if panel.bad is not None:
            colours.append({"color": "red", "value": panel.bad})
        yield {
            "id": number,
            "type": panel.kind,
            "title": panel.title,
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "gridPos": {"x": x, "y": y, "w": panel.width, "h": height},
            "fieldConfig": {
                "defaults": {
                    "unit": panel.unit,
                    "min": 0,
                    "thresholds": {"mode": "absolute", "steps": colours},
                },
                "overrides": [],
            },
            "targets": [
                {"refId": chr(ord("A") + place), "expr": expr, "legendFormat": legend}
                for place, (legend, expr) in enumerate(panel.queries.items())
            ],
        }
        x += panel.width


def dashboard(name: str) -> str:
    """A dashboard as Grafana imports it."""
    title, panels = DASHBOARDS[name]
    variables: list[dict[str, Any]] = [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
    if any("$agent" in query for panel in panels for query in panel.queries.values()):
        variables.append(
            {
                "name": "agent",
                "type": "query",
                "datasource": {"type": "prometheus", "uid": "${datasource}"},
                "query": "label_values(orchestra_runs_ready, agent)",
                "refresh": 2,
                "multi": True,
                "includeAll": True,
                "current": {"text": "All", "value": "$__all"},
            }
        )
    document = {
        "uid": name,
        "title": title,
        "tags": ["agent-orchestra"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": variables},
        "panels": list(_panels(panels)),
    }
    return json.dumps(document, indent=2) + "\n"


def files() -> dict[Path, str]:
    """Every generated file with its text."""
    found = {DEPLOY / "grafana" / f"{name}.json": dashboard(name) for name in DASHBOARDS}
    return {**found, DEPLOY / "prometheus" / "rules.yaml": rules()}


def main(arguments: Sequence[str]) -> int:
    """Write the files, or compare them."""
    stale = [path for path, text in files().items() if not path.exists() or path.read_text("utf-8") != text]
    for path in stale:
        if "--check" in arguments:
            sys.stderr.write(f"{path.relative_to(DEPLOY.parent)} is not what `make docs` writes\n")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files()[path], encoding="utf-8")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
