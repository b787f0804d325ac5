"""`python -P -m orchestrator.worker worker …` is ``celery -A orchestrator worker …``, but imports nothing from the working directory.

Celery's own command looks for the app, and for each of its parts, in the working directory first.
"""

from __future__ import annotations

import sys

from orchestrator.celery import app

if __name__ == "__main__":
    sys.exit(app.start(sys.argv[1:]))
