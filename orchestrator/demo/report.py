"""The lead's final report: the worst modules first."""

from __future__ import annotations

from textwrap import fill
from typing import Any

from orchestrator.display.text import counted

#: Columns that prose of the report takes; the width of a terminal that nobody has made wider.
WIDTH = 80
#: Modules that are listed; all of them are in the sums.
LISTED = 15


def render_report(state: dict[str, Any]) -> str:
    """The report as plain text, from what the lead has collected."""
    if not state["total"]:
        return f"no Python modules in {', '.join(state['paths'])}"
    return "\n\n".join(
        filter(None, [_head(state), _package(state["package"]), _worst(state), _failed(state)])
    )


def _head(state: dict[str, Any]) -> str:
    sums = state["sums"]
    reviewed = state["total"] - sums["failed"]
    return (
        f"Review of {', '.join(state['paths'])}\n"
        f"{reviewed} of {state['total']} modules reviewed: {sums['lines']} lines, {sums['classes']} classes, "
        f"{sums['functions']} functions\n"
        f"findings: {sums['syntax']} unparsable, {sums['unfinished']} unfinished, {sums['complexity']} complex, "
        f"{sums['size']} long, {sums['docstring']} without docstring"
    )


def _package(package: dict[str, Any]) -> str:
    lines = [f"The package as a whole: {package['imports']} imports between its modules"]
    cycles = package["cycles"]
    lines.append(f"  import cycles: {len(cycles) or 'none'}")
    lines += [f"    {' - '.join(cycle)}" for cycle in cycles[:3]]
    lines.append(_pairs("  most imported", package["most_imported"]))
    lines.append(_pairs("  largest", package["largest"]))
    duplicates = package["duplicates"]
    lines.append(f"  functions that are there twice: {len(duplicates) or 'none'}")
    lines += [f"    {' = '.join(same[:4])}" for same in duplicates[:3]]
    return "\n".join(lines)


def _pairs(label: str, pairs: list[tuple[str, int]]) -> str:
    text = ", ".join(f"{name} ({count})" for name, count in pairs) or "none"
    return fill(
        f"{label}: {text}", WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )


def _worst(state: dict[str, Any]) -> str:
    worst = [review for review in state["worst"] if review["score"] > 0]
    if not worst:
        return "No module has anything to complain about."
    width = max(len(review["title"]) for review in worst)
    lines = [f"Worst modules first\n  {'module':<{width}}  score  lines  complex  undone  no doc"]
    for review in worst:
        counts = review["counts"]
        lines.append(
            f"  {review['title']:<{width}}  {review['score']:>5}  {review['lines']:>5}  {review['complexity']:>7}  "
            f"{counts['unfinished']:>6}  {counts['docstring']:>6}"
        )
        lines += [f"      line {finding['line']}: {finding['text']}" for finding in review["findings"]]
    return "\n".join(lines)


def _failed(state: dict[str, Any]) -> str:
    if not state["failed"]:
        return ""
    lines = [f"  {failed['title']}: {failed['error']}" for failed in state["failed"]]
    return "\n".join([f"{counted(state['sums']['failed'], 'review')} failed", *lines])
