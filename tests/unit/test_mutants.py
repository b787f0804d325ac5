"""The list of small faults that `make mutants` tries: what does not fit the source is refused, not passed over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mutants.run import Fault, Unusable, load

FITTING = {
    "name": "backoff: none",
    "file": "orchestrator/policy/retry.py",
    "old": "def backoff_ms(",
    "new": "def other(",
    "tests": ["tests/unit/policy/test_retry.py"],
}


def listed(tmp_path: Path, *faults: dict[str, object]) -> Path:
    file = tmp_path / "faults.toml"
    rows = ("[[fault]]\n" + "\n".join(f"{k} = {json.dumps(v)}" for k, v in fault.items()) for fault in faults)
    file.write_text("\n".join(rows), encoding="utf-8")
    return file


def test_a_fault_that_fits_is_taken(tmp_path: Path) -> None:
    assert load(listed(tmp_path, FITTING)) == [Fault(**FITTING)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"old": "no such text"}, "has its text 0 times, not once"),
        ({"old": "import"}, "times, not once"),
        ({"new": "def backoff_ms("}, "it changes nothing"),
        ({"plays": "not by 400 seeds of the ledger"}, "how many plays did not notice it, and not why"),
        ({"tests": ["tests/unit/no_such_test.py"]}, "there is no tests/unit/no_such_test.py"),
    ],
)
def test_a_fault_that_does_not_fit_the_source_is_named(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(Unusable, match=reason):
        load(listed(tmp_path, {**FITTING, **changes}))


def test_two_faults_of_one_name_are_named(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="there are two of that name"):
        load(listed(tmp_path, FITTING, FITTING))


def test_a_fault_of_what_runs_beside_others_says_what_plays_make_of_it(tmp_path: Path) -> None:
    script = "orchestrator/redisdb/scripts/trim.lua"
    played = {**FITTING, "file": script, "old": "-- trim:"}
    assert load(listed(tmp_path, {**played, "plays": "noticed"}))
    with pytest.raises(Unusable, match="whether plays notice it, or why not"):
        load(listed(tmp_path, played))
