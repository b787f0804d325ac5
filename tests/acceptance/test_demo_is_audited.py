"""What the agents of `orchestra demo` publish is in the audit trail: as many messages and transitions, each once."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.audit import AuditStore
from orchestrator.audit.verification import broken_chain
from orchestrator.client.client import Client
from orchestrator.config.settings import load_settings
from orchestrator.deployment.local_stack import LocalStack
from orchestrator.redisdb.client import connect
from orchestrator.streams import AUDIT_GROUP, TRANSITIONS, all_streams, ledger_streams, stream_key
from tests.postgres import TrailDatabase
from tests.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

MODULES = 40
STREAMS = [*all_streams(), *ledger_streams(TRANSITIONS)]


def test_as_much_is_audited_as_was_published(trail_database: TrailDatabase, tmp_path: Path) -> None:
    """By what Redis counts for each stream (`entries-added`), on both databases; the chain holds."""
    package = tmp_path / "package"
    package.mkdir()
    for number in range(MODULES):
        (package / f"module_{number}.py").write_text(f'"""Module {number}."""\n', encoding="utf-8")
    settings = load_settings(data=tmp_path, review_roots=(package,), concurrency=2, sweep_interval_s=0.5)
    with LocalStack(settings) as stack:
        stack.wait_ready()
        with Client(stack.settings) as client:
            report = client.submit("lead", str(package)).result(120)
        assert f"{MODULES} of {MODULES} modules reviewed" in report
        with connect(stack.url) as redis:

            def facts(which: str) -> dict[str, list[dict[str, int]]]:
                found = {str(s): stream_key(s) for s in STREAMS if redis.exists(stream_key(s))}
                return {name: getattr(redis, which)(key) for name, key in found.items()}

            def published() -> dict[str, int]:
                added = {name: int(row["entries-added"]) for name, row in facts("xinfo_stream").items()}
                return {name: count for name, count in added.items() if count}

            def written() -> dict[str, int]:
                store = AuditStore(trail_database.where, read_only=True)
                try:
                    return store.counts()
                finally:
                    store.close()

            wait_until(lambda: written() == published(), "the audit trail")
            pending = [
                group["pending"]
                for groups in facts("xinfo_groups").values()
                for group in groups
                if group["name"] == AUDIT_GROUP.encode()
            ]
            assert set(pending) == {0}
            counts = published()
    store = AuditStore(trail_database.where, read_only=True)
    assert store.counts() == counts
    assert store.total() == sum(count for name, count in counts.items() if "ledger" not in name) > 2 * MODULES
    assert store.ends().transitions.entries == counts["00/ledger/transitions"] > 3 * MODULES
    assert list(broken_chain(store)) == []
