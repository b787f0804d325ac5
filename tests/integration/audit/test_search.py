"""Searches of the audit trail find what a reading of every message finds, whichever way they take."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from orchestrator.audit import AuditReader, AuditStore, search
from orchestrator.audit.records import DeadRecord, MessageRecord, read_entry
from orchestrator.streams import Entry, StreamId
from tests.postgres import TrailDatabase

_WORDS = ("alpha", "beta", "gamma", "delta", "R&amp;D", "naïve", "x")
_ID = "{0:08x}-0000-4000-8000-000000000000"
_BODIES = {
    "task-delegation": "<task><task-id>{task}</task-id><title>t</title><description>{text}</description></task>",
    "status-update": "<task-id>{task}</task-id><status>blocked</status><current-activity>{text}</current-activity>",
    "task-completion": "<task-id>{task}</task-id><status>success</status><summary>{text}</summary>",
    "message": "<content>{text}</content>",
}


def records(chance: random.Random, count: int) -> Iterator[MessageRecord]:
    """Messages that were not written in the order in which they were published."""
    for number in range(count):
        kind = chance.choice([*_BODIES, "message", "message"])
        body = _BODIES[kind].format(
            task=f"t{number % 7}", text=" ".join(chance.choices(_WORDS, k=chance.choice((1, 3, 9))))
        )
        sender, recipient = chance.choices(("a", "b", "c", "d"), (40, 10, 3, 1), k=2)
        parties = "".join(
            f"<{tag}><agent-name>{name}</agent-name><agent-role>specialist</agent-role></{tag}>"
            for tag, name in (("sender", sender), ("recipient", recipient))
        )
        xml = (
            '<agent-message xmlns="http://agent-orchestra.local/protocol/1.0" version="1.0"><header>'
            f"<message-id>{_ID.format(number)}</message-id><timestamp>2026-01-01T00:00:00Z</timestamp>{parties}"
            f"<correlation-id>{_ID.format(number % 11)}</correlation-id></header>"
            f'<body type="{kind}">{body}</body></agent-message>'
        ).encode()
        stream = StreamId(0, kind, chance.choices(("normal", "high", "critical"), (30, 5, 1))[0])
        extra = {"attempt": chance.choices(("1", "2", "3"), (30, 3, 1))[0]}
        at_ms = 1000 + number + chance.choice((0, 0, 0, -30, 15))
        yield read_entry(Entry(stream, f"{at_ms}-{number}", xml, extra), received_ms=at_ms)


@pytest.fixture
def store(trail_database: TrailDatabase) -> AuditStore:
    """A trail whose last messages are not in the index of words; some are dead, of which one died twice."""
    chance, store = random.Random(20_261_122), AuditStore(trail_database.where)
    messages = list(records(chance, 240))
    dead = [*chance.sample(messages, 20)]
    store.add(messages)
    store.add(
        [],
        [
            DeadRecord(
                dead_id=f"00-{number}",
                stream=one.stream,
                entry_id=one.entry_id,
                rule="rare" if number < 2 else "expired",
                reason="it was refused",
                attempts=1,
                at_ms=2000,
                received_ms=2000,
            )
            for number, one in enumerate([*dead, dead[5]])
        ],
    )
    store.index(200)
    return store


_FACTS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "message_type": ("type", ("message", "query", "status-update")),
    "sender": ("sender", ("a", "d", "nobody")),
    "recipient": ("recipient", ("a", "c")),
    "task_id": ("task_id", ("t1",)),
    "priority": ("priority", ("normal", "critical")),
    "attempt": ("attempt", (1, 3)),
    "correlation": ("correlation_id", (_ID.format(3),)),
    "message_id": ("message_id", (_ID.format(17),)),
}


def asked(chance: random.Random) -> Iterator[dict[str, Any]]:
    """Each condition alone, and many together."""
    yield {}
    for name, (_, values) in _FACTS.items():
        yield from ({name: value} for value in values)
    outcomes, rules, times = (
        ("dead", "success", "blocked", "failed"),
        ("rare", "expired", "none"),
        (1000, 1060, 1200),
    )
    yield from ({"outcome": outcome} for outcome in outcomes)
    yield from ({"rule": rule} for rule in rules)
    yield from ({"since_ms": a, "until_ms": b} for a, b in product(times, times))
    yield from ({"text": text} for text in ("alpha", "alpha beta", "r&d", "NAÏVE", "nothing", "&", "x x x"))
    for _ in range(30):
        found: dict[str, Any] = {}
        for name in chance.sample(
            [*_FACTS, "since_ms", "until_ms", "outcome", "rule", "text"], chance.choice((2, 2, 3))
        ):
            options = {
                "since_ms": times,
                "until_ms": times,
                "outcome": outcomes,
                "rule": rules,
                "text": ("alpha", "alpha beta", "r&d", "delta gamma alpha"),
            }
            found[name] = chance.choice(_FACTS[name][1] if name in _FACTS else options[name])
        yield found


def meets(record: MessageRecord, wanted: dict[str, Any], saying: set[int], rules: set[str]) -> bool:
    """Whether a message is what a search is for, by what the trail says of it."""
    facts = [getattr(record, _FACTS[name][0]) == value for name, value in wanted.items() if name in _FACTS]
    outcome = wanted.get("outcome")
    dead = bool(record.dead)
    return (
        all(facts)
        and wanted.get("since_ms", 0) <= record.published_ms < wanted.get("until_ms", 1 << 62)
        and (outcome is None or (dead if outcome == "dead" else record.status == outcome))
        and (outcome in (None, "dead") or not dead or "rule" in wanted)
        and ("rule" not in wanted or wanted["rule"] in rules)
        and ("text" not in wanted or record.seq in saying)
    )


@pytest.mark.parametrize("few", [1, 8, 100], ids=["all are many", "some are few", "all are few"])
def test_every_search_finds_what_a_reading_of_all_finds(
    store: AuditStore, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone and together, page by page, among indexed and other messages, by each of the ways that a search may take."""
    for name, value in {
        "_FEW": 2 * few,
        "_READ": few,
        "_CHUNK": 7,
        "_STEP": 3,
        "_MOST": 9,
        "_PAGE": 4,
    }.items():
        monkeypatch.setattr(search, name, value)
    from orchestrator.audit.database import DEAD_LETTERS
    from orchestrator.audit.text import text_of
    from orchestrator.audit.words import has_words, words_of

    everything = store.messages()
    texts = {r.seq: text_of(r.xml) for r in everything}
    rules: dict[tuple[str, str], set[str]] = {}
    for row in store.query(DEAD_LETTERS.select()):
        rules.setdefault((row.stream, row.entry_id), set()).add(row.rule)
    reader, hits = AuditReader(store), 0
    for wanted in asked(random.Random(few)):
        phrase = words_of(wanted.get("text", ""))
        saying = {seq for seq, text in texts.items() if phrase and has_words(text, phrase)}
        expected = [
            r for r in everything if meets(r, wanted, saying, rules.get((r.stream, r.entry_id), set()))
        ]
        by_number = wanted.keys() == {"text"}
        expected.sort(key=lambda r: (0 if by_number else r.published_ms, r.seq), reverse=True)
        whole = reader.search(**wanted, limit=1000)
        assert [r.seq for r in whole] == [r.seq for r in expected], wanted
        assert whole == expected
        pages: list[MessageRecord] = []
        while page := reader.search(**wanted, limit=17, before=pages[-1].seq if pages else None):
            pages += page
        assert pages == expected, wanted
        hits += bool(expected)
    assert hits > 40


@pytest.mark.parametrize(
    "text",
    [
        "the cat " * 2000 + "saw the white rabbit",
        " ".join(f"{number:0128x}" for number in range(12_000)) + " the white rabbit",
        "cat " * 1_000_000 + "saw the white rabbit",
        "\n".join(f"INFO request {number} ok" for number in range(250_000)) + " the white rabbit",
    ],
    ids=["one word is frequent", "words are long", "one word only", "a log"],
)
def test_a_phrase_at_the_end_of_a_long_text_is_found(trail_database: TrailDatabase, text: str) -> None:
    """PostgreSQL keeps few places of one word, and takes few octets in a row of its index."""
    store = AuditStore(trail_database.where)
    store.add([read_entry(Entry(StreamId(0, "message", "normal"), "1-1", text.encode(), {}), received_ms=1)])
    assert store.index(1) == 1
    assert [found.seq for found in AuditReader(store).search(text="the white rabbit")] == [1]
    assert AuditReader(store).search(text="the white cat") == []
