"""The lead's final report: the worst modules first."""

from __future__ import annotations

from typing import Any

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
    reviewed = state["total"] - len(state["failed"])
    return (
        f"Review of {', '.join(state['paths'])}\n"
        f"{reviewed} of {state['total']} modules reviewed: {sums['lines']} lines, {sums['classes']} classes, "
        f"{sums['functions']} functions\n"
        f"{sums['syntax']} that do not parse, {sums['unfinished']} places unfinished, {sums['complexity']} complex "
        f"functions, {sums['size']} long modules, {sums['docstring']} docstrings missing"
    )


def _package(package: dict[str, Any]) -> str:
    lines = [f"The package as a whole: {package['imports']} imports between its modules"]
    cycles = package["cycles"]
    lines.append(f"  import cycles: {len(cycles) or 'none'}")
    lines += [f"    {' - '.join(cycle)}" for cycle in cycles[:3]]
    lines.append(f"  most imported: {_pairs(package['most_imported'])}")
    lines.append(f"  largest: {_pairs(package['largest'])}")
    duplicates = package["duplicates"]
    lines.append(f"  functions that are there twice: {len(duplicates) or 'none'}")
    lines += [f"    {' = '.join(same[:4])}" for same in duplicates[:3]]
    return "\n".join(lines)


def _pairs(pairs: list[tuple[str, int]]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in pairs) or "none"


def _worst(state: dict[str, Any]) -> str:
    worst = [review for review in state["worst"] if review["score"] > 0][:LISTED]
    if not worst:
        return "No module has anything to complain about."
    width = max(len(review["title"]) for review in worst)
    lines = [f"Worst modules first\n  {'module':<{width}}  score  lines  complexity  unfinished  docstrings"]
    for review in worst:
        counts = review["counts"]
        lines.append(
            f"  {review['title']:<{width}}  {review['score']:>5}  {review['lines']:>5}  {review['complexity']:>10}  "
            f"{counts['unfinished']:>10}  {counts['docstring']:>10}"
        )
        lines += [f"      line {finding['line']}: {finding['text']}" for finding in review["findings"][:1]]
    return "\n".join(lines)


def _failed(state: dict[str, Any]) -> str:
    failed = state["failed"]
    if not failed:
        return ""
    return "\n".join(
        [f"{len(failed)} reviews failed", *(f"  {f['title']}: {f['error']}" for f in failed[:10])]
    )
