"""Validation from several threads at once: one schema and one parser serve them all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from orchestrator.envelope import schemas
from orchestrator.envelope.validate import check


def test_threads_do_not_change_each_others_verdicts() -> None:
    """Good and bad envelopes, validated side by side many times, get the verdict they get alone."""
    names = ["chain-with-a-gap", "priority-unknown", "header-missing", "doctype-internal", "truncated"]
    documents = [schemas.read(f"examples/invalid/{name}.xml") for name in names]
    documents += [schemas.read(f"templates/{name}.xml") for name in ("query", "error", "task-delegation")]
    alone = [[finding.rule for finding in check(octets).findings] for octets in documents]
    work = documents * 60
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda octets: [finding.rule for finding in check(octets).findings], work))
    assert together == alone * 60
