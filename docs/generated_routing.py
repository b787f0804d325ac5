"""The generated part of routing.md: the routing table, out of the code."""

from __future__ import annotations


def routing_table() -> str:
    """One row for each message type."""
    from orchestrator.policy.routing import RoutingTable

    rows = [
        "| type | sender | recipient | priority | timeout | attempts |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    rows += [
        f"| `{name}` | {row.sender} | {row.recipient} | {row.priority} | {_time(row.timeout_s)} | {row.attempts} |"
        for name, row in RoutingTable().items()
    ]
    return "\n".join(rows)


def shares_table() -> str:
    """One row for each priority: how many of a stream's messages a round takes at the least."""
    from orchestrator.streams.priority import SHARES

    rows = ["| priority | messages of each stream in a round, at the least |", "| --- | --- |"]
    return "\n".join([*rows, *(f"| {name} | {share} |" for name, share in SHARES.items())])


def _time(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
