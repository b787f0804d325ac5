"""An audit database that is away for long delays the trail and loses nothing: no stream is trimmed before it is kept."""

from __future__ import annotations

import pytest
import redis as redis_py

from orchestrator.audit.store import IS_DEAD
from orchestrator.client.client import Client
from orchestrator.deployment.local_stack import build_reaper
from orchestrator.envelope.bodies import Message
from orchestrator.redisdb import ledger_keys
from orchestrator.streams import TRANSITIONS, all_streams, ledger_streams, stream_key
from tests.integration.router.conftest import forge
from tests.integration.router.trail import large, say, store_of, verify, write
from tests.kit import Kit
from tests.postgres import on_sqlite
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("database")


def _counts(redis: redis_py.Redis, field: str) -> dict[str, int]:
    found = {}
    for stream in [*all_streams(), *ledger_streams(TRANSITIONS)]:
        if redis.exists(stream_key(stream)):
            found[str(stream)] = int(redis.xinfo_stream(stream_key(stream))[field])
    return {name: count for name, count in found.items() if count}


def published(redis: redis_py.Redis) -> dict[str, int]:
    """How many entries were ever appended to each stream that the trail reads, by the server's own count."""
    return _counts(redis, "entries-added")


def left(redis: redis_py.Redis) -> dict[str, int]:
    """How many entries those streams still have."""
    return _counts(redis, "length")


@on_sqlite("known", [True, False], on_both=[False])
def test_what_is_finished_deleted_and_swept_meanwhile_is_in_the_trail(kit: Kit, known: bool) -> None:
    """Trees expire and the reaper trims again and again; the writer finds everything when it comes back."""
    if known:
        write(kit)
    settings = kit.settings.model_copy(update={"tree_ttl_s": 0.01})
    message = say(kit, large("longago"))
    sessions = [Client(parts=kit.parts).submit("reviewer", f"do {n}", key=f"k{n}").id for n in range(3)]
    forge(kit, Message(content="junk"))
    kit.route()
    for session in sessions:
        kit.ledger.stop(session, "enough")
    reaper = build_reaper(kit.redis, settings)

    def swept() -> bool:
        reaper.run_once()
        return not any(kit.redis.exists(ledger_keys.session(session)) for session in sessions)

    wait_until(swept)
    reaper.run_once()
    waiting = published(kit.redis)
    assert left(kit.redis) == waiting
    assert waiting["00/ledger/transitions"] > len(sessions)
    write(kit)
    store = store_of(kit)
    assert store.counts() == waiting
    kept = {record.message_id: record for record in store.messages()}
    assert b"longago" in (store.body(kept[message].body) or b"")
    assert len(store.messages(IS_DEAD)) == 1
    assert verify(kit).exit_code == 0
    kit.route()  # what the operator was told of the refusals
    write(kit)
    wait_until(lambda: reaper.run_once() and left(kit.redis) == {})
