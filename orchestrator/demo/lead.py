"""The bundled coordinator: has each module of a source tree reviewed, and reports the worst first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from orchestrator import Callback, agent
from orchestrator.agents.definition import BUNDLED_QUEUE
from orchestrator.demo.sources import find_modules, source_trees
from orchestrator.display.text import counted
from orchestrator.worker.context.context import Context

#: Modules that the report lists, and failed reviews; all of them are in the sums.
LISTED: Final = 15
#: Seconds in which reviews that come in close together are read in one go.
_FOLD_S: Final = 0.2
_SUMS: Final = ("lines", "functions", "long", "undone", "undocumented", "failed")


@agent("lead", role="coordinator", tier="opus", queue=BUNDLED_QUEUE)
def lead(ctx: Context) -> str:
    """Reviews the Python files and folders that it is given, one on each line, and reports the worst first."""
    if ctx.cause == "start" or (ctx.cause == "user" and ctx.state.get("done") == ctx.state.get("total")):
        return _begin(ctx)
    for callback in ctx.callbacks:
        take_in(ctx.state, callback)
    done, total = ctx.state["done"], ctx.state["total"]
    ctx.status(100 * done // total, f"{done} of {total} reviews are in")
    return render(ctx.state) if done == total else f"{done} of {total} reviews are in"


def _begin(ctx: Context) -> str:
    trees = source_trees()
    paths = [trees.admit(Path(line.strip()).absolute()) for line in ctx.prompt.splitlines() if line.strip()]
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise FileNotFoundError(
            f"there is no file or folder {missing[0]}; give `lead` the paths of Python sources, one on each line"
        )
    files = find_modules(paths)
    ctx.state.clear()
    ctx.state.update(begun([str(path) for path in paths], len(files)))
    if not files:
        return render(ctx.state)
    for path in files:
        ctx.delegate("reviewer", str(path), title=f"Review {_shown(path, paths)}")
    ctx.wait_for("any", window_s=_FOLD_S)
    return f"waiting for {counted(len(files), 'review')}"


def begun(paths: list[str], total: int) -> dict[str, Any]:
    """Return what is known before the first review is in."""
    sums = dict.fromkeys(_SUMS, 0)
    return {"paths": paths, "total": total, "done": 0, "failed": [], "worst": [], "sums": sums}


def take_in(state: dict[str, Any], callback: Callback) -> None:
    """Add one review to the sums, and keep it if it is among the worst: the state does not grow with the tree."""
    state["done"] += 1
    title = callback.title.removeprefix("Review ")
    if callback.status != "completed":
        state["sums"]["failed"] += 1
        state["failed"] = [*state["failed"], f"  {title}: {callback.error[:300]}"][:LISTED]
        return
    review = json.loads(callback.result)
    for name in _SUMS[:-1]:
        state["sums"][name] += review[name]
    worst = [*state["worst"], {**review, "title": title}]
    state["worst"] = sorted(worst, key=lambda one: (-one["score"], one["title"]))[:LISTED]


def render(state: Mapping[str, Any]) -> str:
    """Return the report as plain text."""
    where, sums = ", ".join(state["paths"]), state["sums"]
    reviewed = state["total"] - sums["failed"]
    if not state["total"]:
        return f"no Python modules in {where}"
    lines = [
        f"Review of {where}",
        f"{reviewed} of {state['total']} modules reviewed: {sums['lines']} lines, {sums['functions']} functions",
        f"findings: {sums['undone']} unfinished, {sums['long']} long functions, {sums['undocumented']} without docstring",
        "",
    ]
    worst = [review for review in state["worst"] if review["score"]]
    width = max((len(review["title"]) for review in worst), default=0)
    if worst:
        lines += ["Worst modules first", f"  {'module':<{width}}  score  lines  long  undone  no doc"]
    else:
        lines.append("No module has anything to complain about.")
    for one in worst:
        lines.append(
            f"  {one['title']:<{width}}  {one['score']:>5}  {one['lines']:>5}  {one['long']:>4}  {one['undone']:>6}  "
            f"{one['undocumented']:>6}"
        )
        lines.append(f"      {one['note']}")
    if state["failed"]:
        lines += ["", f"{counted(sums['failed'], 'review')} failed", *state["failed"]]
    return "\n".join(lines)


def _shown(path: Path, paths: list[Path]) -> str:
    """Return the path below the folder that was given, with that folder's own name."""
    roots = [path if path.is_dir() else path.parent for path in paths]
    root = next(root for root in roots if path.is_relative_to(root))
    return str(Path(root.name) / path.relative_to(root))
