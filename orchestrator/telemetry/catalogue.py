"""The metrics of a stack: name, type, labels and meaning of each. Dashboards, rules and the reference are made of this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

#: Says what serving metrics needs.
INSTALL: Final = "metrics need their library: pip install 'agent-orchestra[metrics]'"

#: Upper bounds of the buckets of every histogram, in seconds: from 5 ms to an hour, as a wait is longer than a run.
BUCKETS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0),
)
#: Values of one label at most; what comes later counts as `OTHER`, so that no name made up by an agent fills a database.
MOST_VALUES: Final = 500
OTHER: Final = "other"

Kind = Literal["counter", "gauge", "histogram"]
#: Where a metric is read: the audit trail, Redis, both, or this program.
Source = Literal["trail", "redis", "both", "program"]


@dataclass(frozen=True)
class Metric:
    """A metric."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    source: Source
    #: What it counts or measures, in one sentence.
    help: str


METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        "orchestra_runs_total",
        "counter",
        ("agent", "end"),
        "trail",
        "Attempts of runs that ended: completed, failed, stopped, parked (the slot is free, the run waits), lost (its worker).",
    ),
    Metric(
        "orchestra_callbacks_total",
        "counter",
        ("state",),
        "trail",
        "Callbacks that were launched, were delivered, or are dead.",
    ),
    Metric(
        "orchestra_messages_total",
        "counter",
        ("type", "verdict"),
        "both",
        "Messages that the router has finished with: accepted (duplicates too; again after each wait), or dead.",
    ),
    Metric(
        "orchestra_dead_letters_total",
        "counter",
        ("rule",),
        "trail",
        "Dead letters, by the rule that failed.",
    ),
    Metric(
        "orchestra_tokens_total",
        "counter",
        ("agent", "model", "direction"),
        "trail",
        "Tokens that calls of models took, input or output; of a lost worker as many as it had reserved.",
    ),
    Metric(
        "orchestra_cost_usd_total",
        "counter",
        ("agent", "model"),
        "trail",
        "Cost of calls of models in US dollars.",
    ),
    Metric(
        "orchestra_budget_refusals_total",
        "counter",
        ("kind",),
        "trail",
        "Reservations for a call that did not fit into a budget: of requests, tokens or money; a shorter answer may have fitted.",
    ),
    Metric(
        "orchestra_leases_lost_total",
        "counter",
        ("cause",),
        "trail",
        "Runs taken from their workers: lost (the lease was not renewed), died (the process did).",
    ),
    Metric(
        "orchestra_provider_waits_total",
        "counter",
        ("provider",),
        "trail",
        "Times that a run gave up its slot until a provider takes calls again.",
    ),
    Metric(
        "orchestra_callbacks_pending", "gauge", (), "trail", "Callbacks that are neither delivered nor dead."
    ),
    Metric(
        "orchestra_promise_gap",
        "gauge",
        (),
        "both",
        "Callbacks that are unaccounted for: launched - delivered - dead - pending, and where ledger and trail differ. Must be 0.",
    ),
    Metric("orchestra_runs_ready", "gauge", ("agent",), "redis", "Runs that a worker may take now."),
    Metric(
        "orchestra_runs_running",
        "gauge",
        ("agent",),
        "redis",
        "Runs at work; not those that stand still in a call.",
    ),
    Metric(
        "orchestra_slots",
        "gauge",
        ("agent",),
        "redis",
        "Runs that the living workers of an agent execute at once; a worker counts for each of its agents.",
    ),
    Metric("orchestra_workers_up", "gauge", (), "redis", "Workers with a recent sign of life."),
    Metric(
        "orchestra_sessions_waiting",
        "gauge",
        ("reason",),
        "both",
        "What waits, by reason: children, question, approval, slot, limit, paused, retry, provider, scheduled (a time).",
    ),
    Metric(
        "orchestra_oldest_pending_seconds",
        "gauge",
        ("kind",),
        "both",
        "Age of the oldest message, run, callback, approval or result that waits; 0: none does.",
    ),
    Metric("orchestra_approvals_open", "gauge", (), "redis", "Approvals that no person has answered."),
    Metric(
        "orchestra_audit_backlog_entries",
        "gauge",
        ("kind",),
        "redis",
        "Entries that no audit writer has committed: messages, transitions, dead letters.",
    ),
    Metric(
        "orchestra_audit_backlog_oldest_seconds",
        "gauge",
        (),
        "redis",
        "Age of the oldest of them; 0: there are none.",
    ),
    Metric(
        "orchestra_build_info", "gauge", ("version",), "program", "1, with the version of agent-orchestra."
    ),
    Metric(
        "orchestra_run_seconds",
        "histogram",
        ("agent",),
        "trail",
        "From the claim of a run to the end of that attempt.",
    ),
    Metric(
        "orchestra_wake_seconds",
        "histogram",
        (),
        "trail",
        "From the end of a child to the claim of the run that carries its callback.",
    ),
    Metric(
        "orchestra_queue_wait_seconds",
        "histogram",
        ("agent",),
        "trail",
        "From the moment at which a run may be taken to its claim.",
    ),
    Metric(
        "orchestra_route_seconds",
        "histogram",
        (),
        "trail",
        "From a launch to its session's first run, by the router; with the time for which it waits for other tasks.",
    ),
)

BY_NAME: Final = {metric.name: metric for metric in METRICS}
