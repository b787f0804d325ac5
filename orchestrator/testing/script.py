"""Scripts: what a scripted provider answers to which request.

The same conversation gets the same answer, however often it is asked for: after a crash, a request that is sent again
is answered as the first one was.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping

from orchestrator.testing.replies import Cut, Empty, Fail, Hang, Reply, Request, Say

#: Decides what a request is answered with.
Decide = Callable[[Request], Reply]
#: What a conversation that went on after the end of its script is answered with.
_BEYOND = Say("The script has ended.")
#: Replies after which the client asks again, with the same conversation.
_FAILURES = (Fail, Hang, Cut, Empty)


class Script:
    """A conversation: its replies in order.

    A failure is followed by the next reply when the client asks again.
    """

    def __init__(self, *replies: Reply | Callable[[Request], Reply]) -> None:
        self._replies = replies
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Reply:
        """Return the reply to a request, by how many answers its conversation has so far."""
        turns: list[list[Reply | Callable[[Request], Reply]]] = [[]]
        for reply in self._replies:
            turns[-1].append(reply)
            if not isinstance(reply, _FAILURES):
                turns.append([])
        if request.turn >= len(turns) or not turns[request.turn]:
            return _BEYOND
        options = turns[request.turn]
        with self._lock:
            conversation = f"{request.turn}:{request.messages[0].text if request.messages else ''}"
            asked = self._asked[conversation]
            self._asked[conversation] += 1
        reply = options[min(asked, len(options) - 1)]
        return reply(request) if callable(reply) else reply


class ByInstructions:
    """A script for each agent of a tree, found by words of its instructions."""

    def __init__(self, scripts: Mapping[str, Decide]) -> None:
        self._scripts = scripts

    def __call__(self, request: Request) -> Reply:
        """Return the reply of the first script whose words are in the instructions."""
        for words, script in self._scripts.items():
            if words in request.instructions:
                return script(request)
        return Fail(400, f"no script for these instructions: {request.instructions[:200]!r}")
