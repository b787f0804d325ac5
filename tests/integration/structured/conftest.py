"""A stack in the process, and what was published in a conversation of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.envelope.codec import decode
from orchestrator.envelope.model import AgentMessage
from orchestrator.redisdb.client import connect
from orchestrator.testing import InProcessStack

Published = Callable[[InProcessStack, str], list[AgentMessage]]


@pytest.fixture
def published() -> Published:
    """All messages of a session's conversation that stand in the streams, in the order of their times, then of what each follows on."""

    def read(stack: InProcessStack, session: str) -> list[AgentMessage]:
        conversation = stack.client.session(session).correlation
        client = connect(stack.settings.redis_url, check=False)
        try:
            found = []
            for key in client.scan_iter("ao:*:msg:*"):
                for entry, fields in client.xrange(key):
                    message = decode(fields[b"envelope"])
                    if message.conversation_id == conversation:
                        ms, _, seq = entry.decode().partition("-")
                        found.append(((int(ms), len(message.header.conversation_chain), int(seq)), message))
        finally:
            client.close()
        return [message for _, message in sorted(found, key=lambda pair: pair[0])]

    return read
