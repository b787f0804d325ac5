"""The keys that a script is handed are those that its header names."""

from __future__ import annotations

from orchestrator.redisdb import ledger_keys
from orchestrator.redisdb.scripts import keys_of

SESSION, PARENT, RUN = f"ses_03{'a' * 24}", f"ses_03{'b' * 24}", f"run_03{'c' * 24}"


def test_an_id_may_be_of_another_session_than_the_one_that_the_script_is_about() -> None:
    ids = {"session": PARENT, "asker": SESSION, "run": RUN}
    assert keys_of("withdraw", ids) == [
        ledger_keys.session(SESSION),
        ledger_keys.session(PARENT),
        ledger_keys.items(PARENT),
        ledger_keys.queue(PARENT),
        ledger_keys.waiting(3),
        ledger_keys.run(RUN),
    ]


def test_another_key_stands_for_one_that_there_is_not() -> None:
    ids = {"session": SESSION, "parent": PARENT, "sha256": ""}
    assert keys_of("restore_text", ids)[-1] == ledger_keys.session(SESSION)
    assert keys_of("restore_text", {**ids, "sha256": "d"})[-1] == ledger_keys.large_text(SESSION, "d")


def test_a_header_may_begin_with_the_keys_of_a_shared_part() -> None:
    ids = {"session": SESSION, "parent": "", "run": RUN, "stream": "s", "whole": "w", "memory": "m"}
    found = keys_of("commit", ids)
    assert found[4:6] == [ledger_keys.run(RUN), ledger_keys.session(SESSION)]
    assert found[17:] == ["s", ledger_keys.effects(RUN), "w", ledger_keys.large_texts(SESSION), "m"]


def test_an_account_of_a_provider_is_in_no_shard() -> None:
    ids = {"account": "a_b:c", "model": "m"}
    assert keys_of("release_call", ids) == [
        ledger_keys.provider_counts("a_b:c", "m"),
        ledger_keys.provider_calls("a_b:c", "m"),
    ]
