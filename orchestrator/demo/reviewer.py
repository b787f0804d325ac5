"""The bundled specialist: reviews one Python module."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator import agent
from orchestrator.agents.definition import BUNDLED_QUEUE
from orchestrator.demo.module_review import review_module
from orchestrator.demo.sources import source_trees
from orchestrator.worker.context.context import Context


@agent("reviewer", role="specialist", tier="haiku", queue=BUNDLED_QUEUE, escalation="lead")
def reviewer(ctx: Context) -> str:
    """Reviews the Python module whose path it is given: size, complexity, docstrings, unfinished work."""
    path = Path(ctx.prompt.strip())
    return json.dumps(review_module(str(path), source_trees().read(path)).to_json())
