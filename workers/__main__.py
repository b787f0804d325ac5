"""`python -P -m workers worker …` is ``celery -A workers worker …``, but imports nothing from the working directory."""

from __future__ import annotations

import sys

from workers.celery import app

if __name__ == "__main__":
    sys.exit(app.start(sys.argv[1:]))
