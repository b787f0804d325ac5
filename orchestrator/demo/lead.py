"""The bundled coordinator: reviews a source tree, one `reviewer` for each module, the package as a whole itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator import Callback, agent
from orchestrator.agents.definition import BUNDLED_QUEUE
from orchestrator.demo.package_review import find_modules, review_package
from orchestrator.demo.report import LISTED, render_report
from orchestrator.demo.sources import source_trees
from orchestrator.display.text import counted
from orchestrator.worker.context.context import Context

#: Failed reviews that are kept for the report.
KEPT_FAILURES = 10
#: Seconds in which reviews that come in close together are read in one go.
_FOLD_S = 0.2


@agent("lead", role="coordinator", tier="opus", queue=BUNDLED_QUEUE)
def lead(ctx: Context) -> str:
    """Reviews the Python files and folders that it is given, one on each line, and reports the worst first."""
    if ctx.cause == "start" or (ctx.cause == "user" and _is_complete(ctx.state)):
        return _begin(ctx)
    for callback in ctx.callbacks:
        _take_in(ctx.state, callback)
    done, total = _progress(ctx.state)
    if total:
        ctx.status(100 * done // total, f"{done} of {total} reviews are in")
    return render_report(ctx.state) if _is_complete(ctx.state) else f"{done} of {total} reviews are in"


def _begin(ctx: Context) -> str:
    """Hand out the reviews, then do the part that needs the whole package while they are made."""
    trees = source_trees()
    paths = [trees.admit(Path(line.strip()).absolute()) for line in ctx.prompt.splitlines() if line.strip()]
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise FileNotFoundError(
            f"there is no file or folder {missing[0]}; give `lead` the paths of Python sources, one on each line"
        )
    files = find_modules(paths)
    roots = [path if path.is_dir() else path.parent for path in paths]
    ctx.state.clear()
    ctx.state.update(
        paths=[str(path) for path in paths],
        total=len(files),
        done=0,
        failed=[],
        worst=[],
        sums=dict.fromkeys((*_SUMS, "failed"), 0),
    )
    for path in files:
        ctx.delegate("reviewer", str(path), title=f"Review {_shown(path, roots)}")
    # Its own part has no percentage: how many of its reviews have ended says more.
    ctx.status(activity=f"reviewing the package while {len(files)} modules are reviewed")
    review = review_package(
        files, read=trees.read, name_of=lambda path: _dotted(path, roots), keep_going=ctx.check
    )
    ctx.state["package"] = review.to_json()
    ctx.wait_for("any", window_s=_FOLD_S)
    return render_report(ctx.state) if not files else f"waiting for {counted(len(files), 'review')}"


#: What is summed up over all modules.
_SUMS = ("lines", "functions", "classes", "syntax", "unfinished", "complexity", "size", "docstring")


def _take_in(state: dict[str, Any], callback: Callback) -> None:
    """Add one review to the sums, and keep it if it is among the worst."""
    state["done"] += 1
    if callback.status != "completed":
        state["sums"]["failed"] += 1
        if len(state["failed"]) < KEPT_FAILURES:
            state["failed"].append({"title": callback.title, "error": callback.error[:300]})
        return
    review = json.loads(callback.result)
    sums = state["sums"]
    for name in ("lines", "functions", "classes"):
        sums[name] += review[name]
    for finding in review["findings"]:
        sums[finding["kind"]] += 1
    review["title"] = callback.title.removeprefix("Review ")
    review["counts"] = {kind: sum(f["kind"] == kind for f in review["findings"]) for kind in _SUMS[3:]}
    # Of what the report does not list, only the sums are kept.
    review["findings"] = review["findings"][:1]
    state["worst"] = sorted([*state["worst"], review], key=lambda r: (-r["score"], r["path"]))[:LISTED]


def _progress(state: dict[str, Any]) -> tuple[int, int]:
    return state.get("done", 0), state.get("total", 0)


def _is_complete(state: dict[str, Any]) -> bool:
    done, total = _progress(state)
    return done >= total


def _shown(path: Path, roots: list[Path]) -> str:
    """The path as people want to read it: below the folder that was given, with that folder's own name."""
    for root in roots:
        if path.is_relative_to(root):
            return str(Path(root.name) / path.relative_to(root))
    return str(path)


def _dotted(path: Path, roots: list[Path]) -> str:
    """The name under which the module's package imports it."""
    parts = list(Path(_shown(path, roots)).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
