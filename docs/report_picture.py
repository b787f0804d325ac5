"""The picture of a report: made-up traffic of two days, the page that the command writes, and a real browser without a window.

`python docs/report_picture.py` writes `docs/images/audit-report.png`; it needs Chromium and the extra `report`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from orchestrator.audit import AuditReader, AuditStore
from orchestrator.audit.report import make_report
from orchestrator.console.rendering import report_page

ROOT = Path(__file__).parent.parent
IMAGE = Path(__file__).parent / "images" / "audit-report.png"
#: The trail of the benchmark, so that there is one that looks like this.
MESSAGES = 9000
#: Until just after its last message.
MADE_MS = 1_790_173_000_000


def main() -> None:
    """Take the picture."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("no Chromium is here: apt-get install chromium")
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from bench_report import fill

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fill(AuditStore(folder / "audit.sqlite"), MESSAGES)
        store = AuditStore(folder / "audit.sqlite", read_only=True)
        report = make_report(store, made_ms=MADE_MS)
        report.database = "postgresql://orchestra@db.example/orchestra_audit"
        records = AuditReader(store).conversation(report.longest_conversation, limit=12)
        page = folder / "report.html"
        page.write_text(report_page(report, records), encoding="utf-8")
        subprocess.run(
            [
                *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *(f"--user-data-dir={folder / 'browser'}", "--window-size=1160,3050"),
                *(f"--screenshot={IMAGE}", page.as_uri()),
            ],
            check=True,
            timeout=60,
            capture_output=True,
        )
    print(f"{IMAGE.name}: {IMAGE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
