"""The bundled specialist: reviews one Python module by its syntax tree, without a model."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any, Final

from orchestrator import agent
from orchestrator.agents.definition import BUNDLED_QUEUE
from orchestrator.demo.sources import source_trees
from orchestrator.worker.context.context import Context

#: Lines from which on a function counts as long.
LONG_FROM: Final = 60
_MARK: Final = re.compile(r"#.*\b(TODO|FIXME|XXX|HACK)\b")
_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
#: What Python's parser raises for a text that is no module; the last for one that is nested too deeply.
_UNPARSABLE: Final = (SyntaxError, ValueError, RecursionError, MemoryError)


@agent("reviewer", role="specialist", tier="haiku", queue=BUNDLED_QUEUE, escalation="lead")
def reviewer(ctx: Context) -> str:
    """Reviews the Python module whose path it is given: size, long functions, docstrings, unfinished work."""
    return json.dumps(review(source_trees().read(Path(ctx.prompt.strip()))))


def review(source: str) -> dict[str, Any]:
    """Return what a module counts, its notes, and a score: 0 is fine."""
    lines = source.splitlines()
    counts = {"lines": len(lines), "functions": 0, "long": 0, "undone": 0, "undocumented": 0}
    try:
        tree = ast.parse(source)
    except _UNPARSABLE as error:
        reason = next(iter(error.args), "it is nested too deeply")
        note = f"line {getattr(error, 'lineno', None) or 1}: does not parse: {reason}"
        return {**counts, "score": 50, "note": note}
    notes = [(number, line.strip()[:80]) for number, line in enumerate(lines, 1) if _MARK.search(line)]
    counts["undone"] = len(notes)
    for node in ast.walk(tree):
        if not isinstance(node, _DEFINITIONS):
            continue
        size = (node.end_lineno or node.lineno) - node.lineno + 1
        if not isinstance(node, ast.ClassDef):
            counts["functions"] += 1
            if size >= LONG_FROM:
                counts["long"] += 1
                notes.append((node.lineno, f"{node.name}() has {size} lines"))
        if not node.name.startswith("_") and not ast.get_docstring(node, clean=False):
            counts["undocumented"] += 1
            notes.append((node.lineno, f"{node.name} has no docstring"))
    score = 5 * counts["undone"] + 3 * counts["long"] + counts["undocumented"]
    note = "line {}: {}".format(*notes[0]) if notes else ""
    return {**counts, "score": score, "note": note}
