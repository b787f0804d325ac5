"""Messages as an audit trail has them after a month: who says what to whom, how often, in words as people use them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import accumulate

from orchestrator.audit.records import DeadRecord, MessageRecord, read_entry
from orchestrator.streams import Entry, StreamId

#: Milliseconds from the first message to the last: thirty days.
SPAN_MS = 30 * 24 * 3600 * 1000
BEGIN_MS = 1_790_000_000_000
#: Messages of a conversation, and of a task.
CONVERSATION, TASK = 50, 5
#: One message in so many is of the kind that a search for something rare finds.
RARE = 10_000
#: A word that only those have.
RARE_WORD = "zanzibar"
RARE_RULE = "clock-skew"
#: Different texts, but for one word of each message.
_TEXTS = 20_000
_RULES = ("expired", "schema", "signature-unknown")
_SYLLABLES = ("ba", "do", "fe", "gu", "hi", "ka", "lo", "me", "nu", "pi", "ra", "so", "te", "vu", "wi", "za")
_NAMESPACE = "http://agent-orchestra.local/protocol/1.0"
#: Base64 of the length of a signature by Ed25519.
_SIGNATURE = "kX3v" * 21 + "kX=="


def vocabulary() -> list[str]:
    """50,000 words, the most frequent ones short."""
    words, size = [""], len(_SYLLABLES)
    for word in words:
        words += [word + syllable for syllable in _SYLLABLES]
        if len(words) > size**4:
            return words[1:50_001]
    return words


def agents() -> list[str]:
    """Forty names, the busiest first."""
    return [f"agent-{number}" for number in range(40)]


class Messages:
    """Makes the records of a trail, the same ones for the same seed."""

    def __init__(self, count: int, *, seed: int = 20261122) -> None:
        self.count = count
        self._chance = random.Random(seed)
        self._words = vocabulary()
        # How often a word is used falls with its rank, as in any language (Zipf).
        self._weights = list(accumulate(1 / (rank + 2) for rank in range(len(self._words))))
        self._texts = [self._new_text() for _ in range(_TEXTS)]
        self._agents = agents()
        self._busy = list(accumulate(1 / (rank + 1) for rank in range(len(self._agents))))
        self.dead: list[DeadRecord] = []

    def batches(self, size: int) -> Iterator[tuple[list[MessageRecord], list[DeadRecord]]]:
        """All of them, with the dead letters among them."""
        for start in range(0, self.count, size):
            records = [self._record(number) for number in range(start, min(start + size, self.count))]
            dead, self.dead = self.dead, []
            yield records, dead

    def common_word(self) -> str:
        """A word that most messages have."""
        return self._words[0]

    def usual_words(self) -> Sequence[str]:
        """Words that some messages in a hundred or a thousand have."""
        return self._words[200:2000:90]

    def _record(self, number: int) -> MessageRecord:
        chance = self._chance
        rare = number % RARE == RARE // 2
        kind, priority = ("escalation", "critical") if rare else self._kind(chance.random())
        at_ms = BEGIN_MS + number * SPAN_MS // self.count
        text = self._text(rare)
        sender, recipient = chance.choices(self._agents, cum_weights=self._busy, k=2)
        stream = StreamId(0, kind, priority)
        entry = Entry(stream, f"{at_ms}-0", self._xml(number, kind, sender, recipient, text), {})
        if rare or number % 200 == 7:
            entry = Entry(stream, entry.id, entry.data, {"attempt": "3" if rare else "2"})
        if number % 500 == 3 or rare:
            self.dead.append(self._death(number, entry, RARE_RULE if rare else _RULES[number % 3], at_ms))
        return read_entry(entry, received_ms=at_ms + 300)

    @staticmethod
    def _kind(share: float) -> tuple[str, str]:
        kind = "status-update" if share < 0.5 else "task-completion" if share < 0.75 else "task-delegation"
        priority = "low" if share < 0.02 else "high" if share > 0.9 else "normal"
        return kind, priority

    def _text(self, rare: bool) -> str:
        """One of the texts, with a name of a file that no other message has."""
        name = f"{self._chance.getrandbits(40):x}.py"
        return f"{self._chance.choice(self._texts)} {name}{' ' + RARE_WORD if rare else ''}"

    def _new_text(self) -> str:
        length = self._chance.choice((40, 80, 80, 120, 200))
        return " ".join(self._chance.choices(self._words, cum_weights=self._weights, k=length))

    def _xml(self, number: int, kind: str, sender: str, recipient: str, text: str) -> bytes:
        conversation = number // CONVERSATION * CONVERSATION
        task = f"<task-id>{task_of(number)}</task-id>"
        body = {
            "status-update": f"{task}<status>in-progress</status><current-activity>{text}</current-activity>",
            "task-completion": f"{task}<status>{'failed' if number % 50 == 1 else 'success'}</status>"
            f"<summary>done</summary><result>{text}</result>",
            "task-delegation": f"<task>{task}<title>review</title><description>{text}</description></task>",
            "escalation": f"<escalation>{task}<title>stuck</title><description>{text}</description></escalation>",
        }[kind]
        chain = (
            f'<conversation-chain><message-ref index="0">{message_id(number - 1)}</message-ref></conversation-chain>'
            if number > conversation
            else ""
        )
        parties = "".join(
            f"<{tag}><agent-name>{name}</agent-name><agent-role>specialist</agent-role></{tag}>"
            for tag, name in (("sender", sender), ("recipient", recipient))
        )
        return (
            f'<agent-message xmlns="{_NAMESPACE}" version="1.0"><header><message-id>{message_id(number)}</message-id>'
            f"<timestamp>2026-11-22T10:00:00Z</timestamp>{parties}"
            f"<correlation-id>{message_id(conversation)}</correlation-id>{chain}</header>"
            f'<body type="{kind}">{body}</body><signature><algorithm>Ed25519</algorithm><signer>{sender}</signer>'
            "<timestamp>2026-11-22T10:00:00Z</timestamp><public-key-id>key_1</public-key-id>"
            f"<signature-value>{_SIGNATURE}</signature-value></signature></agent-message>"
        ).encode()

    @staticmethod
    def _death(number: int, entry: Entry, rule: str, at_ms: int) -> DeadRecord:
        return DeadRecord(
            dead_id=f"00-{at_ms}-{number}",
            stream=str(entry.stream),
            entry_id=entry.id,
            rule=rule,
            reason="it was refused",
            attempts=1,
            at_ms=at_ms,
            received_ms=at_ms + 300,
        )


def message_id(number: int) -> str:
    """The id of a message, without order, as random ones are."""
    mixed = number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128)
    digits = f"{mixed:032x}"
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:]}"


def task_of(number: int) -> str:
    """The session that a message is about."""
    return f"ses_00{number // TASK * 0x9E3779B97F4A7C15 % (1 << 96):024x}"
